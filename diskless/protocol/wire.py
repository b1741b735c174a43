"""Kafka's primitive types: reads them from untrusted bytes, and writes the few we write by hand.

A `Reader` is a FieldReader that walks over one or more buffers as if they were one; a scalar that
straddles two of them is copied, nothing else is. It adds what only clients send: strings and arrays
of versions that are not flexible, and tagged fields in any order.

Invariant: no allocation is larger than the bytes that are really there. Every length and every
count is compared with what remains before anything is made of it.

Source: https://kafka.apache.org/protocol, "Protocol Primitive Types"; KIP-482 for the flexible ones
(compact length n is written as n + 1, 0 is null; sections of tagged fields).
"""

from collections.abc import Sequence
from typing import Final, cast
from uuid import UUID

from wal.errors import DisklessError, Rejected
from wal.wire.fields import (
    INT16,
    INT32,
    TAGS_MAX,
    UUID_BYTES,
    FieldReader,
    compact_string,
    uvarint,
)

ITEMS_MAX: Final = 100_000
"""Array items in one request, over all its arrays. An item may take one byte on the wire and some
two hundred as values and in the answer, so the bytes of a frame alone do not bound the memory."""


class ProtocolError(Rejected):
    """Bytes that are no request we can answer; the connection they came from is closed."""


class Reader(FieldReader):
    """A position in a row of buffers that moves forward only.

    Every method raises ProtocolError when the bytes run out or contradict the type.
    """

    __slots__ = ("_items_left", "_later_bytes", "_left", "length")

    def __init__(self, views: Sequence[memoryview | bytes]) -> None:
        super().__init__(cast(bytes, views[0]) if views else b"", "a request", ProtocolError)
        self._left = [*views[:0:-1]]
        """The buffers behind the current one, the next one last."""
        self._later_bytes = sum(map(len, self._left)) if self._left else 0
        self._items_left = ITEMS_MAX
        self.length = self.end + self._later_bytes

    def corrupt(self, problem: str) -> DisklessError:
        return ProtocolError(problem)

    @property
    def consumed(self) -> int:
        """Bytes read so far."""
        return self.length - self.remaining

    @property
    def before(self) -> int:
        """Bytes in front of `data`, unless that is a copy."""
        return self.length - self.end - self._later_bytes

    @property
    def remaining(self) -> int:
        return self.end - self.position + self._later_bytes

    def skip(self, length: int) -> int:
        """As with one buffer: what is stepped over lies together in `data`, if need be copied."""
        start = self.position
        end = start + length
        if start <= end <= self.end:
            self.position = end
            return start
        return self._skip_across(length)

    def pass_over(self, count: int) -> int:
        """Step over bytes without touching them; how many were read before these."""
        left = self.end - self.position
        start = self.length - left - self._later_bytes
        if 0 <= count <= left:
            self.position += count
            return start
        self._check(count)
        while count > self.end - self.position:
            count -= self.end - self.position
            self._advance()
        self.position += count
        return start

    def take(self, count: int) -> bytes | memoryview:
        """The next `count` bytes: a slice where they lie together, a copy where they do not."""
        start = self.skip(count)
        return self.data[start : self.position]

    def raw(self, length: int) -> bytes:
        return bytes(self.take(length))

    def topic_id(self) -> UUID | None:
        """All zeros mean none."""
        value = self.raw(UUID_BYTES)
        return UUID(bytes=value) if any(value) else None

    def string(self, *, flexible: bool) -> str:
        value = self.nullable_string(flexible=flexible)
        if value is None:
            raise ProtocolError("null where a string must be")
        return value

    def nullable_string(self, *, flexible: bool = True) -> str | None:
        return self.text(self.uvarint() - 1 if flexible else self.int16())

    def text(self, length: int) -> str | None:
        """A string whose length was read; None for -1."""
        if length < 0:
            if length == -1:
                return None
            raise ProtocolError(f"a string of {length} bytes")
        return self._text(length)

    def nullable_bytes_length(self, *, flexible: bool) -> int:
        """The length of a byte field that follows, checked to be there; -1 for null."""
        length = self.uvarint() - 1 if flexible else self.int32()
        if length < -1:
            raise ProtocolError(f"{length} bytes")
        if length > 0:
            self._check(length)
        return length

    def array_count(self, item_bytes_min: int = 1, *, flexible: bool = True) -> int:
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
        if count * item_bytes_min > self.end - self.position + self._later_bytes:
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
        if count > TAGS_MAX or count * 2 > self.remaining:
            raise ProtocolError(f"{count} tagged fields in {self.remaining} bytes")
        return count

    def skip_tags(self) -> None:
        """Pass over a section of tagged fields, in whichever order they are."""
        if self.position < self.end and not self.data[self.position]:
            self.position += 1
            return
        for _ in range(self.tag_count()):
            self.uvarint()
            self.pass_over(self.uvarint())

    def _check(self, count: int) -> None:
        if not 0 <= count <= self.remaining:
            raise ProtocolError(f"{count} bytes announced, {self.remaining} left")

    def _skip_across(self, length: int) -> int:
        """`skip` beyond the current buffer: into the next one, or into a copy of what straddles."""
        self._check(length)
        while self.position == self.end:
            self._advance()
        if length <= self.end - self.position:
            return self.skip(length)
        parts = []
        while length:
            here = min(length, self.end - self.position)
            parts.append(self.data[self.position : self.position + here])
            self.position += here
            length -= here
            if length:
                self._advance()
        self._left.append(memoryview(self.data)[self.position :])
        self._later_bytes += len(self._left[-1])
        self.data = b"".join(parts)
        self.position = self.end = len(self.data)
        return 0

    def _advance(self) -> None:
        # Read like bytes: slices of it are only joined, decoded or given away.
        self.data = cast(bytes, self._left.pop())
        self.position = 0
        self.end = len(self.data)
        self._later_bytes -= self.end


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
