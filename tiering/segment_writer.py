"""Writes one segment into a file: row group by row group, then a footer that checks all of it.

The roll calls it with a temporary file, so that a segment of any size needs the memory of one row
group. The same rows in the same row groups give the same bytes, which is what lets repeated and
speculative rolls meet under one key.

Encodings are chosen by what pays, measured on 1 KiB and 100-byte records. Offsets and timestamps
rise, so they are delta encoded. Everything else goes through a dictionary: where values repeat it
halves time and size, and where they do not PyArrow gives it up after a megabyte, which costs 2%.
Minimum and maximum are left out for values, headers and raw batches: nobody asks for them, and
every page would repeat two values in the page index.
"""

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiering.segment_columns import RAW_BATCH, SEGMENT_SCHEMA, segment_table
from tiering.segment_format import (
    MAGIC,
    TAIL,
    RowGroup,
    SegmentIdentity,
    SourceRange,
    encode_sources,
    footer_metadata,
    sealed_footer,
)
from wal.crc import Buffer, crc32c

_COPY_BYTES: Final = 1 << 20

_DICTIONARY_COLUMNS: Final = [
    "timestamp_type",
    "key",
    "value",
    "headers.list.element.key",
    "headers.list.element.value",
    "batch_base_offset",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "leader_epoch",
    "attributes",
]
_STATISTICS_COLUMNS: Final = [
    name for name in SEGMENT_SCHEMA.names if name not in ("value", "headers", RAW_BATCH)
]
_ENCODINGS: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


class WrittenSegment(NamedTuple):
    """What lies in the file now."""

    object_bytes: int
    crc32c: int
    record_count: int
    max_timestamp_ms: int
    raw_batch_count: int


class SegmentWriter:
    """Row groups in, a checked Parquet file out.

    `file` is empty, readable and writable, and stays the caller's. Inside a `with` block, call
    `write_row_group` for all records in offset order, then `finish`. What is in the file when the
    block ends without `finish` is not a segment.
    """

    def __init__(
        self,
        file: BinaryIO,
        identity: SegmentIdentity,
        sources: Sequence[SourceRange],
    ) -> None:
        """`sources` name where the records come from."""
        self._file = file
        self._identity = identity
        self._sources = sources
        self._row_groups: list[RowGroup] = []
        self._raw_batch_count = 0
        self._sink = _ChecksummedSink(file)
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            SEGMENT_SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS,
            column_encoding=_ENCODINGS,
            write_statistics=_STATISTICS_COLUMNS,
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

    def write_row_group(self, records: pa.Table) -> None:
        """Append rows of RECORD_SCHEMA, or those and `raw_batch`, as one row group.

        They are those of whole batches.
        """
        assert records.num_rows, "a row group holds records"
        rows = segment_table(records)
        start = self._sink.start_range()
        self._parquet.write_table(rows, row_group_size=rows.num_rows)
        self._raw_batch_count += rows.num_rows - rows.column(RAW_BATCH).null_count
        offsets = records.column("offset")
        self._row_groups.append(
            RowGroup(
                base_offset=offsets[0].as_py(),
                last_offset=offsets[-1].as_py(),
                max_timestamp_ms=pc.max(records.column("timestamp")).as_py(),
                byte_offset=start,
                length_bytes=self._sink.position - start,
                crc32c=self._sink.range_crc32c,
            )
        )

    def finish(self) -> WrittenSegment:
        """Write page index and footer, and the checksums over both."""
        sources = encode_sources(self._sources)
        metadata = footer_metadata(
            self._identity, self._row_groups, self._raw_batch_count, len(sources)
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
        # Nothing in a Parquet file points behind its page index, so there is room for more.
        index += sources
        self._file.seek(written - footer_bytes)
        self._file.write(sources)
        self._file.write(sealed_footer(footer, crc32c(index)))
        self._file.flush()
        object_bytes = index_start + len(index) + footer_bytes
        value = 0
        for fragment in FileBody(self._file, object_bytes).fragments():
            value = crc32c(fragment, value)
        return WrittenSegment(
            object_bytes=object_bytes,
            crc32c=value,
            record_count=self._identity.record_count,
            max_timestamp_ms=max(group.max_timestamp_ms for group in self._row_groups),
            raw_batch_count=self._raw_batch_count,
        )


class FileBody:
    """The first `length_bytes` bytes of an open file as the body of a put (`ObjectBody`)."""

    def __init__(self, file: BinaryIO, length_bytes: int) -> None:
        self._file = file
        self.length_bytes = length_bytes

    def fragments(self) -> Iterator[Buffer]:
        descriptor = self._file.fileno()
        position = 0
        while position < self.length_bytes:
            data = os.pread(descriptor, min(_COPY_BYTES, self.length_bytes - position), position)
            assert data, "nobody else cuts a temporary file"
            yield data
            position += len(data)


class _ChecksummedSink:
    """The file that PyArrow writes to; knows the CRC32C of what was written since a mark."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.position = 0
        self.range_crc32c = 0
        self.is_abandoned = False

    def start_range(self) -> int:
        self.range_crc32c = 0
        return self.position

    def write(self, data: Buffer) -> int:
        if self.is_abandoned:
            return len(data)
        self._file.write(data)
        self.range_crc32c = crc32c(data, self.range_crc32c)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file stays open: the footer's checksums are still to be written."""
