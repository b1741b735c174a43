"""Rebuilding metadata from a bucket: reading WAL objects, writing a new metadata log.

    read_wal_objects -> read_kept_notes -> read_staged_objects -> (segments:
        tiering.segment_footers) -> plan_rebuild -> put_new_objects -> write_metadata
        -> check_rebuilt

`diskless.cli.rebuild` runs these one after the other. Reading takes one or two ranged reads of each
object, `concurrency` at a time, and no object as a whole; only copies (metadata/rebuild/filler.py)
read batches. Memory holds the index of every object; 0.9 KiB per batch with its plan, measured.

New objects are put before the log that refers to them. Nothing of the bucket is changed otherwise,
so a rebuild that failed is simply repeated.

Failure cases: an object that cannot be read as what its key says is reported and left alone, so is
one that is gone by the time it is read. ObjectStoreUnavailable ends the rebuild.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from metadata.log.log import MetadataLog
from metadata.rebuild.facts import ObjectFacts, Unreadable
from metadata.rebuild.filler import CopiedBatch, NewObject
from metadata.rebuild.sink_shares import only_complete_batches
from metadata.records.records import MetadataRecord, encode_record
from metadata.replica.verify import verify_metadata
from wal.chunks.kept_notes import NOTES_PREFIX, KeptNotes, decode_kept_notes, merged
from wal.chunks.wal_object import WalObjectReader, check_object_batch
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, CorruptState, ObjectNotFound
from wal.stores.object_store import Buffer, BytesBody, ObjectStat, ObjectStore
from wal.ulid import WAL_PREFIX, minted_ms_of_wal_key

READS_AT_ONCE: Final = 32
LOG_BATCH_BYTES: Final = 1 << 20
"""Records of one metadata batch together, as far as one alone is not larger."""

Progress = Callable[[str, int, int], None]
"""Called with (what, done, of how many)."""

_Item = TypeVar("_Item")


async def read_wal_objects(
    store: ObjectStore, *, progress: Progress, concurrency: int = READS_AT_ONCE
) -> tuple[Sequence[ObjectFacts], Sequence[Unreadable]]:
    """Header, index and notes of every WAL object."""
    objects: list[ObjectFacts] = []
    unreadable: list[Unreadable] = []
    reader = WalObjectReader(store)

    async def read(stat: ObjectStat) -> None:
        if minted_ms_of_wal_key(stat.key) is None:
            unreadable.append(Unreadable(stat.key, "no WAL object is named like this"))
            return
        try:
            index = await reader.read_index(stat.key, object_bytes=stat.length_bytes)
        except (CorruptObject, ObjectNotFound) as error:
            unreadable.append(Unreadable(stat.key, f"{type(error).__name__}: {error}"))
            return
        objects.append(
            ObjectFacts(
                object_key=stat.key,
                ulid=index.header.ulid,
                broker_id=index.header.broker_id,
                lane=index.header.lane,
                object_bytes=stat.length_bytes,
                stored_ms=stat.last_modified_ms,
                extents=index.extents,
                notes=index.notes,
            )
        )

    stats = [stat async for stat in store.list(WAL_PREFIX)]
    await for_each(stats, read, "WAL objects", progress=progress, concurrency=concurrency)
    return sorted(objects, key=lambda item: item.ulid), sorted(unreadable)


async def read_kept_notes(
    store: ObjectStore, *, progress: Progress
) -> tuple[KeptNotes, Sequence[Unreadable]]:
    """Reads all notes objects; returns what they tell of what was complete, and those that cannot
    be read.
    """
    found: dict[ObjectKey, KeptNotes] = {}
    unreadable: list[Unreadable] = []

    async def read(stat: ObjectStat) -> None:
        try:
            found[stat.key] = decode_kept_notes(await store.get(stat.key), stat.key)
        except (CorruptObject, ObjectNotFound) as error:
            unreadable.append(Unreadable(stat.key, f"{type(error).__name__}: {error}"))

    stats = [stat async for stat in store.list(NOTES_PREFIX)]
    await for_each(stats, read, "notes objects", progress=progress)
    kept = merged(found[key] for key in sorted(found))
    return only_complete_batches(kept), sorted(unreadable)


async def for_each(
    items: Sequence[_Item],
    work: Callable[[_Item], Awaitable[None]],
    what: str,
    *,
    progress: Progress,
    concurrency: int = READS_AT_ONCE,
) -> None:
    """Do `work` for all items, `concurrency` at a time. Raises what `work` raises."""
    waiting = list(reversed(items))
    done = 0
    progress(what, 0, len(items))

    async def run() -> None:
        nonlocal done
        while waiting:
            await work(waiting.pop())
            done += 1
            progress(what, done, len(items))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(items))):
                tasks.create_task(run())
    except BaseExceptionGroup as group:
        # One cause is enough, and callers know errors, not groups of them.
        raise group.exceptions[0] from group


async def put_new_objects(
    store: ObjectStore, objects: Sequence[NewObject], *, progress: Progress
) -> None:
    """Put fillers and copies. Raises: CorruptObject (a batch to be copied), what the store does."""

    async def put(item: NewObject) -> None:
        parts: list[Buffer] = [item.plan.header]
        for part in item.parts:
            parts.append(await _copied(store, part) if isinstance(part, CopiedBatch) else part)
        parts.append(item.plan.footer)
        await store.put(item.object_key, BytesBody(*parts))

    await for_each(objects, put, "new objects", progress=progress, concurrency=4)


async def _copied(store: ObjectStore, part: CopiedBatch) -> bytes:
    key, extent = part.source.object_key, part.extent
    data = await store.get_range(key, extent.byte_offset, extent.length_bytes)
    check_object_batch(data, extent, key)
    return data


async def write_metadata(
    log: MetadataLog, records: Sequence[MetadataRecord], timestamp_ms: int
) -> None:
    """Write all records to an empty log, in as few appends as it takes.

    Raises: CorruptState (it is not empty), and what the log raises.
    """
    if log.end_offset:
        raise CorruptState(f"the new metadata log holds {log.end_offset} records already")
    batches: list[list[bytes]] = []
    size = LOG_BATCH_BYTES
    for record in records:
        data = encode_record(record)
        if size + len(data) > LOG_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(data)
        size += len(data)
    # A writer of a log leads it; in a bucket the first append is what makes it exist.
    await log.lead(batches[0], timestamp_ms, at_offset=0)
    for batch in batches[1:]:
        await log.append([batch], timestamp_ms)


async def check_rebuilt(log: MetadataLog, directory: Path) -> None:
    """Replay the new log and check all that rows must fulfil. Raises: CorruptState.

    `directory` is where its SQLite state will be, and is not yet.
    """
    report = await verify_metadata(directory, log)
    if report.violations:
        told = "; ".join(f"{subject}: {problem}" for subject, problem in report.violations[:5])
        raise CorruptState(f"the rebuilt metadata contradict themselves: {told}")
