"""Kafka's flexible-version encoding, as far as metadata records need it.

    int8, int16, int32, int64   big-endian, two's complement
    float64                     IEEE 754, big-endian
    uuid                        16 bytes
    uvarint                     7 bits per byte, least significant first, top bit = more follow;
                                at most 32 bits
    compact string              uvarint(length + 1), UTF-8; 0 would be null, which no field here is
    compact array               uvarint(count + 1), elements
    tag section                 uvarint(count), then per field uvarint(tag), uvarint(size), content;
                                tags ascend; it closes every structure

`FieldReader` believes nothing: whatever does not parse is CorruptLog, and a count is compared with
the bytes that are left before anything is allocated for it.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from wal.errors import CorruptLog

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

UUID_BYTES: Final = 16
NO_TAGS: Final = b"\x00"
"""The tag section without fields."""

_UVARINT_MAX: Final = 0xFFFFFFFF


def uvarint(value: int) -> bytes:
    """`value` (0 <= value < 2**32) in one to five bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= _UVARINT_MAX:
        raise ValueError(f"{value} does not fit an unsigned varint of 32 bits")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def tag_section(fields: Mapping[int, bytes]) -> bytes:
    """The tag section that holds `fields`, by ascending tag."""
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(parts)


class FieldReader:
    """Reads fields from the front of `data`; each method raises CorruptLog when it does not fit."""

    __slots__ = ("_what", "data", "end", "position")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self._what = what

    def corrupt(self, problem: str) -> CorruptLog:
        """The error to raise when what was read makes no sense."""
        return CorruptLog(f"{self._what}: {problem} at byte {self.position}")

    def skip(self, length: int) -> int:
        """Step over `length` bytes and return the position where they start."""
        start = self.position
        if length > self.end - start:
            raise self.corrupt(f"{length} bytes expected, {self.end - start} left")
        self.position = start + length
        return start

    def int8(self) -> int:
        return int(INT8.unpack_from(self.data, self.skip(1))[0])

    def int16(self) -> int:
        return int(INT16.unpack_from(self.data, self.skip(2))[0])

    def int32(self) -> int:
        return int(INT32.unpack_from(self.data, self.skip(4))[0])

    def int64(self) -> int:
        return int(INT64.unpack_from(self.data, self.skip(8))[0])

    def float64(self) -> float:
        return float(FLOAT64.unpack_from(self.data, self.skip(8))[0])

    def uint32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def raw(self, length: int) -> bytes:
        start = self.skip(length)
        return self.data[start : self.position]

    def uuid(self) -> UUID:
        return UUID(bytes=self.raw(UUID_BYTES))

    def uvarint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _UVARINT_MAX:
                    break
                return value
        raise self.corrupt("a varint of more than 32 bits")

    def compact_string(self) -> str:
        length = self.uvarint() - 1
        if length < 0:
            raise self.corrupt("a null string")
        encoded = self.raw(length)
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("a string that is not UTF-8") from error

    def array_count(self, element_bytes_min: int = 1) -> int:
        """The count of a compact array whose elements take at least `element_bytes_min` bytes."""
        count = self.uvarint() - 1
        if count < 0:
            raise self.corrupt("a null array")
        if count * element_bytes_min > self.end - self.position:
            raise self.corrupt(f"an array of {count} elements in {self.end - self.position} bytes")
        return count

    def tags(self) -> Iterator[tuple[int, "FieldReader"]]:
        """(tag, reader over its content) of every field of a tag section; skip what is unknown.

        Iterate to the end: the section is left behind only then.
        """
        previous = -1
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            if tag <= previous:
                raise self.corrupt(f"tag {tag} after tag {previous}")
            previous = tag
            yield tag, FieldReader(self.raw(self.uvarint()), f"{self._what}, tag {tag}")

    def skip_tags(self) -> None:
        """Step over a tag section, whatever is in it."""
        for _ in self.tags():
            pass

    def finish(self) -> None:
        """Everything must have been read."""
        if self.position != self.end:
            raise self.corrupt(f"{self.end - self.position} bytes too many")
