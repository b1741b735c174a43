"""Counts what happens in a broker on Prometheus's own types: requests, and the loop's lag.

They need histograms; everything else is read from components at a scrape (`broker_metrics`).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
"""5 ms of the loop's lag is what is promised; above 100 ms somebody is named in the log."""
_LATENCY_BUCKETS_S: Final = (*_SHORT_S, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCY_BOUNDS: Final = [*map(floatToGoString, _LATENCY_BUCKETS_S), "+Inf"]
_LAG_BUCKETS_S: Final = (*_SHORT_S, 1.0, 5.0)


class _Totals:
    """What was counted of one API."""

    __slots__ = ("answers", "received_bytes", "seconds", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.seconds = 0.0
        self.answers = [0] * len(_LATENCY_BOUNDS)
        """By the bucket that their latency is in."""


class RequestMetrics(Collector):
    """`ServerMetrics` for Prometheus.

    Requests are counted in plain numbers, which are made into metrics at a scrape: each of
    Prometheus's own counters takes a lock, and a request counts in four of them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._handshakes = Counter(
            "diskless_tls_handshakes",
            "TLS handshakes, by listener and by how they ended",
            ["listener", "result"],
            registry=registry,
        )
        self._refused = Counter(
            "diskless_connections_refused",
            "Connections closed before anything was read, by limit",
            ["reason"],
            registry=registry,
        )
        self._cut = Counter(
            "diskless_connections_cut",
            "Connections closed by the broker, by reason",
            ["reason"],
            registry=registry,
        )
        self._totals: defaultdict[str, _Totals] = defaultdict(_Totals)
        registry.register(self)

    def handshake_ended(self, listener: str, result: str) -> None:
        self._handshakes.labels(listener, result).inc()

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def connection_cut(self, reason: str) -> None:
        self._cut.labels(reason).inc()

    def request_received(self, api: str, size_bytes: int) -> None:
        self._totals[api].received_bytes += size_bytes

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        totals = self._totals[api]
        totals.sent_bytes += size_bytes
        totals.seconds += seconds
        totals.answers[bisect_left(_LATENCY_BUCKETS_S, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        """The metrics of requests, for a scrape."""
        received = CounterMetricFamily(
            "diskless_request_bytes", "Bytes of requests, by API", labels=["api"]
        )
        sent = CounterMetricFamily(
            "diskless_response_bytes", "Bytes of responses, by API", labels=["api"]
        )
        seconds = HistogramMetricFamily(
            "diskless_request_seconds",
            "From the last byte of a request to its answer, by API",
            labels=["api"],
        )
        for api, totals in [*self._totals.items()]:
            received.add_metric([api], totals.received_bytes)
            sent.add_metric([api], totals.sent_bytes)
            answers = zip(_LATENCY_BOUNDS, accumulate(totals.answers), strict=True)
            seconds.add_metric([api], [*answers], totals.seconds)
        yield from (received, sent, seconds)


class LoopLag:
    """`diskless.loop.loop_watch.LoopMetrics` on Prometheus's own types."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Histogram(
            "diskless_event_loop_lag_seconds",
            "How long the event loop took to serve what was handed to it, 40 samples a second",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )
        self._stalls = Counter(
            "diskless_event_loop_stalls",
            "Callbacks that held the event loop past loop.stall.warn.ms of processor time",
            registry=registry,
        )

    def served_after(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def stalled(self) -> None:
        self._stalls.inc()
