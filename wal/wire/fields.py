"""Reads and writes Kafka's primitive types; what it reads, somebody else wrote.

    int8, int16, int32, int64   big-endian, two's complement
    float64                     IEEE 754, big-endian
    uuid                        16 bytes
    uvarint                     7 bits per byte, least significant first, top bit = more follow;
                                at most 32 bits where nothing else is said
    zigzag                      (n << 1) ^ (n >> 63) as a uvarint of at most 64 bits: small numbers
                                of either sign take few bytes
    compact string              uvarint(length + 1), UTF-8; 0 is null
    compact array               uvarint(count + 1), elements
    tag section                 uvarint(count), then per field uvarint(tag), uvarint(size), content;
                                tags ascend; it closes every structure

`FieldReader` believes nothing: whatever does not parse is an error that names what is read and
where, and a count is compared with the bytes that are left before anything is allocated for it.
Columns of varints have their own module (wal/records/varint_columns.py).

Source: https://kafka.apache.org/protocol, "Protocol Primitive Types"; KIP-482.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from wal.errors import CorruptLog, DisklessError

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

UUID_BYTES: Final = 16
NO_UUID: Final = UUID(int=0)
NO_TAGS: Final = b"\x00"
"""The tag section without fields."""
TAGS_MAX: Final = 100
"""Fields of one tag section that are read. No message has ten; a section of nothing but tags would
be read for seconds, and is read before anybody is asked who sent it."""

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


class VarintTooLong(ValueError):
    """The bytes go on beyond what the number may have."""


def uvarint(value: int, bits: int = 32) -> bytes:
    """The bytes of `value`. Raises: ValueError when it is negative or has more than `bits` bits."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if value < 0 or value >> bits:
        raise ValueError(f"{value} does not fit an unsigned varint of {bits} bits")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def uvarints(values: Iterable[int]) -> bytes:
    """The bytes of `values` back to back, in a third of the time of as many calls of `uvarint`.

    Raises: ValueError when one is negative or has more than 64 bits.
    """
    encoded = bytearray()
    add = encoded.append
    for value in values:
        if value < 0 or value >> 64:
            raise ValueError(f"{value} does not fit an unsigned varint of 64 bits")
        while value >= 0x80:
            add(value & 0x7F | 0x80)
            value >>= 7
        add(value)
    return bytes(encoded)


def read_uvarint(next_byte: Callable[[], int], bits: int = 32) -> int:
    """The number whose bytes `next_byte` gives. Raises: VarintTooLong."""
    value = 0
    for shift in range(0, bits, 7):
        byte = next_byte()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return value
    raise VarintTooLong(f"a varint of more than {bits} bits")


def zigzag(value: int) -> bytes:
    """The bytes of `value`. Raises: ValueError when it has more than 64 bits."""
    return uvarint(to_zigzag(value), 64)


def to_zigzag(value: int) -> int:
    """The unsigned number that stands for `value`."""
    return value << 1 ^ value >> 63


def from_zigzag(raw: int) -> int:
    """The number that `raw` stands for."""
    return raw >> 1 ^ -(raw & 1)


def sized_string(text: str) -> bytes:
    """uvarint length, UTF-8; what has no null."""
    return sized(text.encode())


def sized(data: bytes) -> bytes:
    """uvarint length, then the bytes."""
    return uvarint(len(data)) + data


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def nullable_string(text: str | None) -> bytes:
    return b"\0" if text is None else compact_string(text)


def compact_bytes(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def tag_section(fields: Mapping[int, bytes]) -> bytes:
    """The tag section that holds `fields`, by ascending tag."""
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(parts)


class FieldReader:
    """Reads fields from the front of `data`; each method raises `error` when it does not fit.

    All of them take their bytes through `skip`, after which `data` may be another buffer.
    """

    __slots__ = ("_error", "_what", "data", "end", "position")

    def __init__(
        self, data: bytes, what: str, error: Callable[[str], DisklessError] = CorruptLog
    ) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self._what = what
        self._error = error

    def corrupt(self, problem: str) -> DisklessError:
        """The error to raise when what was read makes no sense."""
        return self._error(f"{self._what}: {problem} at byte {self.position}")

    def skip(self, length: int) -> int:
        """Step over `length` bytes and return the position where they start."""
        start = self.position
        if length > self.end - start:
            raise self.corrupt(f"{length} bytes expected, {self.end - start} left")
        self.position = start + length
        return start

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Consecutive fields of fixed size."""
        start = self.skip(layout.size)
        return layout.unpack_from(self.data, start)

    def uint8(self) -> int:
        start = self.skip(1)
        return self.data[start]

    def int8(self) -> int:
        start = self.skip(1)
        return int(INT8.unpack_from(self.data, start)[0])

    def int16(self) -> int:
        start = self.skip(2)
        number: int = INT16.unpack_from(self.data, start)[0]
        return number

    def int32(self) -> int:
        start = self.skip(4)
        number: int = INT32.unpack_from(self.data, start)[0]
        return number

    def int64(self) -> int:
        start = self.skip(8)
        return int(INT64.unpack_from(self.data, start)[0])

    def float64(self) -> float:
        start = self.skip(8)
        return float(FLOAT64.unpack_from(self.data, start)[0])

    def uint32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def raw(self, length: int) -> bytes:
        start = self.skip(length)
        return self.data[start : self.position]

    def uuid(self) -> UUID:
        return UUID(bytes=self.raw(UUID_BYTES))

    def uvarint(self, bits: int = 32) -> int:
        position = self.position
        if position < self.end and (value := self.data[position]) < 0x80:
            self.position = position + 1
            return value
        try:
            return read_uvarint(self.uint8, bits)
        except VarintTooLong as error:
            raise self.corrupt(str(error)) from error

    def zigzag(self) -> int:
        return from_zigzag(self.uvarint(64))

    def sized(self) -> bytes:
        return self.raw(self.uvarint())

    def sized_string(self) -> str:
        return self._text(self.uvarint())

    def compact_string(self) -> str:
        length = self.uvarint() - 1
        if length < 0:
            raise self.corrupt("a null string")
        return self._text(length)

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1
        return None if length < 0 else self._text(length)

    def compact_bytes(self) -> bytes:
        return self.raw(self.array_count())

    def _text(self, length: int) -> str:
        start = self.skip(length)
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt("a string that is not UTF-8") from error

    def array_count(self, element_bytes_min: int = 1) -> int:
        """The count of a compact array whose elements take at least `element_bytes_min` bytes."""
        count = self.uvarint() - 1
        if count < 0:
            raise self.corrupt("a null array")
        return self._checked(count, element_bytes_min)

    def entries(self, bytes_min: int) -> range:
        """The indexes of a compact array of which each entry has at least `bytes_min` bytes."""
        return range(self.array_count(bytes_min))

    def count(self, element_bytes_min: int) -> int:
        """The same, of what is written as uvarint(count)."""
        return self._checked(self.uvarint(), element_bytes_min)

    def _checked(self, count: int, element_bytes_min: int) -> int:
        if count * element_bytes_min > self.end - self.position:
            raise self.corrupt(f"an array of {count} elements in {self.end - self.position} bytes")
        return count

    def tags(self) -> Iterator[tuple[int, "FieldReader"]]:
        """(tag, reader over its content) of every field of a tag section; skip what is unknown.

        Iterate to the end: the section is left behind only then.
        """
        count = self.uvarint()
        if count > TAGS_MAX:
            raise self.corrupt(f"{count} tagged fields in one section")
        previous = -1
        for _ in range(count):
            tag = self.uvarint()
            if tag <= previous:
                raise self.corrupt(f"tag {tag} after tag {previous}")
            previous = tag
            yield tag, FieldReader(self.sized(), f"{self._what}, tag {tag}", self._error)

    def skip_tags(self) -> None:
        """Step over a tag section, whatever is in it."""
        if self.position < self.end and not self.data[self.position]:
            self.position += 1
            return
        for _ in self.tags():
            pass

    def finish(self) -> None:
        """Everything must have been read."""
        if self.position != self.end:
            raise self.corrupt(f"{self.end - self.position} bytes too many")
