"""The secret that all brokers of a cluster share, and nobody else: random bytes.

From it follows the password by which brokers log in to each other. Brokers on one bucket have it
there, as the objects `meta/secret/1`, `meta/secret/2`, …; the first broker that needs one puts the
first. Whoever may read `meta/` is the cluster already. A broker with a local metadata log has it in
its data directory, in the file `secret`.

    MADE-AT-MS KEY DECOYS       key, decoys: 64 hexadecimal digits each

`decoys` is what must look the same at every broker for ever and be guessed by nobody: from it
follow the salts that unknown users are shown. Rotation copies it: a salt that changed while those
of the users did not would tell which names are nobody's.

Rotation (`rotate`) is one put, of the next number; then it deletes what is older than the last two.
So a crash leaves a cluster with the secrets it had or with one more, and the command can be given
again. The secret before the last one counts for OVERLAP_MS more, and while it does, nothing is
rotated: a broker that has not heard of the last one yet and one that never knew the one before
still have one in common.

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
from wal.errors import CorruptObject, ObjectExists, ObjectNotFound, Rejected
from wal.stores.object_store import BytesBody, ObjectStore

SECRET_PREFIX: Final = "meta/secret/"
SECRET_FILE: Final = "secret"

KEY_BYTES: Final = 32
OVERLAP_MS: Final = 600_000
"""Longer than a broker takes to hear of a new secret, and than clocks differ."""


class ClusterSecret(NamedTuple):
    """One secret."""

    made_ms: int
    key: bytes
    decoys: bytes

    def derived(self, what: str) -> bytes:
        """Returns a key of its own for each purpose."""
        return hmac.digest(self.key, what.encode(), "sha256")

    def __repr__(self) -> str:
        return "ClusterSecret(***)"

    @classmethod
    def new(cls, clock: Clock, rng: random.Random) -> Self:
        """`rng` is one that nobody can predict."""
        return cls(clock.now_ms(), rng.randbytes(KEY_BYTES), rng.randbytes(KEY_BYTES))


class Rotation(NamedTuple):
    """What `rotate` found or did."""

    number: int
    """Of the last secret."""
    is_new: bool
    """False: there is one so new that the one before it still counts."""
    ends_ms: int
    """When the one before ends."""


def encode_secret(secret: ClusterSecret) -> bytes:
    """Encodes what object and file hold."""
    return f"{secret.made_ms} {secret.key.hex()} {secret.decoys.hex()}\n".encode("ascii")


def decode_secret(data: bytes) -> ClusterSecret:
    """Raises CorruptObject."""
    try:
        made_ms, key, decoys = data.decode("ascii").removesuffix("\n").split(" ")
        secret = ClusterSecret(int(made_ms), bytes.fromhex(key), bytes.fromhex(decoys))
        if len(secret.key) == len(secret.decoys) == KEY_BYTES:
            return secret
    except ValueError:
        pass
    raise CorruptObject("the secret of the cluster is damaged")


async def shared_secrets(
    store: ObjectStore, clock: Clock, rng: random.Random
) -> Sequence[ClusterSecret]:
    """The last two of the cluster on this bucket, the last one last; one is made if there is none.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    while True:
        numbers = await _numbers(store)
        if not numbers:
            await _put(store, 1, ClusterSecret.new(clock, rng))
            continue
        try:
            return [await _get(store, number) for number in numbers[-2:]]
        except ObjectNotFound:
            continue  # rotated twice since it was listed


async def rotate(store: ObjectStore, clock: Clock, rng: random.Random) -> Rotation:
    """Put the next secret, unless the last one is newer than OVERLAP_MS.

    Raises: Rejected (no secret was made yet), ObjectStoreUnavailable, UploadOutcomeUnknown,
    CorruptObject.
    """
    numbers = await _numbers(store)
    if not numbers:
        raise Rejected(
            f"there is no secret below {SECRET_PREFIX} of {store.url}: the first broker makes it, "
            "with SASL and diskless.metadata.log=object"
        )
    number, is_new = numbers[-1], False
    last = await _get(store, number)
    if clock.now_ms() >= last.made_ms + OVERLAP_MS:
        fresh = ClusterSecret.new(clock, rng)._replace(decoys=last.decoys)
        number += 1
        is_new = await _put(store, number, fresh)
        last = await _get(store, number)
    await store.delete([_key(one) for one in numbers if one < number - 1])
    return Rotation(number, is_new, last.made_ms + OVERLAP_MS)


async def _numbers(store: ObjectStore) -> Sequence[int]:
    names = [stat.key.removeprefix(SECRET_PREFIX) async for stat in store.list(SECRET_PREFIX)]
    return sorted(int(name) for name in names if name.isdecimal())


def _key(number: int) -> ObjectKey:
    return ObjectKey(f"{SECRET_PREFIX}{number}")


async def _get(store: ObjectStore, number: int) -> ClusterSecret:
    return decode_secret(await store.get(_key(number)))


async def _put(store: ObjectStore, number: int, secret: ClusterSecret) -> bool:
    """Whether it was put; False: somebody else was first, and that secret is the cluster's."""
    try:
        await store.put(_key(number), BytesBody(encode_secret(secret)))
    except ObjectExists:
        return False
    return True


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
