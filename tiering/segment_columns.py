"""Converts the columns of a segment from and to those of `wal.records.record_columns`.

The two schemas differ where a stock Parquet reader would stumble over what Kafka allows:

- `timestamp` is a real timestamp for SQL. Kafka allows any 64-bit number of milliseconds; SQL and
  Python know the years 1 to 9999, and Spark overflows soon after. A timestamp outside those years
  is null there and exact in `timestamp_raw`, which is null otherwise.
- Header keys are strings. Kafka says UTF-8 and checks nothing; the bytes pass through unchanged,
  and only a reader that insists on valid text will complain about such a row.
- `tombstone` says in one byte what key compaction asks of a value: that it is null. Rows of a batch
  that could not be decoded are no tombstones.
- `delete_horizon` is the time after which a tombstone may go, in milliseconds: null until the
  segment was cleaned for the first time.
- `raw_batch` holds what has no columns, a batch that could not be decoded; null as a rule.

Nothing else differs, and both directions move whole columns, mostly without copying.

Each column has a Parquet field id, which never changes and is never used again: tables find columns
by it. 1 to 99 are ours; from TYPED_ID_MIN up they belong to the typed columns of a topic, which
follow ours in the schema of its segments.

Used by the roll and the segment reader; imports PyArrow, so that the broker imports this module
only when it first meets a segment.
"""

import io
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiering.segment_format import RowGroup, SegmentFooter
from wal.columns import Int64s
from wal.crc import Buffer, crc32c
from wal.errors import CorruptSegment
from wal.records.record_columns import RECORD_SCHEMA

TIMESTAMP_MS_MIN: Final = -62_135_510_400_000
TIMESTAMP_MS_MAX: Final = 253_402_214_399_999
"""0001-01-02 to 9999-12-30 in UTC: a day is left for the readers' time zones."""

RAW_BATCH: Final = "raw_batch"

TYPED_ID_MIN: Final = 100

FIELD_ID: Final = b"PARQUET:field_id"
"""The name under which a field's metadata have its Parquet field id."""


def _field(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={FIELD_ID: str(number)})


# Microseconds: tables know no milliseconds. Of those that took the others for them, one engine
# compared a condition with the bare numbers and left out row groups that it should have read.
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_PER_MS: Final = 1000
_HEADER: Final = pa.struct(
    [_field(10, "key", pa.string()), _field(11, "value", pa.binary(), nullable=True)]
)
_HEADERS: Final = pa.list_(_field(9, "element", _HEADER))
_RECORD_HEADERS: Final = RECORD_SCHEMA.field("headers").type

SEGMENT_SCHEMA: Final = pa.schema(
    [
        _field(1, "offset", pa.int64()),
        _field(2, "timestamp", _TIMESTAMP, nullable=True),
        _field(3, "timestamp_raw", pa.int64(), nullable=True),
        _field(4, "timestamp_type", pa.int8()),
        # Beside key and offset, so that key compaction gets all it needs with one ranged read.
        _field(5, "tombstone", pa.bool_()),
        _field(6, "key", pa.binary(), nullable=True),
        _field(7, "value", pa.binary(), nullable=True),
        _field(8, "headers", _HEADERS),
        # The RecordBatch that the record came in, repeated for each of its records.
        _field(12, "batch_base_offset", pa.int64()),
        _field(13, "batch_last_offset", pa.int64()),
        _field(14, "producer_id", pa.int64()),
        _field(15, "producer_epoch", pa.int16()),
        _field(16, "base_sequence", pa.int32()),
        _field(17, "leader_epoch", pa.int32()),
        _field(18, "attributes", pa.int16()),
        _field(19, "delete_horizon", pa.int64(), nullable=True),
        # All bytes of a batch that could not be decoded, in its first row: tiering/raw_batches.py.
        _field(20, RAW_BATCH, pa.binary(), nullable=True),
    ]
)

_TIMESTAMP_COLUMNS: Final = ("offset", "timestamp", "timestamp_raw")


def segment_table(records: pa.Table) -> pa.Table:
    """The columns of SEGMENT_SCHEMA for rows of RECORD_SCHEMA, or those and `raw_batch`."""
    count = records.num_rows
    timestamps, raw_timestamps = _split_timestamps(records.column("timestamp"))
    replaced = {
        "timestamp": timestamps,
        "timestamp_raw": raw_timestamps,
        "tombstone": pc.is_null(records.column("value")),
        "headers": _retyped_headers(records.column("headers"), _HEADERS),
        "delete_horizon": pa.nulls(count, pa.int64()),
    }
    if RAW_BATCH not in records.column_names:
        replaced[RAW_BATCH] = pa.nulls(count, pa.binary())
    elif records.column(RAW_BATCH).null_count < count:
        is_raw = rows_of_raw_batches(records)
        replaced["tombstone"] = pc.and_not(replaced["tombstone"], is_raw)
    columns = [
        replaced[name] if name in replaced else records.column(name)
        for name in SEGMENT_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=SEGMENT_SCHEMA)


def rows_of_raw_batches(rows: pa.Table) -> pa.ChunkedArray:
    """For each row whether its batch is one that could not be decoded."""
    bases = rows.column("batch_base_offset")
    raw = bases.filter(rows.column(RAW_BATCH).is_valid())
    return pc.is_in(bases, value_set=raw.combine_chunks())


def max_timestamp_ms(rows: pa.Table) -> int:
    """The greatest timestamp among rows of SEGMENT_SCHEMA, of which there is at least one."""
    greatest: int = pc.max(timestamps_ms(rows)).as_py()
    return greatest


def timestamps_ms(rows: pa.Table) -> pa.ChunkedArray:
    """The timestamps of rows of SEGMENT_SCHEMA as Kafka has them."""
    return _joined_timestamps(rows.column("timestamp"), rows.column("timestamp_raw"))


def record_table(rows: pa.Table, *, leader_epoch: int) -> pa.Table:
    """The columns of RECORD_SCHEMA for rows of SEGMENT_SCHEMA.

    Every row gets `leader_epoch`, the epoch batches are served under: what its producer wrote there
    is kept in the file, but a client that adopted it would refuse our metadata.
    """
    replaced = {
        "timestamp": _joined_timestamps(rows.column("timestamp"), rows.column("timestamp_raw")),
        "headers": _retyped_headers(rows.column("headers"), _RECORD_HEADERS),
        "leader_epoch": pa.repeat(pa.scalar(leader_epoch, pa.int32()), rows.num_rows),
    }
    columns = [
        replaced[name] if name in replaced else rows.column(name) for name in RECORD_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def read_row_group(
    key: str,
    footer: SegmentFooter,
    index: int,
    data: Buffer,
    columns: list[str] | None = None,
) -> pa.Table:
    """The rows of one row group, given exactly its Kafka part; all its columns, or the named ones.

    Those named have `offset` among them. Raises: CorruptSegment naming the key.
    """
    group = footer.row_groups[index]
    check_row_group(key, group, data)
    # Page checksums are for other readers: CRC32C covered these bytes already.
    columns = SEGMENT_SCHEMA.names if columns is None else columns
    rows = _read(key, footer, index, group.byte_offset, data, columns, verify_pages=False)
    check_kafka_columns(key, rows)
    check_offsets(key, group, rows)
    return rows


def read_whole_row_group(key: str, footer: SegmentFooter, index: int, data: Buffer) -> pa.Table:
    """The rows of one row group, given both of its parts: our columns, and after them typed ones.

    Raises: CorruptSegment naming the key.
    """
    group = footer.row_groups[index]
    check_row_group(key, group, memoryview(data)[: group.length_bytes])
    check_typed_part(key, group, memoryview(data)[group.length_bytes :])
    rows = _read(key, footer, index, group.byte_offset, data, None, verify_pages=False)
    check_kafka_columns(key, rows.select(rows.column_names[: len(SEGMENT_SCHEMA)]))
    check_offsets(key, group, rows)
    return rows


def read_part_of_row_group(
    key: str, footer: SegmentFooter, index: int, start: int, data: Buffer, columns: list[str]
) -> pa.Table:
    """Some columns, typed ones too, given the bytes of the object from `start` on that hold them.

    Our checksum is over the whole row group, so here Parquet's own tell damage: those of the pages,
    which leave out the pages' headers.
    Raises: CorruptSegment naming the key.
    """
    rows = _read(key, footer, index, start, data, columns, verify_pages=True)
    ours = [name for name in rows.column_names if name in SEGMENT_SCHEMA.names]
    check_kafka_columns(key, rows.select(ours))
    group = footer.row_groups[index]
    if rows.num_rows != group.record_count:
        raise CorruptSegment(f"{key}: row group {index} has {rows.num_rows} rows")
    return rows


def _read(
    key: str,
    footer: SegmentFooter,
    index: int,
    start: int,
    data: Buffer,
    columns: list[str] | None,
    *,
    verify_pages: bool,
) -> pa.Table:
    try:
        source = pa.PythonFile(_PartFile(start, data, footer), mode="r")
        metadata = pq.read_metadata(pa.BufferReader(footer.footer_bytes))
        file = pq.ParquetFile(
            source, metadata=metadata, pre_buffer=False, page_checksum_verification=verify_pages
        )
        rows = file.read_row_group(index, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptSegment(f"{key}: row group {index} cannot be read: {error}") from error
    return rows


def check_row_group(key: str, group: RowGroup, data: Buffer) -> None:
    """Raise CorruptSegment unless `data` are the bytes that were written as its Kafka part."""
    _check_part(key, group.byte_offset, group.length_bytes, group.crc32c, data)


def check_typed_part(key: str, group: RowGroup, data: Buffer) -> None:
    """Raise CorruptSegment unless `data` are the bytes that were written as its typed part."""
    start = group.byte_offset + group.length_bytes
    _check_part(key, start, group.typed_length_bytes, group.typed_crc32c, data)


def _check_part(key: str, start: int, length_bytes: int, expected: int, data: Buffer) -> None:
    value = crc32c(data)
    if len(data) != length_bytes or value != expected:
        raise CorruptSegment(
            f"{key}: row group at byte {start} was written with CRC {expected:#010x},"
            f" has {value:#010x}"
        )


def check_kafka_columns(key: str, rows: pa.Table) -> None:
    """Raise CorruptSegment unless the columns are those of SEGMENT_SCHEMA, or some of them."""
    schema = rows.schema.remove_metadata()
    known = [name for name in SEGMENT_SCHEMA.names if name in set(schema.names)]
    if schema != pa.schema([SEGMENT_SCHEMA.field(name) for name in known]):
        raise CorruptSegment(f"{key}: its columns are not those of a segment")


def check_offsets(key: str, group: RowGroup, rows: pa.Table) -> None:
    """Raise CorruptSegment unless the rows are as many as described, in offset order, in range.

    Batch bounds are checked where their columns are there: the first and the last batch are where
    the row group begins and ends, and no batch reaches into another.
    """
    offsets = rows.column("offset").to_numpy()
    if len(offsets) != group.record_count:
        raise CorruptSegment(
            f"{key}: row group of offsets {group.base_offset} .. {group.last_offset} holds"
            f" {len(offsets)} rows, not {group.record_count}"
        )
    is_right = group.base_offset <= offsets[0] and offsets[-1] <= group.last_offset
    is_right = is_right and bool(np.all(offsets[1:] > offsets[:-1]))
    if is_right and {"batch_base_offset", "batch_last_offset"} <= set(rows.column_names):
        is_right = _batches_follow(
            offsets,
            rows.column("batch_base_offset").to_numpy(),
            rows.column("batch_last_offset").to_numpy(),
            group,
        )
    if not is_right:
        raise CorruptSegment(
            f"{key}: row group of offsets {group.base_offset} .. {group.last_offset} holds rows of"
            f" {offsets[0]} .. {offsets[-1]} that are not in order or not of its batches"
        )


def check_whole_batches(key: str, index: int, rows: pa.Table) -> None:
    """Raise CorruptSegment naming the first offset of a batch in row group `index` without a row.

    What `check_offsets` checks holds already.
    """
    offsets = rows.column("offset").to_numpy()
    bases = rows.column("batch_base_offset").to_numpy()
    lasts = rows.column("batch_last_offset").to_numpy()
    is_first = np.ones(len(offsets), np.bool_)
    is_first[1:] = bases[1:] != bases[:-1]
    expected = np.where(is_first, bases, np.roll(offsets, 1) + 1)
    is_end = np.roll(is_first, -1)
    found = np.concatenate(
        (expected[offsets != expected], (offsets + 1)[is_end & (offsets < lasts)])
    )
    if len(found):
        raise CorruptSegment(f"{key}: row group {index} has no row of offset {found.min()}")


def _batches_follow(offsets: Int64s, bases: Int64s, lasts: Int64s, group: RowGroup) -> bool:
    is_next = bases[1:] != bases[:-1]
    return bool(
        bases[0] == group.base_offset
        and lasts[-1] == group.last_offset
        and np.all((bases <= offsets) & (offsets <= lasts))
        and np.all(np.where(is_next, bases[1:] > lasts[:-1], lasts[1:] == lasts[:-1]))
    )


def read_timestamps(
    key: str, footer: SegmentFooter, index: int, data: Buffer
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """(offsets, timestamps in ms) of the rows of one row group. Raises: CorruptSegment."""
    rows = read_row_group(key, footer, index, data, list(_TIMESTAMP_COLUMNS))
    timestamps = _joined_timestamps(rows.column("timestamp"), rows.column("timestamp_raw"))
    return rows.column("offset"), timestamps


class _PartFile(io.RawIOBase):
    """A segment of which only a part is there: what PyArrow reads a row group from."""

    def __init__(self, start: int, data: Buffer, footer: SegmentFooter) -> None:
        self._start = start
        self._data = memoryview(data)
        self._size = footer.footer_start + len(footer.footer_bytes)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        return bytes(self._take(size))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """PyArrow asks for this one where it can, and then copies nothing."""
        return pa.py_buffer(self._take(size))

    def _take(self, size: int) -> memoryview:
        first = self._position - self._start
        end = len(self._data) if size < 0 else min(first + size, len(self._data))
        if first < 0 or (first >= end and size != 0):
            raise OSError(f"bytes at {self._position} are outside what was read")
        self._position += end - first
        return self._data[first:end]


def _split_timestamps(timestamps: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    bounds = pc.min_max(timestamps)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    nothing = pa.scalar(None, pa.int64())
    if least is None or (least >= TIMESTAMP_MS_MIN and most <= TIMESTAMP_MS_MAX):
        return _as_timestamps(timestamps), pa.chunked_array([pa.nulls(len(timestamps), pa.int64())])
    fits = pc.and_(
        pc.greater_equal(timestamps, TIMESTAMP_MS_MIN),
        pc.less_equal(timestamps, TIMESTAMP_MS_MAX),
    )
    return (
        _as_timestamps(pc.if_else(fits, timestamps, nothing)),
        pc.if_else(fits, nothing, timestamps),
    )


def _as_timestamps(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(milliseconds, _PER_MS).cast(_TIMESTAMP)


def _joined_timestamps(timestamps: pa.ChunkedArray, raw: pa.ChunkedArray) -> pa.ChunkedArray:
    """Milliseconds. What our writer wrote has no smaller part, so that nothing is rounded."""
    numbers = pc.divide(timestamps.cast(pa.int64()), _PER_MS)
    return numbers if numbers.null_count == 0 else pc.coalesce(numbers, raw)


def _retyped_headers(headers: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """The same buffers under another type: binary keys as strings, or strings as binary."""
    return pa.chunked_array([_retyped_list(chunk, wanted) for chunk in headers.chunks], type=wanted)


def _retyped_list(headers: pa.ListArray, wanted: pa.DataType) -> pa.ListArray:
    struct_type = wanted.value_type
    # `flatten` drops what lies outside a slice, `values` does not; offsets are rebased to match.
    pairs = headers.flatten()
    offsets = headers.offsets
    if len(offsets) and offsets[0].as_py():
        offsets = pc.subtract(offsets, offsets[0])
    keys = pairs.field(0)
    key_type = struct_type.field(0).type
    keys = pa.Array.from_buffers(key_type, len(keys), keys.buffers(), keys.null_count, keys.offset)
    fields = [struct_type.field(index) for index in range(struct_type.num_fields)]
    retyped = pa.StructArray.from_arrays([keys, pairs.field(1)], fields=fields)
    return pa.ListArray.from_arrays(offsets, retyped, type=wanted)
