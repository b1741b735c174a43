"""Keeps what WAL objects note of others before they are deleted.

An object's offsets stand in the notes of a later object of its broker (wal/chunks/object_notes.py),
and objects are not deleted in the order in which they were written: the later one may hold nothing
but records of a short-lived topic. So before objects are deleted, `NoteKeeper.keep` reads their
notes, and puts those about objects that stay into a notes object (wal/chunks/kept_notes.py).
Nothing is deleted before that is durable.

Three requests at most for each object that is deleted: a ranged read of its footer, and for each
object noted there, usually one and usually gone, a HEAD, unless it goes in the same batch or was
deleted by this keeper before. A PUT only when something is to be kept; where records go in the
order in which they came, nothing is.

Where a partition has no record left after this, nothing in the bucket tells where its log was, so
that offsets would be given a second time after a rebuild. Where all that is left is in segments,
nothing tells where the log begins: an output of a merge that was never committed and lies below
that would come back. So the high watermark and the log start offset are kept, too, when the log
start has moved, with the topic's facts. What this process knows of a partition decides; a replica
that is behind costs no more than the floor. That holds of staged objects as well, which note
nothing themselves.

Failure cases: notes that cannot be read (damage) are reported and lost, and the deletion goes on: a
damaged object must not stay for ever. Everything may be repeated: what is kept twice is merged
(metadata/workers/notes_sweep.py). ObjectStoreUnavailable and UploadOutcomeUnknown end the attempt,
before anything was deleted.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from wal.chunks.kept_notes import KeptNotes, encode_kept_notes, notes_key
from wal.chunks.object_notes import CommitNote, Floor, FloorLookup, TopicFacts, TopicLookup
from wal.chunks.wal_object import OBJECT_HEADER_BYTES, WalObjectReader
from wal.clock import Clock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptObject, ObjectNotFound
from wal.failpoint import failpoint
from wal.staging.staged_keys import is_staged
from wal.stores.object_store import BytesBody, ObjectStore
from wal.ulid import WAL_PREFIX, mint_ulid, wal_object_key

REQUESTS_AT_ONCE: Final = 8

GONE_REMEMBERED_MAX: Final = 100_000
"""Deleted objects that nobody has to be asked about; beyond it the store is asked."""

_Item = TypeVar("_Item")

_logger = logging.getLogger(__name__)


def _no_floor(partition: TopicIdPartition) -> Floor | None:
    return None


def _no_facts(topic_id: UUID) -> TopicFacts | None:
    return None


class NoteKeeper:
    """What the deletion of WAL objects does first. One per worker that deletes."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: random.Random,
        floors: FloorLookup = _no_floor,
        topics: TopicLookup = _no_facts,
    ) -> None:
        """`floors` and `topics` say what is known of partitions and topics that exist."""
        self._store = store
        self._reader = WalObjectReader(store)
        self._clock = clock
        self._rng = rng
        self._floors = floors
        self._topics = topics
        self._gone: set[ObjectKey] = set()
        self._floors_kept: dict[TopicIdPartition, Floor] = {}
        self._facts_kept: dict[UUID, TopicFacts] = {}
        self.notes_kept = 0
        """Commits whose note was put into a notes object."""
        self.unreadable = 0
        """Objects whose notes could not be read before their deletion."""

    async def keep(self, doomed: Mapping[ObjectKey, int | None]) -> None:
        """Make durable what the `doomed` objects, with their lengths if known, say of others.

        Raises: ObjectStoreUnavailable, UploadOutcomeUnknown.
        """
        keys = [key for key in doomed if _has_index(key) and key not in self._gone]
        noted: dict[str, CommitNote] = {}
        partitions: set[TopicIdPartition] = set()

        async def read(key: ObjectKey) -> None:
            found = await self._read(key, doomed[key])
            if found is not None:
                partitions.update(found[0])
                for note in found[1]:
                    noted[note.ulid] = note

        await all_of(keys, read)
        kept = KeptNotes(
            self._new_facts(partitions),
            await self._about_others(noted.values(), doomed),
            self._floors_of(partitions),
        )
        if kept.is_empty:
            return
        failpoint("notes.before_put")
        body = BytesBody(encode_kept_notes(kept))
        await self._store.put(notes_key(mint_ulid(self._clock, self._rng)), body)
        failpoint("notes.after_put")
        self.notes_kept += len(kept.commits)
        self._floors_kept.update(kept.floors)
        self._facts_kept.update(kept.topics)

    def were_deleted(self, keys: Iterable[ObjectKey]) -> None:
        """The store confirmed that these are gone."""
        for key in keys:
            if _has_index(key):
                if len(self._gone) == GONE_REMEMBERED_MAX:
                    self._gone.clear()
                self._gone.add(key)

    async def _read(
        self, key: ObjectKey, object_bytes: int | None
    ) -> tuple[Sequence[TopicIdPartition], Sequence[CommitNote]] | None:
        if object_bytes is not None and object_bytes < OBJECT_HEADER_BYTES:
            object_bytes = None  # the owner that handed the object over did not know it
        try:
            partitions, notes = await self._reader.read_notes(key, object_bytes=object_bytes)
        except ObjectNotFound:
            return None  # deleted by an earlier attempt, which kept its notes
        except CorruptObject as error:
            if object_bytes is not None:
                return await self._read(key, None)
            self.unreadable += 1
            _logger.warning("notes of an object to be deleted are lost: %s", error)
            return None
        return partitions, notes.commits

    async def _about_others(
        self, notes: Iterable[CommitNote], doomed: Mapping[ObjectKey, int | None]
    ) -> Sequence[CommitNote]:
        """Those about objects that exist and are not deleted now."""
        kept: list[CommitNote] = []

        async def ask(note: CommitNote) -> None:
            if await exists(self._store, wal_object_key(note.ulid)):
                kept.append(note)

        await all_of(
            [
                note
                for note in notes
                if (key := wal_object_key(note.ulid)) not in doomed and key not in self._gone
            ],
            ask,
        )
        return sorted(kept, key=lambda note: note.ulid)

    def _new_facts(self, partitions: Iterable[TopicIdPartition]) -> Mapping[UUID, TopicFacts]:
        """Of topics, what was not kept yet: segments do not say how a topic is configured."""
        return {
            topic_id: facts
            for topic_id in {partition.topic_id for partition in partitions}
            if (facts := self._topics(topic_id)) is not None
            and self._facts_kept.get(topic_id) != facts
        }

    def _floors_of(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Floor]:
        """Floors of those partitions whose log start has moved since the last time."""
        floors: dict[TopicIdPartition, Floor] = {}
        for partition in partitions:
            floor = self._floors(partition)
            if floor is None or floor.log_start_offset == 0:
                continue
            kept = self._floors_kept.get(partition)
            is_empty = floor.log_start_offset == floor.high_watermark
            if kept == floor or (
                kept is not None
                and not is_empty
                and kept.log_start_offset == floor.log_start_offset
            ):
                continue
            if self._topics(partition.topic_id) is not None:
                floors[partition] = floor
        return floors


def _has_index(key: ObjectKey) -> bool:
    """Whether it has batches, and so partitions; a staged object notes nothing beside."""
    return key.startswith(WAL_PREFIX) or is_staged(key)


async def exists(store: ObjectStore, key: ObjectKey) -> bool:
    """Whether the store has an object. Raises: ObjectStoreUnavailable."""
    try:
        await store.head(key)
    except ObjectNotFound:
        return False
    return True


async def all_of(items: Sequence[_Item], work: Callable[[_Item], Awaitable[None]]) -> None:
    """Do `work` for all items, some at a time; raises the first of what it raises."""
    waiting = list(reversed(items))

    async def run() -> None:
        while waiting:
            await work(waiting.pop())

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(REQUESTS_AT_ONCE, len(items))):
                tasks.create_task(run())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
