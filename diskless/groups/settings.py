"""The section of the configuration that consumer groups read. Names and defaults are Kafka's."""

from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times of consumer groups and of the offsets they commit."""

    min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6_000,
        minimum=1,
        why="lower: members may be thrown out after shorter pauses; higher: clients that ask for "
        "less are refused",
    )
    max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        1_800_000,
        minimum=1,
        why="higher: a dead member may keep its partitions for that long",
    )
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3_000,
        minimum=0,
        why="an empty group waits that long for more members before its first rebalance; lower: "
        "more rebalances when many start at once; higher: the first record comes later",
    )
    max_size: int = setting(
        "group.max.size",
        10_000,
        minimum=1,
        maximum=2**31 - 1,
        why="members of one group; the memory and the time of a rebalance grow with it",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        4_096,
        minimum=0,
        maximum=2**15 - 1,
        why="text a consumer may leave beside each offset",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        10_080,
        minimum=1,
        maximum=2**31 - 1,
        why="offsets of a group without members are forgotten after that; lower: a consumer that "
        "was away starts from the beginning or the end",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        600_000,
        minimum=1,
        why="how often offsets and groups that nobody uses any more are looked for",
    )
