"""The local metadata log: the contract, and what only a directory on a disk can do to it."""

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metadata.log.local_log import APPENDS_UNDER_WAY_MAX, LocalLogSettings, LocalMetadataLog
from tests.support.chunks.failing_disk import FailingDisk
from tests.support.logs.log_contract import NOW_MS, MetadataLogContract, read_records
from wal import errors
from wal.disk import SYSTEM_DISK, Disk, SystemDisk
from wal.settings import section_from

SETTINGS = LocalLogSettings(segment_bytes=64 << 10)


async def open_log(
    path: Path, disk: Disk = SYSTEM_DISK, settings: LocalLogSettings = SETTINGS
) -> LocalMetadataLog:
    return await LocalMetadataLog.open(path, rng=random.Random(3), settings=settings, disk=disk)


async def recovered(path: Path) -> list[list[bytes]]:
    log = await open_log(path)
    try:
        records = await read_records(log)
        assert await log.verify() == sum(map(len, records))
        return records
    finally:
        await log.close()


def oldest_store(path: Path) -> Path:
    return min(path.glob("*.store"))


def newest_store(path: Path) -> Path:
    return max(path.glob("*.store"))


class LocalStorage:
    """A log in one directory."""

    batch_max_bytes = SETTINGS.batch_max_bytes

    def __init__(self, path: Path) -> None:
        self._path = path

    def let_leases_end(self) -> None:
        """Nobody else can lead it."""

    async def open(self) -> LocalMetadataLog:
        return await open_log(self._path)


class TestLocalLogContract(MetadataLogContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "log")


# --- one writer, one sync ------------------------------------------------------------------------


async def test_a_directory_has_one_log_open_at_a_time(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    with pytest.raises(errors.NotCoordinator, match="open elsewhere"):
        await open_log(tmp_path)
    await log.append([[b"the first still writes"]], NOW_MS)
    await log.close()
    assert await recovered(tmp_path) == [[b"the first still writes"]]


async def test_a_cancelled_opening_lets_go_of_the_directory(tmp_path: Path) -> None:
    began, proceed = threading.Event(), threading.Event()

    class SlowDisk(SystemDisk):
        def open(self, path: str, flags: int) -> int:
            began.set()
            proceed.wait()
            return super().open(path, flags)

    opening = asyncio.ensure_future(open_log(tmp_path, SlowDisk()))
    await asyncio.to_thread(began.wait)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(errors.NotCoordinator):
        await open_log(tmp_path)
    proceed.set()
    async with asyncio.timeout(120):
        while True:
            try:
                log = await open_log(tmp_path)
                break
            except errors.NotCoordinator:
                continue
    await log.close()


async def test_all_batches_of_an_append_share_one_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk)
    before = disk.counts["fdatasync"]
    await log.append([[b"%d" % number] * 3 for number in range(50)], NOW_MS)
    assert disk.counts["fdatasync"] - before == 1
    await log.close()


async def test_too_many_appends_under_way_are_refused(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    appends = [
        asyncio.ensure_future(log.append([[b"%d" % number]], NOW_MS))
        for number in range(APPENDS_UNDER_WAY_MAX + 1)
    ]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert outcomes[:-1] == list(range(APPENDS_UNDER_WAY_MAX))
    assert isinstance(outcomes[-1], errors.Overloaded)
    assert await log.append([[b"again"]], NOW_MS) == APPENDS_UNDER_WAY_MAX
    await log.close()


def test_the_segment_size_is_a_setting_with_bounds() -> None:
    key = "metadata.log.segment.bytes"
    assert section_from(LocalLogSettings, {key: "33554432"}).segment_bytes == 32 << 20
    with pytest.raises(errors.InvalidSettings, match=key):
        section_from(LocalLogSettings, {key: "10"})


# --- a failing disk ------------------------------------------------------------------------------


async def test_a_full_disk_fails_the_commit_and_the_log_goes_on_when_there_is_space(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk)
    await log.append([[b"before"]], NOW_MS)
    for free in (0, 1, 60, 100, 150):
        disk.bytes_free = free
        with pytest.raises(errors.CommitFailed, match="No space left"):
            await log.append([[b"lost"], [b"lost with it"]], NOW_MS)
        assert log.end_offset == 1
        assert await read_records(log) == [[b"before"]]
    disk.bytes_free = None
    assert await log.append([[b"after"]], NOW_MS) == 1
    await log.close()
    assert await recovered(tmp_path) == [[b"before"], [b"after"]]


async def test_nothing_after_the_last_good_sync_is_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk)
    await log.append([[b"durable"]], NOW_MS)
    disk.failing = {"fdatasync"}
    appends = [asyncio.ensure_future(log.append([[b"%d" % number]], NOW_MS)) for number in range(3)]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        errors.CommitOutcomeUnknown,
        errors.NotCoordinator,
        errors.NotCoordinator,
    ]
    # The disk is well again, as it would say after an fsync error; that does not count.
    disk.failing = set()
    with pytest.raises(errors.NotCoordinator, match="opened again"):
        await log.append([[b"later"]], NOW_MS)
    assert log.end_offset == 1
    assert await read_records(log) == [[b"durable"]]
    await log.close()
    assert await recovered(tmp_path) == [[b"durable"]]


async def test_whichever_call_fails_what_was_acknowledged_is_there_and_what_failed_is_not(
    tmp_path: Path,
) -> None:
    async def exercise(
        path: Path, disk: FailingDisk, acked: list[list[bytes]], unknown: list[list[bytes]]
    ) -> None:
        log = await open_log(path, disk)
        try:
            for number in range(12):
                batches = [[b"%d" % number, bytes(9000)], [b"second of %d" % number]]
                try:
                    await log.append(batches, NOW_MS)
                except errors.CommitOutcomeUnknown:
                    unknown += batches
                    raise
                acked += batches
            await log.prune(acked_records(acked) - 3)
        finally:
            await log.close()

    def acked_records(acked: list[list[bytes]]) -> int:
        return sum(map(len, acked))

    healthy = FailingDisk()
    await exercise(tmp_path / "healthy", healthy, [], [])
    failed: set[str] = set()
    for number in range(1, healthy.count + 1):
        path = tmp_path / f"fails-{number}"
        disk = FailingDisk(fail_number=number, error_number=errno.EIO)
        acked: list[list[bytes]] = []
        unknown: list[list[bytes]] = []
        with pytest.raises(errors.DisklessError, match="injected"):
            await exercise(path, disk, acked, unknown)
        failed.update(disk.failed_calls)
        got = await recovered(path)
        tried = acked + unknown
        if len(acked) == 24:  # the prune failed, perhaps half-way
            assert got == acked[len(acked) - len(got) :]
            assert len(got) >= 2
        else:
            assert got == tried[: len(got)]
            assert len(got) >= len(acked)
    assert failed == {"create", "pwritev", "fdatasync", "fsync", "unlink"}


async def test_an_unreadable_disk_fails_the_opening(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageFailed, match="create"):
        await open_log(tmp_path, FailingDisk(fail_number=1, calls=("create",)))
    (tmp_path / "a file").write_bytes(b"")
    with pytest.raises(errors.StorageFailed):
        await open_log(tmp_path / "a file" / "below it")


async def test_pruning_keeps_the_last_batch_even_when_a_new_segment_is_still_empty(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk)
    for number in range(3):
        await log.append([[b"%d" % number, bytes(30_000)]], NOW_MS)
    disk.bytes_free = 60  # the headers of a new segment fit, its first record does not
    with pytest.raises(errors.CommitFailed):
        await log.append([[bytes(100)]], NOW_MS)
    disk.bytes_free = None
    assert oldest_store(tmp_path) != newest_store(tmp_path)
    await read_records(log)
    assert await log.prune(log.end_offset) == log.start_offset <= 4
    await log.close()
    log = await open_log(tmp_path)
    assert log.end_offset == 6
    await log.close()


# --- damage --------------------------------------------------------------------------------------


async def test_a_torn_append_is_cut_to_the_last_whole_batch(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await log.append([[b"first"], [b"second", b"and its twin"]], NOW_MS)
    await log.close()
    store = oldest_store(tmp_path)
    os.truncate(store, store.stat().st_size - 1)
    log = await open_log(tmp_path)
    assert log.cut_bytes > 0
    assert log.end_offset == 1
    assert await read_records(log) == [[b"first"]]
    await log.close()


async def test_damage_in_the_middle_refuses_to_open_and_names_the_place(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    for value in (b"first", b"second", b"third"):
        await log.append([[value]], NOW_MS)
    await log.close()
    store = oldest_store(tmp_path)
    damaged = bytearray(store.read_bytes())
    damaged[damaged.index(b"second")] ^= 1
    store.write_bytes(damaged)
    with pytest.raises(errors.CorruptLog, match=rf"{store.name}: record 1 at byte \d+"):
        await open_log(tmp_path)
    # The refusal left no lock behind.
    damaged[damaged.index(b"recond")] ^= 1
    store.write_bytes(damaged)
    assert await recovered(tmp_path) == [[b"first"], [b"second"], [b"third"]]


async def test_damage_that_appears_in_an_old_segment_is_an_error_when_it_is_read(
    tmp_path: Path,
) -> None:
    log = await open_log(tmp_path)
    for number in range(20):
        await log.append([[b"%d" % number, bytes(9000)]], NOW_MS)
    store = oldest_store(tmp_path)
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 1
    store.write_bytes(content)
    with pytest.raises(errors.CorruptLog, match=store.name):
        await read_records(log)
    with pytest.raises(errors.CorruptLog, match=store.name):
        await log.verify()
    await log.close()


# --- a killed process ----------------------------------------------------------------------------

APPENDER = """
import asyncio, random, sys
from pathlib import Path
from metadata.log.local_log import LocalLogSettings, LocalMetadataLog

async def main():
    log = await LocalMetadataLog.open(
        Path(sys.argv[1]), rng=random.Random(), settings=LocalLogSettings(segment_bytes=64 << 10)
    )
    number = log.end_offset // 2
    while True:
        await log.append([[b"%d" % number, bytes(random.randrange(3000))]], 0)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.mark.crash
def test_a_killed_process_loses_nothing_it_was_told_is_durable(tmp_path: Path) -> None:
    acked = -1
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child, child.stdout:
            for _ in range(20 + 17 * round_number):
                acked = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            acked = max([acked, *map(int, child.stdout.read().split())])
        records = asyncio.run(recovered(tmp_path))
        assert len(records) > acked
        assert [int(first) for first, _ in records] == list(range(len(records)))
