"""Object keys: ULIDs, minted when a chunk is opened.

A ULID is 48 bits of milliseconds and 80 random bits in Crockford's base 32, so keys sort by age.
The two hex digits before it come from the random part and spread WAL objects over key prefixes.
"""

import random
from typing import Final

from wal.clock import Clock
from wal.coordinates import ObjectKey

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 16
ULID_CHARS: Final = _TIME_CHARS + _RANDOM_CHARS


def mint_ulid(clock: Clock, rng: random.Random) -> str:
    """A new ULID of 26 characters."""
    value = (clock.now_ms() & ((1 << 48) - 1)) << 80 | rng.getrandbits(80)
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def ulid_timestamp_ms(ulid: str) -> int:
    """When `ulid` was minted. Raises ValueError when it is not a ULID."""
    if len(ulid) != ULID_CHARS:
        raise ValueError(f"a ULID has {ULID_CHARS} characters: {ulid!r}")
    value = 0
    for char in ulid[:_TIME_CHARS]:
        value = value << 5 | _ALPHABET.index(char)
    return value


def minted_ms(key: str) -> int:
    """When the ULID that ends `key` was minted. Raises ValueError when none does."""
    return ulid_timestamp_ms(key.rpartition("/")[2])


def wal_object_key(ulid: str) -> ObjectKey:
    """`wal/<2 hex>/<ULID>`; the hex digits are the last eight random bits."""
    low = _ALPHABET.index(ulid[-1]) | _ALPHABET.index(ulid[-2]) << 5
    return ObjectKey(f"wal/{low & 0xFF:02x}/{ulid}")
