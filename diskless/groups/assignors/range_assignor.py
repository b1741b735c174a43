"""The assignor `range`: gives a member neighbouring partitions, the same ones of similar topics.

Per topic, every subscriber gets as many partitions as any other, or one more. Topics with the same
subscribers and the same number of partitions are *alike* and assigned as one: partition 7 of each
goes to the same member, so that records with equal keys meet there.

Starting from nothing, members in their order get ranges, the first ones one partition more. The
order is by instance id, then, of members without one, by member id. After that, members keep what
they have as far as their share goes, and what is left over is given in ranges again. A topic that
becomes alike to others is assigned as they are.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignment import (
    MemberSubscription,
    Targets,
    TopicPartitions,
    topics_by_readers,
    topics_in_order,
)
from diskless.loop.long_work import Steps


class RangeAssignor:
    """See the module; an `Assignor`."""

    name: Final = "range"

    def assign(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[UUID, int],
        current: Mapping[str, TopicPartitions],
        topic_names: Mapping[UUID, str],
    ) -> Steps[Targets]:
        ordered = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
        result: Targets = {member_id: {} for member_id in ordered}
        topics_by_name = yield from topics_in_order(partitions, topic_names)
        kinds = yield from topics_by_readers([members[one] for one in ordered], topics_by_name)
        for kind in kinds:
            readers = [ordered[number] for number in kind.readers]
            alike: dict[int, list[UUID]] = defaultdict(list)
            for topic_id, count in kind.topics:
                alike[count].append(topic_id)
                yield
            for count, topics in alike.items():
                shares = yield from _shares(readers, count, topics, current)
                for member_id, share in shares.items():
                    for topic_id in topics:
                        result[member_id][topic_id] = share
                        yield
        return result


def _place(member_id: str, member: MemberSubscription) -> tuple[bool, str, str]:
    return member.instance_id is None, member.instance_id or "", member_id


def _shares(
    readers: Sequence[str],
    count: int,
    topics: Sequence[UUID],
    current: Mapping[str, TopicPartitions],
) -> Steps[dict[str, frozenset[int]]]:
    """Who gets which of `count` partitions of alike topics; only of readers that get any."""
    owned = yield from _owned(readers, count, topics, current)
    least, surplus = divmod(count, len(readers))
    kept: dict[str, list[int]] = {}
    for member_id in readers:
        yield
        mine = owned.get(member_id, [])
        share = least
        if surplus and len(mine) > least:
            share, surplus = least + 1, surplus - 1
        kept[member_id] = mine[:share]
    taken = {partition for mine in kept.values() for partition in mine}
    free = [partition for partition in range(count) if partition not in taken]
    position = 0
    for mine in kept.values():
        wanted = least - len(mine)
        if surplus and wanted >= 0:
            wanted, surplus = wanted + 1, surplus - 1
        if wanted > 0:
            mine += free[position : position + wanted]
            position += wanted
    assert position == len(free)
    return {member_id: frozenset(mine) for member_id, mine in kept.items() if mine}


def _owned(
    readers: Sequence[str],
    count: int,
    topics: Sequence[UUID],
    current: Mapping[str, TopicPartitions],
) -> Steps[dict[str, list[int]]]:
    """The partitions that each reader has of most of the alike topics, in order."""
    alike = frozenset(topics)
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    for member_id in readers:
        for topic_id, has in current.get(member_id, {}).items():
            yield
            if topic_id in alike:
                for partition in has:
                    if partition < count:
                        votes[partition][member_id] += 1
    owned: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(votes):
        yield
        # Of several with as many votes, the first reader.
        owned[votes[partition].most_common(1)[0][0]].append(partition)
    return owned
