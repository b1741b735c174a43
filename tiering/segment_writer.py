"""Writes one segment into a file: row group by row group, then a footer that checks all of it.

The roll and the merge call it with a temporary file, so that a segment of any size needs the memory
of one row group. The same rows in the same row groups give the same bytes, which is what lets
repeated and speculative attempts meet under one key.

A topic may add typed columns to ours. They come last in the schema, so that in every row group they
lie behind what Kafka consumers need. Where the one part ends and the other begins only the finished
footer tells, so lengths and checksums are read off the file in the end and written over zeros.

Encodings are chosen by what pays, measured on 1 KiB and 100-byte records. Offsets and timestamps
rise, so they are delta encoded. Everything else goes through a dictionary: where values repeat it
halves time and size, and where they do not PyArrow gives it up after a megabyte, which costs 2%.
Minimum and maximum are left out for values, headers and raw batches: nobody asks for them, and
every page would repeat two values in the page index.
"""

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tiering.segment_columns import RAW_BATCH, SEGMENT_SCHEMA, max_timestamp_ms
from tiering.segment_format import (
    MAGIC,
    TAIL,
    EmptyBatch,
    RowGroup,
    SegmentCounts,
    SegmentIdentity,
    WrittenSegment,
    footer_metadata,
    object_crc32c_of,
    sealed_footer,
)
from tiering.segment_sources import SourceRange, encode_sources
from tiering.typed_columns import leaf_paths, with_typed
from wal.crc import Buffer, crc32c

ROW_GROUP_BYTES: Final = 4 << 20
"""Arrow bytes of a row group that a merge or a compaction writes; the roll's, for its reason."""

_COPY_BYTES: Final = 1 << 20

_DICTIONARY_COLUMNS: Final = (
    "timestamp_type",
    "key",
    "value",
    "headers.list.element.key",
    "headers.list.element.value",
    "batch_base_offset",
    "batch_last_offset",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "leader_epoch",
    "attributes",
    "delete_horizon",
)
_STATISTICS_COLUMNS: Final = tuple(
    name for name in SEGMENT_SCHEMA.names if name not in ("value", "headers", RAW_BATCH)
)
_ENCODINGS: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


class SegmentWriter:
    """Row groups in, a checked Parquet file out.

    `file` is empty, readable and writable, and stays the caller's. Inside a `with` block, call
    `write_row_group` for all rows in offset order, then `finish`. What is in the file when the
    block ends without `finish` is not a segment.
    """

    def __init__(
        self,
        file: BinaryIO,
        identity: SegmentIdentity,
        sources: Sequence[SourceRange],
        *,
        typed: Sequence[pa.Field] = (),
        typed_columns: bytes = b"",
    ) -> None:
        """`sources` name where the records come from.

        `typed` are the topic's own columns: nullable, each field and each one inside it with a
        Parquet field id of TYPED_ID_MIN or more. `typed_columns` is what they were made by, if that
        is the same for all rows. Raises: ValueError when a field has no id.
        """
        self._file = file
        self._identity = identity
        self._sources = sources
        self._schema = with_typed(typed)
        self._typed_columns = typed_columns
        self._row_groups: list[tuple[int, int, int, int]] = []
        self._raw_batch_count = 0
        self._sink = _Sink(file)
        leaves = leaf_paths(typed)
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[*_DICTIONARY_COLUMNS, *leaves],
            column_encoding=_ENCODINGS,
            write_statistics=[*_STATISTICS_COLUMNS, *leaves],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
        )
        assert self._sink.position == len(MAGIC), "PyArrow writes the magic when it opens a file"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # PyArrow's writer writes a footer when it goes, finished or not, by then to a closed file.
        self._sink.is_abandoned = True
        self._parquet.close()

    def write_row_group(
        self, rows: pa.Table, typed: Sequence[pa.Array | pa.ChunkedArray] = ()
    ) -> None:
        """Append rows of SEGMENT_SCHEMA, those of whole batches, as one row group.

        `typed` has a column for each typed field, with a value for each row.
        """
        assert rows.num_rows, "a row group holds records"
        columns = [*rows.columns, *typed]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._parquet.write_table(table, row_group_size=rows.num_rows)
        self._raw_batch_count += rows.num_rows - rows.column(RAW_BATCH).null_count
        self._row_groups.append(
            (
                rows.column("batch_base_offset")[0].as_py(),
                rows.column("batch_last_offset")[-1].as_py(),
                rows.num_rows,
                max_timestamp_ms(rows),
            )
        )

    def finish(
        self,
        *,
        controls: int = 0,
        removed: int = 0,
        aborted: int = 0,
        empty_batches: Sequence[EmptyBatch] = (),
    ) -> WrittenSegment:
        """Write page index and footer, and the checksums over both.

        `controls`, `removed` and `aborted`: why offsets of the segment have no row.
        `empty_batches`: the batches without a row that a producer's last sequence is in.
        """
        sources = encode_sources(self._sources)
        records = sum(rows for _, _, rows, _ in self._row_groups)
        counts = SegmentCounts(records, controls, removed, aborted)
        assert counts.offsets == self._identity.offset_count, (counts, self._identity)
        metadata = footer_metadata(
            self._identity,
            counts,
            self._row_groups,
            empty_batches=empty_batches,
            raw_batch_count=self._raw_batch_count,
            typed_columns=self._typed_columns,
            sources_bytes=len(sources),
        )
        self._parquet.add_key_value_metadata(metadata)
        index_start = self._sink.position
        self._parquet.close()
        self._file.flush()
        written = self._sink.position
        self._file.seek(written - TAIL.size)
        footer_bytes = TAIL.unpack(self._file.read(TAIL.size))[0] + TAIL.size
        self._file.seek(index_start)
        index = self._file.read(written - footer_bytes - index_start)
        footer = self._file.read(footer_bytes)
        row_groups = self._finished_row_groups(footer)
        assert not row_groups or row_groups[-1].end == index_start, "PyArrow leaves no space"
        # Nothing in a Parquet file points behind its page index, so there is room for more.
        index += sources
        sealed = sealed_footer(footer, row_groups, crc32c(index))
        self._file.seek(written - footer_bytes)
        self._file.write(sources)
        self._file.write(sealed)
        self._file.flush()
        return WrittenSegment(
            object_bytes=index_start + len(index) + footer_bytes,
            crc32c=crc32c(sealed, crc32c(index, object_crc32c_of(row_groups))),
            counts=counts,
            max_timestamp_ms=max((group.max_timestamp_ms for group in row_groups), default=-1),
            raw_batch_count=self._raw_batch_count,
        )

    def _finished_row_groups(self, footer: bytes) -> Sequence[RowGroup]:
        """Where the parts of the row groups lie in the file, and their checksums."""
        metadata = pq.read_metadata(pa.BufferReader(footer))
        found: list[RowGroup] = []
        start = len(MAGIC)
        for index, described in enumerate(self._row_groups):
            group = metadata.row_group(index)
            columns = [group.column(number) for number in range(group.num_columns)]
            ours = [column for column in columns if _top(column) in SEGMENT_SCHEMA.names]
            middle, end = _end(ours), _end(columns)
            found.append(
                RowGroup(
                    *described,
                    start,
                    middle - start,
                    self._crc32c_of(start, middle),
                    end - middle,
                    self._crc32c_of(middle, end),
                )
            )
            start = end
        return found

    def _crc32c_of(self, start: int, end: int) -> int:
        value = 0
        for fragment in _fragments(self._file.fileno(), start, end):
            value = crc32c(fragment, value)
        return value


def put_together(tables: Iterator[pa.Table], row_group_bytes: int) -> Iterator[pa.Table]:
    """The same rows in tables of up to `row_group_bytes` and a quarter; none is cut."""
    together: list[pa.Table] = []
    size_bytes = 0
    for table in tables:
        if not table.num_rows:
            continue
        if together and size_bytes + table.nbytes > row_group_bytes * 1.25:
            yield pa.concat_tables(together)
            together, size_bytes = [], 0
        together.append(table)
        size_bytes += table.nbytes
    if together:
        yield pa.concat_tables(together)


class FileBody:
    """The first `length_bytes` bytes of an open file as the body of a put (`ObjectBody`)."""

    def __init__(self, file: BinaryIO, length_bytes: int) -> None:
        self._file = file
        self.length_bytes = length_bytes

    def fragments(self) -> Iterator[Buffer]:
        return _fragments(self._file.fileno(), 0, self.length_bytes)


def _fragments(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = os.pread(descriptor, min(_COPY_BYTES, end - start), start)
        assert data, "nobody else cuts a temporary file"
        yield data
        start += len(data)


def _top(column: pq.ColumnChunkMetaData) -> str:
    path: str = column.path_in_schema
    return path.partition(".")[0]


def _end(columns: Sequence[pq.ColumnChunkMetaData]) -> int:
    last = columns[-1]
    start = last.data_page_offset
    if last.dictionary_page_offset is not None:
        start = min(start, last.dictionary_page_offset)
    end: int = start + last.total_compressed_size
    return end


class _Sink:
    """The file that PyArrow writes to; knows how far it got."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.position = 0
        self.is_abandoned = False

    def write(self, data: Buffer) -> int:
        if self.is_abandoned:
            return len(data)
        self._file.write(data)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file stays open: the footer's checksums are still to be written."""
