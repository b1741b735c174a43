"""The assignor `uniform`: shares of the same size, and as few partitions moved as that allows.

Members with the same subscriptions get as many partitions as any other, or one more. Members with
different ones get as even shares as their subscriptions allow: nobody could give a partition to
somebody with two less, directly or over others. Among all assignments that are as even, it takes
one that moves the fewest partitions. `diskless.groups.fair_shares` finds how many each member gets;
which ones is decided here: what a member has stays, the rest is dealt in turn in the order of
topics, so that a topic is spread over many members.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from diskless.groups.assignment import (
    AlikeTopics,
    MemberSubscription,
    TopicPartitions,
    topics_by_readers,
    topics_in_order,
)
from diskless.groups.fair_shares import Kind, fair_shares


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
            [{kind: len(has) for kind, has in mine.items()} for mine in owned],
        )
        given: list[dict[UUID, list[int]]] = [defaultdict(list) for _ in ordered]
        for number, kind in enumerate(kinds):
            _deal(number, kind, owned, shares, given)
        return {
            member_id: {topic_id: frozenset(mine) for topic_id, mine in topics.items()}
            for member_id, topics in zip(ordered, given, strict=True)
        }


_Owned = dict[int, list[tuple[UUID, int]]]
"""By kind: topic id and partition."""


def _owned(
    ordered: Sequence[str],
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    current: Mapping[str, TopicPartitions],
    kind_of_topic: Mapping[UUID, int],
) -> Sequence[_Owned]:
    """What of each member's present assignment still fits."""
    taken: set[tuple[UUID, int]] = set()
    result: list[_Owned] = []
    for member_id in ordered:
        mine: _Owned = defaultdict(list)
        has = current.get(member_id, {})
        wanted = members[member_id].topics
        for topic_id in sorted(has):
            if topic_id not in kind_of_topic or topic_id not in wanted:
                continue
            for partition in sorted(has[topic_id]):
                one = (topic_id, partition)
                if partition < partitions[topic_id] and one not in taken:
                    taken.add(one)
                    mine[kind_of_topic[topic_id]].append(one)
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
    kept: set[tuple[UUID, int]] = set()
    waiting: deque[tuple[int, int]] = deque()
    """Members that get more than they keep, and how many."""
    for member in kind.readers:
        share = shares[member].get(number, 0)
        keeps = owned[member].get(number, [])[:share]
        kept.update(keeps)
        for topic_id, partition in keeps:
            given[member][topic_id].append(partition)
        if share > len(keeps):
            waiting.append((member, share - len(keeps)))
    for topic_id, count in kind.topics:
        for partition in range(count):
            if (topic_id, partition) in kept:
                continue
            member, wanted = waiting.popleft()
            given[member][topic_id].append(partition)
            if wanted > 1:
                waiting.append((member, wanted - 1))
    assert not waiting
