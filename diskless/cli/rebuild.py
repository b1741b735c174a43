"""`diskless rebuild`: a new metadata log from what the bucket holds.

For when metadata log, snapshots and SQLite are all gone. Batches and segments tell enough of
themselves (metadata/rebuild/plan.py) to give every topic, partition and record back, most of them
at exactly the offsets they had; the report says where that is not certain.

Order of things, so that a failure anywhere leaves either no new metadata or all of it:

1. refuse while a broker runs on the data directory, and where there is metadata still, unless told
   to set it aside; nothing of it is deleted
2. read every WAL object's index, those of staged objects whose commit is noted, and every segment's
   footer, plan
3. put fillers and copies into the bucket
4. write the new log beside the place where it belongs, replay it and check what comes out
5. set the old metadata aside, see that the bucket names a cluster, rename the new into place
6. note in the bucket where everything is that nobody had noted, for the next rebuild

A data directory that was lost has then a log and no `meta.properties`: a broker's first start on it
writes that, with its own node id and the cluster's id from the bucket.

A log in the bucket cannot be renamed into place. It is written there by as few appends as it takes,
one for up to a megabyte of records, after being checked on the local disk.
"""

import asyncio
import random
import secrets
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from diskless.cli.tables import print_tables, table
from diskless.storage.cluster_identity import (
    CLUSTER_OBJECT,
    LOCAL_LOG,
    OBJECT_LOG,
    claim_for_rebuilt,
)
from diskless.storage.data_directory import has_properties, read_properties
from diskless.storage.private_places import make_private, sync_directory
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import CATALOGUE
from metadata.rebuild.facts import (
    BucketFacts,
    ObjectFacts,
    RebuildOptions,
    SegmentFacts,
    Unreadable,
    segments_beside_their_inputs,
)
from metadata.rebuild.plan import RebuildPlan, plan_rebuild
from metadata.rebuild.rebuild import (
    Progress,
    check_rebuilt,
    for_each,
    put_new_objects,
    read_kept_notes,
    read_wal_objects,
    write_metadata,
)
from metadata.rebuild.report import RebuildReport
from metadata.rebuild.staged import read_staged_objects
from tiering.segment_verification import verify_segment
from wal.chunks.kept_notes import encode_kept_notes, notes_key
from wal.clock import Clock, SystemClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptSegment, ObjectNotFound, Rejected
from wal.segmented_log.log_directory import LOCK_NAME, DirectoryLock
from wal.stores.blocking_store import open_blocking_store
from wal.stores.object_store import BytesBody, ObjectStat, ObjectStore
from wal.stores.store_url import open_store
from wal.ulid import mint_ulid

METADATA: Final = "metadata"
REBUILDING: Final = "metadata.rebuilding"
SET_ASIDE: Final = "metadata.before-rebuild"
METADATA_PREFIX: Final = "meta/"
SET_ASIDE_PREFIX: Final = "set-aside/"
SEGMENTS_PREFIX: Final = "segments/"
PRODUCER_HORIZON_MS: Final = 24 * 3_600_000
"""How far back from a partition's newest record producers are looked for; longer ones have expired
(producer.id.expiration.ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """What to do."""

    data: Path
    object_store_url: str | None = None
    """None: DIR/objects."""
    is_dry_run: bool = False
    force: bool = False
    """Set metadata aside that is there still."""
    is_log_in_store: bool = False
    """Write the log of `diskless.metadata.log=object`."""
    options: RebuildOptions = field(default_factory=RebuildOptions)


def rebuild(request: Rebuild, *, progress: Progress) -> RebuildReport:
    """Read the bucket, plan, and unless it is a dry run, write.

    Raises: Rejected (a broker runs, or there is metadata), InvalidSettings, ObjectStoreUnavailable,
    CorruptState (what was planned does not hold together; nothing was written).
    """
    request = replace(request, data=request.data.resolve())
    url = request.object_store_url or f"file://{request.data / 'objects'}"
    rng = random.Random(secrets.randbits(256))
    clock = SystemClock()
    with ExitStack() as stack:
        if not request.is_dry_run:
            stack.enter_context(_only_user(request.data))
        return asyncio.run(_rebuild(request, url, clock, rng, progress))


async def _rebuild(
    request: Rebuild, url: str, clock: Clock, rng: random.Random, progress: Progress
) -> RebuildReport:
    async with open_store(url, clock=clock, rng=rng) as store:
        stored = await _stored_metadata(store)
        if not request.is_dry_run and not request.force:
            _refuse_metadata(request.data, stored)
        facts = await read_bucket(store, progress=progress)
        plan = plan_rebuild(facts, request.options, clock=clock, rng=rng)
        if not request.is_dry_run:
            await _write(request, store, stored, plan, clock, rng, progress)
    return plan.report


def print_rebuilt(report: RebuildReport) -> None:
    """Print a report for people."""
    partitions = table(
        "topic", "partition", "log start", "exact below", "log end", "segments", "WAL objects"
    )
    for row in report.partitions:
        partitions.add_row(*map(str, row))
    print_tables(partitions)
    for name, values in report.lists().items():
        for value in values:
            print(f"{name}: {value}")
    print(
        f"{report.batches:,} batches in {report.wal_objects:,} WAL objects, {report.segments:,}"
        f" segments, {len(report.topics):,} topics"
    )
    print(f"{report.doubt_count} doubts" if report.doubt_count else "no doubts")


# --- reading ----------------------------------------------------------------------------------


async def read_bucket(store: ObjectStore, *, progress: Progress) -> BucketFacts:
    """All that WAL objects, notes objects and segments tell. Raises: ObjectStoreUnavailable."""
    objects, unreadable = await read_wal_objects(store, progress=progress)
    kept, damaged = await read_kept_notes(store, progress=progress)
    staged = await read_staged_objects(store, kept, progress=progress)
    segments, broken = await _read_segments(store, objects, progress)
    return BucketFacts(
        objects=[*objects, *staged.objects],
        segments=segments,
        kept=kept._replace(commits=(*kept.commits, *staged.commits)),
        uncommitted=staged.uncommitted,
        unreadable=[*unreadable, *damaged, *staged.unreadable, *broken],
    )


async def _read_segments(
    store: ObjectStore, objects: Sequence[ObjectFacts], progress: Progress
) -> tuple[Sequence[SegmentFacts], Sequence[Unreadable]]:
    # PyArrow takes a third of a second to import, and a bucket without segments does not need it.
    from tiering.segment_footers import read_producers, read_segment_facts

    stats = {stat.key: stat async for stat in store.list(SEGMENTS_PREFIX)}
    existing = {item.object_key for item in objects}
    found: dict[ObjectKey, SegmentFacts] = {}
    unreadable: list[Unreadable] = []

    async def read_footer(stat: ObjectStat) -> None:
        try:
            found[stat.key] = await read_segment_facts(store, stat, existing=existing)
        except (CorruptSegment, ObjectNotFound) as error:
            unreadable.append(Unreadable(stat.key, f"{type(error).__name__}: {error}"))

    await for_each(list(stats.values()), read_footer, "segments", progress=progress)

    async def check(segment: SegmentFacts) -> None:
        try:
            await asyncio.to_thread(_verify, store.url, segment.object_key)
        except (CorruptSegment, ObjectNotFound) as error:
            del found[segment.object_key]
            unreadable.append(Unreadable(segment.object_key, str(error)))

    # Where its inputs are still there, a damaged segment is not missed: they count in its place.
    made = segments_beside_their_inputs(found.values())
    await for_each(made, check, "merged segments", progress=progress)
    since = _producer_horizons(found.values())

    async def read_batches(segment: SegmentFacts) -> None:
        stat = stats[segment.object_key]
        try:
            batches = await read_producers(store, stat, since_ms=since[segment.partition])
        except (CorruptSegment, ObjectNotFound) as error:
            unreadable.append(Unreadable(stat.key, f"its producers: {error}"))
            return
        found[stat.key] = replace(segment, batches=batches)

    wanted = [
        segment
        for segment in found.values()
        if segment.producer_id_max >= 0
        and segment.batch_timestamp_ms_max >= since[segment.partition]
    ]
    await for_each(wanted, read_batches, "batches of segments", progress=progress)
    return sorted(found.values(), key=lambda item: item.object_key), sorted(unreadable)


def _verify(url: str, key: ObjectKey) -> None:
    """Every byte of a segment. Raises: CorruptSegment, and what the store raises."""
    with open_blocking_store(url) as store:
        verify_segment(store, key)


def _producer_horizons(segments: Iterable[SegmentFacts]) -> Mapping[TopicIdPartition, int]:
    """Per partition the timestamp from which on its producers are wanted."""
    newest: dict[TopicIdPartition, int] = defaultdict(int)
    for segment in segments:
        newest[segment.partition] = max(newest[segment.partition], segment.max_timestamp_ms)
    return {partition: time_ms - PRODUCER_HORIZON_MS for partition, time_ms in newest.items()}


# --- writing ----------------------------------------------------------------------------------


async def _write(
    request: Rebuild,
    store: ObjectStore,
    stored: Sequence[ObjectKey],
    plan: RebuildPlan,
    clock: Clock,
    rng: random.Random,
    progress: Progress,
) -> None:
    await put_new_objects(store, plan.new_objects, progress=progress)
    make_private(request.data)
    new = request.data / REBUILDING
    shutil.rmtree(new, ignore_errors=True)
    await _write_log(new / str(CATALOGUE), plan, clock, rng)
    await _set_objects_aside(store, stored, clock.now_ms())
    if request.is_log_in_store:
        shutil.rmtree(new)
        log = await ObjectMetadataLog.open(store, CATALOGUE, clock=clock, rng=rng)
        try:
            await write_metadata(log, plan.records, clock.now_ms())
        finally:
            await log.close()
    kind = OBJECT_LOG if request.is_log_in_store else LOCAL_LOG
    await claim_for_rebuilt(store, kind, _cluster_id(request.data, rng))
    _set_directory_aside(request.data)
    if not request.is_log_in_store:
        new.rename(request.data / METADATA)
        sync_directory(request.data)
    if not plan.notes.is_empty:
        # Last, so that an attempt that failed decides nothing for the next one.
        key = notes_key(mint_ulid(clock, rng))
        await store.put(key, BytesBody(encode_kept_notes(plan.notes)))


def _cluster_id(data: Path, rng: random.Random) -> str:
    """The data directory's cluster, or a new one where that is lost, too."""
    if has_properties(data):
        return read_properties(data)["cluster.id"]
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


async def _write_log(directory: Path, plan: RebuildPlan, clock: Clock, rng: random.Random) -> None:
    """The new log in `directory`, replayed and checked."""
    log = await LocalMetadataLog.open(directory / LOG_DIRECTORY, rng=rng)
    try:
        await write_metadata(log, plan.records, clock.now_ms())
        with tempfile.TemporaryDirectory(prefix="diskless-rebuild-") as nothing:
            await check_rebuilt(log, Path(nothing))
    finally:
        await log.close()


# --- what is there ------------------------------------------------------------------------------


@contextmanager
def _only_user(data: Path) -> Iterator[None]:
    """Hold the locks that a broker on `data` would hold. Raises: Rejected."""
    with ExitStack() as stack:
        for directory in (data, *sorted((data / "wal").glob("*"))):
            if not directory.is_dir():
                continue
            try:
                stack.callback(DirectoryLock(directory).close)
            except BlockingIOError as error:
                raise Rejected(f"stop the broker on {data} first") from error
        yield


async def _stored_metadata(store: ObjectStore) -> Sequence[ObjectKey]:
    """Metadata logs and snapshots in the bucket; the cluster's id is none."""
    return [stat.key async for stat in store.list(METADATA_PREFIX) if stat.key != CLUSTER_OBJECT]


def _refuse_metadata(data: Path, stored: Sequence[ObjectKey]) -> None:
    if _has_metadata(data / METADATA):
        raise Rejected(
            f"{data / METADATA} holds metadata: a broker started on it has everything. To rebuild"
            " all the same, and set it aside, say --force"
        )
    if stored:
        raise Rejected(
            f"the bucket holds metadata ({stored[0]}, {len(stored)} objects): a broker may start"
            " from it. To rebuild all the same, and set it aside, say --force"
        )


def _has_metadata(directory: Path) -> bool:
    return any(
        path.is_file() and path.name != LOCK_NAME and path.stat().st_size
        for path in directory.rglob("*")
    )


def _set_directory_aside(data: Path) -> None:
    old = data / METADATA
    if not _has_metadata(old):
        shutil.rmtree(old, ignore_errors=True)
        return
    number = 1
    while (data / f"{SET_ASIDE}-{number}").exists():
        number += 1
    old.rename(data / f"{SET_ASIDE}-{number}")


async def _set_objects_aside(store: ObjectStore, keys: Sequence[ObjectKey], now_ms: int) -> None:
    """Copy each, then delete it: no store here can rename."""
    for key in keys:
        data = await store.get(key)
        await store.put(ObjectKey(f"{SET_ASIDE_PREFIX}{now_ms}/{key}"), BytesBody(data))
    if keys:
        await store.delete(keys)
