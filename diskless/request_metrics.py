"""Counts what happens in a broker on Prometheus's own types: requests, and the loop's lag.

They need histograms; everything else is read from components at a scrape (`broker_metrics`).
"""

from collections.abc import Callable
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
"""5 ms of the loop's lag is what is promised; above 100 ms somebody is named in the log."""
_LATENCY_BUCKETS_S: Final = (*_SHORT_S, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG_BUCKETS_S: Final = (*_SHORT_S, 1.0, 5.0)


class RequestMetrics:
    """`ServerMetrics` on Prometheus's own types: they need a histogram."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._connections = Gauge(
            "diskless_connections", "Open client connections", registry=registry
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
        received = Counter(
            "diskless_request_bytes", "Bytes of requests, by API", ["api"], registry=registry
        )
        sent = Counter(
            "diskless_response_bytes", "Bytes of responses, by API", ["api"], registry=registry
        )
        seconds = Histogram(
            "diskless_request_seconds",
            "From the last byte of a request to its answer, by API",
            ["api"],
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        # Looked up once an API: a look-up takes a lock.
        self._received_of: Callable[[str], Counter] = cache(received.labels)
        self._sent_of: Callable[[str], Counter] = cache(sent.labels)
        self._seconds_of: Callable[[str], Histogram] = cache(seconds.labels)

    def connection_opened(self) -> None:
        self._connections.inc()

    def connection_closed(self) -> None:
        self._connections.dec()

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def connection_cut(self, reason: str) -> None:
        self._cut.labels(reason).inc()

    def request_received(self, api: str, size_bytes: int) -> None:
        self._received_of(api).inc(size_bytes)

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        self._sent_of(api).inc(size_bytes)
        self._seconds_of(api).observe(seconds)


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
