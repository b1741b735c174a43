"""The segmented log on a disk that fails, and after a power cut."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.chunks.failing_disk import FailingDisk
from tests.support.chunks.power_cut_disk import PowerCut, PowerCutDisk
from tests.support.logs.small_segmented_logs import (
    INDEX_ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    UnsyncedDisk,
    append,
    contents,
    open_log,
    recovered,
    snapshot,
)
from tests.support.profiles import seeds
from wal.errors import AppendTooLarge, StorageFailed

# --- a failing disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_an_append_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append(log, [b"kept"])
    log.sync()
    before = snapshot(tmp_path)
    for free in range(RECORD_HEADER_BYTES + 40 + INDEX_ENTRY_BYTES):
        disk.bytes_free = free
        with pytest.raises(StorageFailed, match="No space left"):
            append(log, [b"n" * 20, b"o" * 20])
        assert snapshot(tmp_path) == before
        assert log.failure is None
    disk.bytes_free = None
    assert append(log, [b"fits again"]) == 1
    log.close()
    assert recovered(tmp_path) == [b"kept", b"fits again"]


@pytest.mark.parametrize("heals", [True, False], ids=["once", "for good"])
def test_a_failed_sync_is_final_until_the_log_is_opened_again(tmp_path: Path, heals: bool) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append(log, [b"durable"])
    log.sync()
    append(log, [b"lost"])
    if heals:
        disk.fail_number = disk.count + 1
    else:
        disk.failing = {"fdatasync"}
    with pytest.raises(StorageFailed, match="fdatasync"):
        log.sync()
    disk.failing = set()
    assert log.failure is not None
    for write in (
        lambda: append(log, [b"more"]),
        log.sync,
    ):
        with pytest.raises(StorageFailed, match="until the log is opened again"):
            write()
    assert contents(log) == [b"durable"]
    log.close()
    assert recovered(tmp_path) == [b"durable"]


def test_what_is_recovered_is_made_durable_before_it_is_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, [b"written but never synced"])
    log.close()
    with pytest.raises(StorageFailed, match="fdatasync"):
        open_log(tmp_path, FailingDisk(fail_number=1, calls=("fdatasync",)))
    log = open_log(tmp_path)
    assert log.durable_index == log.highest_index == 1
    log.close()


@dataclass
class History:
    """What a log was told, by absolute index: `promised` for sure, `tried` if the call succeeds."""

    promised: list[bytes] = field(default_factory=list)
    tried: list[bytes] = field(default_factory=list)
    durable: int = 0
    pruned_below: int = 0


def exercise(path: Path, disk: FailingDisk, history: History) -> None:
    """Groups of appends across files, one that is taken back into an older file, a prune."""
    log = open_log(path, disk)
    try:
        for number in range(8):
            group = [bytes([97 + number]) * 60, bytes([65 + number]) * 70]
            history.tried = history.promised + group
            try:
                log.append_many([[record] for record in group])
            except StorageFailed:
                assert contents(log) == history.promised
                raise
            log.sync()
            history.promised = history.tried
            if number == 5:
                group = [b"z" * 90] * 6
                history.tried = history.promised + group
                with pytest.raises(AppendTooLarge):
                    log.append_many([*([record] for record in group), [bytes(1000)]])
                if log.failure is not None:  # the disk failed while it was taken back
                    raise StorageFailed(log.failure)
            assert contents(log) == history.promised
        history.pruned_below = log.highest_index - 2
        log.prune(history.pruned_below)
    finally:
        log.close()


def test_whichever_call_fails_the_log_opens_again_with_all_that_was_promised(
    tmp_path: Path,
) -> None:
    healthy = FailingDisk()
    exercise(tmp_path / "healthy", healthy, History())
    failed: set[str] = set()
    for number in range(1, healthy.count + 1):
        path = tmp_path / f"fails-{number}"
        disk = FailingDisk(fail_number=number)
        history = History()
        with pytest.raises(StorageFailed, match="injected"):
            exercise(path, disk, history)
        failed.update(disk.failed_calls)
        log = open_log(path)
        got = contents(log)
        longest = max(history.promised, history.tried, key=len)
        assert got == longest[log.lowest_index : log.highest_index]
        assert log.highest_index >= min(len(history.promised), len(history.tried))
        assert log.lowest_index <= history.pruned_below
        append(log, [b"goes on"])
        log.close()
        assert recovered(path) == [*got, b"goes on"]
    assert failed == {"create", "pwritev", "fdatasync", "fsync", "ftruncate", "unlink"}


def test_a_file_that_cannot_be_created_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append(log, [b"x" * 300])
    log.sync()
    before = snapshot(tmp_path)
    for call in ("create", "pwritev"):
        disk.failing = {call}
        with pytest.raises(StorageFailed, match=call):
            append(log, [b"needs a new file"])
        assert snapshot(tmp_path) == before
        assert log.failure is None
    disk.failing = set()
    assert append(log, [b"needs a new file"]) == 1
    assert log.file_count == 2
    log.close()


@pytest.mark.parametrize(("call", "which"), [("fdatasync", 1), ("fdatasync", 2), ("fsync", 1)])
def test_a_sync_that_fails_while_a_file_is_created_is_final_too(
    tmp_path: Path, call: str, which: int
) -> None:
    disk = FailingDisk(calls=(call,))
    log = open_log(tmp_path, disk)
    append(log, [b"x" * 300])
    log.sync()
    disk.fail_number = disk.count + which
    with pytest.raises(StorageFailed, match=call):
        append(log, [b"needs a new file"])
    assert contents(log) == [b"x" * 300]
    with pytest.raises(StorageFailed, match="until the log is opened again"):
        append(log, [b"more"])
    log.close()
    assert recovered(tmp_path) == [b"x" * 300]


def test_a_failure_that_cannot_be_taken_back_stops_all_writes(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append(log, [b"durable"])
    log.sync()
    disk.failing = {"pwritev", "ftruncate"}
    with pytest.raises(StorageFailed, match="pwritev"):
        append(log, [b"half written"])
    disk.failing = set()
    with pytest.raises(StorageFailed, match="until the log is opened again"):
        append(log, [b"more"])
    assert contents(log) == [b"durable"]
    log.close()
    assert recovered(tmp_path) == [b"durable"]


# --- a power cut ---------------------------------------------------------------------------------


def use_until_the_power_is_cut(
    path: Path, disk: PowerCutDisk, rng: random.Random, history: History
) -> None:
    log = open_log(path, disk)
    while True:
        choice = rng.random()
        if choice < 0.5:
            group = [rng.randbytes(rng.randrange(70)) for _ in range(rng.randint(1, 4))]
            history.tried = history.promised + group
            log.append_many([[record] for record in group])
            history.promised = history.tried
        elif choice < 0.8:
            log.sync()
            history.durable = len(history.promised)
        elif choice < 0.9:
            group = [rng.randbytes(rng.randrange(70)) for _ in range(rng.choice((3, 12)))]
            history.tried = history.promised + group
            with pytest.raises(AppendTooLarge):
                log.append_many([*([record] for record in group), [bytes(1000)]])
            history.tried = history.promised
        else:
            history.pruned_below = rng.randint(log.lowest_index, len(history.promised))
            history.pruned_below = log.prune(history.pruned_below)


def test_whenever_the_power_is_cut_every_synced_record_is_there_and_no_other_bytes(
    tmp_path: Path,
) -> None:
    for number in seeds(100):
        rng = random.Random(number)
        path = tmp_path / f"{number}"
        path.mkdir()
        disk = PowerCutDisk(path, rng, cut_at=rng.randint(1, 200))
        history = History()
        with pytest.raises(PowerCut):
            use_until_the_power_is_cut(path, disk, rng, history)
        disk.cut(tmp_path / f"{number}-after")
        log = open_log(tmp_path / f"{number}-after", UnsyncedDisk())
        longest = max(history.promised, history.tried, key=len)
        assert contents(log) == longest[log.lowest_index : log.highest_index], number
        assert log.highest_index >= history.durable, number
        assert log.lowest_index <= history.pruned_below, number
        log.close()
