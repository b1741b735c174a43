"""Segmented logs of small files, as their tests fill, open and read them."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from wal.crc import Buffer
from wal.disk import SYSTEM_DISK, Disk, SystemDisk
from wal.errors import CorruptLog
from wal.segmented_log.log_directory import LogDirectory
from wal.segmented_log.segmented_log import SegmentedLog

CAPACITY = 256
OVERFLOW = CAPACITY // 2
FIRST_STORE = f"{0:020d}.store"
FIRST_INDEX = f"{0:020d}.index"
FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 24
INDEX_ENTRY_BYTES = 20


class UnsyncedDisk(SystemDisk):
    """For tests that open a log thousands of times and never cut the power."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass


def open_log(path: Path, disk: Disk = SYSTEM_DISK, capacity: int = CAPACITY) -> SegmentedLog:
    return SegmentedLog.open(
        LogDirectory(path, disk), rng=random.Random(7), file_capacity_bytes=capacity
    )


def append(log: SegmentedLog, fragments: Iterable[Buffer], threshold: int | None = None) -> int:
    """One record."""
    return log.append_many((fragments,), append_threshold=threshold)


def contents(log: SegmentedLog) -> list[bytes]:
    return [log.read(index) for index in range(log.lowest_index, log.highest_index)]


def fill(path: Path, records: Sequence[bytes], capacity: int = CAPACITY) -> None:
    """Write `records`, each of them synced."""
    log = open_log(path, capacity=capacity)
    for record in records:
        append(log, [record])
        log.sync()
    log.close()


def recovered(path: Path, capacity: int = CAPACITY) -> list[bytes]:
    """What is in the log after opening it, read record by record and in one go."""
    log = open_log(path, UnsyncedDisk(), capacity)
    try:
        records = contents(log)
        assert list(log.read_from(log.lowest_index, 1 << 30)) == records
        return records
    finally:
        log.close()


def recovered_or_refused(path: Path) -> tuple[list[bytes] | None, str]:
    try:
        return recovered(path), ""
    except CorruptLog as error:
        return None, str(error)


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}
