"""Sets of partitions by topic id: what a member owns, is assigned, or reports.

They are values: nothing here changes what it is given. No topic in a result is without partitions.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignment import TopicPartitions

NO_PARTITIONS: Final[TopicPartitions] = MappingProxyType({})


def union(first: TopicPartitions, second: TopicPartitions) -> TopicPartitions:
    """Returns what is in either."""
    if not first or not second:
        return first or second
    merged = dict(first)
    for topic_id, partitions in second.items():
        merged[topic_id] = merged.get(topic_id, frozenset()) | partitions
    return merged


def intersection(first: TopicPartitions, second: TopicPartitions) -> TopicPartitions:
    """Returns what is in both."""
    common = {
        topic_id: partitions & second[topic_id]
        for topic_id, partitions in first.items()
        if topic_id in second
    }
    return {topic_id: partitions for topic_id, partitions in common.items() if partitions}


def difference(first: TopicPartitions, second: TopicPartitions) -> TopicPartitions:
    """Returns what is in `first` alone."""
    if not second:
        return first
    left = {
        topic_id: partitions - second.get(topic_id, frozenset())
        for topic_id, partitions in first.items()
    }
    return {topic_id: partitions for topic_id, partitions in left.items() if partitions}


def is_subset(first: TopicPartitions, second: TopicPartitions) -> bool:
    """Whether all of `first` is in `second`."""
    return all(
        partitions <= second.get(topic_id, frozenset()) for topic_id, partitions in first.items()
    )


def overlaps(first: TopicPartitions, second: TopicPartitions) -> bool:
    """Whether they have anything in common."""
    return any(
        topic_id in second and not partitions.isdisjoint(second[topic_id])
        for topic_id, partitions in first.items()
    )


def each(partitions: TopicPartitions) -> Iterator[tuple[UUID, int]]:
    """One by one."""
    for topic_id, indexes in partitions.items():
        for index in indexes:
            yield topic_id, index
