"""Converts the columns of a segment from and to those of `wal.records.record_columns`.

The two schemas differ where a stock Parquet reader would stumble over what Kafka allows:

- `timestamp` is a real timestamp for SQL. Kafka allows any 64-bit number of milliseconds; SQL and
  Python know the years 1 to 9999, and Spark overflows soon after. A timestamp outside those years
  is null there and exact in `timestamp_raw`, which is null otherwise.
- Header keys are strings. Kafka says UTF-8 and checks nothing; the bytes pass through unchanged,
  and only a reader that insists on valid text will complain about such a row.
- `raw_batch` holds what has no columns, a batch that could not be decoded; null as a rule.

Nothing else differs, and both directions move whole columns, mostly without copying.

Used by the roll and the segment reader; imports PyArrow, so that the broker imports this module
only when it first meets a segment.
"""

import io
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiering.segment_format import RowGroup, SegmentFooter
from wal.crc import Buffer, crc32c
from wal.errors import CorruptSegment
from wal.records.record_columns import RECORD_SCHEMA

TIMESTAMP_MS_MIN: Final = -62_135_510_400_000
TIMESTAMP_MS_MAX: Final = 253_402_214_399_999
"""0001-01-02 to 9999-12-30 in UTC: a day is left for the readers' time zones."""

RAW_BATCH: Final = "raw_batch"

_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
_HEADER: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
_HEADERS: Final = pa.list_(pa.field("element", _HEADER, nullable=False))
_RECORD_HEADERS: Final = RECORD_SCHEMA.field("headers").type

SEGMENT_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("timestamp_raw", pa.int64()),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS, nullable=False),
        # The RecordBatch that the record came in, repeated for each of its records.
        pa.field("batch_base_offset", pa.int64(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("base_sequence", pa.int32(), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("attributes", pa.int16(), nullable=False),
        # All bytes of a batch that could not be decoded, in its first row: tiering/raw_batches.py.
        pa.field(RAW_BATCH, pa.binary()),
    ]
)

_TIMESTAMP_COLUMNS: Final = ("offset", "timestamp", "timestamp_raw")


def segment_table(records: pa.Table) -> pa.Table:
    """The columns of SEGMENT_SCHEMA for rows of RECORD_SCHEMA, or those and `raw_batch`."""
    timestamps, raw = _split_timestamps(records.column("timestamp"))
    replaced = {
        "timestamp": timestamps,
        "timestamp_raw": raw,
        "headers": _retyped_headers(records.column("headers"), _HEADERS),
    }
    if RAW_BATCH not in records.column_names:
        replaced[RAW_BATCH] = pa.nulls(records.num_rows, pa.binary())
    columns = [
        replaced[name] if name in replaced else records.column(name)
        for name in SEGMENT_SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=SEGMENT_SCHEMA)


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
    """The rows of one row group, given exactly its bytes; all columns, or the named ones.

    Raises: CorruptSegment naming the key.
    """
    group = footer.row_groups[index]
    check_row_group(key, group, data)
    # Page checksums are for other readers: CRC32C covered these bytes already.
    rows = _read(key, footer, index, group.byte_offset, data, columns, verify_pages=False)
    _check_offsets(key, group, rows)
    return rows


def read_part_of_row_group(
    key: str, footer: SegmentFooter, index: int, start: int, data: Buffer, columns: list[str]
) -> pa.Table:
    """Some columns, given the bytes of the object from `start` on that hold them.

    Our checksum is over the whole row group, so here Parquet's own tell damage: those of the pages,
    which leave out the pages' headers.
    Raises: CorruptSegment naming the key.
    """
    rows = _read(key, footer, index, start, data, columns, verify_pages=True)
    group = footer.row_groups[index]
    if rows.num_rows != group.last_offset - group.base_offset + 1:
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
    expected = SEGMENT_SCHEMA if columns is None else _part_of_schema(columns)
    if rows.schema.remove_metadata() != expected:
        raise CorruptSegment(f"{key}: its columns are not those of a segment")
    return rows


def check_row_group(key: str, group: RowGroup, data: Buffer) -> None:
    """Raise CorruptSegment unless `data` are the bytes that were written as this row group."""
    value = crc32c(data)
    if len(data) != group.length_bytes or value != group.crc32c:
        raise CorruptSegment(
            f"{key}: row group at byte {group.byte_offset} was written with CRC"
            f" {group.crc32c:#010x}, has {value:#010x}"
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


def _part_of_schema(columns: list[str]) -> pa.Schema:
    return pa.schema([SEGMENT_SCHEMA.field(name) for name in columns])


def _check_offsets(key: str, group: RowGroup, rows: pa.Table) -> None:
    bounds = pc.min_max(rows.column("offset"))
    found = (bounds["min"].as_py(), bounds["max"].as_py(), rows.num_rows)
    count = group.last_offset - group.base_offset + 1
    if found != (group.base_offset, group.last_offset, count):
        raise CorruptSegment(
            f"{key}: row group of offsets {group.base_offset} .. {group.last_offset} holds"
            f" {found[2]} rows of {found[0]} .. {found[1]}"
        )


def _split_timestamps(timestamps: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    bounds = pc.min_max(timestamps)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    nothing = pa.scalar(None, pa.int64())
    if least is None or (least >= TIMESTAMP_MS_MIN and most <= TIMESTAMP_MS_MAX):
        return timestamps.cast(_TIMESTAMP), pa.chunked_array(
            [pa.nulls(len(timestamps), pa.int64())]
        )
    fits = pc.and_(
        pc.greater_equal(timestamps, TIMESTAMP_MS_MIN),
        pc.less_equal(timestamps, TIMESTAMP_MS_MAX),
    )
    return (
        pc.if_else(fits, timestamps, nothing).cast(_TIMESTAMP),
        pc.if_else(fits, nothing, timestamps),
    )


def _joined_timestamps(timestamps: pa.ChunkedArray, raw: pa.ChunkedArray) -> pa.ChunkedArray:
    numbers = timestamps.cast(pa.int64())
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
