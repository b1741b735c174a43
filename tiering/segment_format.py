"""Defines the footer of a Parquet segment: key-value metadata, checksums, checks.

A segment holds records of one partition between `base_offset` and `last_offset`, one row per record
in offset order. Any Parquet reader reads it; docs/segment-format.md is the page for those. What
only this project needs lies in the footer's key-value metadata, under names that start with
`diskless.`:

| key | value |
|---|---|
| diskless.format.version | `2` |
| diskless.topic, diskless.topic.id, diskless.partition | whose records these are |
| diskless.base.offset, diskless.last.offset | which offsets this file answers for |
| diskless.generation | how often these offsets were written anew: 0, or that of the key |
| diskless.record.count | rows |
| diskless.control.count | offsets of control records, which never become rows |
| diskless.aborted.count | offsets of records of aborted transactions, which do not either |
| diskless.removed.count | offsets of records that compactions removed |
| diskless.raw.batch.count | batches that could not be decoded and are kept as they were sent |
| diskless.created.by | the writer; never a time or a host, so that a repeated roll is equal |
| diskless.row.groups | JSON: per row group `[base offset, last offset, rows, max timestamp]` |
| diskless.row.group.parts | per row group 32 hex digits: length and CRC32C of the Kafka part,
length and CRC32C of the typed part |
| diskless.empty.batches | JSON: `[base offset, last offset, producer id, producer epoch, base
sequence, max timestamp]` of batches without a row that hold a producer's last sequence |
| diskless.typed.columns | Base64: what the typed columns were made by (tiering/types/columns.py);
empty where there are none, or the rows were typed by several |
| diskless.sources.bytes | how many bytes before the footer are the sources |
| diskless.crc32c | `<CRC32C of the page index>-<CRC32C of the footer>` as 8 hex digits each |

The four counts together are exactly the offsets of the range: what has no row is accounted for.
A row group's base and last offset are those of its first and its last batch, whose records need not
all be there. Between row groups, and at both ends of the segment, offsets may be missing.

In each row group the columns lie in the order of the schema, and those that a topic's own types add
come last. So the columns that Kafka consumers need, the *Kafka part*, are the front of the row
group: a broker reads that and not the *typed part*, and each has a checksum of its own.

Parquet's own page checksums cover neither page headers nor the footer, so a flipped bit there can
turn into other values without an error. Here every byte of the object is covered: row groups lie
back to back from byte 4 and have their checksums in the table above; the page index and the footer
have theirs in `diskless.crc32c`. Lengths and checksums are known when the file is written, so the
footer is written with zeros in their places, which are overwritten in place: the values have a
fixed length. The footer's own checksum is computed with its 8 digits set to zero.

    PAR1 | row group 0 | … | page index | sources | footer | footer length (u32 LE) | PAR1

The sources are what a rebuild of the metadata reads: tiering/segment_sources.py. The page index's
checksum covers them.

This module knows the footer; metadata/records/segment_identity.py names the object,
tiering/segment_writer.py writes, tiering/segment_reader.py reads, tiering/segment_columns.py knows
the columns. PyArrow is imported on first use only: the broker starts without it.

Failure cases: CorruptSegment naming the key for everything that does not hold.
"""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from wal.coordinates import TopicIdPartition
from wal.crc import Buffer, crc32c, crc32c_joined
from wal.errors import CorruptSegment
from wal.wire.fields import uvarint

FORMAT_VERSION: Final = "2"
CREATED_BY: Final = "diskless segment writer 2"

MAGIC: Final = b"PAR1"
TAIL: Final = struct.Struct("<I4s")
"""The last bytes of every Parquet file: length of the footer, magic."""
assert TAIL.size == 8

FOOTER_BYTES_MAX: Final = 64 << 20
"""No footer of ours comes near; a damaged length must not make a reader fetch gigabytes."""

NO_TIMESTAMP_MS: Final = -1
"""The greatest timestamp of a segment without a row; Kafka's word for none."""

VERSION_KEY: Final = "diskless.format.version"
TOPIC_KEY: Final = "diskless.topic"
TOPIC_ID_KEY: Final = "diskless.topic.id"
PARTITION_KEY: Final = "diskless.partition"
BASE_OFFSET_KEY: Final = "diskless.base.offset"
LAST_OFFSET_KEY: Final = "diskless.last.offset"
GENERATION_KEY: Final = "diskless.generation"
RECORD_COUNT_KEY: Final = "diskless.record.count"
CONTROL_COUNT_KEY: Final = "diskless.control.count"
ABORTED_COUNT_KEY: Final = "diskless.aborted.count"
REMOVED_COUNT_KEY: Final = "diskless.removed.count"
RAW_BATCH_COUNT_KEY: Final = "diskless.raw.batch.count"
CREATED_BY_KEY: Final = "diskless.created.by"
ROW_GROUPS_KEY: Final = "diskless.row.groups"
PARTS_KEY: Final = "diskless.row.group.parts"
EMPTY_BATCHES_KEY: Final = "diskless.empty.batches"
TYPED_COLUMNS_KEY: Final = "diskless.typed.columns"
SOURCES_BYTES_KEY: Final = "diskless.sources.bytes"
CHECKSUMS_KEY: Final = "diskless.crc32c"

CHECKSUMS_PLACEHOLDER: Final = "00000000-00000000"
_CRC_DIGITS: Final = 8
_PART_DIGITS: Final = 8
_PARTS_DIGITS: Final = 4 * _PART_DIGITS


class SegmentIdentity(NamedTuple):
    """Which offsets a segment answers for, and in which generation."""

    topic_name: str
    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    generation: int = 0

    @property
    def offset_count(self) -> int:
        return self.last_offset - self.base_offset + 1


class SegmentCounts(NamedTuple):
    """What became of the offsets of a segment's range, each counted once."""

    records: int
    """They are rows."""
    controls: int = 0
    """They were control records, which never become rows."""
    removed: int = 0
    """Compactions removed them."""
    aborted: int = 0
    """Their transactions were aborted; they never become rows either."""

    @property
    def offsets(self) -> int:
        return sum(self)


class RowGroup(NamedTuple):
    """One row group: rows of whole RecordBatches, and the bytes they take in the object."""

    base_offset: int
    """Of the first batch."""
    last_offset: int
    """Of the last batch."""
    record_count: int
    """Rows; fewer than offsets where records are gone."""
    max_timestamp_ms: int
    byte_offset: int
    length_bytes: int
    """Of the Kafka part, all that a broker reads."""
    crc32c: int
    typed_length_bytes: int = 0
    """Of the typed part, which follows at once."""
    typed_crc32c: int = 0

    @property
    def end(self) -> int:
        """The first byte behind both parts."""
        return self.byte_offset + self.length_bytes + self.typed_length_bytes


class EmptyBatch(NamedTuple):
    """A batch whose records are all gone, kept because it has a producer's last sequence."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """A verified footer. `row_groups` in offset order, between base and last offset."""

    identity: SegmentIdentity
    counts: SegmentCounts
    row_groups: Sequence[RowGroup]
    empty_batches: Sequence[EmptyBatch]
    """In offset order."""
    raw_batch_count: int
    page_index_crc32c: int
    page_index_start: int
    footer_start: int
    footer_bytes: bytes
    """The footer's Thrift bytes, the 8 bytes after them included: what PyArrow wants to see."""
    typed_columns: bytes
    """What the typed columns of all rows were made by; empty where that is not known."""
    sources_bytes: int
    """How many bytes before the footer `decode_sources` reads."""

    @property
    def max_timestamp_ms(self) -> int:
        times = (group.max_timestamp_ms for group in self.row_groups)
        return max(times, default=NO_TIMESTAMP_MS)

    @property
    def object_crc32c(self) -> int:
        """CRC32C over the whole object, which its parts' checksums tell."""
        value = object_crc32c_of(self.row_groups)
        index_bytes = self.footer_start - self.page_index_start
        value = crc32c_joined(value, self.page_index_crc32c, index_bytes)
        return crc32c(self.footer_bytes, value)


class WrittenSegment(NamedTuple):
    """What lies in a file or in the store, exactly."""

    object_bytes: int
    crc32c: int
    counts: SegmentCounts
    max_timestamp_ms: int
    raw_batch_count: int


def object_crc32c_of(row_groups: Sequence[RowGroup]) -> int:
    """CRC32C over an object up to the end of its row groups."""
    value = crc32c(MAGIC)
    for group in row_groups:
        value = crc32c_joined(value, group.crc32c, group.length_bytes)
        value = crc32c_joined(value, group.typed_crc32c, group.typed_length_bytes)
    return value


def footer_metadata(
    identity: SegmentIdentity,
    counts: SegmentCounts,
    row_groups: Sequence[tuple[int, int, int, int]],
    *,
    empty_batches: Sequence[EmptyBatch] = (),
    raw_batch_count: int,
    typed_columns: bytes,
    sources_bytes: int,
) -> dict[str, str]:
    """The key-value metadata of a segment; parts and checksums are still to be filled in.

    `row_groups`: base offset, last offset, rows and greatest timestamp of each.
    """
    return {
        SOURCES_BYTES_KEY: str(sources_bytes),
        VERSION_KEY: FORMAT_VERSION,
        TOPIC_KEY: identity.topic_name,
        TOPIC_ID_KEY: str(identity.partition.topic_id),
        PARTITION_KEY: str(identity.partition.partition),
        BASE_OFFSET_KEY: str(identity.base_offset),
        LAST_OFFSET_KEY: str(identity.last_offset),
        GENERATION_KEY: str(identity.generation),
        RECORD_COUNT_KEY: str(counts.records),
        CONTROL_COUNT_KEY: str(counts.controls),
        ABORTED_COUNT_KEY: str(counts.aborted),
        REMOVED_COUNT_KEY: str(counts.removed),
        RAW_BATCH_COUNT_KEY: str(raw_batch_count),
        CREATED_BY_KEY: CREATED_BY,
        TYPED_COLUMNS_KEY: base64.b64encode(typed_columns).decode(),
        ROW_GROUPS_KEY: _json(row_groups),
        EMPTY_BATCHES_KEY: _json(empty_batches),
        PARTS_KEY: "0" * (_PARTS_DIGITS * len(row_groups)),
        CHECKSUMS_KEY: CHECKSUMS_PLACEHOLDER,
    }


def _json(rows: Sequence[Sequence[int]]) -> str:
    return json.dumps([list(row) for row in rows], separators=(",", ":"))


def sealed_footer(footer: bytes, row_groups: Sequence[RowGroup], page_index_crc32c: int) -> bytes:
    """`footer` (with its last 8 bytes) with lengths and checksums written over the zeros."""
    sealed = bytearray(footer)
    parts = b"".join(
        b"%08x%08x%08x%08x"
        % (group.length_bytes, group.crc32c, group.typed_length_bytes, group.typed_crc32c)
        for group in row_groups
    )
    assert len(parts) == _PARTS_DIGITS * len(row_groups), "a row group stays below 4 GiB"
    if parts:
        start = _value_position(footer, PARTS_KEY, len(parts))
        assert start is not None, "the writer put the zeros there"
        sealed[start : start + len(parts)] = parts
    start = _value_position(footer, CHECKSUMS_KEY, len(CHECKSUMS_PLACEHOLDER))
    assert start is not None, "the writer put the placeholder there"
    sealed[start : start + _CRC_DIGITS] = b"%08x" % page_index_crc32c
    own = start + _CRC_DIGITS + 1
    sealed[own : own + _CRC_DIGITS] = b"%08x" % crc32c(sealed)
    return bytes(sealed)


def footer_length(key: str, tail: Buffer, object_bytes: int) -> int:
    """Bytes of the footer and what follows it, from the last 8 bytes of the object.

    Raises: CorruptSegment.
    """
    if len(tail) < TAIL.size:
        raise CorruptSegment(f"{key}: {object_bytes} bytes cannot hold a segment")
    length, magic = TAIL.unpack(bytes(tail[-TAIL.size :]))
    total: int = length + TAIL.size
    if magic != MAGIC or total > min(object_bytes - len(MAGIC), FOOTER_BYTES_MAX):
        raise CorruptSegment(f"{key}: does not end in a Parquet footer")
    return total


def parse_footer(key: str, footer: bytes, object_bytes: int) -> SegmentFooter:
    """Check and read a footer, given with the 8 bytes after it.

    Nothing in it is looked at before its checksum fits. Raises: CorruptSegment.
    """
    page_index_crc32c = _verify_checksum(key, footer)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegment(f"{key}: footer cannot be read: {error}") from error
    pairs = _Pairs(metadata.metadata or {})
    try:
        version = pairs.text(VERSION_KEY)
        if version != FORMAT_VERSION:
            raise CorruptSegment(
                f"{key}: format version {version}; this release reads version {FORMAT_VERSION}"
            )
        identity = SegmentIdentity(
            pairs.text(TOPIC_KEY),
            TopicIdPartition(UUID(pairs.text(TOPIC_ID_KEY)), pairs.number(PARTITION_KEY)),
            pairs.number(BASE_OFFSET_KEY),
            pairs.number(LAST_OFFSET_KEY),
            pairs.number(GENERATION_KEY),
        )
        counts = SegmentCounts(
            pairs.number(RECORD_COUNT_KEY),
            pairs.number(CONTROL_COUNT_KEY),
            pairs.number(REMOVED_COUNT_KEY),
            pairs.number(ABORTED_COUNT_KEY),
        )
        raw_batch_count = pairs.number(RAW_BATCH_COUNT_KEY)
        row_groups = _row_groups(pairs)
        empty_batches = tuple(EmptyBatch(*map(int, it)) for it in pairs.rows(EMPTY_BATCHES_KEY))
        typed_columns = base64.b64decode(pairs.text(TYPED_COLUMNS_KEY), validate=True)
        sources_bytes = pairs.number(SOURCES_BYTES_KEY)
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptSegment(f"{key}: footer metadata is incomplete: {error!r}") from error
    footer_start = object_bytes - len(footer)
    index_start = _check_row_groups(key, identity, row_groups, footer_start)
    _check_counts(key, identity, counts, row_groups)
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    described = [group.record_count for group in row_groups]
    if rows != described:
        raise CorruptSegment(f"{key}: row groups hold {rows} rows, not {described}")
    index_bytes = footer_start - index_start
    if not 0 <= sources_bytes <= index_bytes:
        raise CorruptSegment(f"{key}: {sources_bytes} bytes of sources in {index_bytes}")
    return SegmentFooter(
        identity=identity,
        counts=counts,
        row_groups=row_groups,
        empty_batches=empty_batches,
        raw_batch_count=raw_batch_count,
        page_index_crc32c=page_index_crc32c,
        page_index_start=index_start,
        footer_start=footer_start,
        footer_bytes=footer,
        typed_columns=typed_columns,
        sources_bytes=sources_bytes,
    )


class _Pairs:
    """The footer's key-value metadata; raises KeyError and ValueError."""

    def __init__(self, pairs: Mapping[bytes, bytes]) -> None:
        self._pairs = pairs

    def text(self, key: str) -> str:
        return self._pairs[key.encode()].decode()

    def number(self, key: str) -> int:
        return int(self._pairs[key.encode()])

    def rows(self, key: str) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = json.loads(self._pairs[key.encode()])
        return found


def _row_groups(pairs: _Pairs) -> Sequence[RowGroup]:
    parts = pairs.text(PARTS_KEY)
    described = pairs.rows(ROW_GROUPS_KEY)
    if len(parts) != _PARTS_DIGITS * len(described):
        raise ValueError(f"{len(parts)} digits of parts for {len(described)} row groups")
    numbers = [int(parts[at : at + _PART_DIGITS], 16) for at in range(0, len(parts), _PART_DIGITS)]
    found = []
    byte_offset = len(MAGIC)
    for index, group in enumerate(described):
        base, last, rows, max_timestamp_ms = map(int, group)
        length, crc, typed_length, typed_crc = numbers[4 * index : 4 * index + 4]
        found.append(
            RowGroup(
                base,
                last,
                rows,
                max_timestamp_ms,
                byte_offset,
                length,
                crc,
                typed_length,
                typed_crc,
            )
        )
        byte_offset = found[-1].end
    return tuple(found)


def _check_row_groups(
    key: str, identity: SegmentIdentity, row_groups: Sequence[RowGroup], footer_start: int
) -> int:
    """The byte where the row groups end, after they were found to follow each other."""
    offset = identity.base_offset
    end = len(MAGIC)
    for group in row_groups:
        if (
            group.base_offset < offset
            or group.last_offset < group.base_offset
            or (group.length_bytes <= 0)
        ):
            raise CorruptSegment(f"{key}: row groups do not follow each other at offset {offset}")
        offset = group.last_offset + 1
        end = group.end
    if offset > identity.last_offset + 1 or end > footer_start:
        raise CorruptSegment(f"{key}: row groups end at offset {offset}, byte {end}")
    return end


def _check_counts(
    key: str, identity: SegmentIdentity, counts: SegmentCounts, row_groups: Sequence[RowGroup]
) -> None:
    rows = sum(group.record_count for group in row_groups)
    too_full = any(
        not 0 < group.record_count <= group.last_offset - group.base_offset + 1
        for group in row_groups
    )
    if too_full or min(counts) < 0 or rows != counts.records:
        raise CorruptSegment(f"{key}: row groups of {rows} rows do not hold {counts}")
    if counts.offsets != identity.offset_count:
        raise CorruptSegment(f"{key}: {counts} do not account for {identity.offset_count} offsets")


def _verify_checksum(key: str, footer: bytes) -> int:
    """The page index's checksum, after the footer's own was found right."""
    start = _value_position(footer, CHECKSUMS_KEY, len(CHECKSUMS_PLACEHOLDER))
    if start is None:
        raise CorruptSegment(f"{key}: footer holds no checksum")
    own = start + _CRC_DIGITS + 1
    try:
        page_index_crc32c = int(footer[start : start + _CRC_DIGITS], 16)
        expected = int(footer[own : own + _CRC_DIGITS], 16)
    except ValueError as error:
        raise CorruptSegment(f"{key}: footer checksum cannot be read: {error}") from error
    value = crc32c(memoryview(footer)[:own])
    value = crc32c(b"0" * _CRC_DIGITS, value)
    value = crc32c(memoryview(footer)[own + _CRC_DIGITS :], value)
    if value != expected:
        raise CorruptSegment(f"{key}: footer carries CRC {expected:#010x}, has {value:#010x}")
    return page_index_crc32c


def _value_position(footer: bytes, key: str, length: int) -> int | None:
    """Where the value of `length` bytes under `key` starts in the footer's Thrift bytes."""
    # How Thrift's compact protocol writes the pair: the key, the header of the string field after
    # it, the string's length. No topic name, the only text of a user's in front of it in this list,
    # can hold a byte 0x18; keys of records and names of typed columns come before the list.
    mark = key.encode() + b"\x18" + uvarint(length)
    found = footer.rfind(mark)
    start = found + len(mark)
    return None if found < 0 or start + length > len(footer) else start
