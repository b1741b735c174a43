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
from typing import Final

from crc32c import crc32c as _crc32c

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
        length = len(fragment)
        if skip:
            if skip >= length:
                skip -= length
                continue
            fragment = memoryview(fragment)[skip:]
            skip = 0
        # As `crc32c`, without the call: it takes as long as the checksum of a small batch.
        mode = _KEEP_GIL if length < GIL_KEPT_BELOW_BYTES else _RELEASE_GIL
        value = _crc32c(fragment, value, mode)
    return value


def crc32c_joined(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two pieces back to back, from theirs: first * x^(8 n) + second in GF(2)[x] / P.

    So the checksum of an object is known from those of its parts, without reading it. Costs some
    60 steps of 32, whatever the length.
    """
    return _product(_x_to_the(second_bytes << 3), first) ^ second


POLYNOMIAL: Final = 0x82F63B78
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
        b = b >> 1 ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def _x_to_the(exponent: int) -> int:
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power
