"""Tells which offsets a commit of staged objects gave to its partitions."""

from collections.abc import Mapping, Sequence

from metadata.rules.commit_request import CheckedCommit
from metadata.sink_operations import SinkRange
from metadata.state.speculative import SpeculativeView
from wal.batch_extents import BatchExtents
from wal.coordinates import TopicIdPartition
from wal.errors import UnknownPartition


def ends_of(
    view: SpeculativeView, commits: Sequence[CheckedCommit], *, all_there: bool = True
) -> Mapping[TopicIdPartition, int]:
    """Where each partition ends before the commit.

    Raises UnknownPartition, unless a partition may be missing.
    """
    ends: dict[TopicIdPartition, int] = {}
    for commit in commits:
        for partition in BatchExtents.of(commit.batches).partitions:
            if partition not in ends:
                state = view.partition(partition)
                if state is not None:
                    ends[partition] = state.high_watermark
                elif all_there:
                    raise UnknownPartition(f"{partition}: no such partition")
    return ends


def grown_since(
    view: SpeculativeView, before: Mapping[TopicIdPartition, int]
) -> tuple[SinkRange, ...]:
    """What was appended to each since it ended at `before`."""
    ranges = []
    for partition in sorted(before):
        state = view.partition(partition)
        if state is not None and state.high_watermark > before[partition]:
            ranges.append(SinkRange(partition, before[partition], state.high_watermark - 1))
    return tuple(ranges)
