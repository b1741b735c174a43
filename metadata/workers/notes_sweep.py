"""Keeps notes objects few: merges them, and drops notes that nobody needs.

The deletion of WAL objects adds notes objects (metadata/workers/note_keeper.py), and so does each
commit of a sink (metadata/coordinator/sink_notes.py), and every few seconds in which transactions
end (metadata/coordinator/end_notes.py). A kept note is of use as long as the object that it is
about exists, a floor as long as its topic does, the last batch of a sink until the next one is
noted or the sink has expired, the end of a transaction until a segment has its marker, a schema as
long as a topic has it; it is noted first, so an hour belongs to who is about to set it. This worker
reads them, asks the store which of the noted objects are still there, writes what is left of
several objects into one, and only then deletes those. So the number of notes is bounded by that of
the objects in the bucket, and what is stored by a few objects more.

A pass costs one LIST. It does something only when small objects have come together, or once in
EVERYTHING_AFTER passes, and then it costs a GET for each object and a HEAD for each note in it.

A coordinator that begins with an empty log on a full bucket knows of no topic; taking that for an
answer would delete floors just before a rebuild needs them. So floors in objects that are older
than the metadata log stay. A merged object is as old as the youngest that went into it, and what is
older than the log is merged with nothing that is younger.

Two sweepers at once (a deposed leader of metadata partition 0 beside the new one) both write all
that they delete: the same is noted twice until the next pass. So does a crash between the two.

Failure cases: a notes object that cannot be read is reported and left alone. Run by the leader of
metadata partition 0; retries for ever.
"""

import logging
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.note_keeper import all_of, exists
from wal.chunks.kept_notes import (
    NOTES_PREFIX,
    KeptNotes,
    StagedNote,
    decode_kept_notes,
    encode_kept_notes,
    merged,
    minted_ms_of_notes_key,
    notes_key,
)
from wal.chunks.object_notes import CommitNote, TopicLookup, schema_reference
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptObject, ObjectNotFound
from wal.failpoint import failpoint
from wal.staging.staged_keys import staged_key
from wal.stores.object_store import BytesBody, ObjectStat, ObjectStore
from wal.ulid import ulid_at, wal_object_key

MERGED_AT: Final = 8
"""How many small notes objects it takes before they are merged."""

SMALL_BYTES: Final = 64 << 10

MERGED_BYTES_MAX: Final = 1 << 20
"""Read and held at a time, and the largest notes object that a sweep makes."""

EVERYTHING_AFTER: Final = 24
"""One pass in this many looks through all notes objects: once a day by default."""

SCHEMA_KEPT_MS: Final = 3_600_000
"""By then a schema that was noted is set, or will not be."""

_logger = logging.getLogger(__name__)


def _not_known(partition: TopicIdPartition) -> int | None:
    return None


def _no_schemas() -> Collection[str]:
    return ()


@dataclass(slots=True)
class _Group:
    """Notes objects that become one."""

    stats: list[ObjectStat] = field(default_factory=list)
    size: int = 0


class NotesSweep:
    """Looks through the notes objects of one bucket."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        topics: TopicLookup,
        log_began_ms: Callable[[], int | None],
        steady_ms: Callable[[], int],
        rolled_end: Callable[[TopicIdPartition], int | None] = _not_known,
        schemas: Callable[[], Collection[str]] = _no_schemas,
        settings: CoordinatorSettings,
        rng: random.Random,
    ) -> None:
        """`log_began_ms`: when the metadata log got its first record; None for an empty log.

        `steady_ms`: the time by which sinks expire. `rolled_end`: below it, everything of a
        partition is in segments or deleted; None: of no partition that is known. `schemas`:
        references to the long schemas that topics have.
        """
        self._store = store
        self._topics = topics
        self._log_began_ms = log_began_ms
        self._steady_ms = steady_ms
        self._rolled_end = rolled_end
        self._schemas = schemas
        self._settings = settings
        self._rng = rng
        self._passes = 0
        # What follows counts from the start of this sweep.
        self.notes_dropped = 0
        """Commits of objects that are gone, staged ones included."""
        self.objects_deleted = 0
        """Notes objects whose content is elsewhere, or of no use any more."""

    async def next_pass(self) -> None:
        """One pass, now and then over everything. Raises: as `sweep_once`."""
        await self.sweep_once(everything=self._passes % EVERYTHING_AFTER == 0)
        self._passes += 1

    async def sweep_once(self, *, everything: bool) -> None:
        """One pass. Raises: ObjectStoreUnavailable, UploadOutcomeUnknown."""
        stats: list[ObjectStat] = []
        async with aclosing(self._listed()) as listed:
            async for stat in listed:
                if minted_ms_of_notes_key(stat.key) is None:
                    continue  # not ours
                if everything or stat.length_bytes < SMALL_BYTES:
                    stats.append(stat)
        if not everything and len(stats) < MERGED_AT:
            return
        for group in self._groups(stats):
            await self._merge(group.stats)

    async def _listed(self) -> AsyncGenerator[ObjectStat, None]:
        async for stat in self._store.list(NOTES_PREFIX):
            yield stat

    def _groups(self, stats: Sequence[ObjectStat]) -> Sequence[_Group]:
        """Neighbours in age, as many as may be held at a time; older than the log by themselves."""
        began_ms = self._log_began_ms()
        old, young = [_Group()], [_Group()]
        for stat in stats:
            groups = old if began_ms is None or _age(stat) < began_ms else young
            if groups[-1].size + stat.length_bytes > MERGED_BYTES_MAX:
                groups.append(_Group())
            groups[-1].stats.append(stat)
            groups[-1].size += stat.length_bytes
        return [group for group in (*old, *young) if group.stats]

    async def _merge(self, stats: Sequence[ObjectStat]) -> None:
        found: dict[ObjectKey, KeptNotes] = {}
        for stat in stats:
            try:
                found[stat.key] = decode_kept_notes(await self._store.get(stat.key), stat.key)
            except ObjectNotFound:
                continue  # another sweeper was here
            except CorruptObject as error:
                _logger.warning("left alone: %s", error)
        if not found:
            return
        before = merged(found.values())
        age_ms = max(_age(stat) for stat in stats if stat.key in found)
        after = await self._still_needed(before, age_ms)
        if len(found) == 1 and after == before:
            return
        if not after.is_empty:
            key = notes_key(ulid_at(age_ms, self._rng))
            await self._store.put(key, BytesBody(encode_kept_notes(after)))
            failpoint("notes.after_merge")
        self.notes_dropped += len(before.commits) - len(after.commits)
        self.notes_dropped += len(before.staged) - len(after.staged)
        self.objects_deleted += len(await self._store.delete(list(found)))

    async def _still_needed(self, notes: KeptNotes, age_ms: int) -> KeptNotes:
        """Without commits of objects that are gone, floors of deleted topics, expired sinks."""
        existing: set[ObjectKey] = set()

        async def ask(key: ObjectKey) -> None:
            if await exists(self._store, key):
                existing.add(key)

        await all_of([*map(_key_of, notes.commits), *map(_key_of, notes.staged)], ask)
        commits = tuple(note for note in notes.commits if _key_of(note) in existing)
        staged = tuple(note for note in notes.staged if _key_of(note) in existing)
        began_ms = self._log_began_ms()
        if began_ms is None or age_ms < began_ms:
            return notes._replace(commits=commits, staged=staged)
        expired_ms = self._steady_ms() - self._settings.sink_expiration_ms
        topics = {
            topic_id: facts
            for topic_id in notes.topics
            if (facts := self._topics(topic_id)) is not None
        }
        floors = {
            partition: floor
            for partition, floor in notes.floors.items()
            if partition.topic_id in topics
        }
        sinks = tuple(sink for sink in notes.sinks if sink.committed_at_ms >= expired_ms)
        ends = {
            partition: tuple(end for end in noted if end.marker.offset >= rolled_end)
            for partition, noted in notes.ends.items()
            if (rolled_end := self._rolled_end(partition)) is not None
        }
        ends = {partition: left for partition, left in ends.items() if left}
        schemas = notes.schemas
        if schemas and age_ms < self._steady_ms() - SCHEMA_KEPT_MS:
            in_use = self._schemas()
            schemas = tuple(text for text in schemas if schema_reference(text) in in_use)
        return KeptNotes(topics, commits, floors, staged, sinks, ends, notes.ended_below, schemas)


def _key_of(note: CommitNote | StagedNote) -> ObjectKey:
    """The object that a note is about."""
    if isinstance(note, StagedNote):
        return staged_key(note.sink_id, note.ulid)
    return wal_object_key(note.ulid)


def _age(stat: ObjectStat) -> int:
    minted = minted_ms_of_notes_key(stat.key)
    assert minted is not None
    return minted
