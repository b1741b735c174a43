"""Defines the footer of a Parquet segment: key-value metadata, checksums, checks.

A segment holds the records `base_offset` .. `last_offset` of one partition, one row per record in
offset order. Any Parquet reader reads it; docs/segment-format.md is the page for those. What only
this project needs lies in the footer's key-value metadata, under names that start with `diskless.`:

| key | value |
|---|---|
| diskless.format.version | `1` |
| diskless.topic, diskless.topic.id, diskless.partition | whose records these are |
| diskless.base.offset, diskless.last.offset, diskless.record.count | which ones |
| diskless.raw.batch.count | batches that could not be decoded and are kept as they were sent |
| diskless.created.by | the writer; never a time or a host, so that a repeated roll is equal |
| diskless.row.groups | JSON list of `[base offset, last offset, max timestamp, byte offset,
length in bytes, CRC32C]`, one per row group |
| diskless.sources.bytes | how many bytes before the footer are the sources |
| diskless.crc32c | `<CRC32C of the page index>-<CRC32C of the footer>` as 8 hex digits each |

Parquet's own page checksums cover neither page headers nor the footer, so a flipped bit there can
turn into other values without an error. Here every byte of the object is covered: row groups lie
back to back from byte 4 and have their checksums in the table above; the page index and the footer
have theirs in `diskless.crc32c`. The footer's is computed with its own 8 digits set to zero and
then written over them, which leaves the footer as long as it was.

    PAR1 | row group 0 | … | page index | sources | footer | footer length (u32 LE) | PAR1

The sources say which bytes of which WAL objects were rolled, for a rebuild of the metadata. No
other reader looks there, so they do not make the footers larger that brokers keep. For each run of
neighbouring bytes, in offset order: zigzag uvarint of the ULID's milliseconds minus those of the
run before; the ULID's ten random bytes; uvarint byte offset in the object; uvarint length. That is
some 18 bytes. The page index's checksum covers them. Objects not named like WAL objects are left
out: no rebuild looks for them.

This module knows the footer; metadata/rules/segments.py names the object, tiering/segment_writer.py
writes, tiering/segment_reader.py reads, tiering/segment_columns.py knows the columns. PyArrow is
imported on first use only: the broker starts without it.

Failure cases: CorruptSegment naming the key for everything that does not hold.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import Buffer, crc32c, crc32c_joined
from wal.errors import CorruptSegment
from wal.ulid import decode_ulid, encode_ulid, minted_ms_of_wal_key, wal_object_key
from wal.wire.fields import FieldReader, uvarint, zigzag

FORMAT_VERSION: Final = "1"
CREATED_BY: Final = "diskless segment writer 1"

MAGIC: Final = b"PAR1"
TAIL: Final = struct.Struct("<I4s")
"""The last bytes of every Parquet file: length of the footer, magic."""
assert TAIL.size == 8

FOOTER_BYTES_MAX: Final = 64 << 20
"""No footer of ours comes near; a damaged length must not make a reader fetch gigabytes."""

VERSION_KEY: Final = "diskless.format.version"
TOPIC_KEY: Final = "diskless.topic"
TOPIC_ID_KEY: Final = "diskless.topic.id"
PARTITION_KEY: Final = "diskless.partition"
BASE_OFFSET_KEY: Final = "diskless.base.offset"
LAST_OFFSET_KEY: Final = "diskless.last.offset"
RECORD_COUNT_KEY: Final = "diskless.record.count"
RAW_BATCH_COUNT_KEY: Final = "diskless.raw.batch.count"
CREATED_BY_KEY: Final = "diskless.created.by"
ROW_GROUPS_KEY: Final = "diskless.row.groups"
SOURCES_BYTES_KEY: Final = "diskless.sources.bytes"
CHECKSUMS_KEY: Final = "diskless.crc32c"

CHECKSUMS_PLACEHOLDER: Final = "00000000-00000000"
# How Thrift's compact protocol writes the pair: the key, the header of the string field after it,
# the string's length. No topic name, the only text of a user's before it, can hold a byte 0x18.
_CHECKSUMS_MARK: Final = CHECKSUMS_KEY.encode() + b"\x18" + bytes([len(CHECKSUMS_PLACEHOLDER)])
_CRC_DIGITS: Final = 8


class SegmentIdentity(NamedTuple):
    """Which records a segment holds."""

    topic_name: str
    partition: TopicIdPartition
    base_offset: int
    last_offset: int

    @property
    def record_count(self) -> int:
        """Offsets of a partition are dense, so that this is also the number of rows."""
        return self.last_offset - self.base_offset + 1


class RowGroup(NamedTuple):
    """One row group: whole RecordBatches, and the bytes they take in the object."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    byte_offset: int
    length_bytes: int
    crc32c: int


class SourceRange(NamedTuple):
    """Bytes of a WAL object whose batches a segment holds."""

    object_key: ObjectKey
    byte_offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """A verified footer. `row_groups` in offset order, gapless, from base to last offset."""

    identity: SegmentIdentity
    row_groups: Sequence[RowGroup]
    raw_batch_count: int
    page_index_crc32c: int
    page_index_start: int
    footer_start: int
    footer_bytes: bytes
    """The footer's Thrift bytes, the 8 bytes after them included: what PyArrow wants to see."""
    sources_bytes: int
    """How many bytes before the footer `decode_sources` reads."""

    @property
    def max_timestamp_ms(self) -> int:
        return max(group.max_timestamp_ms for group in self.row_groups)

    @property
    def object_crc32c(self) -> int:
        """CRC32C over the whole object, which its parts' checksums tell."""
        value = crc32c(MAGIC)
        for group in self.row_groups:
            value = crc32c_joined(value, group.crc32c, group.length_bytes)
        index_bytes = self.footer_start - self.page_index_start
        value = crc32c_joined(value, self.page_index_crc32c, index_bytes)
        return crc32c(self.footer_bytes, value)


def encode_sources(sources: Sequence[SourceRange]) -> bytes:
    """Encodes the sources whose objects are named like WAL objects."""
    encoded = bytearray()
    previous_ms = 0
    for source in sources:
        if minted_ms_of_wal_key(source.object_key) is None:
            continue
        number = decode_ulid(source.object_key.rpartition("/")[2])
        time_ms = number >> _RANDOM_BITS
        delta = time_ms - previous_ms
        previous_ms = time_ms
        encoded += zigzag(delta)
        encoded += (number & _RANDOM_MASK).to_bytes(_RANDOM_BYTES, "big")
        encoded += uvarint(source.byte_offset, 64) + uvarint(source.length_bytes, 64)
    return bytes(encoded)


def decode_sources(key: str, data: bytes) -> Sequence[SourceRange]:
    """Returns what `encode_sources` was given. Raises: CorruptSegment naming `key`."""
    sources: list[SourceRange] = []
    reader = FieldReader(data, f"{key}: its sources", CorruptSegment)
    time_ms = 0
    while reader.position < reader.end:
        time_ms += reader.zigzag()
        random_part = int.from_bytes(reader.raw(_RANDOM_BYTES), "big")
        byte_offset, length_bytes = reader.uvarint(64), reader.uvarint(64)
        try:
            ulid = encode_ulid(time_ms << _RANDOM_BITS | random_part)
        except ValueError as error:
            raise reader.corrupt(str(error)) from error
        sources.append(SourceRange(wal_object_key(ulid), byte_offset, length_bytes))
    return sources


_RANDOM_BYTES: Final = 10
_RANDOM_BITS: Final = 8 * _RANDOM_BYTES
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1


def footer_metadata(
    identity: SegmentIdentity,
    row_groups: Sequence[RowGroup],
    raw_batch_count: int,
    sources_bytes: int,
) -> dict[str, str]:
    """The key-value metadata of a segment, its checksums still to be filled in."""
    return {
        SOURCES_BYTES_KEY: str(sources_bytes),
        VERSION_KEY: FORMAT_VERSION,
        TOPIC_KEY: identity.topic_name,
        TOPIC_ID_KEY: str(identity.partition.topic_id),
        PARTITION_KEY: str(identity.partition.partition),
        BASE_OFFSET_KEY: str(identity.base_offset),
        LAST_OFFSET_KEY: str(identity.last_offset),
        RECORD_COUNT_KEY: str(identity.record_count),
        RAW_BATCH_COUNT_KEY: str(raw_batch_count),
        CREATED_BY_KEY: CREATED_BY,
        ROW_GROUPS_KEY: json.dumps([list(group) for group in row_groups], separators=(",", ":")),
        CHECKSUMS_KEY: CHECKSUMS_PLACEHOLDER,
    }


def sealed_footer(footer: bytes, page_index_crc32c: int) -> bytes:
    """`footer` (with its last 8 bytes) with both checksums written over the placeholder."""
    start = _checksums_position(footer)
    assert start is not None, "the writer put the placeholder there"
    sealed = bytearray(footer)
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
    pairs: Mapping[bytes, bytes] = metadata.metadata or {}
    try:
        version = pairs[VERSION_KEY.encode()].decode()
        if version != FORMAT_VERSION:
            raise CorruptSegment(
                f"{key}: format version {version}; this release reads version {FORMAT_VERSION}"
            )
        identity = SegmentIdentity(
            pairs[TOPIC_KEY.encode()].decode(),
            TopicIdPartition(
                UUID(pairs[TOPIC_ID_KEY.encode()].decode()), int(pairs[PARTITION_KEY.encode()])
            ),
            int(pairs[BASE_OFFSET_KEY.encode()]),
            int(pairs[LAST_OFFSET_KEY.encode()]),
        )
        record_count = int(pairs[RECORD_COUNT_KEY.encode()])
        raw_batch_count = int(pairs[RAW_BATCH_COUNT_KEY.encode()])
        row_groups = tuple(
            RowGroup(*map(int, group)) for group in json.loads(pairs[ROW_GROUPS_KEY.encode()])
        )
        sources_bytes = int(pairs[SOURCES_BYTES_KEY.encode()])
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptSegment(f"{key}: footer metadata is incomplete: {error!r}") from error
    footer_start = object_bytes - len(footer)
    _check_row_groups(key, identity, row_groups, footer_start)
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    described = [group.last_offset - group.base_offset + 1 for group in row_groups]
    if rows != described or record_count != identity.record_count:
        raise CorruptSegment(f"{key}: row groups hold {rows} rows, not {described}")
    last = row_groups[-1]
    index_bytes = footer_start - last.byte_offset - last.length_bytes
    if not 0 <= sources_bytes <= index_bytes:
        raise CorruptSegment(f"{key}: {sources_bytes} bytes of sources in {index_bytes}")
    return SegmentFooter(
        identity=identity,
        row_groups=row_groups,
        raw_batch_count=raw_batch_count,
        page_index_crc32c=page_index_crc32c,
        page_index_start=last.byte_offset + last.length_bytes,
        footer_start=footer_start,
        footer_bytes=footer,
        sources_bytes=sources_bytes,
    )


def _check_row_groups(
    key: str, identity: SegmentIdentity, row_groups: Sequence[RowGroup], footer_start: int
) -> None:
    offset = identity.base_offset
    byte_offset = len(MAGIC)
    for group in row_groups:
        if (
            group.base_offset != offset
            or group.last_offset < offset
            or group.byte_offset != byte_offset
            or group.length_bytes <= 0
        ):
            raise CorruptSegment(f"{key}: row groups do not follow each other at offset {offset}")
        offset = group.last_offset + 1
        byte_offset += group.length_bytes
    if offset != identity.last_offset + 1 or not row_groups or byte_offset > footer_start:
        raise CorruptSegment(f"{key}: row groups end at offset {offset}, byte {byte_offset}")


def _verify_checksum(key: str, footer: bytes) -> int:
    """The page index's checksum, after the footer's own was found right."""
    start = _checksums_position(footer)
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


def _checksums_position(footer: bytes) -> int | None:
    # The last one: keys of records may appear before, as minimum and maximum of a column.
    mark = footer.rfind(_CHECKSUMS_MARK)
    start = mark + len(_CHECKSUMS_MARK)
    if mark < 0 or start + len(CHECKSUMS_PLACEHOLDER) > len(footer):
        return None
    return start
