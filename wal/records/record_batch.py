"""Parses, patches and checks the 61-byte header of a RecordBatch v2.

A RecordBatch stays the bytes its producer sent, from the socket to the consumer. The produce and
fetch paths call this module to learn what they must know about those bytes and to change the few
fields a broker owns; nothing here opens the records (wal/records/record_columns.py does) and
nothing here decides whether a batch is welcome (wal/records/batch_validation.py does).

    byte   0  base offset             i64  assigned at commit; 0 in a WAL object
           8  length                  i32  bytes after this field = size of the batch - 12
          12  partition leader epoch  i32
          16  magic                   i8   2
          17  CRC32C                  u32  over bytes 21 .. end
          21  attributes              i16  0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                           6 delete horizon
          23  last offset delta       i32
          27  base timestamp          i64
          35  max timestamp           i64
          43  producer id             i64
          51  producer epoch          i16
          53  base sequence           i32
          57  record count            i32
          61  records, compressed together by the codec

Invariants: base offset and leader epoch lie before the CRC's range, so assigning them never touches
it; the timestamp type and the max timestamp lie inside, so assigning those recomputes it. Patching
is for private copies only: bytes that a cache or an upload shares are never written to.

The module imports neither NumPy nor Arrow, so that a broker starts without them.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME
from wal.crc import Buffer, crc32c, crc32c_of
from wal.errors import CorruptBatch

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61

HEADER_BYTES: Final = HEADER.size
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and length: the bytes that the length field does not count."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count."""
CRC_START: Final = 21
"""First byte under the CRC."""
MAGIC_V2: Final = 2
MAGIC_POSITION: Final = 16

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_LEADER_EPOCH_POSITION: Final = 12
_CRC_POSITION: Final = 17
_ATTRIBUTES_POSITION: Final = 21
_MAX_TIMESTAMP_POSITION: Final = 35


class BatchHeader(NamedTuple):
    """The header's fields; `length_bytes` is the size of the whole batch, its first 12 included."""

    base_offset: int
    length_bytes: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        """Codec id, 0-7; wal/records/compression.py knows 0-4."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME or LOG_APPEND_TIME (wal/coordinates.py)."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta


class EncodedBatch(NamedTuple):
    """One RecordBatch ready to be served; its header holds the base offset and leader epoch."""

    base_offset: int
    last_offset: int
    data: Buffer
    """Not to be written to; it may be a part of what keeps other batches in memory too."""


def packed_batch(
    base_offset: int, fields: Sequence[int], records: bytes = b"", *, leader_epoch: int = 0
) -> bytes:
    """Returns the bytes of a whole batch; `fields` are those of its header behind the CRC."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(records)
    batch = bytearray(HEADER.pack(base_offset, length, leader_epoch, MAGIC_V2, 0, *fields))
    batch += records
    set_crc(batch, 0, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; `buffer` may end anywhere after the header.

    The magic is not checked: the caller knows whether another one is refused or corrupt.
    Raises: CorruptBatch when 61 bytes are not there, or the length field is less than a header.
    """
    try:
        fields = [*HEADER.unpack_from(buffer, position)]
    except struct.error as error:
        raise CorruptBatch(
            f"{len(buffer) - position} bytes at byte {position} cannot hold a batch header"
        ) from error
    fields[1] = length_bytes = fields[1] + LENGTH_PREFIX_BYTES
    if length_bytes < HEADER_BYTES:
        raise CorruptBatch(f"batch at byte {position} gives its length as {length_bytes} bytes")
    # Half the time of a call with thirteen arguments.
    return tuple.__new__(BatchHeader, fields)


def iterate_headers(buffer: Buffer, *, more_bytes: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches that lie back to back in `buffer`, in order.

    `more_bytes` follow the buffer: the last batch, whose header is in the buffer, may end in them.
    Raises: CorruptBatch when a batch is not of magic 2 or runs past the end of all.
    """
    position = 0
    end = len(buffer) + more_bytes
    header_end = len(buffer) - (HEADER_BYTES - 1 if more_bytes else 0)
    while position < header_end:
        header = parse_header(buffer, position)
        if header.magic != MAGIC_V2:
            raise CorruptBatch(f"batch at byte {position} has magic {header.magic}")
        if header.length_bytes > end - position:
            raise CorruptBatch(
                f"batch at byte {position} announces {header.length_bytes} bytes,"
                f" {end - position} are there"
            )
        yield position, header
        position += header.length_bytes


def header_bytes(fragments: Sequence[Buffer]) -> Buffer:
    """A buffer that starts with the first 61 bytes of the chain (fewer if the chain is shorter).

    Copies only when the header straddles fragments.
    """
    if fragments and len(fragments[0]) >= HEADER_BYTES:
        return fragments[0]
    start = bytearray()
    for fragment in fragments:
        start += memoryview(fragment)[: HEADER_BYTES - len(start)]
        if len(start) == HEADER_BYTES:
            break
    return start


def unchecked_header(fragments: Sequence[Buffer]) -> BatchHeader:
    """The header at the start of a chain, whatever it says; of one that is shorter, as if zeros
    followed.
    """
    start = header_bytes(fragments)
    if len(start) < HEADER_BYTES:
        start = bytes(start) + bytes(HEADER_BYTES - len(start))
    fields = [*HEADER.unpack_from(start)]
    fields[1] += LENGTH_PREFIX_BYTES
    # Half the time of a call with thirteen arguments.
    return tuple.__new__(BatchHeader, fields)


def verify_crc(batch: Buffer | Sequence[Buffer]) -> None:
    """Check the CRC of exactly one batch, given whole or as a fragment chain.

    Raises: CorruptBatch.
    """
    fragments = (batch,) if isinstance(batch, bytes | bytearray | memoryview) else batch
    check_crc(fragments, parse_header(header_bytes(fragments)).crc)


def check_crc(fragments: Sequence[Buffer], expected: int) -> None:
    """As `verify_crc`, for callers that have parsed the header: `expected` is the CRC in it.

    Raises: CorruptBatch.
    """
    actual = crc32c_of(fragments, skip=CRC_START)
    if actual != expected:
        raise CorruptBatch(f"batch carries CRC {expected:#010x}, its bytes have {actual:#010x}")


def assign_offsets(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int = 0
) -> None:
    """Write base offset and leader epoch into the batch at `position`; its CRC stays valid.

    Every batch served gets our leader epoch: a client adopts a larger one that a producer left
    there, and then refuses our metadata for the partition.
    """
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def assign_log_append_time(
    buffer: bytearray | memoryview, position: int, length_bytes: int, timestamp_ms: int
) -> None:
    """Give all records of the batch at `position` one timestamp, as LogAppendTime topics do.

    Readers ignore the records' own deltas when the type bit is set, so only the header changes, and
    with it the CRC. `length_bytes` is the size of the whole batch.
    """
    set_log_append_time(buffer, position, timestamp_ms)
    set_crc(
        buffer, position, crc32c(memoryview(buffer)[position + CRC_START : position + length_bytes])
    )


def set_log_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """As `assign_log_append_time`, but the CRC is left to the caller, who has `set_crc`."""
    attributes = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_POSITION)[0]
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_POSITION, attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)


def set_crc(buffer: bytearray | memoryview, position: int, crc: int) -> None:
    """Write the CRC of the batch at `position`."""
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc)
