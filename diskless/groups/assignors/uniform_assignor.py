"""The assignor `uniform`: gives members equal shares and moves the fewest partitions that allows.

Members with the same subscriptions get as many partitions as any other, or one more. Members with
different ones get as even shares as their subscriptions allow: nobody could give a partition to
somebody with two less, directly or over others. Among all assignments that are as even, it takes
one that moves the fewest partitions. `diskless.groups.assignors.fair_shares` finds how many each
member gets; which ones is decided here: what a member has stays, the rest is dealt in turn in the
order of topics, so that a topic is spread over many members.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignment import (
    AlikeTopics,
    MemberSubscription,
    Targets,
    TopicPartitions,
    topics_by_readers,
    topics_in_order,
)
from diskless.groups.assignors.fair_shares import Kind, fair_shares
from diskless.loop.long_work import Steps, in_order

_DEALT_AT_ONCE: Final = 1_000
"""Partitions of one topic."""


class UniformAssignor:
    """See the module; an `Assignor`."""

    name: Final = "uniform"

    def assign(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[UUID, int],
        current: Mapping[str, TopicPartitions],
        topic_names: Mapping[UUID, str],
    ) -> Steps[Targets]:
        ordered = sorted(members)
        topics_by_name = yield from topics_in_order(partitions, topic_names)
        kinds = yield from topics_by_readers([members[one] for one in ordered], topics_by_name)
        kind_of_topic: dict[UUID, int] = {}
        for number, kind in enumerate(kinds):
            for topic_id, _ in kind.topics:
                kind_of_topic[topic_id] = number
                yield
        owned = yield from _owned(ordered, members, partitions, current, kind_of_topic)
        shares = yield from fair_shares(
            [Kind(kind.readers, sum(count for _, count in kind.topics)) for kind in kinds],
            [
                {kind: sum(len(has) for _, has in topics) for kind, topics in mine.items()}
                for mine in owned
            ],
        )
        given: list[dict[UUID, list[int]]] = [defaultdict(list) for _ in ordered]
        for number, kind in enumerate(kinds):
            yield from _deal(number, kind, owned, shares, given)
        result: Targets = {}
        for member_id, topics in zip(ordered, given, strict=True):
            target = result[member_id] = {}
            for topic_id, mine in topics.items():
                target[topic_id] = frozenset(mine)
                yield
        return result


_Owned = dict[int, list[tuple[UUID, list[int]]]]
"""By kind: topic ids and partitions."""


def _owned(
    ordered: Sequence[str],
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    current: Mapping[str, TopicPartitions],
    kind_of_topic: Mapping[UUID, int],
) -> Steps[Sequence[_Owned]]:
    """What of each member's present assignment still fits."""
    taken: dict[UUID, bytearray] = {}
    for topic_id in kind_of_topic:
        taken[topic_id] = bytearray(partitions[topic_id])
        yield
    result: list[_Owned] = []
    for member_id in ordered:
        mine: _Owned = defaultdict(list)
        has = current.get(member_id, {})
        wanted = members[member_id].topics
        # By their numbers, because ids compare in Python.
        for topic_id in (yield from in_order(has, key=attrgetter("int"))):
            yield
            marks = taken.get(topic_id)
            if marks is None or topic_id not in wanted:
                continue
            count = len(marks)
            fitting = [one for one in sorted(has[topic_id]) if one < count and not marks[one]]
            for partition in fitting:
                marks[partition] = 1
            if fitting:
                mine[kind_of_topic[topic_id]].append((topic_id, fitting))
        result.append(mine)
    return result


def _deal(
    number: int,
    kind: AlikeTopics,
    owned: Sequence[_Owned],
    shares: Sequence[dict[int, int]],
    given: Sequence[dict[UUID, list[int]]],
) -> Steps[None]:
    """Decide which partitions of a kind its readers get."""
    kept: dict[UUID, bytearray] = {}
    for topic_id, count in kind.topics:
        kept[topic_id] = bytearray(count)
        yield
    waiting: deque[tuple[int, int]] = deque()
    """Members that get more than they keep, and how many."""
    for member in kind.readers:
        left = shares[member].get(number, 0)
        for topic_id, has in owned[member].get(number, ()):
            yield
            if not left:
                break
            keeps = has[:left]
            left -= len(keeps)
            given[member][topic_id] += keeps
            marks = kept[topic_id]
            for partition in keeps:
                marks[partition] = 1
        if left:
            waiting.append((member, left))
    for topic_id, marks in kept.items():
        for partition, is_kept in enumerate(marks):
            if not partition % _DEALT_AT_ONCE:
                yield
            if is_kept:
                continue
            member, wanted = waiting.popleft()
            given[member][topic_id].append(partition)
            if wanted > 1:
                waiting.append((member, wanted - 1))
    assert not waiting
