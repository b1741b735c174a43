"""The assignor `uniform`: shares of the same size, and as few partitions moved as that allows.

Members with the same subscriptions get as many partitions as any other, or one more. Members with
different ones get as even shares as their subscriptions allow: nobody could give a partition to
somebody with two less, directly or over others. Among all assignments that are as even, it takes
one that moves the fewest partitions. `diskless.groups.assignors.fair_shares` finds how many each member gets;
which ones is decided here: what a member has stays, the rest is dealt in turn in the order of
topics, so that a topic is spread over many members.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignment import (
    AlikeTopics,
    MemberSubscription,
    TopicPartitions,
    topics_by_readers,
    topics_in_order,
)
from diskless.groups.assignors.fair_shares import Kind, fair_shares


class UniformAssignor:
    """See the module; an `Assignor`."""

    name: Final = "uniform"

    def assign(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[UUID, int],
        current: Mapping[str, TopicPartitions],
        topic_names: Mapping[UUID, str],
    ) -> dict[str, dict[UUID, frozenset[int]]]:
        ordered = sorted(members)
        kinds = topics_by_readers(
            [members[one] for one in ordered], topics_in_order(partitions, topic_names)
        )
        kind_of_topic = {
            topic_id: number for number, kind in enumerate(kinds) for topic_id, _ in kind.topics
        }
        owned = _owned(ordered, members, partitions, current, kind_of_topic)
        shares = fair_shares(
            [Kind(kind.readers, sum(count for _, count in kind.topics)) for kind in kinds],
            [
                {kind: sum(len(has) for _, has in topics) for kind, topics in mine.items()}
                for mine in owned
            ],
        )
        given: list[dict[UUID, list[int]]] = [defaultdict(list) for _ in ordered]
        for number, kind in enumerate(kinds):
            _deal(number, kind, owned, shares, given)
        return {
            member_id: {topic_id: frozenset(mine) for topic_id, mine in topics.items()}
            for member_id, topics in zip(ordered, given, strict=True)
        }


_Owned = dict[int, list[tuple[UUID, list[int]]]]
"""By kind: topic ids and partitions."""


def _owned(
    ordered: Sequence[str],
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    current: Mapping[str, TopicPartitions],
    kind_of_topic: Mapping[UUID, int],
) -> Sequence[_Owned]:
    """What of each member's present assignment still fits."""
    taken = {topic_id: bytearray(partitions[topic_id]) for topic_id in kind_of_topic}
    result: list[_Owned] = []
    for member_id in ordered:
        mine: _Owned = defaultdict(list)
        has = current.get(member_id, {})
        wanted = members[member_id].topics
        for topic_id in sorted(has):
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
) -> None:
    """Decide which partitions of a kind its readers get."""
    kept = {topic_id: bytearray(count) for topic_id, count in kind.topics}
    waiting: deque[tuple[int, int]] = deque()
    """Members that get more than they keep, and how many."""
    for member in kind.readers:
        left = shares[member].get(number, 0)
        for topic_id, has in owned[member].get(number, ()):
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
            if is_kept:
                continue
            member, wanted = waiting.popleft()
            given[member][topic_id].append(partition)
            if wanted > 1:
                waiting.append((member, wanted - 1))
    assert not waiting
