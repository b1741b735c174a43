"""Batches as records of a rebuilt log have them: of objects, and in place of what is in segments.

Pure functions; called by metadata/rebuild/log_builder.py.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from metadata.rebuild.facts import SegmentFacts
from metadata.rebuild.layout import PlacedBatch
from metadata.records.file_committed import CommittedBatch
from metadata.state.producer_state import WINDOW
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    ByteOffset,
    Offset,
    TopicIdPartition,
)
from wal.records.record_batch import MAGIC_V2


def placed_batch(batch: PlacedBatch) -> CommittedBatch:
    """A batch of an object at its offset."""
    extent = batch.extent
    return CommittedBatch(
        extent.partition,
        batch.position,
        MAGIC_V2,
        extent.byte_offset,
        extent.length_bytes,
        Offset(batch.base_offset),
        Offset(batch.base_offset + extent.record_count - 1),
        batch.append_time_ms,
        extent.max_timestamp_ms,
        extent.timestamp_type,
        extent.producer_id,
        extent.producer_epoch,
        extent.base_sequence,
        extent.last_sequence,
        extent.transaction_number,
    )


def plain_batch(
    partition: TopicIdPartition, base_offset: int, next_offset: int, time_ms: int = 0
) -> CommittedBatch:
    """A batch of one byte and no producer."""
    return CommittedBatch(
        partition, 0, MAGIC_V2, ByteOffset(0), 1, Offset(base_offset), Offset(next_offset - 1),
        time_ms, time_ms, 0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_SEQUENCE,
    )  # fmt: skip


def batches_between(
    batches: Sequence[CommittedBatch], start: int, end: int
) -> Sequence[CommittedBatch]:
    """The batches as far as they lie within [start, end)."""
    return [
        batch._replace(
            base_offset=Offset(max(batch.base_offset, start)),
            last_offset=Offset(min(batch.last_offset, end - 1)),
        )
        for batch in batches
        if batch.base_offset < end and batch.last_offset >= start
    ]


def batches_of_segment(segment: SegmentFacts) -> Sequence[CommittedBatch]:
    """Batches that leave the producers as the segment's did: of each of them the last few."""
    kept: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=WINDOW))
    for number, batch in enumerate(segment.batches):
        kept[batch.producer_id].append(number)
    found: list[CommittedBatch] = []
    offset = segment.base_offset
    for number in sorted(number for numbers in kept.values() for number in numbers):
        batch = segment.batches[number]
        if batch.base_offset > offset:
            found.append(
                plain_batch(segment.partition, offset, batch.base_offset, segment.stored_ms)
            )
        found.append(
            plain_batch(
                segment.partition, batch.base_offset, batch.last_offset + 1, segment.stored_ms
            )._replace(
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                last_sequence=batch.last_sequence,
            )
        )
        offset = batch.last_offset + 1
    if offset < segment.next_offset:
        found.append(plain_batch(segment.partition, offset, segment.next_offset, segment.stored_ms))
    return found
