"""FileCommitted, the one metadata record whose size and speed matter: values, and bytes.

A WAL object carries thousands of batches, so its record keeps them column by column, in memory
(`CommittedBatches`) and in the log. Nothing here runs a Python loop over batches, except where
there are few of them, or where one looks at them one by one.

The record's version is 1 and ours. Version 0 is KIP-1164's schema, which takes 61 bytes per batch
and says the same; nothing here writes or reads it (frame: metadata/records/records.py, *column*:
metadata/records/columns.py):

    ObjectKey string, ObjectFormat int8, FileSize int64, UploaderBrokerId int32, OwnerIds []int32,
    CommittedAt int64, RequestDigest 16 bytes
    Topics []
      TopicId uuid, RunCount uvarint, tag section
    one entry per run, that is per sequence of batches of one partition, in the order of Topics:
      PartitionIndex column (leading), BatchCount column, FirstOffset column
    FirstByte int32             byte offset of the first accepted batch, or 0
    one entry per accepted batch, in that order:
      ByteSize column (leading)
      ByteGap column            bytes between the end of the batch before and this one; 0 for the
                                first
      RecordSpan column         assigned last offset - assigned base offset
      OffsetGap column          assigned base offset - the offset after the batch before it in the
                                run; 0 for the first of a run, which starts at FirstOffset
      AppendTime column         log append timestamp - CommittedAt
      MaxTimestamp column       batch max timestamp - CommittedAt
      Magic column, TimestampType column, ProducerId column, ProducerEpoch column,
      BaseSequence column
      SequenceGap column        last sequence - the one that BaseSequence and RecordSpan give
    tag section
      tag 1001  Positions  column   per accepted batch, its position in the request less its place
                                    here; left out when all are 0
      tag 1002  TransactionNumbers  column   per accepted batch, which transaction of its producer
                                    it belongs to, or -1; left out when all are -1
      tags 1004 … 1008          only when batches were refused, one entry per refused batch:
                RefusedPosition column (leading), ErrorCode column, DuplicateOffset column,
                DuplicateAppendTime column, LogStartOffset column

What the state makes predictable (no gaps, one append time, consecutive sequences) is a column of
equal numbers, three or four bytes for the whole file.

Source: KIP-1164, "Metadata records", including its wish for fewer bytes per record.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from metadata.records.columns import (
    before,
    difference,
    gaps,
    pack_column,
    pack_numbers,
    read_column,
    running,
    total,
)
from wal.columns import FEW_MAX, Columns, Int64s, column, tuples
from wal.coordinates import (
    NO_SEQUENCE,
    NO_TRANSACTION,
    SEQUENCE_MASK,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.errors import CorruptLog
from wal.wire.fields import (
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    tag_section,
    uvarint,
)

POSITIONS_TAG: Final = 1001
TRANSACTION_NUMBERS_TAG: Final = 1002
REFUSED_TAGS: Final = range(1004, 1009)
"""One per field of RefusedBatch."""

REQUEST_DIGEST_BYTES: Final = 16

_TOPIC_BYTES_MIN: Final = 18


class CommittedBatch(NamedTuple):
    """One batch that was appended to its partition, and the offsets it got.

    The fields from `magic` on are those of the record's bytes, in their order.
    """

    partition: TopicIdPartition
    position: int
    """Which batch of the commit request this is, counted from 0."""
    magic: int
    byte_offset: ByteOffset
    byte_size: int
    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    max_timestamp_ms: int
    timestamp_type: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    transaction_number: int = NO_TRANSACTION


_BITS: Final = {
    "position": 32,
    "magic": 8,
    "byte_offset": 32,
    "byte_size": 32,
    "timestamp_type": 8,
    "producer_epoch": 16,
    "base_sequence": 32,
    "last_sequence": 32,
}
"""The fields of a batch that are narrower than 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommittedBatches(Columns[CommittedBatch]):
    """The accepted batches of a file as columns; as a sequence, it makes the batch asked for."""

    partitions: Sequence[TopicIdPartition]
    """One per run of batches of the same partition."""
    run_lengths: Int64s
    position: Int64s
    magic: Int64s
    byte_offset: Int64s
    byte_size: Int64s
    base_offset: Int64s
    last_offset: Int64s
    log_append_time_ms: Int64s
    max_timestamp_ms: Int64s
    timestamp_type: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    base_sequence: Int64s
    last_sequence: Int64s
    transaction_number: Int64s

    @classmethod
    def of(cls, batches: Sequence[CommittedBatch]) -> "CommittedBatches":
        """`batches` as columns. Raises ValueError for a number of more than 64 bits."""
        if isinstance(batches, CommittedBatches):
            return batches
        runs = [(place, len([*run])) for place, run in groupby(batches, lambda batch: batch[0])]
        columns = [*zip(*batches, strict=True)][1:] if batches else [()] * 14
        return cls(
            partitions=[place for place, _ in runs],
            run_lengths=column(length for _, length in runs),
            **dict(zip(CommittedBatch._fields[1:], map(column, columns), strict=True)),
        )

    def columns(self) -> list[Int64s]:
        """From `position` on, in the order of CommittedBatch."""
        return [getattr(self, name) for name in CommittedBatch._fields[1:]]

    @property
    def run_starts(self) -> Int64s:
        """The place of each run's first batch."""
        return np.cumsum(self.run_lengths) - self.run_lengths

    def check(self) -> None:
        """Raises ValueError when a number does not fit its field."""
        if not len(self):
            return
        for name, bits in _BITS.items():
            numbers: Int64s = getattr(self, name)
            limit = 1 << bits - 1
            if numbers.min() < -limit or numbers.max() >= limit:
                raise ValueError(f"{name} of a batch has more than {bits} bits")

    def __len__(self) -> int:
        return len(self.position)

    def __iter__(self) -> Iterator[CommittedBatch]:
        places = chain.from_iterable(map(repeat, self.partitions, self.run_lengths.tolist()))
        numbers = [numbers.tolist() for numbers in self.columns()]
        return iter(tuples(CommittedBatch, places, *numbers))


class RefusedBatch(NamedTuple):
    """One batch of a commit request that was not appended, and what its sender was told.

    Error code 0 is a duplicate: `base_offset` and `log_append_time_ms` are those of the first time,
    `log_start_offset` is that of this answer.
    """

    position: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommittedRecord:
    """A WAL object was committed: the answer for each of its batches.

    `batches` come grouped by topic and partition, as they lie in the object; together with
    `refused` their positions are 0 .. n-1 of the request's n batches.
    """

    object_key: ObjectKey
    object_format: int
    file_size: int
    uploader_broker_id: int
    owner_ids: Sequence[int]
    committed_at_ms: int
    batches: Sequence[CommittedBatch]
    refused: Sequence[RefusedBatch] = ()
    request_digest: bytes = bytes(REQUEST_DIGEST_BYTES)


def encode_file_committed(record: FileCommittedRecord) -> bytes:
    """Raises ValueError or struct.error for a number that its field cannot hold."""
    if len(record.request_digest) != REQUEST_DIGEST_BYTES:
        raise ValueError(f"a request digest has {REQUEST_DIGEST_BYTES} bytes")
    if isinstance(record.batches, CommittedBatches) or len(record.batches) > FEW_MAX:
        partitions, body = _columns(record, CommittedBatches.of(record.batches))
    else:
        partitions, body = _few_columns(record, record.batches)
    parts = [
        compact_string(record.object_key),
        INT8.pack(record.object_format),
        INT64.pack(record.file_size),
        INT32.pack(record.uploader_broker_id),
        uvarint(len(record.owner_ids) + 1),
        *map(INT32.pack, record.owner_ids),
        INT64.pack(record.committed_at_ms),
        record.request_digest,
    ]
    topics = [
        topic_id.bytes + uvarint(len([*runs])) + NO_TAGS
        for topic_id, runs in groupby(partitions, itemgetter(0))
    ]
    return b"".join((*parts, uvarint(len(topics) + 1), *topics, *body))


_Encoded = tuple[Sequence[TopicIdPartition], Sequence[bytes]]
"""The partitions of the runs, and the bytes behind the topics."""


def _columns(record: FileCommittedRecord, batches: CommittedBatches) -> _Encoded:
    batches.check()
    indexes = [partition.partition for partition in batches.partitions]
    _check_indexes(indexes)
    starts = batches.run_starts
    span = difference(batches.last_offset, batches.base_offset)
    body = (
        pack_column(column(indexes), is_leading=True),
        pack_column(batches.run_lengths),
        pack_column(batches.base_offset[starts]),
        INT32.pack(int(batches.byte_offset[0]) if len(batches) else 0),
        pack_column(batches.byte_size, is_leading=True),
        pack_column(gaps(batches.byte_offset, batches.byte_size, starts[:1])),
        pack_column(span),
        pack_column(gaps(batches.base_offset, total(span, 1), starts)),
        pack_column(difference(batches.log_append_time_ms, record.committed_at_ms)),
        pack_column(difference(batches.max_timestamp_ms, record.committed_at_ms)),
        pack_column(batches.magic),
        pack_column(batches.timestamp_type),
        pack_column(batches.producer_id),
        pack_column(batches.producer_epoch),
        pack_column(batches.base_sequence),
        pack_column(
            difference(batches.last_sequence, _last_sequences(batches.base_sequence, span))
        ),
    )
    moved = difference(batches.position, np.arange(len(batches)))
    numbers = batches.transaction_number
    positions = pack_column(moved) if moved.any() else b""
    transactions = pack_column(numbers) if (numbers != NO_TRANSACTION).any() else b""
    tags = _tags(record, positions, transactions)
    return batches.partitions, (*body, tags)


def _few_columns(record: FileCommittedRecord, batches: Sequence[CommittedBatch]) -> _Encoded:
    """`_columns` in a loop over the batches."""
    stored = [*zip(*batches, strict=True)] if batches else [()] * len(CommittedBatch._fields)
    _check_few(batches)
    partitions: list[TopicIdPartition] = []
    run_lengths: list[int] = []
    first_offsets: list[int] = []
    computed: list[tuple[int, ...]] = []
    before: CommittedBatch | None = None
    committed_at_ms = record.committed_at_ms
    for place, batch in enumerate(batches):
        byte_gap = offset_gap = 0
        if before is not None:
            byte_gap = batch.byte_offset - before.byte_offset - before.byte_size
        if before is None or (
            batch.partition is not before.partition and batch.partition != before.partition
        ):
            partitions.append(batch.partition)
            run_lengths.append(1)
            first_offsets.append(batch.base_offset)
        else:
            run_lengths[-1] += 1
            offset_gap = batch.base_offset - before.last_offset - 1
        span = batch.last_offset - batch.base_offset
        expected = NO_SEQUENCE
        if batch.base_sequence >= 0:
            expected = batch.base_sequence + span & SEQUENCE_MASK
        computed.append(
            (
                byte_gap,
                span,
                offset_gap,
                batch.log_append_time_ms - committed_at_ms,
                batch.max_timestamp_ms - committed_at_ms,
                batch.last_sequence - expected,
                batch.position - place,
            )
        )
        before = batch
    indexes = [partition.partition for partition in partitions]
    _check_indexes(indexes)
    byte_gaps, spans, offset_gaps, append_times, max_timestamps, sequence_gaps, moved = (
        zip(*computed, strict=True) if computed else [()] * 7
    )
    _, _, magic, _, byte_size, _, _, _, _, kind, *producers, _, numbers = stored
    transactions = pack_numbers(numbers) if numbers.count(NO_TRANSACTION) < len(numbers) else b""
    tags = _tags(record, pack_numbers(moved) if any(moved) else b"", transactions)
    body = (
        pack_numbers(indexes, is_leading=True),
        pack_numbers(run_lengths),
        pack_numbers(first_offsets),
        INT32.pack(batches[0].byte_offset if batches else 0),
        pack_numbers(byte_size, is_leading=True),
        pack_numbers(byte_gaps),
        pack_numbers(spans),
        pack_numbers(offset_gaps),
        pack_numbers(append_times),
        pack_numbers(max_timestamps),
        pack_numbers(magic),
        pack_numbers(kind),
        *map(pack_numbers, producers),
        pack_numbers(sequence_gaps),
    )
    return partitions, (*body, tags)


_LIMITS: Final = tuple((name, _BITS.get(name, 64)) for name in CommittedBatch._fields[1:])
_AS_NUMBERS: Final = struct.Struct(
    "<" + "".join({8: "b", 16: "h", 32: "i", 64: "q"}[bits] for _, bits in _LIMITS)
)
"""A batch from `position` on, each field as wide as it may be."""


def _check_few(batches: Sequence[CommittedBatch]) -> None:
    """`CommittedBatches.check` for a few. Raises ValueError."""
    try:
        for batch in batches:
            # Packed to be checked: a fourth of the time of two comparisons for each field.
            _AS_NUMBERS.pack(*batch[1:])
    except struct.error:
        for (name, bits), number in zip(_LIMITS, batch[1:], strict=True):
            limit = 1 << bits - 1
            if not -limit <= number < limit:
                raise ValueError(f"{name} of a batch has more than {bits} bits") from None
        raise


def _check_indexes(indexes: Sequence[int]) -> None:
    if indexes and not (min(indexes) >= -(1 << 31) and max(indexes) < 1 << 31):
        raise ValueError("a partition index has more than 32 bits")


def _tags(record: FileCommittedRecord, moved: bytes, transactions: bytes) -> bytes:
    fields = {POSITIONS_TAG: moved} if moved else {}
    if transactions:
        fields[TRANSACTION_NUMBERS_TAG] = transactions
    if record.refused:
        for tag, numbers in zip(REFUSED_TAGS, zip(*record.refused, strict=True), strict=True):
            fields[tag] = pack_numbers(numbers, is_leading=tag == REFUSED_TAGS[0])
    return tag_section(fields)


def _last_sequences(base_sequence: Int64s, span: Int64s) -> Int64s:
    """Of batches whose sequences run with their offsets; -1 without a sequence."""
    return np.where(base_sequence < 0, -1, total(base_sequence, span) & SEQUENCE_MASK)


def decode_file_committed(reader: FieldReader) -> FileCommittedRecord:
    """Raises CorruptLog."""
    object_key = ObjectKey(reader.compact_string())
    object_format = reader.int8()
    file_size = reader.int64()
    uploader_broker_id = reader.int32()
    owner_ids = tuple([reader.int32() for _ in range(reader.array_count(4))])
    committed_at_ms = reader.int64()
    request_digest = reader.raw(REQUEST_DIGEST_BYTES)
    topics: list[tuple[UUID, int]] = []
    for _ in range(reader.array_count(_TOPIC_BYTES_MIN)):
        topics.append((reader.uuid(), reader.uvarint()))
        reader.skip_tags()
    indexes = read_column(reader, None)
    runs = len(indexes)
    if sum(count for _, count in topics) != runs:
        raise reader.corrupt(f"not {runs} runs in {len(topics)} topics")
    run_lengths = read_column(reader, runs)
    first_offset = read_column(reader, runs)
    first_byte = reader.int32()
    byte_size = read_column(reader, None)
    count = len(byte_size)
    if (
        (runs and not (run_lengths.min() > 0 and run_lengths.max() <= count))
        or run_lengths.sum() != count
        or (runs and not (indexes.min() >= -(1 << 31) and indexes.max() < 1 << 31))
    ):
        raise reader.corrupt(f"no runs of {count} batches")
    byte_gap, span, offset_gap, append_time, max_timestamp = (
        read_column(reader, count) for _ in range(5)
    )
    magic, timestamp_type, producer_id, producer_epoch, base_sequence, sequence_gap = (
        read_column(reader, count) for _ in range(6)
    )
    moved = np.zeros(count, np.int64)
    transaction_number = np.full(count, NO_TRANSACTION)
    refused: list[Int64s] = []
    for tag, content in reader.tags():
        if tag == POSITIONS_TAG:
            moved = read_column(content, count)
        elif tag == TRANSACTION_NUMBERS_TAG:
            transaction_number = read_column(content, count)
        elif tag in REFUSED_TAGS:
            if tag != REFUSED_TAGS[len(refused)]:
                raise reader.corrupt(f"tag {tag} without those before it")
            refused.append(read_column(content, len(refused[0]) if refused else None))
        else:
            continue
        content.finish()
    if len(refused) not in (0, len(REFUSED_TAGS)):
        raise reader.corrupt(f"only {len(refused)} fields of refused batches")
    starts = np.cumsum(run_lengths) - run_lengths
    # Where each batch would start if its run began at 0; then every run is moved to its offset.
    place = total(before(total(span, 1)), running(offset_gap))
    base_offset = total(place, np.repeat(difference(first_offset, place[starts]), run_lengths))
    batches = CommittedBatches(
        partitions=_partitions(topics, indexes.tolist()),
        run_lengths=run_lengths,
        position=total(moved, np.arange(count)),
        magic=magic,
        byte_offset=total(total(before(byte_size), running(byte_gap)), first_byte),
        byte_size=byte_size,
        base_offset=base_offset,
        last_offset=total(base_offset, span),
        log_append_time_ms=total(append_time, committed_at_ms),
        max_timestamp_ms=total(max_timestamp, committed_at_ms),
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        last_sequence=total(sequence_gap, _last_sequences(base_sequence, span)),
        transaction_number=transaction_number,
    )
    try:
        batches.check()
    except ValueError as error:
        raise CorruptLog(f"FileCommitted: {error}") from error
    return FileCommittedRecord(
        object_key=object_key,
        object_format=object_format,
        file_size=file_size,
        uploader_broker_id=uploader_broker_id,
        owner_ids=owner_ids,
        committed_at_ms=committed_at_ms,
        batches=batches,
        refused=_refused(refused),
        request_digest=request_digest,
    )


def _partitions(
    topics: Sequence[tuple[UUID, int]], indexes: Sequence[int]
) -> Sequence[TopicIdPartition]:
    """The partition of each run."""
    topic_ids = chain.from_iterable(repeat(topic_id, count) for topic_id, count in topics)
    return tuples(TopicIdPartition, topic_ids, indexes)


def _refused(columns: Sequence[Int64s]) -> Sequence[RefusedBatch]:
    numbers = [numbers.tolist() for numbers in columns]
    return tuple(map(RefusedBatch._make, zip(*numbers, strict=True)))
