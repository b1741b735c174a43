"""Whose bucket prefix it is: two clusters never work on one, and a lost directory is noticed."""

import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from diskless.storage.cluster_identity import (
    CLUSTER_OBJECT,
    OBJECT_LOG,
    claim_for_rebuilt,
    claim_prefix,
    known_cluster_id,
    shared_cluster_id,
)
from diskless.storage.data_directory import DataDirectory
from tests.support.brokers.live_broker import LiveBroker
from wal.clock import ManualClock
from wal.errors import CorruptObject, InvalidSettings, ObjectNotFound
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


def directory(path: Path, seed: int = 1) -> DataDirectory:
    return DataDirectory.open(path, node_id=0, rng=random.Random(seed))


async def test_the_first_broker_names_the_cluster_and_the_others_take_the_name(
    store: MemoryStore,
) -> None:
    first = await shared_cluster_id(store, random.Random(1))
    assert await shared_cluster_id(store, random.Random(2)) == first
    assert await known_cluster_id(store) == first


async def test_a_prefix_without_cluster_has_no_id(store: MemoryStore) -> None:
    with pytest.raises(ObjectNotFound):
        await known_cluster_id(store)


@pytest.mark.parametrize(
    "stored",
    [
        b"mine",
        b"",
        b"mine\nlocal\n",
        b"\xff\xff",
        b"00000000-0000-0000-0000-000000000001\nelsewhere\n",
        b"00000000-0000-0000-0000-000000000001\n",
    ],
)
async def test_an_id_that_is_none_is_corrupt(store: MemoryStore, stored: bytes) -> None:
    await store.put(CLUSTER_OBJECT, BytesBody(stored))
    with pytest.raises(CorruptObject, match="names no"):
        await shared_cluster_id(store, random.Random(1))


async def test_a_cluster_keeps_its_kind_of_metadata_log(store: MemoryStore, tmp_path: Path) -> None:
    await claim_prefix(store, directory(tmp_path / "a"))
    with pytest.raises(InvalidSettings, match="is local, not object"):
        await shared_cluster_id(store, random.Random(2))


async def test_a_broker_of_its_own_does_not_join_a_shared_prefix(
    store: MemoryStore, tmp_path: Path
) -> None:
    await shared_cluster_id(store, random.Random(1))
    with pytest.raises(InvalidSettings, match="is object, not local"):
        await claim_prefix(store, directory(tmp_path / "a"))


async def test_a_directory_keeps_the_prefix_that_it_claimed(
    store: MemoryStore, tmp_path: Path
) -> None:
    data = directory(tmp_path / "a")
    assert await claim_prefix(store, data) == data
    again = directory(tmp_path / "a", seed=9)
    assert await claim_prefix(store, again) == again
    assert await known_cluster_id(store) == data.cluster_id


async def test_another_clusters_prefix_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    await claim_prefix(store, directory(tmp_path / "a", seed=1))
    with pytest.raises(InvalidSettings, match="diskless rebuild"):
        await claim_prefix(store, directory(tmp_path / "b", seed=2))


async def test_a_rebuild_moves_the_log_of_a_cluster(store: MemoryStore, tmp_path: Path) -> None:
    await claim_prefix(store, directory(tmp_path / "a"))
    cluster_id = await known_cluster_id(store)
    await claim_for_rebuilt(store, OBJECT_LOG, str(UUID(int=7)))
    assert await shared_cluster_id(store, random.Random(1)) == cluster_id


async def test_a_rebuild_names_the_cluster_where_nobody_does(store: MemoryStore) -> None:
    await claim_for_rebuilt(store, OBJECT_LOG, str(UUID(int=7)))
    assert await shared_cluster_id(store, random.Random(1)) == str(UUID(int=7))


async def test_a_rebuilt_directory_takes_over_the_clusters_id(
    store: MemoryStore, tmp_path: Path
) -> None:
    await claim_prefix(store, directory(tmp_path / "lost", seed=1))
    owner = await known_cluster_id(store)
    log = tmp_path / "a" / "metadata" / "0" / "log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.store").write_bytes(b"rebuilt")
    data = await claim_prefix(store, directory(tmp_path / "a", seed=2))
    assert data.cluster_id == owner
    assert directory(tmp_path / "a", seed=3).cluster_id == owner


def test_a_broker_whose_directory_was_lost_does_not_start_on_its_bucket(tmp_path: Path) -> None:
    settings = {"object.store.url": f"file://{tmp_path}/bucket"}
    with LiveBroker(tmp_path / "data", settings):
        pass
    shutil.rmtree(tmp_path / "data")
    with (
        pytest.raises(InvalidSettings, match="belongs to cluster"),
        LiveBroker(tmp_path / "data", settings),
    ):
        pass
