"""DisklessFindBatches (98) as bytes.

Fields as in KIP-1164's schema, version 0; what is common to all messages is in
metadata/messages/codec.py. Ours are tagged fields:

    request    10000 AtLeastOne int8      1 when left out
               10001 IsolationLevel int8  0 when left out; 1 = committed records only
    partition  10000 FirstOpenOffset int64
                                          -1 when left out: no transaction is open
               10001 AbortedTransactions  an array of ProducerId, FirstOffset and MarkerOffset,
                                          all int64; none when left out
    batch      10000 ObjectFormat int8    1 when left out; 2 = Parquet segment, 3 = marker
               10001 ObjectSize int64     0 (not known) when left out
               10002 ProducerId int64     of a marker alone, like those that follow
               10003 ProducerEpoch int16
               10004 IsCommit int8
               10005 CoordinatorEpoch int32

What the schema leaves open:

- BatchId is the base offset: a row holds committed batches that lie back to back in one object,
  and no two rows of a partition begin at the same offset.
- A Parquet segment is one row from byte 0 to its end, with CreateTime and without append time.
- A marker, which ends a transaction, is a row without a key and without bytes. Its greatest
  timestamp is when the transaction ended.
- There is no error message, so the error's text is made where the code arrives.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from metadata import operations as ops
from metadata.messages.codec import (
    Address,
    AnswerShape,
    MessageReader,
    Operation,
    RequestShape,
    Steps,
    at_once,
)
from metadata.messages.errors import coordinator_code
from metadata.messages.shapes import read_answers_by_topic, write_by_topic
from wal.coordinates import CREATE_TIME, ByteOffset, ObjectKey, Offset
from wal.records.marker_batches import Marker
from wal.records.record_batch import MAGIC_V2
from wal.wire.fields import INT8, INT16, INT32, INT64, NO_TAGS, compact_string, tag_section, uvarint
from wal.wire.layouts import Int8

AT_LEAST_ONE_TAG: Final = 10_000
OBJECT_FORMAT_TAG: Final = 10_000
OBJECT_SIZE_TAG: Final = 10_001
ISOLATION_TAG: Final = 10_001
FIRST_OPEN_TAG: Final = 10_000
ABORTED_TAG: Final = 10_001
PRODUCER_ID_TAG: Final = 10_002
PRODUCER_EPOCH_TAG: Final = 10_003
IS_COMMIT_TAG: Final = 10_004
COORDINATOR_EPOCH_TAG: Final = 10_005

_MARKER_FORMAT: Final = 3
"""In place of an object format."""

FOUND_BATCH: Final = struct.Struct(">bqqqqqqb")
"""One batch of a response from Magic on, without its tag section."""
assert FOUND_BATCH.size == 50

_ABORTED: Final = struct.Struct(">qqq")

_FOUND_BYTES_MIN: Final = 8 + 1 + FOUND_BATCH.size + 1
_INT32_MAX: Final = 2**31 - 1


class FindBatchesMessage(NamedTuple):
    """A FindBatches request; `CoordinatorClient.find_batches` takes the same."""

    requests: Sequence[ops.FindBatches]
    max_bytes: int
    batches_per_partition_max: int
    at_least_one: bool = True
    isolation: Int8 = ops.READ_UNCOMMITTED


def _write_find_batches(message: FindBatchesMessage, parts: list[bytes]) -> Mapping[int, bytes]:
    parts += (
        INT32.pack(min(message.max_bytes, _INT32_MAX)),
        INT32.pack(min(message.batches_per_partition_max, _INT32_MAX)),
    )
    rows = (
        INT64.pack(request.offset) + INT32.pack(min(request.max_bytes, _INT32_MAX)) + NO_TAGS
        for request in message.requests
    )
    at_once(write_by_topic(parts, (request.partition for request in message.requests), rows))
    tags = {}
    if not message.at_least_one:
        tags[AT_LEAST_ONE_TAG] = INT8.pack(0)
    if message.isolation != ops.READ_UNCOMMITTED:
        tags[ISOLATION_TAG] = INT8.pack(message.isolation)
    return tags


def _read_find_batches(reader: MessageReader) -> Steps[tuple[FindBatchesMessage, int]]:
    max_bytes, batches_per_partition_max = reader.int32(), reader.int32()
    requests = yield from reader.by_topic_in_steps(
        12, lambda partition: ops.FindBatches(partition, reader.int64(), reader.int32())
    )
    timeout_ms, tags = reader.request_end()
    at_least_one = True
    if AT_LEAST_ONE_TAG in tags:
        at_least_one = tags[AT_LEAST_ONE_TAG].int8() != 0
    isolation = ops.READ_UNCOMMITTED
    if ISOLATION_TAG in tags:
        isolation = tags[ISOLATION_TAG].int8()
    message = FindBatchesMessage(
        requests, max_bytes, batches_per_partition_max, at_least_one, isolation
    )
    return message, timeout_ms


def _write_found(
    message: FindBatchesMessage, answers: Sequence[ops.FoundBatches], parts: list[bytes]
) -> Steps[None]:
    entries = []
    for answer in answers:
        fields = [
            INT16.pack(coordinator_code(answer.error)),
            INT64.pack(answer.log_start_offset),
            INT64.pack(answer.high_watermark),
            uvarint(len(answer.extents) + 1),
        ]
        for extent in answer.extents:
            _write_extent(extent, fields)
            yield
        fields.append(_partition_tags(answer))
        entries.append(b"".join(fields))
        yield
    yield from write_by_topic(parts, (request.partition for request in message.requests), entries)


def _partition_tags(answer: ops.FoundBatches) -> bytes:
    if answer.first_open_offset == -1 and not answer.aborted:
        return NO_TAGS
    tags = {}
    if answer.first_open_offset != -1:
        tags[FIRST_OPEN_TAG] = INT64.pack(answer.first_open_offset)
    if answer.aborted:
        rows = [_ABORTED.pack(*aborted) + NO_TAGS for aborted in answer.aborted]
        tags[ABORTED_TAG] = uvarint(len(rows) + 1) + b"".join(rows)
    return tag_section(tags)


def _write_extent(extent: ops.Extent, parts: list[bytes]) -> None:
    tags = {}
    if isinstance(extent, Marker):
        base_offset = last_offset = extent.base_offset
        key, byte_offset, length_bytes, object_bytes = ObjectKey(""), 0, 0, 0
        append_time_ms, timestamp_type = -1, CREATE_TIME
        max_timestamp_ms = extent.timestamp_ms
        tags[OBJECT_FORMAT_TAG] = INT8.pack(_MARKER_FORMAT)
        tags[PRODUCER_ID_TAG] = INT64.pack(extent.producer_id)
        tags[PRODUCER_EPOCH_TAG] = INT16.pack(extent.producer_epoch)
        tags[IS_COMMIT_TAG] = INT8.pack(extent.is_commit)
        tags[COORDINATOR_EPOCH_TAG] = INT32.pack(extent.coordinator_epoch)
    elif isinstance(extent, ops.SegmentExtent):
        tags[OBJECT_FORMAT_TAG] = INT8.pack(ops.PARQUET_SEGMENT)
        key, object_bytes, base_offset, last_offset, max_timestamp_ms = extent
        byte_offset, length_bytes = 0, object_bytes
        append_time_ms, timestamp_type = -1, CREATE_TIME
    else:
        (
            key,
            byte_offset,
            length_bytes,
            base_offset,
            last_offset,
            append_time_ms,
            max_timestamp_ms,
            timestamp_type,
            object_bytes,
        ) = extent
    if object_bytes:
        tags[OBJECT_SIZE_TAG] = INT64.pack(object_bytes)
    parts += (
        INT64.pack(base_offset),
        compact_string(key),
        FOUND_BATCH.pack(
            MAGIC_V2,
            byte_offset,
            length_bytes,
            base_offset,
            last_offset,
            append_time_ms,
            max_timestamp_ms,
            timestamp_type,
        ),
        tag_section(tags),
    )


def _read_found(reader: MessageReader, message: FindBatchesMessage) -> Sequence[ops.FoundBatches]:
    def read() -> ops.FoundBatches:
        error = reader.error_code()
        log_start_offset, high_watermark = reader.int64(), reader.int64()
        count = reader.array_count(_FOUND_BYTES_MIN)
        extents = [_read_extent(reader) for _ in range(count)]
        return ops.FoundBatches(
            log_start_offset, high_watermark, extents, error, *_read_partition_tags(reader)
        )

    return read_answers_by_topic(reader, message.requests, 18, read, reads_tags=True)


def _read_partition_tags(
    reader: MessageReader,
) -> tuple[int, Sequence[ops.AbortedTransaction]]:
    first_open_offset = -1
    aborted: list[ops.AbortedTransaction] = []
    for tag, content in reader.tags():
        if tag == FIRST_OPEN_TAG:
            first_open_offset = content.int64()
        elif tag == ABORTED_TAG:
            for _ in content.entries(_ABORTED.size + len(NO_TAGS)):
                aborted.append(ops.AbortedTransaction(*content.unpack(_ABORTED)))
                content.skip_tags()
    return first_open_offset, tuple(aborted)


def _read_extent(reader: MessageReader) -> ops.Extent:
    reader.int64()
    key = ObjectKey(reader.compact_string())
    (
        magic,
        byte_offset,
        length_bytes,
        base_offset,
        last_offset,
        append_time_ms,
        max_timestamp_ms,
        timestamp_type,
    ) = FOUND_BATCH.unpack_from(reader.data, reader.skip(FOUND_BATCH.size))
    object_format, object_bytes = ops.WRITE_AHEAD_MULTI_SEGMENT, 0
    producer_id = producer_epoch = is_commit = coordinator_epoch = -1
    for tag, content in reader.tags():
        if tag == OBJECT_FORMAT_TAG:
            object_format = content.int8()
        elif tag == OBJECT_SIZE_TAG:
            object_bytes = content.int64()
        elif tag == PRODUCER_ID_TAG:
            producer_id = content.int64()
        elif tag == PRODUCER_EPOCH_TAG:
            producer_epoch = content.int16()
        elif tag == IS_COMMIT_TAG:
            is_commit = content.int8()
        elif tag == COORDINATOR_EPOCH_TAG:
            coordinator_epoch = content.int32()
    if magic != MAGIC_V2:
        raise reader.corrupt(f"a batch with magic {magic}")
    if object_format == ops.PARQUET_SEGMENT:
        return ops.SegmentExtent(
            key, object_bytes, Offset(base_offset), Offset(last_offset), max_timestamp_ms
        )
    if object_format == _MARKER_FORMAT:
        return Marker(
            base_offset,
            producer_id,
            producer_epoch,
            is_commit == 1,
            coordinator_epoch,
            max_timestamp_ms,
        )
    if object_format != ops.WRITE_AHEAD_MULTI_SEGMENT:
        raise reader.corrupt(f"an object of format {object_format}")
    return ops.WalExtent(
        key,
        ByteOffset(byte_offset),
        length_bytes,
        Offset(base_offset),
        Offset(last_offset),
        append_time_ms,
        max_timestamp_ms,
        timestamp_type,
        object_bytes,
    )


FIND_BATCHES: Final[Operation[FindBatchesMessage, ops.FoundBatches]] = Operation(
    key=98,
    name="DisklessFindBatches",
    address=Address.BY_PARTITION,
    request=RequestShape(
        _write_find_batches,
        _read_find_batches,
        lambda message: message.requests,
        lambda message, requests: message._replace(requests=requests),
    ),
    answers=AnswerShape(_write_found, _read_found),
    failed=lambda error: ops.FoundBatches(error=error),
    changes_state=False,
)
