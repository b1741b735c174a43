"""Holds the limits of `/readyz`, apart from its code."""

from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When a broker is not ready because of its object store."""

    store_unreached_max_ms: int = setting(
        "object.store.unreached.max.ms",
        30_000,
        minimum=100,
        maximum=3_600_000,
        why="shorter: a hiccup of the store takes brokers out of service, all of them at once; "
        "longer: clients are sent to one that acknowledges nothing",
    )
    store_probe_interval_ms: int = setting(
        "object.store.probe.interval.ms",
        10_000,
        minimum=10,
        maximum=600_000,
        why="how often a store is asked for one small object when nothing else was asked of it; "
        "shorter: more requests; longer than object.store.unreached.max.ms: never ready when idle",
    )
