"""The configuration section of consumer groups, with Kafka's names and defaults."""

from collections.abc import Sequence
from dataclasses import dataclass

from wal.errors import InvalidSettings
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
    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        45_000,
        minimum=1,
        why="of members of KIP-848 groups; lower: thrown out after shorter pauses; higher: a dead "
        "member keeps its partitions for longer",
    )
    consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        45_000,
        minimum=1,
        why="the broker does not start with a shorter group.consumer.session.timeout.ms",
    )
    consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        60_000,
        minimum=1,
        why="the broker does not start with a longer group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        minimum=1,
        why="how often members of KIP-848 groups are told to send heartbeats; lower: faster "
        "rebalances, more requests; higher: each step of a rebalance takes longer",
    )
    consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        minimum=1,
        why="the broker does not start with a shorter group.consumer.heartbeat.interval.ms",
    )
    consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        minimum=1,
        why="the broker does not start with a longer group.consumer.heartbeat.interval.ms",
    )
    consumer_max_size: int = setting(
        "group.consumer.max.size",
        10_000,
        minimum=1,
        maximum=2**31 - 1,
        why="members of one KIP-848 group; the memory, what is stored and the time of a rebalance "
        "grow with it",
    )
    consumer_assignors: str = setting(
        "group.consumer.assignors",
        "uniform,range",
        choices=("uniform,range", "range,uniform", "uniform", "range"),
        why="what members of KIP-848 groups can ask for; the first one is used when they do not",
    )
    consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "bidirectional",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        why="whether a classic group with members becomes a KIP-848 group when one that speaks its "
        "protocol comes (upgrade), and one again when the last of these goes (downgrade)",
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

    @property
    def assignors(self) -> Sequence[str]:
        """The names that members may ask for, the default first."""
        return self.consumer_assignors.split(",")

    @property
    def may_upgrade(self) -> bool:
        return self.consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        return self.consumer_migration_policy in ("bidirectional", "downgrade")

    def __post_init__(self) -> None:
        """Raises: InvalidSettings."""
        for what in ("session.timeout", "heartbeat.interval"):
            field = what.replace(".", "_")
            value: int = getattr(self, f"consumer_{field}_ms")
            lowest: int = getattr(self, f"consumer_min_{field}_ms")
            highest: int = getattr(self, f"consumer_max_{field}_ms")
            if not lowest <= value <= highest:
                raise InvalidSettings(
                    f"group.consumer.{what}.ms={value}: must be between "
                    f"group.consumer.min.{what}.ms={lowest} and "
                    f"group.consumer.max.{what}.ms={highest}"
                )
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            raise InvalidSettings(
                "group.consumer.heartbeat.interval.ms: must be shorter than "
                "group.consumer.session.timeout.ms"
            )
