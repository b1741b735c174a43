"""Packs columns of integers that resemble each other into few bytes, cheaply.

    uvarint  count + 1
    uint8    width          bytes of each entry, 0 to 8
    zigzag   smallest       the smallest number: (n << 1) ^ (n >> 63) as a varint of up to 64 bits
             entries        count × width bytes, little-endian, unsigned: number - smallest

A column of equal numbers has width 0 and no entries, so a reader cannot judge its count by the
bytes that are there. A reader therefore says which count it expects, or asks for a *leading*
column, which has at least one byte per entry: nothing is allocated for a count that bytes do not
back.

Arithmetic is modulo 2**64 throughout, so any 64-bit number survives, in differences too. A column
is encoded and decoded with a few NumPy operations, whatever its length; `pack_numbers` gives the
same bytes for numbers that are few and not in an array.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from wal.columns import Int64s
from wal.wire.fields import FieldReader, uvarint, zigzag

_MODULUS: Final = 1 << 64
_SIGN: Final = 1 << 63
_WORD_BYTES: Final = 8


def difference(numbers: Int64s, others: Int64s | int) -> Int64s:
    """`numbers` - `others` modulo 2**64; the inverse is `total`."""
    return (numbers.view(np.uint64) - _unsigned(others)).view(np.int64)


def total(numbers: Int64s, others: Int64s | int) -> Int64s:
    """`numbers` + `others` modulo 2**64."""
    return (numbers.view(np.uint64) + _unsigned(others)).view(np.int64)


def _unsigned(numbers: Int64s | int) -> npt.NDArray[np.uint64] | np.uint64:
    return np.uint64(numbers % _MODULUS) if isinstance(numbers, int) else numbers.view(np.uint64)


def pack_column(numbers: Int64s, *, is_leading: bool = False) -> bytes:
    """The bytes of a column."""
    count = len(numbers)
    front = uvarint(count + 1)
    if not count:
        return front + b"\x00\x00"
    smallest = int(numbers.min())
    width = ((int(numbers.max()) - smallest).bit_length() + 7) // 8
    if is_leading and not width:
        width = 1
    words = np.ascontiguousarray(difference(numbers, smallest), "<i8")
    entries = words.view(np.uint8).reshape(count, _WORD_BYTES)[:, :width]
    return b"".join((front, bytes((width,)), zigzag(smallest), entries.tobytes()))


def pack_numbers(numbers: Sequence[int], *, is_leading: bool = False) -> bytes:
    """The bytes of a column of a few numbers, each taken modulo 2**64."""
    count = len(numbers)
    front = uvarint(count + 1)
    if not count:
        return front + b"\x00\x00"
    first = numbers[0]
    if not is_leading and numbers.count(first) == count and -_SIGN <= first < _SIGN:
        # Four of five columns of a small object; to look for their smallest takes twice as long.
        return front + b"\x00" + zigzag(first)
    smallest, greatest = min(numbers), max(numbers)
    if smallest < -_SIGN or greatest >= _SIGN:
        numbers = [(number + _SIGN) % _MODULUS - _SIGN for number in numbers]
        smallest, greatest = min(numbers), max(numbers)
    if smallest == greatest and not is_leading:
        return front + b"\x00" + zigzag(smallest)
    width = ((greatest - smallest).bit_length() + 7) // 8 or 1
    front = b"".join((front, bytes((width,)), zigzag(smallest)))
    if width == 1:
        return front + bytes([number - smallest for number in numbers])
    return front + b"".join([(number - smallest).to_bytes(width, "little") for number in numbers])


def read_column(reader: FieldReader, count: int | None) -> Int64s:
    """A column of `count` numbers; None: a leading column, of as many as there are.

    Raises: CorruptLog.
    """
    found = reader.uvarint() - 1
    width = reader.raw(1)[0]
    smallest = reader.zigzag()
    if found < 0 or width > _WORD_BYTES:
        raise reader.corrupt(f"a column of {found} entries of {width} bytes")
    if count is None and found and not width:
        raise reader.corrupt(f"a leading column of {found} entries without bytes")
    if count is not None and found != count:
        raise reader.corrupt(f"a column of {found} entries beside those of {count}")
    start = reader.skip(found * width)
    words = np.zeros((found, _WORD_BYTES), np.uint8)
    if width:
        entries = np.frombuffer(reader.data, np.uint8, found * width, start)
        words[:, :width] = entries.reshape(found, width)
    return total(words.view("<i8").reshape(found).astype(np.int64, copy=False), smallest)


def gaps(starts: Int64s, sizes: Int64s, run_starts: Int64s) -> Int64s:
    """How far each extent starts behind the end of the one before it; 0 at `run_starts`."""
    gaps = np.zeros(len(starts), np.int64)
    gaps[1:] = difference(starts[1:], total(starts[:-1], sizes[:-1]))
    gaps[run_starts] = 0
    return gaps


def running(numbers: Int64s) -> Int64s:
    """Running totals modulo 2**64, each with its own number."""
    return np.cumsum(numbers.view(np.uint64)).view(np.int64)


def before(numbers: Int64s) -> Int64s:
    """Running totals modulo 2**64, each without its own number."""
    return difference(running(numbers), numbers)
