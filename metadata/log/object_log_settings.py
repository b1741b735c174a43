"""The configuration section of a metadata log in an object store."""

from dataclasses import dataclass

from wal.settings import setting
from wal.stores.retry import RetryLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLogSettings:
    """How the metadata log uses its object store."""

    lease_ms: int = setting(
        "diskless.coordinator.lease.ms",
        1_500,
        minimum=100,
        maximum=600_000,
        why="the same on all brokers; shorter: an idle leader appends more often to keep it;"
        " longer: a new leader waits longer after the old one died",
    )
    prune_delay_ms: int = setting(
        "diskless.coordinator.prune.delay.ms",
        60_000,
        minimum=1_000,
        maximum=3_600_000,
        why="the same on all brokers; how long the last objects of a log stay; shorter: an append"
        " or a strict read after that long a silence costs a LIST; longer: more old objects stay",
    )
    batch_max_bytes: int = setting(
        "diskless.coordinator.log.batch.max.bytes",
        32 << 20,
        minimum=16 << 10,
        maximum=128 << 20,
        why="lower: the commit of a file with very many batches is refused; higher: more memory"
        " for one metadata record batch, here and in readers of the log",
    )
    cache_bytes: int = setting(
        "diskless.coordinator.log.cache.bytes",
        8 << 20,
        minimum=0,
        maximum=1 << 30,
        why="recent objects of each metadata partition; lower: followers and consumers of the"
        " metadata topic cost requests to the store; higher: memory",
    )
    attempts_max: int = setting(
        "diskless.coordinator.log.attempts.max",
        8,
        minimum=1,
        maximum=1_000,
        why="how often an append of unknown outcome is put again; fewer: leadership changes with"
        " every hiccup; more: clients wait longer for an answer",
    )
    retry_first_delay_ms: int = setting(
        "diskless.coordinator.log.retry.first.delay.ms",
        50,
        minimum=1,
        maximum=60_000,
        why="shorter: attempts meet the same hiccup; longer: each hiccup costs more latency",
    )
    retry_delay_max_ms: int = setting(
        "diskless.coordinator.log.retry.delay.max.ms",
        2_000,
        minimum=1,
        maximum=60_000,
        why="shorter: more load on a store in trouble; longer: goes on later after an outage",
    )
    retry_deadline_ms: int = setting(
        "diskless.coordinator.log.retry.deadline.ms",
        30_000,
        minimum=1,
        maximum=3_600_000,
        why="as attempts.max, in time",
    )

    def retry_limits(self) -> RetryLimits:
        return RetryLimits(
            attempts_max=self.attempts_max,
            first_delay_ms=self.retry_first_delay_ms,
            delay_max_ms=self.retry_delay_max_ms,
            deadline_ms=self.retry_deadline_ms,
        )
