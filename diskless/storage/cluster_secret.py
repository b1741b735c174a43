"""The secret that all brokers of a cluster share, and nobody else: 32 random bytes.

From it follows what must look the same at every broker and be guessed by nobody, such as the salt
that an unknown user is shown. Brokers on one bucket have it there, as the object `meta/secret/1`;
the first one that needs it puts it. Whoever may read `meta/` is the cluster already. A broker with
a local metadata log has it in its data directory, in the file `secret`.

    MADE-AT-MS KEY        key: 64 hexadecimal digits

Failure cases: CorruptObject where the object is no secret.
"""

import hmac
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectExists
from wal.stores.object_store import BytesBody, ObjectStore

SECRET_PREFIX: Final = "meta/secret/"
SECRET_FILE: Final = "secret"

KEY_BYTES: Final = 32


class ClusterSecret(NamedTuple):
    """One secret."""

    made_ms: int
    key: bytes

    def derived(self, what: str) -> bytes:
        """Returns a key of its own for each purpose."""
        return hmac.digest(self.key, what.encode(), "sha256")

    def __repr__(self) -> str:
        return "ClusterSecret(***)"

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


async def shared_secret(store: ObjectStore, clock: Clock, rng: random.Random) -> ClusterSecret:
    """That of the cluster on this bucket, made now if there is none.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    numbers = await _numbers(store)
    if not numbers:
        await _put(store, 1, ClusterSecret.new(clock, rng))
        numbers = [1]
    return decode_secret(await store.get(_key(numbers[-1])))


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
