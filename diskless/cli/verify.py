"""`diskless verify`: checks every invariant on what a stopped broker left.

- chunks: every index record, salt, sequence and CRC, every batch's CRC. A torn tail is counted,
  not reported: it is what a crash leaves, and the next start cuts it.
- metadata: each metadata partition's log is replayed; offsets dense, extents disjoint, live counts
  right; every open transaction has its transactional id; SQLite and every snapshot have the state
  hash that the log gives (`metadata.replica.verify`). The logs are those in the data directory or,
  when there are none, those in the object store.
- objects: everything that the metadata refers to is in the store, as large as it was committed, and
  its batches or row groups carry the checksums they should. Segments have the rows that they were
  committed with, and where no compaction removed any, all of each batch. What is kept for a rebuild
  can be read.
- compactions: of live segments whose predecessors still exist, what they lost has newer records of
  its keys (`tiering.compaction.removal_check`).
- typed columns: made once more from the bytes of keys and values, and compared
  (`tiering.types.typed_verification`): those of one row group of each segment, or of all.

Nothing is changed. What is broken is collected, not raised: one damaged object does not hide the
next. Invariants: W4, M3, M4, M9, T4, T7 of docs/invariants.md.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from diskless.cli.metadata_sources import stored_partitions
from diskless.storage.cluster_identity import known_cluster_id
from diskless.storage.data_directory import WORKER, has_properties, read_properties
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.log_object import log_prefix
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT
from metadata.rebuild.rebuild import Progress, for_each
from metadata.records.segment_identity import named_segment
from metadata.replica.snapshots import SnapshotStore
from metadata.replica.verify import LiveObject, SegmentRange, verify_metadata
from metadata.replica.verify_transactions import HeldTransactions, unheld
from tiering.segment_format import SegmentFooter
from tiering.segment_verification import verify_segment
from wal import errors
from wal.chunks.chunk import CHUNK_FILE, ChunkPaths
from wal.chunks.chunk_scan import scan_chunk
from wal.chunks.kept_notes import NOTES_PREFIX, decode_kept_notes
from wal.chunks.wal_object import WalObjectReader
from wal.clock import SystemClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import crc32c
from wal.fd_cache import FdCache
from wal.segmented_log.log_directory import LOCK_NAME, DirectoryLock
from wal.stores.blocking_store import open_blocking_store
from wal.stores.object_store import ObjectStore
from wal.stores.store_url import open_store

_FD_CACHE_CAPACITY: Final = 16
_OBJECTS_AT_ONCE: Final = 4


class VerifyReport(NamedTuple):
    """What was looked at, and what is broken, one line each."""

    checked: Mapping[str, int]
    violations: Sequence[str]


class TypedValues(Enum):
    """Which row groups have their typed columns made once more."""

    NONE = "none"
    SAMPLE = "sample"
    """One of each segment, by its key: another one of the next generation."""
    ALL = "all"

    def chosen(self, key: ObjectKey, count: int) -> Sequence[int]:
        """Of a segment of `count` row groups."""
        match self:
            case TypedValues.ALL:
                return range(count)
            case TypedValues.SAMPLE if count:
                return (crc32c(key.encode()) % count,)
        return ()


def verify(
    data: Path,
    *,
    object_store_url: str | None,
    progress: Progress,
    typed_values: TypedValues = TypedValues.SAMPLE,
) -> VerifyReport:
    """Check a data directory and its object store.

    No broker has to have opened the directory: what `diskless rebuild` leaves is complete without
    `meta.properties`. Raises: InvalidSettings (no data directory, or no metadata anywhere),
    Rejected (a broker is running on it).
    """
    data = data.resolve()
    if not data.is_dir():
        raise errors.InvalidSettings(f"{data} is no data directory")
    url = object_store_url or f"file://{data / 'objects'}"
    return asyncio.run(_verify(data, url, progress, typed_values))


async def _verify(
    data: Path, url: str, progress: Progress, typed_values: TypedValues
) -> VerifyReport:
    checked: Counter[str] = Counter()
    violations: list[str] = []
    try:
        lock = DirectoryLock(data)
    except BlockingIOError as error:
        raise errors.Rejected(f"stop the broker on {data} first") from error
    try:
        for directory in _chunk_directories(data):
            _verify_chunks(directory, checked, violations)
        async with open_store(url, clock=SystemClock(), rng=random.Random(0)) as store:
            live, replaced = await _verify_partitions(store, data, checked, violations)
            await _verify_objects(store, live, checked, violations, progress, typed_values)
            await _verify_removals(store, live, replaced, checked, violations, progress)
            await _verify_notes(store, checked, violations)
    finally:
        lock.close()
    return VerifyReport(checked, violations)


async def _verify_partitions(
    store: ObjectStore,
    data: Path,
    checked: Counter[str],
    violations: list[str],
) -> tuple[Sequence[LiveObject], Sequence[ObjectKey]]:
    """All metadata partitions; what they refer to, each object once and as large as anyone says.

    And segments that are not live any more.

    Raises: InvalidSettings (there are none).
    """
    local = sorted(
        int(directory.name)
        for directory in (data / "metadata").glob("*")
        # A broker whose log is in the store leaves this directory empty.
        if directory.name.isdecimal() and (directory / LOG_DIRECTORY / LOCK_NAME).exists()
    )
    shared = () if local else await stored_partitions(store, log_prefix)
    if not local and not shared:
        raise errors.InvalidSettings(f"neither {data} nor {store.url} holds metadata")
    cluster_id = await _cluster_id(store, data, is_local=bool(local))
    live: dict[ObjectKey, LiveObject] = {}
    replaced: list[ObjectKey] = []
    transactions: list[HeldTransactions] = []
    for index in local or shared:
        try:
            log = await (_local_log(data, index) if local else _object_log(store, index))
        except errors.CorruptLog as error:
            violations.append(f"metadata partition {index}: {error}")
            continue
        try:
            report = await verify_metadata(
                data / "metadata" / str(index),
                log,
                coordinator_id=index,
                snapshots=SnapshotStore(store, partition=index, cluster_id=cluster_id),
            )
        finally:
            await log.close()
        violations += [
            f"metadata partition {index}: {subject}: {problem}"
            for subject, problem in report.violations
        ]
        checked["metadata partitions"] += 1
        checked["metadata records"] += report.records
        checked["partitions"] += report.partitions
        transactions.append(report.transactions)
        replaced += report.replaced_segments
        for item in report.live_objects:
            known = live.get(item.object_key)
            if known is None or known.object_bytes < item.object_bytes:
                live[item.object_key] = item
    # Several logs in the store may be read while other brokers go on, so not as of one moment.
    if local or len(shared) == 1:
        violations += [f"{subject}: {problem}" for subject, problem in unheld(transactions)]
    return list(live.values()), replaced


async def _cluster_id(store: ObjectStore, data: Path, *, is_local: bool) -> str:
    """Whose snapshots count. A broker with a local log knows it itself, once it has been started.

    Raises: InvalidSettings (nobody knows).
    """
    if is_local and has_properties(data):
        return read_properties(data)["cluster.id"]
    try:
        return await known_cluster_id(store)
    except errors.ObjectNotFound as error:
        raise errors.InvalidSettings(f"{store.url} names no cluster: {error}") from error


async def _local_log(data: Path, index: int) -> MetadataLog:
    directory = data / "metadata" / str(index) / LOG_DIRECTORY
    try:
        return await LocalMetadataLog.open(directory, rng=random.Random(0))
    except errors.NotCoordinator as error:
        raise errors.Rejected(f"stop the broker first: {error}") from error


async def _object_log(store: ObjectStore, index: int) -> MetadataLog:
    return await ObjectMetadataLog.open(store, index, clock=SystemClock(), rng=random.Random(0))


def _chunk_directories(data: Path) -> Sequence[Path]:
    """This node's chunks and its workers', or where no node is known, those of any."""
    if has_properties(data):
        brokers = [data / "wal" / read_properties(data)["node.id"]]
    else:
        brokers = sorted((data / "wal").glob("*"))
    return [lane for broker in brokers for lane in (broker, *sorted(broker.glob(f"{WORKER}*")))]


def _verify_chunks(directory: Path, checked: Counter[str], violations: list[str]) -> None:
    cache = FdCache(_FD_CACHE_CAPACITY)
    try:
        for index in sorted(directory.glob("chunk-*.idx")):
            match = CHUNK_FILE.fullmatch(index.name)
            if match is None:
                continue
            checked["chunks"] += 1
            try:
                scan = scan_chunk(ChunkPaths.of(directory, int(match[1])), cache)
            except errors.DisklessError as error:
                violations.append(f"chunk {index}: {error}")
                continue
            if scan is not None:
                checked["batches in chunks"] += len(scan.batches)
                checked["torn tails"] += bool(scan.torn)
    finally:
        cache.close()


async def _verify_objects(
    store: ObjectStore,
    live: Sequence[LiveObject],
    checked: Counter[str],
    violations: list[str],
    progress: Progress,
    typed_values: TypedValues,
) -> None:
    async def check(item: LiveObject) -> None:
        try:
            await _verify_object(store, item, checked, typed_values)
        except errors.DisklessError as error:
            violations.append(f"object {item.object_key}: {type(error).__name__}: {error}")

    await for_each(live, check, "objects", progress=progress, concurrency=_OBJECTS_AT_ONCE)


async def _verify_removals(
    store: ObjectStore,
    live: Sequence[LiveObject],
    replaced: Sequence[ObjectKey],
    checked: Counter[str],
    violations: list[str],
    progress: Progress,
) -> None:
    """What compactions removed, partition by partition, where replaced segments tell."""
    # Arrow starts a thread when it is imported; a process that has threads cannot be forked.
    from tiering.compaction.removal_check import RemovalReport, check_removals

    segments = _by_partition([item.object_key for item in live if item.segment is not None])
    before = _by_partition(replaced)
    now_ms = SystemClock().now_ms()

    def compare(partition: TopicIdPartition) -> RemovalReport:
        with open_blocking_store(store.url) as blocking:
            return check_removals(blocking, segments[partition], before[partition], now_ms=now_ms)

    async def check(partition: TopicIdPartition) -> None:
        try:
            report = await asyncio.to_thread(compare, partition)
        except errors.DisklessError as error:
            violations.append(f"compactions of {partition}: {type(error).__name__}: {error}")
            return
        checked["compacted segments compared"] += report.compared
        checked["compacted segments not compared"] += report.not_compared
        checked["removed records compared"] += report.removed
        violations.extend(f"object {key}: {problem}" for key, problem in report.violations)

    await for_each(
        sorted(segments.keys() & before.keys()),
        check,
        "partitions with replaced segments",
        progress=progress,
        concurrency=1,
    )


def _by_partition(keys: Sequence[ObjectKey]) -> Mapping[TopicIdPartition, Sequence[ObjectKey]]:
    found: dict[TopicIdPartition, list[ObjectKey]] = {}
    for key in keys:
        if (named := named_segment(key)) is not None:
            found.setdefault(named.partition, []).append(key)
    return found


async def _verify_notes(store: ObjectStore, checked: Counter[str], violations: list[str]) -> None:
    """What is kept for a rebuild can be read."""
    async for stat in store.list(NOTES_PREFIX):
        try:
            notes = decode_kept_notes(await store.get(stat.key), stat.key)
        except errors.ObjectNotFound:
            continue  # a broker has merged it with others meanwhile
        except errors.CorruptObject as error:
            violations.append(f"object {error}")
            continue
        checked["notes objects"] += 1
        checked["commits in notes objects"] += len(notes.commits)


async def _verify_object(
    store: ObjectStore, item: LiveObject, checked: Counter[str], typed_values: TypedValues
) -> None:
    """Raises what is wrong with it."""
    stat = await store.head(item.object_key)
    if stat.length_bytes != item.object_bytes:
        raise errors.CorruptData(f"{stat.length_bytes} bytes, committed with {item.object_bytes}")
    if item.object_format == WRITE_AHEAD_MULTI_SEGMENT:
        index = await WalObjectReader(store).verify(item.object_key)
        checked["WAL objects"] += 1
        checked["batches in WAL objects"] += len(index.extents)
    else:
        footer, typed = await asyncio.to_thread(_verify_segment, store.url, item, typed_values)
        checked["segments"] += 1
        checked["records in segments"] += footer.counts.records
        checked["typed records compared"] += typed or 0
        checked["typed segments not compared"] += typed == 0


def _verify_segment(
    url: str, item: LiveObject, typed_values: TypedValues
) -> tuple[SegmentFooter, int | None]:
    """The footer, and the number of rows whose typed columns were compared.

    The number is None where typed columns are not compared at all.
    """
    key = item.object_key
    with open_blocking_store(url) as store:
        footer = verify_segment(store, key)
        identity = footer.identity
        found = SegmentRange(identity.base_offset, identity.last_offset, footer.counts.records)
        if item.segment is not None and found != item.segment:
            raise errors.CorruptData(f"holds {found}, committed was {item.segment}")
        if not footer.typed_columns or typed_values is TypedValues.NONE:
            return footer, None
        try:
            from tiering.types.typed_verification import check_typed_values
        except ModuleNotFoundError:
            return footer, 0  # diskless[types] is not installed
        groups = typed_values.chosen(key, len(footer.row_groups))
        return footer, check_typed_values(store, key, footer, groups)
