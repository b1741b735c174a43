"""The metadata log in an object store: one object per append, and the election of who appends.

An append is one object (metadata/log/log_object.py) `meta/<partition>/log/<20-digit base offset>`,
written put-if-absent: the process that creates the object owns those offsets. Nothing is ever
rewritten. Any store of wal/stores/object_store.py will do. Appends are made strictly one after
another; the batches of one call share an object, so callers gather what arrives while a put is
under way. This module is the election, appends and pruning; metadata/log/object_log_reader.py is
what everybody may do.

How a leader is fenced. Every writer appends at the end that it has read. A candidate that has
caught up appends the first batch of its term there (`lead`). The deposed leader, however late it
wakes up, appends at that very offset, meets a foreign object, and knows. No clock takes part.

When the answer of a put is lost, metadata/log/object_puts.py finds out what became of it. Only when
the store does not answer for as long as the settings say is it CommitOutcomeUnknown: this log
object leads no more, but the put may still land. The next leader, this process or another, decides
it by putting its own first batch at that offset, if-absent; then `refresh` sees one or the other.

Cancelling a call stops nothing: puts run in tasks of the log's own, and `close` waits for them. A
process that dies in a put leaves what a lost answer leaves.

Pruning could undo the fence: where the object that a deposed leader would collide with was deleted,
its put succeeds. Four rules close that:

- A put that ends within `prune_delay_ms` of the beginning of the last proof that this process leads
  (an append that succeeded, or what metadata/log/end_proofs.py tells), by a monotonic clock, cannot
  have met a pruned offset: the next leader begins behind that proof, and prunes nothing before it
  has led for longer than that (all processes have the same delay; LEASE_MARGIN is for clocks of
  different speed).
- After a put that ends later, and after every `lead`, the log is listed behind the new object. The
  last object of a log is never deleted, so where the offset had been pruned there is something
  behind it, and the writer was deposed. An append is CommitOutcomeUnknown then: its object may have
  become part of the log before another leader came.
- A listing is no snapshot: where the log goes on and is pruned while it is made, it may show
  neither what was the last object nor what came since. So no object is deleted before the delay
  (and LEASE_MARGIN) has passed since its leader knew of a later one, and a listing that took as
  long as the delay is not believed when it shows nothing.
- A stray object that is left behind lies below the log, or looks like its first object. Every
  object names the put-id of the one it was appended to, and a reader believes an object when its
  successor names it, or when it is the last. The reverse would not do: a stray names its
  predecessor correctly. `start_offset` is above what is not believed.

Strictly consistent reads ask the log whether it ends where its leader says (`prove`). A lease, for
`lease_ms` from the start of the last append that succeeded, only tells others when it is time to
lead: nothing goes wrong when somebody leads earlier. All this assumes that a read by name shows
what is there, that a listing shows what `ObjectStore.list` promises, that put-if-absent is atomic,
and that the monotonic clock goes on while the process is stopped or the machine sleeps.

When something fails:
- a put that certainly did not happen: CommitFailed, and the leader goes on
- reads and listings: StorageFailed, after the store's own retries
- an object that fails its checks: CorruptLog with its key; nothing is repaired here
- an object that is gone was pruned by the leader: OutOfBounds, and `start_offset` moves up
- the end of the log is gone: CorruptLog; somebody deleted what this code never deletes
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from metadata.log.end_proofs import Append, EndProofs
from metadata.log.log import LEASE_MARGIN, MetadataRecordBatch
from metadata.log.log_object import PUT_ID_BYTES, LogObject, encode_object
from metadata.log.object_log_reader import ObjectLogReader
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.log.object_puts import ObjectPuts
from metadata.log.shared_tail import SharedTail
from metadata.log.superseded_objects import SupersededObjects
from wal.clock import Clock, Sleep
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    CorruptLog,
    NotCoordinator,
    ObjectStoreUnavailable,
    Overloaded,
    StorageFailed,
)
from wal.stores.object_store import ObjectStore

APPENDS_UNDER_WAY_MAX: Final = 64
APPEND_BYTES_MAX: Final = 256 << 20
"""Of all batches of one append together: it is one object, and in memory twice."""
PRUNE_BATCH: Final = 250
"""Objects deleted by one request."""
_VERIFY_BYTES: Final = 4 << 20

_Result = TypeVar("_Result")


class ObjectMetadataLog:
    """A `MetadataLog` (metadata/log/log.py) in an object store; `open` makes one."""

    def __init__(
        self,
        store: ObjectStore,
        partition: int,
        *,
        clock: Clock,
        rng: random.Random,
        settings: ObjectLogSettings,
        sleep: Sleep,
    ) -> None:
        self._store = store
        self._partition = partition
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._reader = ObjectLogReader(store, partition, cache_bytes=settings.cache_bytes)
        self._puts = ObjectPuts(
            store,
            partition,
            self._reader,
            clock=clock,
            rng=rng,
            prune_delay_ms=settings.prune_delay_ms,
            limits=settings.retry_limits(),
            sleep=sleep,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._appends_under_way = 0
        self._closed = False
        self._led_until_offset: int | None = None
        """Where the log ended after this leader's last append; None when it does not lead."""
        self._why_not_leading = "it has not led since it was opened"
        self._lease_expires_at = 0.0
        delay_s = settings.prune_delay_ms / 1000
        self._superseded = SupersededObjects(LEASE_MARGIN * delay_s, clock=clock)
        self._proofs = EndProofs(
            self._reader,
            clock=clock,
            delay_s=delay_s,
            leads=lambda: self.is_leading,
            deposed=self._stop_leading,
        )

        self.tail: Final = SharedTail(
            self._reader,
            partition,
            run=self._run,
            clock=clock,
            lease_ms=settings.lease_ms,
        )
        """What its leader feeds to those that follow it."""

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        partition: int,
        *,
        clock: Clock,
        rng: random.Random,
        settings: ObjectLogSettings | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> "ObjectMetadataLog":
        """The log of a metadata partition as it is now; an empty one if there is none.

        `store` stays the caller's, who closes it after the log. `rng` makes the put-ids: no two
        processes may have seeded it alike.
        Raises: CorruptLog, StorageFailed.
        """
        log = cls(
            store,
            partition,
            clock=clock,
            rng=rng,
            settings=settings or ObjectLogSettings(),
            sleep=sleep,
        )
        await log.refresh()
        return log

    # -- what is known --------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """See `MetadataLog.start_offset`; reading may find out that it is higher."""
        return self._reader.start_offset

    @property
    def end_offset(self) -> int:
        return self._reader.end_offset

    @property
    def is_leading(self) -> bool:
        """Whether it has led, and not learned since that it does not any more."""
        return self._led_until_offset == self._reader.end_offset and not self._closed

    @property
    def lease_expires_at(self) -> float | None:
        """See `MetadataLog.lease_expires_at`."""
        return self._lease_expires_at if self.is_leading else None

    @property
    def proven_since(self) -> float | None:
        """See `MetadataLog.proven_since`."""
        return self._proofs.since if self.is_leading else None

    # -- operations -----------------------------------------------------------------------------

    async def refresh(self) -> int:
        """See `MetadataLog.refresh`; one LIST when there is nothing new."""
        return await self._run(self._refresh)

    async def peek(self) -> bool:
        """See `MetadataLog.peek`; one GET of a header."""
        return await self._run(self._reader.has_next)

    async def prove(self) -> None:
        """See `MetadataLog.prove`; one GET that its callers share, and none beside appends."""
        self._check_open()
        self._check_leading()
        await self._proofs.prove()

    async def lead(self, records: Sequence[bytes], timestamp_ms: int, *, at_offset: int) -> int:
        """See `MetadataLog.lead`; a PUT and a LIST."""
        return await self._run_append(lambda: self._lead(records, timestamp_ms, at_offset))

    async def append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int | None = None,
    ) -> int:
        """See `MetadataLog.append`; one PUT per call."""
        return await self._run_append(lambda: self._append(batches, timestamp_ms, at_offset))

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        """See `MetadataLog.read`; from at most READ_OBJECTS_MAX objects."""
        self._check_open()
        batches = []
        for found, place in await self._reader.read(offset, max_bytes):
            try:
                batches.append(found.decoded(place))
            except CorruptLog as error:
                key = self._reader.key(found.header.base_offset)
                raise CorruptLog(f"{key}: byte {place.start}: {error}") from error
        return batches

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]:
        """See `MetadataLog.read_encoded`; the stored bytes themselves."""
        self._check_open()
        places = await self._reader.read(offset, max_bytes)
        return [found.encoded(place) for found, place in places]

    async def prune(self, before_offset: int) -> int:
        """See `MetadataLog.prune`; deletes whole objects, lowest first.

        Leaves what was the last object less than `prune_delay_ms` ago, and so everything until this
        leader has led for longer than that. Appends go on meanwhile.
        """
        return await self._run(lambda: self._prune(before_offset), in_order=False)

    async def verify(self) -> int:
        """Read and check everything; returns the number of records.

        Raises: CorruptLog, OutOfBounds (pruned meanwhile), StorageFailed.
        """
        first = offset = self.start_offset
        while offset < self.end_offset:
            offset = (await self.read(offset, _VERIFY_BYTES))[-1].next_offset
        return offset - first

    async def close(self) -> None:
        """See `MetadataLog.close`."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._proofs.close()

    # -- to the end, in tasks of their own ------------------------------------------------------

    async def _run(
        self, job: Callable[[], Awaitable[_Result]], *, in_order: bool = True
    ) -> _Result:
        """Run `job` to its end, also when its caller is cancelled; in the calls' order if need be.

        A put that was cancelled would leave behind an append of which nobody knows the outcome.
        """
        self._check_open()

        async def run() -> _Result:
            if not in_order:
                return await job()
            async with self._reader.order:
                return await job()

        task = asyncio.create_task(run(), name=f"metadata-log-{self._partition}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not complain when the caller was cancelled.
            task.exception()

    async def _run_append(self, job: Callable[[], Awaitable[int]]) -> int:
        if self._appends_under_way >= APPENDS_UNDER_WAY_MAX:
            raise Overloaded(f"{self._appends_under_way} metadata appends are under way")

        async def counted() -> int:
            try:
                return await job()
            finally:
                self._appends_under_way -= 1

        self._check_open()
        self._appends_under_way += 1
        return await self._run(counted)

    def _check_open(self) -> None:
        if self._closed:
            raise NotCoordinator("this metadata log is closed")

    # -- leading --------------------------------------------------------------------------------

    async def _refresh(self) -> int:
        await self._reader.refresh()
        return self.end_offset

    async def _lead(self, records: Sequence[bytes], timestamp_ms: int, at_offset: int) -> int:
        if at_offset < self.end_offset:
            raise NotCoordinator(f"the metadata log is at {self.end_offset}, not at {at_offset}")
        if at_offset > self.end_offset:
            raise CommitFailed(f"the metadata log ends at {self.end_offset}, not at {at_offset}")
        made = self._object([records], timestamp_ms)
        self._stop_leading("its last attempt to lead did not succeed")
        self.tail.trying()
        append = self._proofs.begin_append(made.header.put_id)
        try:
            foreign = await self._puts.put(made)
            if foreign is not None or not await self._puts.is_last(made.header):
                key = self._reader.key(at_offset)
                raise NotCoordinator(f"{key}: another writer has appended there")
            self._superseded.clear()
            self._take(made, append)
        finally:
            self._proofs.end_append(append)
        return at_offset

    async def _append(
        self, batches: Sequence[Sequence[bytes]], timestamp_ms: int, at_offset: int | None
    ) -> int:
        self._check_leading()
        base_offset = self.end_offset
        if at_offset is not None and at_offset != base_offset:
            raise CommitFailed(f"the metadata log ends at {base_offset}, not at {at_offset}")
        made = self._object(batches, timestamp_ms)
        self.tail.trying()
        append = self._proofs.begin_append(made.header.put_id)
        try:
            foreign = await self._puts.put(made)
            in_time = self._proofs.is_fresh()
            if foreign is not None:
                await self._puts.refuse(foreign, in_time=in_time)
            if not in_time and not await self._is_still_last(made):
                key = self._reader.key(base_offset)
                raise CommitOutcomeUnknown(f"{key}: put, but deposed, perhaps before that")
            self._take(made, append)
        except CommitFailed:
            raise
        except BaseException as error:
            self._stop_leading(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._proofs.end_append(append)
        return base_offset

    async def _is_still_last(self, made: LogObject) -> bool:
        is_last = await self._puts.is_last(made.header)
        # What was asked meanwhile for a strict read may have found another leader.
        return is_last and self._led_until_offset is not None

    def _take(self, made: LogObject, append: Append) -> None:
        """The object is the last of the log."""
        self._reader.take(made)
        self._led_until_offset = self.end_offset
        self._lease_expires_at = append.began + self._settings.lease_ms / 1000
        self._superseded.took(made.header.base_offset)
        self._proofs.appended(append)
        self.tail.appended()

    def _check_leading(self) -> None:
        if self._led_until_offset is not None and self._led_until_offset != self.end_offset:
            self._stop_leading(f"another writer has appended at {self._led_until_offset}")
        if self._led_until_offset is None:
            raise NotCoordinator(
                f"metadata partition {self._partition} is not led here: {self._why_not_leading}"
            )

    def _stop_leading(self, why: str) -> None:
        self._led_until_offset = None
        self._why_not_leading = why
        self._proofs.end_term()

    def _object(self, batches: Sequence[Sequence[bytes]], timestamp_ms: int) -> LogObject:
        """What an append puts at the end. Raises: AppendTooLarge, Overloaded."""
        if not batches:
            raise ValueError("an append has at least one batch")
        size = sum(len(record) for records in batches for record in records)
        if size > APPEND_BYTES_MAX and len(batches) > 1:
            raise Overloaded(f"a metadata append of {size} bytes exceeds {APPEND_BYTES_MAX}")
        made = encode_object(
            self._partition,
            self.end_offset,
            batches,
            timestamp_ms,
            put_id=self._rng.randbytes(PUT_ID_BYTES),
            previous_put_id=self._reader.last_put_id,
        )
        largest = max(place.end - place.start for place in made.batches)
        if largest > self._settings.batch_max_bytes:
            raise AppendTooLarge(
                f"a metadata batch of {largest} bytes exceeds {self._settings.batch_max_bytes}"
            )
        return made

    # -- pruning --------------------------------------------------------------------------------

    async def _prune(self, before_offset: int) -> int:
        if before_offset > self.end_offset:
            raise self._reader.out_of_bounds(before_offset)
        self._check_leading()
        if before_offset <= self.start_offset:
            return self.start_offset
        keep_from = min(
            self._reader.base_offset_around(before_offset), self._superseded.below_offset()
        )
        # By listing, not by the index: strays go too, and what an earlier attempt has left.
        while listed := await self._reader.list(before=keep_from, limit=PRUNE_BATCH):
            keys = [self._reader.key(item.base_offset) for item in listed]
            try:
                gone = set(await self._store.delete(keys))
            except ObjectStoreUnavailable as error:
                raise StorageFailed(f"{keys[0]} and {len(keys) - 1} more: {error}") from error
            confirmed = [
                item.base_offset for item in listed if self._reader.key(item.base_offset) in gone
            ]
            if confirmed:
                self._reader.drop_through(confirmed[-1])
            if len(confirmed) < len(keys):
                left = next(key for key in keys if key not in gone)
                raise StorageFailed(
                    f"{len(keys) - len(confirmed)} of {len(keys)} objects are not deleted: {left}"
                )
        return self.start_offset
