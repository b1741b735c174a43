"""The configuration section about deleting old data and forgetting silent producers."""

from dataclasses import dataclass
from typing import Final

from wal.settings import setting

_WEEK_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Defaults of topics that set nothing themselves, and the pace of the background workers."""

    retention_ms: int = setting(
        "log.retention.ms",
        _WEEK_MS,
        minimum=-1,
        why="age at which records are deleted in topics without retention.ms; -1: never",
    )
    retention_bytes: int = setting(
        "log.retention.bytes",
        -1,
        minimum=-1,
        why="bytes that stay at least in each partition of topics without retention.bytes; older "
        "records are deleted; -1: no limit",
    )
    cleanup_policy: str = setting(
        "log.cleanup.policy",
        "delete",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        why="what happens to old records in topics without cleanup.policy; without delete, nothing "
        "is deleted by age or size",
    )
    check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        5 * 60_000,
        minimum=1,
        why="pause between two passes over all partitions; lower: more look-ups; higher: old "
        "records stay that much longer",
    )
    step_rows_max: int = setting(
        "diskless.retention.step.rows.max",
        500,
        minimum=1,
        maximum=10_000,
        why="metadata rows deleted in one step, of a partition and in all; lower: passes take "
        "longer; higher: commits wait longer for a step, some 10 microseconds a row",
    )
    sweep_interval_ms: int = setting(
        "diskless.sweep.interval.ms",
        5_000,
        minimum=1,
        why="how often it is looked whether a deleted topic has left metadata rows behind",
    )
    producer_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        10 * 60_000,
        minimum=1,
        why="pause between two looks for producers that were silent for producer.id.expiration.ms; "
        "higher: their rows stay that much longer",
    )


DEFAULT_RETENTION: Final = RetentionSettings()
