"""Puts record batches that are in memory together as one WAL object.

A broker's objects come from chunk files (wal/chunks/wal_object.py); a Spark task has its batches in
memory. The bytes are laid out the same: header, batches by partition, index, trailer. The broker id
is -1, and there are no notes.

Failure cases: CorruptBatch for bytes that are no record batch.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from wal.batch_extents import BatchExtents
from wal.chunks.batch_rows import INDEX_ROW
from wal.chunks.wal_object import OBJECT_HEADER_BYTES, encode_footer, encode_header
from wal.coordinates import CREATE_TIME, BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.records.record_batch import parse_header
from wal.staging.staged_keys import staged_key
from wal.stores.object_store import Buffer, BytesBody

NO_BROKER: Final = -1


class StagedObject(NamedTuple):
    """An object that is ready to be put."""

    object_key: ObjectKey
    body: BytesBody


def staged_object(
    sink_id: str, ulid: str, created_ms: int, batches: Sequence[tuple[TopicIdPartition, Buffer]]
) -> StagedObject:
    """The object of these record batches; those of a partition keep their order."""
    ordered = sorted(batches, key=itemgetter(0))
    extents: list[BatchExtent] = []
    position = OBJECT_HEADER_BYTES
    for partition, data in ordered:
        header = parse_header(data)
        extents.append(
            BatchExtent(
                partition,
                ByteOffset(position),
                len(data),
                header.record_count,
                header.crc,
                header.max_timestamp_ms,
                CREATE_TIME,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                0,
            )
        )
        position += len(data)
    index = BatchExtents.of(extents).rows(INDEX_ROW).tobytes()
    return StagedObject(
        staged_key(sink_id, ulid),
        BytesBody(
            encode_header(NO_BROKER, created_ms, ulid),
            *(data for _, data in ordered),
            encode_footer(index, len(extents), position),
        ),
    )
