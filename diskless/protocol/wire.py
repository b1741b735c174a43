"""Kafka's primitive types: reads them from untrusted bytes, and writes the few we write by hand.

A `Reader` walks over one or more buffers as if they were one; a scalar that straddles two of them
is copied, nothing else is.

Invariant: no allocation is larger than the bytes that are really there. Every length and every
count is compared with what remains before anything is made of it.

Source: https://kafka.apache.org/protocol, "Protocol Primitive Types"; KIP-482 for the flexible ones
(compact length n is written as n + 1, 0 is null; sections of tagged fields).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final
from uuid import UUID

from wal.errors import Rejected
from wal.wire.fields import (
    INT16,
    INT32,
    INT64,
    UUID_BYTES,
    VarintTooLong,
    compact_string,
    read_uvarint,
    uvarint,
)

ITEMS_MAX: Final = 100_000
"""Array items in one request, over all its arrays. An item may take one byte on the wire and some
two hundred as values and in the answer, so the bytes of a frame alone do not bound the memory."""


class ProtocolError(Rejected):
    """Bytes that are no request we can answer; the connection they came from is closed."""


class Reader:
    """A position in a row of buffers that moves forward only.

    Every method raises ProtocolError when the bytes run out or contradict the type.
    """

    __slots__ = (
        "_items_left",
        "_limit",
        "_next_view",
        "_passed",
        "_position",
        "_view",
        "_views",
        "length",
    )

    def __init__(self, views: Sequence[memoryview | bytes]) -> None:
        self._views = views
        self._next_view = 0
        self._view: memoryview | bytes = b""
        self._position = 0
        self._limit = 0
        self._items_left = ITEMS_MAX
        self._passed = 0
        """Bytes in the views before the current one."""
        self.length = sum(map(len, views))

    @property
    def position(self) -> int:
        """Bytes consumed so far."""
        return self._passed + self._position

    @property
    def remaining(self) -> int:
        return self.length - self._passed - self._position

    def take(self, count: int) -> bytes | memoryview:
        """The next `count` bytes: a slice where they lie together, a copy where they do not."""
        start = self._position
        end = start + count
        if start <= end <= self._limit:
            self._position = end
            return self._view[start:end]
        return self._take_across(count)

    def skip(self, count: int) -> None:
        """Pass over bytes without touching them."""
        self._check(count)
        while count > 0:
            here = min(count, self._limit - self._position)
            self._position += here
            count -= here
            if count:
                self._advance()

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        """Consecutive fixed-size fields."""
        start = self._position
        end = start + layout.size
        if end <= self._limit:
            self._position = end
            return layout.unpack_from(self._view, start)
        return layout.unpack(self._take_across(layout.size))

    def int8(self) -> int:
        value = self.uint8()
        return value - 256 if value > 127 else value

    def uint8(self) -> int:
        if self._position >= self._limit:
            return self._take_across(1)[0]
        value = self._view[self._position]
        self._position += 1
        return value

    def int16(self) -> int:
        return self.unpack(INT16)[0]

    def int32(self) -> int:
        return self.unpack(INT32)[0]

    def int64(self) -> int:
        return self.unpack(INT64)[0]

    def uuid(self) -> UUID | None:
        """A topic id; all zeros mean none."""
        value = bytes(self.take(UUID_BYTES))
        return UUID(bytes=value) if any(value) else None

    def uvarint(self) -> int:
        value = self.uint8()
        if value < 0x80:
            return value
        self._position -= 1
        try:
            return read_uvarint(self.uint8)
        except VarintTooLong as error:
            raise ProtocolError(str(error)) from error

    def string(self, *, flexible: bool) -> str:
        value = self.nullable_string(flexible=flexible)
        if value is None:
            raise ProtocolError("null where a string must be")
        return value

    def nullable_string(self, *, flexible: bool) -> str | None:
        length = self.uvarint() - 1 if flexible else self.int16()
        if length < 0:
            if length == -1:
                return None
            raise ProtocolError(f"a string of {length} bytes")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError("a string that is not UTF-8") from error

    def nullable_bytes_length(self, *, flexible: bool) -> int:
        """The length of a byte field that follows, checked to be there; -1 for null."""
        length = self.uvarint() - 1 if flexible else self.int32()
        if length < -1:
            raise ProtocolError(f"{length} bytes")
        if length > 0:
            self._check(length)
        return length

    def array_count(self, *, flexible: bool, item_bytes_min: int) -> int:
        """Reads how many items follow; refuses a count that cannot fit into what is left."""
        count = self.nullable_array_count(flexible=flexible, item_bytes_min=item_bytes_min)
        if count < 0:
            raise ProtocolError("null where an array must be")
        return count

    def nullable_array_count(self, *, flexible: bool, item_bytes_min: int) -> int:
        """As `array_count`; -1 for null."""
        count = self.uvarint() - 1 if flexible else self.int32()
        if count < -1:
            raise ProtocolError(f"an array of {count} items")
        if count * item_bytes_min > self.remaining:
            raise ProtocolError(f"an array of {count} items in {self.remaining} bytes")
        if count > 0:
            self.count_items(count)
        return count

    def count_items(self, count: int) -> None:
        """Array items that are read without this reader's help. Raises ProtocolError: too many."""
        self._items_left -= count
        if self._items_left < 0:
            raise ProtocolError(f"more than {ITEMS_MAX} array items in one request")

    def tag_count(self) -> int:
        """Reads how many tagged fields follow, each a tag, a size and that many bytes."""
        count = self.uvarint()
        if count * 2 > self.remaining:
            raise ProtocolError(f"{count} tagged fields in {self.remaining} bytes")
        return count

    def skip_tags(self) -> None:
        """Pass over a section of tagged fields."""
        for _ in range(self.tag_count()):
            self.uvarint()
            self.skip(self.uvarint())

    def _check(self, count: int) -> None:
        if not 0 <= count <= self.remaining:
            raise ProtocolError(f"{count} bytes announced, {self.remaining} left")

    def _take_across(self, count: int) -> bytes | memoryview:
        self._check(count)
        while self._position == self._limit and self._next_view < len(self._views):
            self._advance()
        if self._position + count <= self._limit:
            return self.take(count)
        parts = []
        while True:
            here = min(count, self._limit - self._position)
            parts.append(self._view[self._position : self._position + here])
            self._position += here
            count -= here
            if not count:
                return b"".join(parts)
            self._advance()

    def _advance(self) -> None:
        self._passed += self._limit
        self._view = self._views[self._next_view]
        self._next_view += 1
        self._position = 0
        self._limit = len(self._view)


def string(value: str, *, flexible: bool) -> bytes:
    if flexible:
        return compact_string(value)
    data = value.encode()
    return INT16.pack(len(data)) + data


def nullable_string(value: str | None, *, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    return string(value, flexible=flexible)


def array_count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)
