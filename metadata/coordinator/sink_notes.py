"""Notes in the bucket what sinks committed, so that a rebuild of the metadata knows it.

A WAL object carries notes about the commits before it (wal/chunks/object_notes.py); staged objects
are written by tasks, which know of no commit and are not believed. So the coordinator writes a
notes object (wal/chunks/kept_notes.py) for each commit of a sink: which runs of which staged
objects are at which offsets, what their topics are called and how they are configured, and the
sink's last batch with its id, digest and answer.

    append to the metadata log -> apply -> put the notes object -> answer

A note is made of what is applied. So it proves a commit: no note names an object that was not
committed, whatever dies where. And nothing is answered to a sink before its last batch is noted:

- a commit, new or repeated, is noted before its answer;
- commits of one sink come one after the other, and before the next is decided the last one is noted
  even where nobody got its answer;
- who asks which batch was the last (OpenSink, CommitStaged) waits for the note as well.

A coordinator that came to lead does not know what the one before it had noted. It takes every
sink's last batch for not noted, and `run` notes them all at the start of its term.

What a crash leaves: behind the append and before the put, a batch that consumers may read, that its
driver was not answered, and that the next leader notes. Only when that leader never comes, because
the metadata are lost in the same moment, the batch is lost with them; its driver commits it again.
Behind the put, notes that say the same twice; metadata/workers/notes_sweep.py merges them, and
drops what is said of objects that are gone.

Where several coordinators have shares of a batch, each notes its own before it answers the home,
under the name of the share. The home notes its own when the batch is complete, and the sink's last
batch with it. So a share of which the home has noted nothing is of a batch that nobody was
answered, and a rebuild leaves it out (metadata/rebuild/sink_shares.py).

What segments have of a batch that is noted again is not in the note: segments tell it themselves.
Before the first note they have nothing of it (metadata/coordinator/unsettled_batches.py).

Failure cases: ObjectStoreUnavailable, when a note cannot be put: a commit is of unknown outcome to
its driver then, who asks again.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from metadata.replica.replica import Replica
from metadata.sink_operations import Sink
from metadata.state.queries.sink_rows import StoredRange, staged_notes
from wal.chunks.kept_notes import KeptNotes, NotedSink, encode_kept_notes, notes_key
from wal.chunks.object_notes import TopicLookup
from wal.clock import Clock, Sleep
from wal.errors import ObjectStoreUnavailable, OutcomeUnknown, Retriable
from wal.failpoint import failpoint
from wal.stores.object_store import BytesBody, ObjectStore
from wal.stores.retry import backed_off_s
from wal.ulid import mint_ulid

SINKS_AT_ONCE: Final = 16
"""Sinks that one notes object of a new leader is about."""
FIRST_PAUSE_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0

_logger = logging.getLogger(__name__)


class NotePlace(NamedTuple):
    """Where notes go, and what is known of the topics that they are about."""

    store: ObjectStore
    topics: TopicLookup


class SinkNotes:
    """The notes of one coordinator's sinks, for one term; `run` begins it."""

    def __init__(
        self,
        replica: Replica,
        place: NotePlace | None,
        *,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`place` None: nothing is noted, for coordinators whose metadata nobody would rebuild."""
        self._replica = replica
        self._place = place
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._noted: dict[str, tuple[int, int]] = {}
        """By sink id its last batch whose note is durable; what tells it from others of the id."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, sink_id: str) -> AsyncIterator[None]:
        """One at a time of those who ask about a sink; its last batch is noted at the beginning.

        Raises: ObjectStoreUnavailable.
        """
        lock = self._turns.setdefault(sink_id, asyncio.Lock())
        async with lock:
            await self.keep(sink_id)
            yield

    async def keep(self, *sink_ids: str) -> None:
        """Note the last batches of these sinks, durably. Raises: ObjectStoreUnavailable."""
        sinks = [
            sink
            for sink_id in sink_ids
            if (sink := self._replica.image.sinks.get(sink_id)) is not None
            and sink_id not in self._replica.image.open_batches
            and not self.has_noted(sink)
        ]
        if self._place is None or not sinks:
            return
        notes = await self._notes_of(sinks, self._place)
        body = BytesBody(await asyncio.to_thread(encode_kept_notes, notes))
        failpoint("sink.before_note")
        try:
            await self._place.store.put(notes_key(mint_ulid(self._clock, self._rng)), body)
        except OutcomeUnknown as error:
            raise ObjectStoreUnavailable(
                f"whether a note is stored is not known: {error}"
            ) from error
        failpoint("sink.after_note")
        for sink in sinks:
            self._noted[sink.sink_id] = _name_of(sink)

    def has_noted(self, sink: Sink) -> bool:
        """Whether the note of this batch is durable, or none is wanted."""
        return self._place is None or self._noted.get(sink.sink_id) == _name_of(sink)

    async def _notes_of(self, sinks: Collection[Sink], place: NotePlace) -> KeptNotes:
        ranges = [
            StoredRange(partition_id, item)
            for sink in sinks
            for item in sink.ranges
            if (partition_id := self._replica.partition_id(item.partition)) is not None
        ]
        topic_ids = {item.range.partition.topic_id for item in ranges}
        return KeptNotes(
            topics={
                topic_id: facts
                for topic_id in topic_ids
                if (facts := place.topics(topic_id)) is not None
            },
            staged=await self._replica.state.read(partial(staged_notes, ranges=ranges)),
            sinks=[
                NotedSink(
                    sink.sink_id,
                    sink.principal,
                    sink.batch_id,
                    sink.digest,
                    sink.committed_at_ms,
                    sink.ranges,
                )
                for sink in sinks
            ],
        )

    async def run(self) -> None:
        """Note the last batches of all sinks, however long it takes; then it is done."""
        waiting = list(self._replica.image.sinks)
        failures = 0
        while waiting:
            try:
                await self.keep(*waiting[:SINKS_AT_ONCE])
            except Retriable as error:
                _logger.warning("sinks cannot be noted: %s", error)
                await self._sleep(backed_off_s(FIRST_PAUSE_S, failures, BACKOFF_MAX_S, self._rng))
                failures += 1
            else:
                del waiting[:SINKS_AT_ONCE]
                failures = 0


def _name_of(sink: Sink) -> tuple[int, int]:
    return sink.committed_at_ms, sink.batch_id
