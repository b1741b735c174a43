"""`diskless verify`: every invariant that can be checked on what a stopped broker left.

- chunks: every index record, salt, sequence and CRC, every batch's CRC. A torn tail is counted,
  not reported: it is what a crash leaves, and the next start cuts it.
- metadata: the log is replayed from zero; offsets dense, extents disjoint, live counts right;
  SQLite has the state hash that the log gives (`metadata.verify`).
- objects: everything that the metadata refers to is in the store, as large as it was committed, and
  its batches or row groups carry the checksums they should.

Nothing is changed. What is broken is collected, not raised: one damaged object does not hide the
next. Invariants: W4, M3, M4, M9, T4 of docs/invariants.md.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from diskless.data_directory import read_properties
from metadata.local_log import LocalMetadataLog
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT
from metadata.verify import LiveObject, verify_metadata
from tiering.segment_format import SegmentFooter
from tiering.segment_verification import verify_segment
from wal.blocking_store import open_blocking_store
from wal.chunk import CHUNK_FILE, ChunkPaths, scan_chunk
from wal.clock import SystemClock
from wal.errors import CorruptData, CorruptLog, DisklessError, NotCoordinator, Rejected
from wal.fd_cache import FdCache
from wal.object_store import ObjectStore
from wal.store_url import open_store
from wal.wal_object import WalObjectReader

_FD_CACHE_CAPACITY: Final = 16
_OBJECTS_AT_ONCE: Final = 4

Progress = Callable[[int, int], None]
"""Called with (objects checked, objects to check)."""


class VerifyReport(NamedTuple):
    """What was looked at, and what is broken, one line each."""

    checked: Mapping[str, int]
    violations: Sequence[str]


def verify(
    data: Path, *, object_store_url: str | None, progress: Progress | None = None
) -> VerifyReport:
    """Check a data directory and its object store.

    Raises: InvalidSettings (no data directory), Rejected (a broker is running on it).
    """
    data = data.resolve()
    node_id = read_properties(data)["node.id"]
    url = object_store_url or f"file://{data / 'objects'}"
    return asyncio.run(_verify(data, node_id, url, progress or _silent))


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


async def _verify(data: Path, node_id: str, url: str, progress: Progress) -> VerifyReport:
    checked: Counter[str] = Counter()
    violations: list[str] = []
    _verify_chunks(data / "wal" / node_id, checked, violations)
    live = await _verify_metadata(data / "metadata" / "0", checked, violations)
    async with open_store(url, clock=SystemClock(), rng=random.Random(0)) as store:
        await _verify_objects(store, live, checked, violations, progress)
    return VerifyReport(checked, violations)


def _verify_chunks(directory: Path, checked: Counter[str], violations: list[str]) -> None:
    cache = FdCache(_FD_CACHE_CAPACITY)
    try:
        for index in sorted(directory.glob("chunk-*.idx")):
            match = CHUNK_FILE.fullmatch(index.name)
            if match is None:
                continue
            checked["chunks"] += 1
            try:
                scan = scan_chunk(ChunkPaths.of(directory, int(match[1])), cache, verify_data=True)
            except DisklessError as error:
                violations.append(f"chunk {index}: {error}")
                continue
            if scan is not None:
                checked["batches in chunks"] += len(scan.entries)
                checked["torn tails"] += bool(scan.torn)
    finally:
        cache.close()


async def _verify_metadata(
    directory: Path, checked: Counter[str], violations: list[str]
) -> Sequence[LiveObject]:
    try:
        log = await LocalMetadataLog.open(directory / "log", rng=random.Random(0))
    except NotCoordinator as error:
        raise Rejected(f"stop the broker first: {error}") from error
    except CorruptLog as error:
        violations.append(f"metadata log: {error}")
        return []
    try:
        report = await verify_metadata(directory, log)
    finally:
        await log.close()
    violations += [f"{subject}: {problem}" for subject, problem in report.violations]
    checked["metadata records"] += report.records
    checked["partitions"] += report.partitions
    return report.live_objects


async def _verify_objects(
    store: ObjectStore,
    live: Sequence[LiveObject],
    checked: Counter[str],
    violations: list[str],
    progress: Progress,
) -> None:
    waiting = list(reversed(live))

    async def work() -> None:
        while waiting:
            item = waiting.pop()
            try:
                await _verify_object(store, item, checked)
            except DisklessError as error:
                violations.append(f"object {item.object_key}: {type(error).__name__}: {error}")
            progress(len(live) - len(waiting), len(live))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_OBJECTS_AT_ONCE):
            tasks.create_task(work())


async def _verify_object(store: ObjectStore, item: LiveObject, checked: Counter[str]) -> None:
    """Raises what is wrong with it."""
    stat = await store.head(item.object_key)
    if stat.length_bytes != item.object_bytes:
        raise CorruptData(f"{stat.length_bytes} bytes, committed with {item.object_bytes}")
    if item.object_format == WRITE_AHEAD_MULTI_SEGMENT:
        index = await WalObjectReader(store).verify(item.object_key)
        checked["WAL objects"] += 1
        checked["batches in WAL objects"] += len(index.extents)
    else:
        footer = await asyncio.to_thread(_verify_segment, store.url, item)
        checked["segments"] += 1
        checked["records in segments"] += footer.identity.record_count


def _verify_segment(url: str, item: LiveObject) -> SegmentFooter:
    with open_blocking_store(url) as store:
        return verify_segment(store, item.object_key)
