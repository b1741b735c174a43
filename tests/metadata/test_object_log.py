"""The object metadata log: the contract on three stores, and what a shared store can do to it."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from log_contract import MetadataLogContract

from metadata.object_log import ObjectLogSettings, ObjectMetadataLog
from wal.clock import SystemClock
from wal.file_store import FileStore
from wal.memory_store import MemoryStore
from wal.object_store import ObjectStore
from wal.s3_settings import S3Settings
from wal.s3_store import S3Store

SETTINGS = ObjectLogSettings(batch_max_bytes=32 << 10)


@pytest.fixture(params=["memory", "file", "s3-on-moto"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    clock, rng = SystemClock(), random.Random()
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore(clock=clock)
    elif request.param == "file":
        tmp_path: Path = request.getfixturevalue("tmp_path")
        opened = FileStore(tmp_path / "store", clock=clock, rng=rng, sync=False)
    else:
        opened = S3Store(
            request.getfixturevalue("moto_bucket"),
            "a prefix/of ours",
            endpoint_url=request.getfixturevalue("moto_endpoint"),
            clock=clock,
            rng=rng,
            settings=S3Settings(list_page=3),
        )
    async with opened:
        yield opened


class ObjectStorage:
    """A log in one object store."""

    batch_max_bytes = SETTINGS.batch_max_bytes

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def open(self) -> ObjectMetadataLog:
        return await ObjectMetadataLog.open(
            self._store, 3, clock=SystemClock(), rng=random.Random(), settings=SETTINGS
        )


class TestObjectLogContract(MetadataLogContract):
    @pytest.fixture
    def storage(self, store: ObjectStore) -> ObjectStorage:
        return ObjectStorage(store)
