"""Holds what the APIs that commit offsets share: the rows of their requests and answers."""

from collections.abc import Iterable, Iterator
from typing import Any

from diskless.groups.requests import CommitOffset
from diskless.protocol.messages import Fields


def asked_offsets(topics: Iterable[Any]) -> Iterator[CommitOffset]:
    """The offsets of all partitions, in the order of the request."""
    return (
        CommitOffset(
            topic.name,
            item.partition_index,
            item.committed_offset,
            getattr(item, "committed_leader_epoch", -1),
            item.committed_metadata or "",
        )
        for topic in topics
        for item in topic.partitions
    )


def answered_topics(topics: Iterable[Any], codes: Iterator[int]) -> Iterator[Fields]:
    """The topics of the request, each partition with the next of `codes`."""
    return (
        {
            "name": topic.name,
            "partitions": (
                {"partition_index": item.partition_index, "error_code": next(codes)}
                for item in topic.partitions
            ),
        }
        for topic in topics
    )
