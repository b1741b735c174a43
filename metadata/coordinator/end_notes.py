"""Notes in the bucket how transactions ended, so that a rebuild of the metadata knows it.

A marker is a row of the metadata and has no bytes in any object, so nothing in the bucket tells
that a transaction was committed. The coordinator of its partitions writes that into notes objects
(wal/chunks/kept_notes.py), every few seconds for all ends since the last time: a PUT for each end
would cost more than the transaction itself. Where nothing ends, nothing is put.

    append to the metadata log -> apply -> answer ... at most NOTED_EVERY_S later: put the notes

A note is made of what is applied, so it proves an end. What is lost when the metadata are: the ends
of the last NOTED_EVERY_S, and what the store takes for a put, or for as long as the bucket could
not be written. A rebuild then has the data of these transactions and not how they ended. It aborts
them, or commits them where the operator says so, and names each (metadata/rebuild/placing).

A coordinator that came to lead does not know what the one before it had noted, and notes all
markers that there are, which is those that no segment has. What is noted twice is merged by
metadata/workers/notes_sweep.py, and dropped when segments have it.

Failure cases: ObjectStoreUnavailable; it is tried again, for ever.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import Connection

from metadata.replica.replica import Replica
from metadata.state.image import PartitionState
from metadata.state.queries.transaction_rows import ends_from
from metadata.workers.periodic import repeat
from wal.chunks.kept_notes import KeptNotes, NotedEnd, encode_kept_notes, notes_key
from wal.clock import Clock, Sleep
from wal.coordinates import TopicIdPartition
from wal.failpoint import failpoint
from wal.stores.object_store import BytesBody, ObjectStore
from wal.ulid import mint_ulid

NOTED_EVERY_S: Final = 5.0
"""17,000 puts a day at most; what a loss of the metadata leaves undecided grows with it."""
ENDS_MAX: Final = 20_000
"""In one notes object, of some 25 bytes each."""
BACKOFF_MAX_S: Final = 60.0

_logger = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    """A partition with markers that are not noted."""

    partition: TopicIdPartition
    state: PartitionState
    first_offset: int


class EndNotes:
    """The ends in one coordinator's partitions, for one term; `run` notes them."""

    def __init__(
        self,
        replica: Replica,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._replica = replica
        self._store = store
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._noted: dict[TopicIdPartition, int] = {}
        """The last marker of each partition whose note is durable."""

    async def run(self) -> None:
        """Note what ends until cancelled."""
        await repeat(
            self.note_once,
            interval_s=NOTED_EVERY_S,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "ends of transactions cannot be noted: %s"),
            rng=self._rng,
        )

    async def note_once(self) -> int:
        """Note all that has ended; returns how many objects that took.

        Raises: ObjectStoreUnavailable, UploadOutcomeUnknown.
        """
        count = 0
        while wanted := self._wanted():
            found = await self._replica.state.read(partial(_ends, wanted=wanted))
            if found:
                body = BytesBody(await asyncio.to_thread(encode_kept_notes, KeptNotes(ends=found)))
                failpoint("transaction.before_note")
                key = notes_key(mint_ulid(self._clock, self._rng))
                await self._store.put(key, body)
                failpoint("transaction.after_note")
                count += 1
            is_full = sum(map(len, found.values())) >= ENDS_MAX
            if not is_full:
                # What a segment took meanwhile is not there any more, and need not be noted.
                self._noted.update(
                    (item.partition, item.state.last_marker_offset) for item in wanted
                )
            self._noted.update(
                (partition, ends[-1].marker.offset) for partition, ends in found.items()
            )
            if not is_full:
                break
        return count

    def _wanted(self) -> Sequence[_Wanted]:
        partitions = self._replica.image.partitions
        for partition in [known for known in self._noted if known not in partitions]:
            del self._noted[partition]
        return [
            _Wanted(partition, state, noted + 1)
            for partition, state in partitions.items()
            if state.last_marker_offset > (noted := self._noted.get(partition, -1))
        ]


def _ends(
    connection: Connection, wanted: Sequence[_Wanted]
) -> Mapping[TopicIdPartition, Sequence[NotedEnd]]:
    """The markers of these partitions, up to about ENDS_MAX. Raises CorruptState."""
    found: dict[TopicIdPartition, Sequence[NotedEnd]] = {}
    left = ENDS_MAX
    for partition, state, first_offset in wanted:
        ends = ends_from(connection, state.id, first_offset, state.last_marker_offset, left)
        if ends:
            found[partition] = ends
            left -= len(ends)
        if left <= 0:
            break
    return found
