"""Gives each row its partition and its record batch, for all rows at once.

A row's partition is its `partition`, if it has one; else what Kafka's default partitioner makes of
its key, murmur2; without a key, runs of about a batch go to one partition after the other. Rows of
a partition keep their order. A record batch ends where its rows, uncompressed, would pass
`batch_bytes`; a row that is larger by itself is a batch of its own.

Failure cases: Rejected for a partition that is not there, and for a header without a key;
KeysMissing for rows without a key of a compacted topic; RecordTooLarge.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from metadata.sink_operations import SinkTopic
from wal.columns import Int64s
from wal.coordinates import (
    CREATE_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TopicIdPartition,
)
from wal.crc import Buffer
from wal.errors import KeysMissing, RecordTooLarge, Rejected
from wal.records.compression import NONE
from wal.records.recompression import Compression, recompressed
from wal.records.record_batch import HEADER_BYTES, parse_header
from wal.records.record_columns import RECORD_SCHEMA
from wal.records.record_encoding import encode_batches

RECORD_BYTES: Final = 24
"""What a record takes besides key, value and headers, about."""

_UInt32s = npt.NDArray[np.uint32]
_HEADERS: Final = RECORD_SCHEMA.field("headers").type
_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)


class MadeBatch(NamedTuple):
    """A record batch for a partition."""

    partition: TopicIdPartition
    data: bytes
    record_count: int


def record_table(rows: pa.RecordBatch) -> pa.Table:
    """The columns `key`, `value`, `headers` and `partition`, in one type each.

    Raises Rejected.
    """
    count = rows.num_rows
    return pa.table(
        {
            "key": _binary(rows, "key"),
            "value": _binary(rows, "value"),
            "headers": _headers(rows),
            "partition": (
                rows.column("partition").cast(pa.int32())
                if "partition" in rows.schema.names
                else pa.nulls(count, pa.int32())
            ),
        }
    )


def make_batches(
    table: pa.Table,
    topic: SinkTopic,
    compression: Compression,
    *,
    batch_bytes: int,
    timestamp_ms: int,
    first_partition: int = 0,
) -> Sequence[MadeBatch]:
    """The record batches of rows that `record_table` gave.

    `first_partition`: where rows without a key and a partition begin.
    """
    if not table.num_rows:
        return ()
    if topic.is_compacted and table.column("key").null_count:
        raise KeysMissing(
            f"{table.column('key').null_count} rows have no key, and {topic.name} is compacted"
        )
    table = table.combine_chunks()
    sizes = _sizes(table)
    batch_bytes = min(batch_bytes, topic.max_message_bytes // 2)
    partitions = _partitions(table, sizes, topic, batch_bytes, first_partition)
    order = np.argsort(partitions, kind="stable")
    partitions, sizes, table = partitions[order], sizes[order], table.take(order)
    firsts = np.flatnonzero(_begins_batch(partitions, sizes, batch_bytes))
    counts = np.diff(firsts, append=len(partitions))
    made = []
    for batch in encode_batches(_as_records(table, firsts, counts, timestamp_ms)):
        made.append(_made(batch.data, int(partitions[batch.base_offset]), topic, compression))
    return made


def murmur2(keys: pa.Array) -> _UInt32s:
    """Kafka's hash of each byte string; null ones have any."""
    data, starts, lengths = _bytes_of(keys)
    # The longest first, so that those with a word left are always a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    padded = np.concatenate((data, np.zeros(4, np.uint8)))
    hashes: _UInt32s = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    for number in range(int(words[0]) if len(words) else 0):
        active = int(np.searchsorted(-words, -number, side="left"))
        at = starts[:active] + 4 * number
        k = _word(padded, at) * _M
        k ^= k >> np.uint32(24)
        hashes[:active] = hashes[:active] * _M ^ k * _M
    rest = lengths % 4
    tail = _word(padded, np.minimum(starts + 4 * words, len(data)))
    tail &= ((np.uint64(1) << (8 * rest).astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    hashes = np.where(rest > 0, (hashes ^ tail) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def _word(data: npt.NDArray[np.uint8], at: Int64s) -> _UInt32s:
    word = data[at].astype(np.uint32)
    for number in range(1, 4):
        word |= data[at + number].astype(np.uint32) << np.uint32(8 * number)
    return word


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Int64s, Int64s]:
    """The bytes below an array, and where each value begins in them and how long it is."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    places: Int64s = bounds.astype(np.int64)
    return content, places[:-1], np.diff(places)


def _partitions(
    table: pa.Table, sizes: Int64s, topic: SinkTopic, batch_bytes: int, first_partition: int
) -> Int64s:
    count = topic.partition_count
    keys, given = _chunk(table, "key"), _chunk(table, "partition")
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    chosen = ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int64)
    loose = np.where(has_key, 0, sizes)
    chosen = np.where(has_key, chosen, (first_partition + np.cumsum(loose) // batch_bytes) % count)
    if given.null_count == len(given):
        return chosen
    is_given = given.is_valid().to_numpy(zero_copy_only=False)
    wanted = pc.fill_null(given, 0).to_numpy().astype(np.int64)
    outside = is_given & ((wanted < 0) | (wanted >= count))
    if outside.any():
        raise Rejected(
            f"a row is for partition {wanted[outside][0]}; {topic.name} has {count} partitions"
        )
    return np.where(is_given, wanted, chosen)


def _begins_batch(partitions: Int64s, sizes: Int64s, batch_bytes: int) -> npt.NDArray[np.bool_]:
    begins: npt.NDArray[np.bool_] = np.diff(partitions, prepend=-1) != 0
    starts = np.flatnonzero(begins)
    before = np.cumsum(sizes) - sizes
    before -= np.repeat(before[starts], np.diff(starts, append=len(sizes)))
    run = before // batch_bytes
    begins[1:] |= run[1:] != run[:-1]
    is_large = sizes > batch_bytes
    begins |= is_large
    begins[1:] |= is_large[:-1]
    return begins


def _as_records(table: pa.Table, firsts: Int64s, counts: Int64s, timestamp_ms: int) -> pa.Table:
    """The rows as RECORD_SCHEMA has them, with offsets that run through all batches."""
    count = table.num_rows
    same = {
        "timestamp": timestamp_ms,
        "timestamp_type": CREATE_TIME,
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": NO_PRODUCER_EPOCH,
        "base_sequence": NO_SEQUENCE,
        "leader_epoch": -1,
        "attributes": 0,
    }
    columns = {
        "offset": pa.array(np.arange(count)),
        "key": table.column("key"),
        "value": table.column("value"),
        "headers": table.column("headers"),
        "batch_base_offset": pa.array(np.repeat(firsts, counts)),
        "batch_last_offset": pa.array(np.repeat(firsts + counts - 1, counts)),
        **{
            name: pa.array(np.full(count, value, RECORD_SCHEMA.field(name).type.to_pandas_dtype()))
            for name, value in same.items()
        },
    }
    return pa.table([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def _made(data: Buffer, partition: int, topic: SinkTopic, compression: Compression) -> MadeBatch:
    """Offsets in an object are relative: the batch's own base offset is 0."""
    header = parse_header(data)._replace(base_offset=0)
    if compression.codec == NONE:
        if len(data) > topic.max_message_bytes:
            raise RecordTooLarge(
                f"a batch of {len(data)} bytes, {topic.name} allows {topic.max_message_bytes}"
            )
        made = bytes(8) + data[8:]
    else:
        body = memoryview(data)[HEADER_BYTES:]
        _, made = recompressed(header, body, compression, max_bytes=topic.max_message_bytes)
    place = TopicIdPartition(topic.topic_id, partition)
    return MadeBatch(place, made, header.record_count)


def _sizes(table: pa.Table) -> Int64s:
    sizes: Int64s = np.full(table.num_rows, RECORD_BYTES, np.int64)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(_chunk(table, name)), 0)
        sizes += lengths.to_numpy().astype(np.int64)
    headers = _chunk(table, "headers")
    pairs = headers.flatten()
    if len(pairs):
        each = np.full(len(pairs), 4, np.int64)
        for name in ("key", "value"):
            each += pc.fill_null(pc.binary_length(pairs.field(name)), 0).to_numpy()
        ends = np.cumsum(headers.value_lengths().to_numpy().astype(np.int64))
        total = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
        sizes += np.diff(total[ends], prepend=0)
    return sizes


def _chunk(table: pa.Table, name: str) -> pa.Array:
    """A column of a table whose chunks were combined."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _binary(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return rows.column(name).cast(pa.binary())


def _headers(rows: pa.RecordBatch) -> pa.Array:
    if "headers" not in rows.schema.names:
        bounds = pa.array(np.zeros(rows.num_rows + 1, np.int32))
        pairs = pa.array([], _HEADERS.value_type)
    else:
        column = rows.column("headers")
        lengths = pc.fill_null(column.value_lengths(), 0).to_numpy().astype(np.int32)
        bounds = pa.array(
            np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
        )
        given = column.flatten()
        keys = given.field("key").cast(pa.binary())
        if keys.null_count or given.null_count:
            raise Rejected("a header has no key")
        fields = [_HEADERS.value_type.field(number) for number in range(2)]
        pairs = pa.StructArray.from_arrays(
            [keys, given.field("value").cast(pa.binary())], fields=fields
        )
    return pa.ListArray.from_arrays(bounds, pairs, type=_HEADERS)
