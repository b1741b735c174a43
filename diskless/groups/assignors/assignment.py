"""The input and the result of an assignor of partitions; the assignors are in `assignors`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from diskless.loop.long_work import Steps, collected, in_order

TopicPartitions = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions."""

Targets = dict[str, dict[UUID, frozenset[int]]]
"""What an assignor gives: topic id -> partitions, by member id."""


class MemberSubscription(NamedTuple):
    """What one member wants."""

    instance_id: str | None
    rack_id: str | None
    """Not looked at: every broker serves every partition, so partitions have no rack."""
    topics: frozenset[UUID]
    """Ids of topics that exist; patterns are resolved.

    Members that want the same should have the same object: two large sets take long to compare.
    """


class Assignor(Protocol):
    """Decides which member reads which partition; a pure and deterministic function, in steps.

    What it is given does not change while it decides.
    """

    @property
    def name(self) -> str:
        """The name by which members ask for it."""
        ...

    def assign(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[UUID, int],
        current: Mapping[str, TopicPartitions],
        topic_names: Mapping[UUID, str],
    ) -> Steps[Targets]:
        """Give every partition of a topic that somebody subscribes to exactly one of those members.

        `members` by member id; `partitions` is the number of partitions of each topic; `current`
        is what members have now, of which whatever does not fit any more is passed over;
        `topic_names` only decides an order. Every member is a key of the result; no topic in it is
        without partitions.
        """
        ...


def topics_in_order(
    partitions: Mapping[UUID, int], topic_names: Mapping[UUID, str]
) -> Steps[list[tuple[UUID, int]]]:
    """Topics that have partitions, with how many, by name."""
    named = yield from collected(
        (topic_names.get(topic_id, ""), topic_id, count)
        for topic_id, count in partitions.items()
        if count > 0
    )
    return [(topic_id, count) for _, topic_id, count in (yield from in_order(named))]


class AlikeTopics(NamedTuple):
    """Topics with the same readers."""

    readers: Sequence[int]
    """Members by number, ascending; never empty."""
    topics: list[tuple[UUID, int]]
    """Ids with how many partitions, in the order in which they were given."""


def topics_by_readers(
    members: Sequence[MemberSubscription], topics: Sequence[tuple[UUID, int]]
) -> Steps[list[AlikeTopics]]:
    """Put together the topics that the same members want, without those that nobody wants."""
    # Most members of a group want the same, so what they want is looked at once for all of them.
    wanting: dict[frozenset[UUID], list[int]] = defaultdict(list)
    for number, member in enumerate(members):
        wanting[member.topics].append(number)
    crowds = list(wanting.values())
    crowds_of: dict[UUID, list[int]] = defaultdict(list)
    for crowd, wanted in enumerate(wanting):
        for topic_id in wanted:
            crowds_of[topic_id].append(crowd)
            yield
    alike: dict[tuple[int, ...], AlikeTopics] = {}
    for topic in topics:
        yield
        readers = tuple(crowds_of.get(topic[0], ()))
        if not readers:
            continue
        if readers not in alike:
            numbers = sorted(number for crowd in readers for number in crowds[crowd])
            alike[readers] = AlikeTopics(numbers, [])
        alike[readers].topics.append(topic)
    return list(alike.values())
