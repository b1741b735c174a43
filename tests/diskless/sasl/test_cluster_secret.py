"""The secret that brokers share: made once, rotated in one step, read by everybody alike."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from diskless.sasl.cluster_secret import (
    OVERLAP_MS,
    SECRET_PREFIX,
    ClusterSecret,
    decode_secret,
    encode_secret,
    rotate,
    shared_secrets,
)
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectStoreUnavailable, Rejected
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

OVERLAP_S = OVERLAP_MS / 1000


class Cluster:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.rng = random.Random(1)

    async def secrets(self) -> Sequence[ClusterSecret]:
        return await shared_secrets(self.store, self.clock, self.rng)

    async def rotate(self) -> tuple[int, bool]:
        rotation = await rotate(self.store, self.clock, self.rng)
        assert rotation.ends_ms > self.clock.now_ms()
        return rotation.number, rotation.is_new

    async def stored(self) -> list[str]:
        return [stat.key.removeprefix(SECRET_PREFIX) async for stat in self.store.list("meta/")]


def test_a_secret_is_what_its_object_says_and_is_not_shown() -> None:
    secret = ClusterSecret.new(ManualClock(), random.Random(1))
    assert decode_secret(encode_secret(secret)) == secret
    assert secret.key.hex() not in repr([secret])
    assert secret.decoys.hex() not in repr([secret])
    encoded = encode_secret(secret)
    for damaged in (b"", encoded[:-2], encoded[1:].lstrip(b"0123456789"), b"x" + encoded, b"\xff"):
        with pytest.raises(CorruptObject):
            decode_secret(damaged)


async def test_brokers_that_start_together_have_one_secret() -> None:
    cluster = Cluster()
    first, *others = await asyncio.gather(*(cluster.secrets() for _ in range(5)))
    assert len(first) == 1
    assert all(other == first for other in others)


async def test_there_is_nothing_to_rotate_before_the_first_broker() -> None:
    with pytest.raises(Rejected, match="the first broker makes it"):
        await Cluster().rotate()


async def test_rotation_keeps_the_last_two_and_what_unknown_users_are_shown() -> None:
    cluster = Cluster()
    (first,) = await cluster.secrets()
    assert await cluster.rotate() == (1, False)
    for number in (2, 3, 4):
        before = await cluster.secrets()
        cluster.clock.advance(OVERLAP_S)
        assert await cluster.rotate() == (number, True)
        assert await cluster.rotate() == (number, False)
        after = await cluster.secrets()
        assert after[0] == before[-1]
        assert after[1].key != after[0].key
        assert after[1].decoys == first.decoys
        assert await cluster.stored() == [str(number - 1), str(number)]


async def test_rotations_at_once_make_one_secret() -> None:
    cluster = Cluster()
    await cluster.secrets()
    cluster.clock.advance(OVERLAP_S)
    rotated = await asyncio.gather(*(cluster.rotate() for _ in range(4)))
    assert {number for number, _ in rotated} == {2}
    assert [is_new for _, is_new in rotated].count(True) == 1


class Fails(MemoryStore):
    """Every delete fails."""

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        raise ObjectStoreUnavailable("no delete")


async def test_a_rotation_that_ended_half_way_is_given_again() -> None:
    cluster = Cluster()
    await cluster.secrets()
    cluster.clock.advance(OVERLAP_S)
    await cluster.rotate()
    cluster.clock.advance(OVERLAP_S)
    whole, cluster.store = cluster.store, Fails(clock=cluster.clock)
    for number in (1, 2):
        key = ObjectKey(f"{SECRET_PREFIX}{number}")
        await cluster.store.put(key, BytesBody(await whole.get(key)))
    with pytest.raises(ObjectStoreUnavailable):
        await cluster.rotate()
    assert await cluster.stored() == ["1", "2", "3"]
    half_way = await cluster.secrets()
    cluster.store.__class__ = MemoryStore
    assert await cluster.rotate() == (3, False)
    assert await cluster.stored() == ["2", "3"]
    assert await cluster.secrets() == half_way
