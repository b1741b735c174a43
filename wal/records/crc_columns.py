"""CRC32Cs of many pieces at once, in columns.

What becomes of a checksum when bytes follow is linear in its bits, so it is a table look-up for
each length, and NumPy does it for all pieces together. `wal/crc.py` has the checksum itself, and
loads without NumPy.
"""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from wal.columns import Int64s
from wal.crc import POLYNOMIAL

Uint32s = npt.NDArray[np.uint32]


def crc32c_of_pieces(crcs: Uint32s, lengths: Int64s) -> int:
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


def _with_zeros_behind(crcs: Uint32s, zeros: Int64s) -> Uint32s:
    for place, operators in enumerate(_zeros_behind()):
        digits = zeros >> 8 * place & 255
        if digits.any():
            crcs = _applied(operators[digits], crcs)
    return crcs


def crc32c_of_rows(rows: npt.NDArray[np.uint8]) -> Uint32s:
    """CRC32C of each of many rows of few bytes."""
    table = _zeros_behind_bytes()
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for index in range(rows.shape[1]):
        crcs = table[(crcs ^ rows[:, index]) & 255] ^ crcs >> 8
    return ~crcs


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
        values = values >> np.uint32(1) ^ (values & np.uint32(1)) * np.uint32(POLYNOMIAL)
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
