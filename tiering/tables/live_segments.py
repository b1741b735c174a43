"""Asks the coordinators for the live segments of a topic, whichever brokers they are led by.

Partitions are asked some at a time and page by page, so an answer stays small and the pages of a
partition may be of different moments. Segments of one moment never overlap; pages of two may, when
segments were merged in between. Then the partition is asked once more from its beginning. Anything
else that happened in between is found by the next pass, because the applied offset that is reported
for a coordinator is that of its oldest answer.

Failure cases: Retriable (segments were merged each time), and what a coordinator answers for a
partition.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from metadata.table_operations import (
    SEGMENTS_PER_ANSWER_MAX,
    CommitTable,
    ListedSegments,
    ListedTables,
    ListSegments,
    ListTables,
    LiveSegment,
    TableCommit,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed

PARTITIONS_PER_CALL: Final = 50
LISTINGS_MAX: Final = 3
"""Of one partition from its beginning, before its table is left for the next pass."""


class TableClient(Protocol):
    """The operations on tables, for a driver that blocks."""

    def list_tables(self, asked: ListTables) -> ListedTables: ...

    def list_segments(self, asked: Sequence[ListSegments]) -> Sequence[ListedSegments]: ...

    def commit_table(self, commit: CommitTable) -> TableCommit: ...


class LiveSegments(NamedTuple):
    """All live segments of a topic."""

    by_partition: Mapping[int, Sequence[LiveSegment]]
    applied: Mapping[int, int]
    """By coordinator: everything below this offset of its metadata log is in here."""
    left: Mapping[int, int]
    """By coordinator: where a segment of the topic left the live ones the last time; -1: nowhere,
    as far as its object is still stored."""
    log_starts: Mapping[int, int]
    """By partition: the log start offset as its first segments were told."""


def live_segments(client: TableClient, topic_id: UUID, partition_count: int) -> LiveSegments:
    """Raises: Retriable, and what a coordinator answers."""
    found: dict[int, list[LiveSegment]] = {index: [] for index in range(partition_count)}
    applied: dict[int, int] = {}
    left: dict[int, int] = {}
    log_starts: dict[int, int] = {}
    listings = dict.fromkeys(found, 1)
    positions = dict.fromkeys(found, 0)
    while positions:
        some = dict(list(positions.items())[:PARTITIONS_PER_CALL])
        asked = [
            ListSegments(TopicIdPartition(topic_id, index), offset)
            for index, offset in some.items()
        ]
        for index, answer in zip(some, client.list_segments(asked), strict=True):
            if answer.error is not None:
                raise answer.error
            at = answer.coordinator
            applied[at] = min(applied.get(at, answer.applied_offset), answer.applied_offset)
            left[at] = max(left.get(at, -1), answer.left_offset)
            if not some[index]:
                log_starts[index] = answer.log_start_offset
            segments = found[index]
            if (
                segments
                and answer.segments
                and answer.segments[0].base_offset <= segments[-1].last_offset
            ):
                listings[index] += 1
                if listings[index] > LISTINGS_MAX:
                    raise CommitFailed(f"segments of partition {index} are merged all the time")
                segments.clear()
                positions[index] = 0
                continue
            segments += answer.segments
            if len(answer.segments) < SEGMENTS_PER_ANSWER_MAX:
                del positions[index]
            else:
                positions[index] = answer.segments[-1].last_offset + 1
    return LiveSegments(found, applied, left, log_starts)
