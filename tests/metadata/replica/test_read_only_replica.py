"""A replica read by another process: as new as what was acknowledged, and never half replaced."""

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from sqlalchemy import Connection

from metadata import operations as ops
from metadata.replica.read_only_replica import ReadOnlyReplica
from metadata.state.state import STATE_FILE
from metadata.state.state_file import is_as_closed
from tests.support.coordinators.coordinator_bench import (
    UNKNOWN_PARTITION,
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.coordinates import TopicIdPartition
from wal.errors import NotCoordinator, StorageFailed

READER = """
import asyncio, json, sys
from pathlib import Path
from uuid import UUID
from metadata import operations as ops
from metadata.replica.read_only_replica import ReadOnlyReplica
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

async def main():
    async with ReadOnlyReplica(Path(sys.argv[1]), readers=2) as replica:
        print("ready", flush=True)
        for line in sys.stdin:
            topic_id, partition, offset = json.loads(line)
            request = ops.FindBatches(TopicIdPartition(UUID(topic_id), partition), offset, 1 << 20)
            try:
                (found,) = await replica.find_batches([request], max_bytes=1 << 20)
                error = found.error
            except DisklessError as failure:
                found, error = ops.FoundBatches(), failure
            ends = [[one.base_offset, one.last_offset] for one in found.extents]
            problem = None if error is None else type(error).__name__
            print(json.dumps([problem, found.high_watermark, ends]), flush=True)

asyncio.run(main())
"""


class Reader:
    """Another process that reads the replica below a directory."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def find(self, partition: TopicIdPartition, offset: int) -> Any:
        """(Error, high watermark, extents)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = [str(partition.topic_id), partition.partition, offset]
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        await self.process.stdin.drain()
        return json.loads(await self.process.stdout.readline())


@asynccontextmanager
async def reader_of(directory: Path) -> AsyncIterator[Reader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        READER,
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield Reader(process)
        if process.returncode is None:
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def commit(bench: CoordinatorBench, partition: TopicIdPartition, records: int = 1) -> None:
    (answer,) = await bench.commit(batch(partition, records))
    assert answer.error is None


async def test_another_process_finds_what_was_acknowledged(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        partition = await bench.partition()
        async with reader_of(tmp_path) as reader:
            for number in range(20):
                await commit(bench, partition, 2)
                found = await reader.find(partition, 2 * number)
                assert found == [None, 2 * number + 2, [[2 * number, 2 * number + 1]]]
            # One that is created later is found as well.
            later = await bench.partition("later")
            assert await reader.find(later, 0) == [None, 0, []]
            # What this file has not got may be there all the same.
            assert await reader.find(partition, 99) == [None, 40, []]
            assert (await reader.find(UNKNOWN_PARTITION, 0))[0] == "NotCoordinator"
        # The writer had it open longer, so it is whole without its log of pages.
    assert is_as_closed(tmp_path / STATE_FILE)


async def test_a_reader_that_is_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        partition = await bench.partition()
        await commit(bench, partition)
        async with reader_of(tmp_path) as reader:
            assert (await reader.find(partition, 0))[1] == 1
            reader.process.kill()
            assert await reader.process.wait() != 0
        await commit(bench, partition)
        async with ReadOnlyReplica(tmp_path, readers=1) as here:
            request = ops.FindBatches(partition, 0, 1 << 20)
            (found,) = await here.find_batches([request], max_bytes=1 << 20)
            assert found.high_watermark == 2
    assert is_as_closed(tmp_path / STATE_FILE)


async def test_a_file_that_was_replaced_is_not_read_any_more(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        partition = await bench.partition()
        await commit(bench, partition)
        state = bench.coordinator.replica.state
        async with reader_of(tmp_path) as reader:
            assert (await reader.find(partition, 0))[:2] == [None, 1]
            copy = tmp_path / "copy"
            await state.backup(copy)
            await commit(bench, partition)
            assert (await reader.find(partition, 0))[:2] == [None, 2]
            await state.adopt(copy)
            # Between the two nothing is in use.
            assert (await reader.find(partition, 0))[0] == "NotCoordinator"
            assert not await state.open_or_create()
            assert await state.read(lambda _: True)
            assert (await reader.find(partition, 0))[:2] == [None, 1]
            await state.set_aside()
            assert (await reader.find(partition, 0))[0] == "NotCoordinator"
            await state.open_or_create()
            assert (await reader.find(partition, 0))[0] == "NotCoordinator"


async def test_what_is_replaced_during_a_read_is_thrown_away(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        partition = await bench.partition()
        await commit(bench, partition)
        log_of_pages = tmp_path / f"{STATE_FILE}-wal"
        async with ReadOnlyReplica(tmp_path, readers=1) as replica:
            request = ops.FindBatches(partition, 0, 1 << 20)

            async def found() -> ops.FoundBatches:
                (one,) = await replica.find_batches([request], max_bytes=1 << 20)
                return one

            assert (await found()).high_watermark == 1
            # The first that is done to a file that goes: its log of pages is removed.
            moved = log_of_pages.rename(tmp_path / "moved")
            with pytest.raises(NotCoordinator):
                await found()
            moved.rename(log_of_pages)
            assert (await found()).high_watermark == 1

            def replaces(connection: object) -> None:
                log_of_pages.rename(moved)

            with pytest.raises(NotCoordinator):
                await replica._state.read(replaces)
            moved.rename(log_of_pages)


@pytest.mark.parametrize("statement", ["DELETE FROM topics", "PRAGMA wal_checkpoint(TRUNCATE)"])
async def test_a_reader_can_neither_write_nor_checkpoint(tmp_path: Path, statement: str) -> None:
    def attempt(connection: Connection) -> object:
        driver = cast(sqlite3.Connection, connection.connection.driver_connection)
        return driver.execute(statement).fetchall()

    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        await bench.partition()
        async with ReadOnlyReplica(tmp_path, readers=1) as replica:
            before = contents(tmp_path)
            with pytest.raises(StorageFailed, match=r"readonly|disk I/O error"):
                await replica._state.read(attempt)
            assert contents(tmp_path) == before


def contents(directory: Path) -> list[bytes]:
    return [(directory / f"{STATE_FILE}{suffix}").read_bytes() for suffix in ("", "-wal")]


async def test_there_need_not_be_a_file_yet(tmp_path: Path) -> None:
    async with ReadOnlyReplica(tmp_path, readers=1) as replica:
        request = ops.FindBatches(TopicIdPartition(UUID(int=1), 0), 0, 1)
        with pytest.raises(NotCoordinator):
            await replica.find_batches([request], max_bytes=1)
    assert not os.listdir(tmp_path)
