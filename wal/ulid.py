"""Object keys: ULIDs, minted when a chunk is opened.

A ULID is 48 bits of milliseconds and 80 random bits in Crockford's base 32, so keys sort by age.
The two hex digits before it come from the random part and spread WAL objects over key prefixes.
"""

import random
import re
from typing import Final

from wal.clock import Clock
from wal.coordinates import ObjectKey

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_CHARS: Final = 10
_RANDOM_CHARS: Final = 16
ULID_CHARS: Final = _TIME_CHARS + _RANDOM_CHARS
WAL_PREFIX: Final = "wal/"
WAL_SHARDS: Final = 256
_WAL_OBJECT_KEY: Final = re.compile(rf"{WAL_PREFIX}[0-9a-f]{{2}}/[0-7][{_ALPHABET}]{{25}}")


def mint_ulid(clock: Clock, rng: random.Random) -> str:
    """A new ULID of 26 characters."""
    return ulid_at(clock.now_ms(), rng)


def ulid_at(timestamp_ms: int, rng: random.Random) -> str:
    """A ULID as if minted at `timestamp_ms`."""
    value = (timestamp_ms & ((1 << 48) - 1)) << 80 | rng.getrandbits(80)
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


def minted_ms_of_wal_key(key: str) -> int | None:
    """When the WAL object `key` was minted; None when it is not exactly a WAL object's key."""
    if _WAL_OBJECT_KEY.fullmatch(key) is None:
        return None
    ulid = key.rpartition("/")[2]
    return ulid_timestamp_ms(ulid) if wal_object_key(ulid) == key else None


def wal_object_key(ulid: str) -> ObjectKey:
    """`wal/<2 hex>/<ULID>`; the hex digits are the last eight random bits."""
    low = _ALPHABET.index(ulid[-1]) | _ALPHABET.index(ulid[-2]) << 5
    return ObjectKey(f"{wal_shard_prefix(low & 0xFF)}{ulid}")


def wal_shard_prefix(shard: int) -> str:
    """What the keys of one of the WAL_SHARDS shards start with."""
    return f"{WAL_PREFIX}{shard:02x}/"
