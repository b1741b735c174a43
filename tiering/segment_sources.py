"""Says in a segment which bytes of which WAL objects its records come from.

A rebuild of the metadata reads that and nobody else, so it lies before the footer, where it does
not make the footers larger that brokers keep. For each run of neighbouring bytes, in offset order:
zigzag uvarint of the ULID's milliseconds minus those of the run before; the ULID's ten random
bytes; uvarint byte offset in the object; uvarint length. That is some 18 bytes. Objects not named
like WAL objects are left out: no rebuild looks for them.

Failure cases: CorruptSegment naming the key.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment
from wal.ulid import decode_ulid, encode_ulid, minted_ms_of_wal_key, wal_object_key
from wal.wire.fields import FieldReader, uvarint, zigzag

_RANDOM_BYTES: Final = 10
_RANDOM_BITS: Final = 8 * _RANDOM_BYTES
_RANDOM_MASK: Final = (1 << _RANDOM_BITS) - 1


class SourceRange(NamedTuple):
    """Bytes of a WAL object whose batches a segment holds."""

    object_key: ObjectKey
    byte_offset: int
    length_bytes: int


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
