"""Torn and flipped bytes in metadata logs: exactly what was acknowledged, or a refusal to serve.

A coordinator commits on each log. Then, seed by seed, something in the log is damaged, and a broker
starts on it, with its SQLite state and without. It comes up with the very state that was
acknowledged, or not at all, with CorruptLog or CorruptState; never with anything else.

One thing cannot be told apart without help: in a local log, damage to the very last record looks
like an append that a crash has torn, which nobody was told of and which is cut. With the help of a
state or a snapshot that has that record it can, and the start is refused. An object in a store is
there in full or not at all, so nothing is ever cut from the object log.

SQLite and snapshots are damaged in tests/metadata/replica/test_start_from_snapshot.py, the bytes of
single objects in tests/metadata/log/test_object_log.py.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from metadata.log.local_log import LocalLogSettings, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.records.control import LeaderChangeRecord
from metadata.records.records import encode_record
from metadata.replica.replica import Replica
from metadata.state.state import STATE_FILE
from metadata.state.state_file import remove_database
from tests.support.coordinators.coordinator_bench import batch, running_coordinator
from tests.support.coordinators.coordinator_worlds import SETTINGS, NoSyncDisk
from tests.support.profiles import seeds
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog, CorruptState
from wal.stores.file_store import FileStore

SEEDS = seeds(40)
COMMITS = 60
LOCAL_LOG = LocalLogSettings(segment_bytes=4 << 10)


class Reached(NamedTuple):
    """How far a start came."""

    offset: int
    state_hash: int


async def start(directory: Path, log: MetadataLog) -> Reached:
    replica = Replica(directory, settings=SETTINGS)
    await replica.open(log)
    try:
        return Reached(replica.applied_offset, replica.state_hash)
    finally:
        await replica.close()


async def commit_much(directory: Path, log: MetadataLog) -> list[Reached]:
    """Operations of many kinds; what was reached after each acknowledged one."""
    reached = []
    async with running_coordinator(directory, log, settings=SETTINGS) as bench:
        topic = await bench.topic("flights", 3)
        names = [TopicIdPartition(topic.topic_id, index) for index in range(3)]
        for number in range(COMMITS):
            bench.clock.advance(0.01)
            await bench.commit(
                *[batch(name, 2, producer=number % 5, sequence=2 * (number // 5)) for name in names]
            )
            if number % 7 == 0:
                await bench.coordinator.allocate_producer_ids()
            replica = bench.coordinator.replica
            reached.append(Reached(replica.applied_offset, replica.state_hash))
    return reached


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def overwrite(data: bytearray, rng: random.Random) -> None:
    """A page of zeros, as a lost write leaves it."""
    start = rng.randrange(len(data)) // 512 * 512
    data[start : start + 512] = bytes(len(data[start : start + 512]))


DAMAGES: Sequence[Callable[[bytearray, random.Random], None]] = [flip] * 7 + [cut, cut, overwrite]


# --- the local log -------------------------------------------------------------------------------


class LocalScene(NamedTuple):
    """What a broker has left, and copies of it to be damaged."""

    scratch: Path
    left: Path
    reached: list[Reached]

    def copy(self) -> Path:
        copied = self.scratch / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.left, copied)
        return copied

    async def start(self, directory: Path) -> Reached:
        log = await open_local(directory / "log")
        try:
            return await start(directory, log)
        finally:
            await log.close()


async def open_local(directory: Path) -> LocalMetadataLog:
    return await LocalMetadataLog.open(
        directory, rng=random.Random(1), settings=LOCAL_LOG, disk=NoSyncDisk(calls=())
    )


@pytest.fixture
async def local(tmp_path: Path) -> LocalScene:
    left = tmp_path / "left"
    log = await open_local(left / "log")
    return LocalScene(tmp_path, left, await commit_much(left, log))


def stores_of(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("*.store"))


@pytest.mark.parametrize("keeps_state", [True, False])
async def test_a_damaged_local_log_gives_what_was_acknowledged_or_is_refused(
    local: LocalScene, keeps_state: bool
) -> None:
    files = sorted(path.name for path in (local.left / "log").iterdir() if path.name != "lock")
    last_store = stores_of(local.left)[-1].name
    assert len(files) >= 6, "several segments, with an index each"
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        directory = local.copy()
        path = directory / "log" / rng.choice(files)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        rng.choice(DAMAGES)(damaged, rng)
        path.write_bytes(damaged)
        if not keeps_state:
            remove_database(directory / STATE_FILE)
        try:
            reached = await local.start(directory)
        except CorruptLog:
            seen["refused"] += 1
            assert path.read_bytes() == damaged, "what is refused is left to people"
            continue
        except CorruptState:
            seen["refused"] += 1
            continue
        if reached == local.reached[-1]:
            seen["whole"] += 1
            continue
        # What nobody can tell from a torn tail: no whole record is behind it, in this very file.
        assert not keeps_state, f"seed {seed}: {path.name} lost what its state knows of"
        assert path.name == last_store, f"seed {seed}"
        assert reached in local.reached, f"seed {seed}: half an operation"
        seen["taken for torn"] += 1
    assert seen["refused"] > len(SEEDS) / 10
    assert seen["whole"] > len(SEEDS) / 10
    assert seen["taken for torn"] < len(SEEDS) / 10


async def test_the_last_record_is_refused_when_damaged_as_long_as_the_state_has_it(
    local: LocalScene,
) -> None:
    store = stores_of(local.left)[-1]
    size = store.stat().st_size
    log = await open_local(local.copy() / "log")
    last = (await log.read(log.end_offset - 1, 1))[0]
    await log.close()
    shorter = len(b"".join(last.records))
    for seed in SEEDS:
        rng = random.Random(seed)
        directory = local.copy()
        path = stores_of(directory)[-1]
        data = bytearray(path.read_bytes())
        place = rng.randrange(size - shorter, size)
        if seed % 2:
            data[place] ^= 1 << rng.randrange(8)
        else:
            del data[place:]
        path.write_bytes(data)
        with pytest.raises(CorruptState, match="lost records that were acknowledged"):
            await local.start(directory)
        if seed % 20 < 2:
            # Whoever gives that record up has everything before it.
            remove_database(directory / STATE_FILE)
            assert await local.start(directory) == local.reached[-2]


async def test_an_append_that_was_torn_is_cut_and_nothing_else(local: LocalScene) -> None:
    """It was never acknowledged; where it ends, or what is left in its place, does not matter."""
    store = stores_of(local.left)[-1]
    size = store.stat().st_size
    log = await open_local(local.left / "log")
    record = (await log.read(log.end_offset - 1, 1))[0].records[0]
    await log.append([[record], [record, record]], ManualClock().now_ms())
    await log.close()
    assert stores_of(local.left)[-1] == store
    torn_size = store.stat().st_size
    for seed in SEEDS:
        rng = random.Random(seed)
        directory = local.copy()
        path = stores_of(directory)[-1]
        place = rng.randrange(size, torn_size)
        if seed % 3 == 0:
            # The file is as long as it was to be, and the rest of it was never written.
            data = path.read_bytes()
            path.write_bytes(data[:place] + bytes(torn_size - place))
        else:
            os.truncate(path, place)
        log = await open_local(directory / "log")
        try:
            # The first of its two batches may be whole. That is no record to apply, so it is not.
            assert log.end_offset - local.reached[-1].offset in (0, 1)
            if log.end_offset == local.reached[-1].offset:
                assert await start(directory, log) == local.reached[-1]
        finally:
            await log.close()


# --- the object log ------------------------------------------------------------------------------


class ObjectScene(NamedTuple):
    directory: Path
    objects: Path
    open_log: Callable[[], Awaitable[MetadataLog]]
    reached: list[Reached]


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[ObjectScene]:
    clock = ManualClock()

    async with FileStore(
        tmp_path / "objects", clock=clock, rng=random.Random(1), sync=False
    ) as store:

        async def open_log() -> MetadataLog:
            return await ObjectMetadataLog.open(store, 0, clock=clock, rng=random.Random(2))

        log = await open_log()
        leader = LeaderChangeRecord(
            leader_epoch=1, broker_id=1, host="b", port=1, incarnation=UUID(int=1)
        )
        await log.lead([encode_record(leader)], clock.now_ms(), at_offset=0)
        yield ObjectScene(
            tmp_path / "state",
            tmp_path / "objects" / "meta" / "0" / "log",
            open_log,
            await commit_much(tmp_path / "state", log),
        )


@pytest.mark.parametrize("keeps_state", [True, False])
async def test_a_damaged_object_log_gives_what_was_acknowledged_or_is_refused(
    shared: ObjectScene, tmp_path: Path, keeps_state: bool
) -> None:
    names = sorted(path.name for path in shared.objects.iterdir())
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        # The last object is read by every start, the others only without a state.
        name = rng.choice(names) if seed % 4 else names[-1]
        path = shared.objects / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        rng.choice(DAMAGES)(damaged, rng)
        path.write_bytes(damaged)
        directory = tmp_path / "copy"
        shutil.rmtree(directory, ignore_errors=True)
        if keeps_state:
            shutil.copytree(shared.directory, directory)
        try:
            log = await shared.open_log()
            try:
                reached = await start(directory, log)
            finally:
                await log.close()
            assert reached == shared.reached[-1], f"seed {seed}: {name}"
            # Zeros over zeros are no damage; and with a state, old objects are not read.
            assert keeps_state or damaged == whole, f"seed {seed}: {name}"
            seen["whole"] += 1
        except (CorruptLog, CorruptState):
            seen["refused"] += 1
        finally:
            path.write_bytes(whole)
    assert seen["refused"] >= (len(SEEDS) / 5 if keeps_state else len(SEEDS) * 0.95)


async def test_an_object_log_without_its_last_object_is_refused_as_long_as_a_state_has_it(
    shared: ObjectScene, tmp_path: Path
) -> None:
    max(shared.objects.iterdir()).unlink()
    log = await shared.open_log()
    try:
        with pytest.raises(CorruptState, match="lost records that were acknowledged"):
            await start(shared.directory, log)
        assert await start(tmp_path / "nothing", log) == shared.reached[-2]
    finally:
        await log.close()
