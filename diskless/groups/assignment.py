"""What an assignor of partitions is given, and what it gives.

Values and one Protocol; the assignors themselves are in `diskless.groups.assignors`.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

TopicPartitions = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions."""


class MemberSubscription(NamedTuple):
    """What one member wants."""

    instance_id: str | None
    rack_id: str | None
    """Not looked at: every broker serves every partition, so partitions have no rack."""
    topics: frozenset[UUID]
    """Ids of topics that exist; patterns are resolved."""


class Assignor(Protocol):
    """Decides which member reads which partition; a pure and deterministic function."""

    @property
    def name(self) -> str:
        """What members ask for it by."""
        ...

    def assign(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[UUID, int],
        current: Mapping[str, TopicPartitions],
        topic_names: Mapping[UUID, str],
    ) -> dict[str, dict[UUID, frozenset[int]]]:
        """Give every partition of a topic that somebody subscribes to exactly one of those members.

        `members` by member id; `partitions` is the number of partitions of each topic; `current`
        is what members have now, of which whatever does not fit any more is passed over;
        `topic_names` only decides an order. Every member is a key of the result; no topic in it is
        without partitions.
        """
        ...


def topics_in_order(
    partitions: Mapping[UUID, int], topic_names: Mapping[UUID, str]
) -> list[tuple[UUID, int]]:
    """Topics that have partitions, with how many, by name."""
    return sorted(
        ((topic_id, count) for topic_id, count in partitions.items() if count > 0),
        key=lambda one: (topic_names.get(one[0], ""), one[0]),
    )
