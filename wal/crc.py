"""CRC32C, the checksum of everything this project stores and of Kafka's RecordBatches.

Every layer that writes or reads bytes calls this. It takes any buffer without copying it, and
continues over the fragments of a chain, because nobody should join 128 KiB fragments just for a
checksum.

The `crc32c` package is used rather than `google-crc32c` because it accepts a memoryview; both run
at more than 20 GB/s from 16 KiB on. By itself it gives the interpreter away from 32 KiB on; but a
fragment takes 6 µs, and getting the interpreter back from another thread takes far longer, so here
it is kept up to `GIL_KEPT_BELOW_BYTES`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c as _crc32c

from wal.columns import Int64s

Buffer = bytes | bytearray | memoryview
"""Anything this project accepts as bytes; a memoryview must be contiguous and of format 'B'."""


GIL_KEPT_BELOW_BYTES: Final = 4 << 20
"""About 0.2 ms: what other threads may be made to wait for a checksum."""

_KEEP_GIL: Final = 0
_RELEASE_GIL: Final = 1


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC32C (Castagnoli) of `data`, continued from `value`; 0 <= result < 2**32."""
    mode = _KEEP_GIL if len(data) < GIL_KEPT_BELOW_BYTES else _RELEASE_GIL
    return _crc32c(data, value, mode)


def crc32c_of(fragments: Iterable[Buffer], skip: int = 0) -> int:
    """CRC32C of a fragment chain as if it were one buffer, without its first `skip` bytes.

    A chain that is not longer than `skip` has the CRC of no bytes, 0.
    """
    value = 0
    for fragment in fragments:
        if skip:
            length = len(fragment)
            if skip >= length:
                skip -= length
                continue
            fragment = memoryview(fragment)[skip:]
            skip = 0
        value = crc32c(fragment, value)
    return value


def crc32c_joined(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two pieces back to back, from theirs: first * x^(8 n) + second in GF(2)[x] / P.

    So the checksum of an object is known from those of its parts, without reading it. Costs some
    60 steps of 32, whatever the length.
    """
    return _product(_x_to_the(second_bytes << 3), first) ^ second


def crc32c_of_pieces(crcs: "Uint32s", lengths: Int64s) -> int:
    """CRC32C of many pieces back to back, from theirs: `crc32c_joined` of all, in columns.

    A piece adds what its own checksum becomes with the zeros behind it that the later pieces
    take the place of.
    """
    behind = lengths.sum() - np.cumsum(lengths)
    assert behind.max(initial=0) >> 8 * _LENGTH_DIGITS == 0
    value = 0
    for first in range(0, len(crcs), _PIECES_AT_A_TIME):
        some = slice(first, first + _PIECES_AT_A_TIME)
        value ^= int(np.bitwise_xor.reduce(_with_zeros_behind(crcs[some], behind[some])))
    return value


def _with_zeros_behind(crcs: "Uint32s", zeros: Int64s) -> "Uint32s":
    for place, operators in enumerate(_zeros_behind()):
        digits = zeros >> 8 * place & 255
        if digits.any():
            crcs = _applied(operators[digits], crcs)
    return crcs


def crc32c_of_rows(rows: npt.NDArray[np.uint8]) -> "Uint32s":
    """CRC32C of each of many rows of few bytes."""
    table = _zeros_behind_bytes()
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for index in range(rows.shape[1]):
        crcs = table[(crcs ^ rows[:, index]) & 255] ^ crcs >> 8
    return ~crcs


Uint32s = npt.NDArray[np.uint32]

_PIECES_AT_A_TIME: Final = 1024
"""Their operators fit a processor's cache."""
_LENGTH_DIGITS: Final = 5
"""Bytes of a length: pieces may be a terabyte together."""
_BITS: Final = np.arange(32, dtype=np.uint32)


@cache
def _zeros_behind_bytes() -> Uint32s:
    """What each value of a checksum's low byte becomes with a zero byte behind it."""
    values: Uint32s = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = values >> np.uint32(1) ^ (values & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return values


@cache
def _zeros_behind() -> npt.NDArray[np.uint32]:
    """The operators that put zeros behind a piece: at [place][digit] digit * 256^place of them.

    An operator is what becomes of each of the 32 bits of a checksum.
    """
    bits = np.uint32(1) << _BITS
    single = _zeros_behind_bytes()[bits & 255] ^ bits >> 8
    operators = np.empty((_LENGTH_DIGITS, 256, 32), np.uint32)
    for place in operators:
        place[0] = bits
        for power in range(8):
            half = 1 << power
            place[half : 2 * half] = _applied(single, place[:half])
            single = _applied(single, single)
    return operators


def _applied(operators: Uint32s, values: Uint32s) -> Uint32s:
    """`values` with zeros behind them: all by one operator, or each by its own."""
    is_set = (values[..., None] >> _BITS & 1).astype(np.bool_)
    applied: Uint32s = np.bitwise_xor.reduce(np.where(is_set, operators, np.uint32(0)), axis=-1)
    return applied


_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, the bit of x^0 at the top, as CRCs have it."""
_ONE: Final = 1 << 31


def _product(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _x_to_the(exponent: int) -> int:
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power
