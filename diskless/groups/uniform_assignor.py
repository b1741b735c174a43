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

from diskless.groups.assignment import MemberSubscription, TopicPartitions, topics_in_order
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
        topics = topics_in_order(partitions, topic_names)
        readers_of_kind, topics_of_kind = _kinds([members[one] for one in ordered], topics)
        kind_of_topic = {
            topic_id: kind for kind, alike in enumerate(topics_of_kind) for topic_id, _ in alike
        }
        owned = _owned(ordered, members, partitions, current, kind_of_topic)
        shares = fair_shares(
            [
                Kind(readers, sum(count for _, count in alike))
                for readers, alike in zip(readers_of_kind, topics_of_kind, strict=True)
            ],
            [{kind: len(has) for kind, has in mine.items()} for mine in owned],
        )
        given: list[dict[UUID, list[int]]] = [defaultdict(list) for _ in ordered]
        for kind, (readers, alike) in enumerate(zip(readers_of_kind, topics_of_kind, strict=True)):
            _deal(kind, readers, alike, owned, shares, given)
        return {
            member_id: {topic_id: frozenset(mine) for topic_id, mine in topics.items()}
            for member_id, topics in zip(ordered, given, strict=True)
        }


def _kinds(
    members: Sequence[MemberSubscription], topics: Sequence[tuple[UUID, int]]
) -> tuple[list[Sequence[int]], list[list[tuple[UUID, int]]]]:
    """Topics with the same readers, by kind: the readers, and the topics with their sizes."""
    # Most members of a group want the same, so what they want is looked at once for all of them.
    alike: dict[frozenset[UUID], list[int]] = defaultdict(list)
    for number, member in enumerate(members):
        alike[member.topics].append(number)
    subscriptions = list(alike)
    readers: list[Sequence[int]] = []
    of_kind: list[list[tuple[UUID, int]]] = []
    kinds: dict[tuple[int, ...], int] = {}
    subscribers: dict[UUID, list[int]] = defaultdict(list)
    for index, subscription in enumerate(subscriptions):
        for topic_id in subscription:
            subscribers[topic_id].append(index)
    for topic in topics:
        wanted_by = tuple(subscribers.get(topic[0], ()))
        if not wanted_by:
            continue
        kind = kinds.setdefault(wanted_by, len(of_kind))
        if kind == len(of_kind):
            readers.append(
                sorted(number for index in wanted_by for number in alike[subscriptions[index]])
            )
            of_kind.append([])
        of_kind[kind].append(topic)
    return readers, of_kind


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
        for topic_id in sorted(members[member_id].topics & has.keys()):
            if topic_id not in kind_of_topic:
                continue
            for partition in sorted(has[topic_id]):
                one = (topic_id, partition)
                if partition < partitions[topic_id] and one not in taken:
                    taken.add(one)
                    mine[kind_of_topic[topic_id]].append(one)
        result.append(mine)
    return result


def _deal(
    kind: int,
    readers: Sequence[int],
    topics: Sequence[tuple[UUID, int]],
    owned: Sequence[_Owned],
    shares: Sequence[dict[int, int]],
    given: Sequence[dict[UUID, list[int]]],
) -> None:
    """Decide which partitions of a kind its readers get."""
    kept: set[tuple[UUID, int]] = set()
    waiting: deque[tuple[int, int]] = deque()
    """Members that get more than they keep, and how many."""
    for member in readers:
        share = shares[member].get(kind, 0)
        keeps = owned[member].get(kind, [])[:share]
        kept.update(keeps)
        for topic_id, partition in keeps:
            given[member][topic_id].append(partition)
        if share > len(keeps):
            waiting.append((member, share - len(keeps)))
    for topic_id, count in topics:
        for partition in range(count):
            if (topic_id, partition) in kept:
                continue
            member, wanted = waiting.popleft()
            given[member][topic_id].append(partition)
            if wanted > 1:
                waiting.append((member, wanted - 1))
    assert not waiting
