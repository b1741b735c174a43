"""Prometheus metrics: a table of what there is, read at scrape time.

Components keep plain counters and give them as frozen `statistics()` values; tests read the same
values. This module maps them to metric names and renders the page that `diskless.broker_http`
serves. Nothing on the hot path knows Prometheus.

Names end in their unit; counters end in `_total`. "Age of the last success" gauges are what tells a
stuck part from an idle one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from diskless.shared.merged_metrics import MergedPages
from wal.clock import Clock, Sleep

Kind = Literal["counter", "gauge"]
Samples = Mapping[tuple[str, ...], float]

_Part = TypeVar("_Part")

REST_SHARE: Final = 4
"""Rendering takes at most a fifth of the time."""


class MetricSource(NamedTuple):
    """One metric: its name without `_total`, and where its samples come from.

    `read` gives a number per tuple of label values; `()` when there are no labels.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Samples]


class MetricsOf(Generic[_Part]):
    """Makes the metrics that are read from one part of a broker, which is asked for at a scrape."""

    def __init__(self, part: Callable[[], _Part]) -> None:
        self._part = part

    def gauge(self, name: str, meaning: str, read: Callable[[_Part], float]) -> MetricSource:
        return self._source("gauge", name, meaning, read)

    def counter(self, name: str, meaning: str, read: Callable[[_Part], float]) -> MetricSource:
        return self._source("counter", name, meaning, read)

    def gauges(
        self, name: str, label: str, meaning: str, read: Callable[[_Part], Mapping[str, float]]
    ) -> MetricSource:
        """One gauge per value of `label`."""
        return self._source("gauge", name, meaning, read, label)

    def counters(
        self, name: str, label: str, meaning: str, read: Callable[[_Part], Mapping[str, float]]
    ) -> MetricSource:
        """One counter per value of `label`."""
        return self._source("counter", name, meaning, read, label)

    def _source(
        self,
        kind: Kind,
        name: str,
        meaning: str,
        read: Callable[[_Part], float | Mapping[str, float]],
        *labels: str,
    ) -> MetricSource:
        def samples() -> Samples:
            found = read(self._part())
            if isinstance(found, Mapping):
                return {(value,): number for value, number in found.items()}
            return {(): found}

        return MetricSource(name, kind, meaning, labels, samples)


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


class MetricsPage:
    """The page of `/metrics`; rendered by one at a time, and not all the time.

    A page costs milliseconds of the one lock that all Python threads share. So that nobody slows a
    broker down by asking again and again, the next page waits REST_SHARE times as long as the last
    one took.
    """

    def __init__(
        self, registry: CollectorRegistry, *, clock: Clock, sleep: Sleep = asyncio.sleep
    ) -> None:
        """`registry` holds what counts by itself; `add` makes it complete."""
        self._sleep = sleep
        self._registry = registry
        self._clock = clock
        self._turn = asyncio.Lock()
        self._rests_until = 0.0
        self._others: Callable[[], Coroutine[Any, Any, Mapping[str, bytes | None]]] | None = None
        self._merged = MergedPages()
        self._loop: asyncio.AbstractEventLoop | None = None
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def add(self, sources: Sequence[MetricSource]) -> None:
        """Show what is read from components, once they are there; any thread may call it."""
        self._registry.register(_StatisticsCollector(sources))

    def merge_with(
        self, others: Callable[[], Coroutine[Any, Any, Mapping[str, bytes | None]]]
    ) -> None:
        """Show what other processes of this broker count as well; see `MergedPages.merge`.

        Called on the event loop on which `others` is to run.
        """
        self._loop = asyncio.get_running_loop()
        self._others = others

    async def render(self, accept: str) -> tuple[str, bytes]:
        """(content type, page) in the format that `accept` prefers."""
        encode, content_type = choose_encoder(accept)
        async with self._turn:
            await self._sleep(max(self._rests_until - self._clock.monotonic(), 0))
            started = self._clock.monotonic()
            if self._others is None or self._loop is None:
                page = encode(self._registry)
            else:
                asked = asyncio.run_coroutine_threadsafe(self._others(), self._loop)
                pages = await asyncio.wrap_future(asked)
                own = generate_latest(self._registry)
                content_type, page = await asyncio.to_thread(
                    self._merged.merge, {"head": own, **pages}, accept
                )
            ended = self._clock.monotonic()
            self._rests_until = ended + REST_SHARE * (ended - started)
        return content_type, page
