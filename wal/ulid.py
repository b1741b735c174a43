"""Mints and reads object keys: ULIDs, minted when a chunk is opened.

A ULID is 48 bits of milliseconds and 80 random bits in Crockford's base 32, so keys sort by age.
The two hex digits before it come from the random part and spread WAL objects over key prefixes.

One broker's ULIDs ascend in the order in which it opens its chunks, which is the order of its
commits: who rebuilds metadata from a bucket relies on that. So each is minted *after* the last one,
which matters within a millisecond and when the wall clock steps back.
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


_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_CHARS: Final = frozenset(_ALPHABET)
_DIGITS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")

_RANDOM_BITS: Final = 80
_ULID_BITS: Final = 128

STEP_BACK_MAX_MS: Final = 10 * 60_000
"""A clock that was further ahead than this was wrong: its ULIDs are not followed, or a broker would
name objects of the future for as long as the clock had been ahead."""


def mint_ulid(clock: Clock, rng: random.Random, after: str | None = None) -> str:
    """A new ULID of 26 characters; greater than `after`, unless that is STEP_BACK_MAX_MS ahead."""
    now_ms = clock.now_ms()
    ulid = ulid_at(now_ms, rng)
    if after is not None and ulid <= after:
        last = decode_ulid(after)
        if (last >> _RANDOM_BITS) - now_ms <= STEP_BACK_MAX_MS:
            return encode_ulid(last + 1)
    return ulid


def ulid_at(timestamp_ms: int, rng: random.Random) -> str:
    """A ULID as if minted at `timestamp_ms`."""
    timestamp = timestamp_ms & ((1 << _ULID_BITS - _RANDOM_BITS) - 1)
    return encode_ulid(timestamp << _RANDOM_BITS | rng.getrandbits(_RANDOM_BITS))


def encode_ulid(value: int) -> str:
    """The 26 characters of a number of 128 bits. Raises ValueError when it has more."""
    if not 0 <= value < 1 << _ULID_BITS:
        raise ValueError(f"{value} does not fit a ULID")
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def decode_ulid(ulid: str) -> int:
    """The inverse of `encode_ulid`. Raises ValueError when `ulid` is not a ULID."""
    value = _number(ulid, ULID_CHARS)
    if value >> _ULID_BITS:
        raise ValueError(f"{ulid!r} is more than {_ULID_BITS} bits")
    return value


def ulid_timestamp_ms(ulid: str) -> int:
    """When `ulid` was minted. Raises ValueError when it is not a ULID."""
    return _number(ulid, _TIME_CHARS)


def _number(ulid: str, chars: int) -> int:
    """The first `chars` of a ULID as a number; Python's own digits of base 32 are others."""
    if len(ulid) != ULID_CHARS:
        raise ValueError(f"a ULID has {ULID_CHARS} characters: {ulid!r}")
    start = ulid[:chars]
    if not _CHARS.issuperset(start):
        raise ValueError(f"{ulid!r} has characters that no ULID has")
    return int(start.translate(_DIGITS), 32)


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
    """Returns the start of the keys of one of the WAL_SHARDS shards."""
    return f"{WAL_PREFIX}{shard:02x}/"
