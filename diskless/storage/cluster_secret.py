"""The secret that all brokers of a cluster share, and nobody else: 32 random bytes.

From it follow the password by which brokers log in to each other, and whatever must look the same
at every broker and be guessed by nobody. Brokers on one bucket have it there, as the object
`meta/secret/1`; the first one puts it. Whoever may read `meta/` is the cluster already. A broker
with a local metadata log has it in its data directory, in the file `secret`.

    MADE-AT-MS KEY        key: 64 hexadecimal digits

Rotation puts the next object, `meta/secret/2` and so on. Brokers look for it every REFRESH_S; they
log in with a new secret SETTLED_S after it was made, when all of them have seen it, and take the
one before it for GOOD_FOR_S more. So nobody who runs is turned away in between.

Failure cases: CorruptObject where the object is no secret; a store that does not answer leaves the
known secrets in force.
"""

import hashlib
import hmac
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectExists, Rejected
from wal.stores.object_store import BytesBody, ObjectStore

SECRET_PREFIX: Final = "meta/secret/"
SECRET_FILE: Final = "secret"

KEY_BYTES: Final = 32
REFRESH_S: Final = 60.0
SETTLED_S: Final = 300.0
GOOD_FOR_S: Final = 3_600.0
_ID_DIGITS: Final = 12


class ClusterSecret(NamedTuple):
    """One secret."""

    made_ms: int
    key: bytes

    @property
    def id(self) -> str:
        """Says which one it is, and nothing of it."""
        return hashlib.sha256(b"id" + self.key).hexdigest()[:_ID_DIGITS]

    def derived(self, what: str) -> bytes:
        """Returns a key of its own for each purpose."""
        return hmac.digest(self.key, what.encode(), "sha256")

    def __repr__(self) -> str:
        return f"ClusterSecret({self.id})"

    @classmethod
    def new(cls, clock: Clock, rng: random.Random) -> Self:
        """`rng` is one that nobody can predict."""
        return cls(clock.now_ms(), rng.randbytes(KEY_BYTES))


def encode_secret(secret: ClusterSecret) -> bytes:
    """Encodes what object and file hold."""
    return f"{secret.made_ms} {secret.key.hex()}\n".encode("ascii")


def decode_secret(data: bytes) -> ClusterSecret:
    """Raises CorruptObject."""
    try:
        made_ms, key = data.decode("ascii").removesuffix("\n").split(" ")
        secret = ClusterSecret(int(made_ms), bytes.fromhex(key))
        if len(secret.key) == KEY_BYTES:
            return secret
    except ValueError:
        pass
    raise CorruptObject("the secret of the cluster is damaged")


async def shared_secrets(
    store: ObjectStore, clock: Clock, rng: random.Random
) -> Sequence[ClusterSecret]:
    """The last two of the cluster on this bucket, the newest last; made now if there is none.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    numbers = await _numbers(store)
    if not numbers:
        await _put(store, 1, ClusterSecret.new(clock, rng))
        numbers = [1]
    return [decode_secret(await store.get(_key(number))) for number in numbers[-2:]]


async def rotate_secret(store: ObjectStore, clock: Clock, rng: random.Random) -> None:
    """Put another secret, and delete those that nobody takes any more.

    Raises: Rejected (there is none, or the last one is younger than an hour),
    ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    numbers = await _numbers(store)
    if not numbers:
        raise Rejected(f"no broker has put a secret into {store.url} yet")
    last = decode_secret(await store.get(_key(numbers[-1])))
    if clock.now_ms() - last.made_ms < GOOD_FOR_S * 1000 and len(numbers) > 1:
        raise Rejected("the secret was rotated within the last hour: two are valid already")
    await _put(store, numbers[-1] + 1, ClusterSecret.new(clock, rng))
    await store.delete([_key(number) for number in numbers[:-1]])


async def _numbers(store: ObjectStore) -> Sequence[int]:
    names = [stat.key.removeprefix(SECRET_PREFIX) async for stat in store.list(SECRET_PREFIX)]
    return sorted(int(name) for name in names if name.isdecimal())


def _key(number: int) -> ObjectKey:
    return ObjectKey(f"{SECRET_PREFIX}{number}")


async def _put(store: ObjectStore, number: int, secret: ClusterSecret) -> None:
    try:
        await store.put(_key(number), BytesBody(encode_secret(secret)))
    except ObjectExists:
        pass  # another broker was first, and its secret is the cluster's


def local_secret(data: Path, clock: Clock, rng: random.Random) -> ClusterSecret:
    """That of a data directory whose lock is held, made now if there is none.

    Raises: CorruptObject, OSError.
    """
    path = data / SECRET_FILE
    try:
        return decode_secret(path.read_bytes())
    except FileNotFoundError:
        made = ClusterSecret.new(clock, rng)
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(encode_secret(made))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return made


def in_force(secrets: Sequence[ClusterSecret], now_ms: int) -> Sequence[ClusterSecret]:
    """Those that are taken: the newest, and older ones that were replaced not long ago."""
    taken = [one for one, newer in pairwise(secrets) if now_ms - newer.made_ms < GOOD_FOR_S * 1000]
    return [*taken, secrets[-1]]


def to_log_in_with(secrets: Sequence[ClusterSecret], now_ms: int) -> ClusterSecret:
    """The newest that every broker has seen by now."""
    for one in reversed(secrets):
        if now_ms - one.made_ms >= SETTLED_S * 1000:
            return one
    return secrets[0]
