"""Prometheus metrics: a table of what there is, read at scrape time.

Components keep plain counters and give them as frozen `statistics()` values; tests read the same
values. This module maps them to metric names and serves them over HTTP. Nothing on the hot path
knows Prometheus.

Names end in their unit; counters end in `_total`. "Age of the last success" gauges are what tells a
stuck part from an idle one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge"]
Samples = Mapping[tuple[str, ...], float]

NO_LABELS: Final[tuple[str, ...]] = ()


class MetricSource(NamedTuple):
    """One metric: its name without `_total`, and where its samples come from.

    `read` gives a number per tuple of label values; `()` when there are no labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Samples]


def plain(name: str, kind: Kind, help_text: str, read: Callable[[], float]) -> MetricSource:
    """A metric without labels."""
    return MetricSource(name, kind, help_text, NO_LABELS, lambda: {NO_LABELS: read()})


class _StatisticsCollector(Collector):
    """Reads every source at each scrape; runs in the HTTP server's thread."""

    def __init__(self, sources: Sequence[MetricSource]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        """Empty: registering must not read components that are still starting."""
        return ()

    def _families(self) -> Iterator[Metric]:
        for source in self._sources:
            family_type = CounterMetricFamily if source.kind == "counter" else GaugeMetricFamily
            family = family_type(source.name, source.help, labels=source.labels)
            for label_values, value in source.read().items():
                family.add_metric(list(label_values), value)
            yield family


class MetricsServer:
    """The `/metrics` endpoint. Serves from a thread of its own until `close`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        sources: Sequence[MetricSource],
        *,
        host: str,
        port: int,
    ) -> None:
        """`registry` holds what counts by itself. Raises OSError when it cannot listen there."""
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(_StatisticsCollector(sources))
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.host = host
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
