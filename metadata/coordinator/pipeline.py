"""The pipeline of a coordinator: decide, append, apply, answer.

How one operation goes through it:

1. *decide* - the deciding task takes all operations that wait (a group), looks up in SQLite what
   they need and memory has not (producer states; files, but for keys that are newer than all that
   are there), and then, without another await, decides one after the other against the speculative
   view: committed state plus everything that is pending. An operation becomes records and an
   answer.
2. *append* - the appending task takes all groups that were decided meanwhile and appends them to
   the metadata log with one call: one sync or one put for however many operations (group commit).
   While it waits, the next groups are decided on top: that is the pipeline.
3. *apply* - the applying task hands durable batches to the writer thread, which turns them into
   rows in one SQLite transaction together with the applied offset and the state hash. Where a group
   is alone and the log has a thread, that thread applies what it has appended: one hand-over for
   both, and no turn of the event loop between them.
4. *answer* - memory takes over what was applied, listeners hear which partitions grew, callers get
   their answers. So whatever was answered can be read afterwards.

An append that fails (CommitFailed) left the log as it was. Then every operation that was decided on
top of it fails the same way, everything durable is applied, the view is dropped, and deciding goes
on from the committed state: no offset hole, no answer built on what never happened. After an append
with an unknown outcome, or when the log says that somebody else writes it now, the pipeline stops:
`run` raises, its callers get CommitOutcomeUnknown or NotCoordinator, and the next leader finds out
by replay what became durable. Replay and live operation share `RecordApplier`.

A leader that resigns ends with a record (`end_with`): what was asked before it is answered as ever,
what was not decided by then is NotCoordinator, and strict reads are not answered from the moment at
which another broker may come to lead.

An operation without records (an answer that was known, a refusal) still waits its turn behind what
it was decided on: its answer may rest on something pending. Where nothing is appended and the lease
is over, the log is asked first who leads: a broker that was paused must not refuse because of what
it does not know, since a client that is refused for good gives up.

Source: KIP-1164, "How operations are performed".
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from metadata.log.log import MetadataLog, MetadataRecordBatch, ThreadLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import MetadataRecord, SegmentCommittedRecord, encode_record
from metadata.replica.appending import append_and_apply
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from metadata.state.image import Changes, ProducerKey
from metadata.state.queries.file_queries import look_up
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import ClosedKey
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    Overloaded,
    StorageFailed,
)
from wal.failpoint import failpoint

GROUP_ROWS_MAX: Final = 1_000
"""Rows that are decided at once, unless one operation has more of them; some 5 ms of the event
loop."""
GROUPS_DECIDED_MAX: Final = 4
"""Groups decided and not yet appended; more would only deepen what one failure takes along."""
APPENDS_UNAPPLIED_MAX: Final = 4
"""Appends that are durable but not in SQLite yet; when it falls behind, appending waits."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True, eq=False)
class _Operation:
    """One call waiting for its turn. `decide` may raise DisklessError; then it changed nothing."""

    decide: Callable[[SpeculativeView, int], Decision[Any]]
    answer: asyncio.Future[Any]
    object_keys: Sequence[ObjectKey] = ()
    producers: Callable[[SpeculativeView], Sequence[ProducerKey]] | None = None
    closed: Callable[[SpeculativeView], Sequence[ClosedKey]] | None = None
    row_count: int = 0
    """What it walks while it decides, where that may be much."""
    is_last: bool = False
    """Nothing is decided behind it, unless it fails."""


@dataclass(slots=True, eq=False)
class _Group:
    """Operations that were decided together."""

    number: int
    first_offset: int
    operations: list[_Operation] = field(default_factory=list)
    outcomes: list[object | DisklessError] = field(default_factory=list)
    batches: list[Sequence[bytes]] = field(default_factory=list)
    record_count: int = 0
    """Of all `batches`."""
    has_segments: bool = False
    may_be_durable: bool = False
    """An append of its records has begun."""

    def answer(self) -> None:
        for operation, outcome in zip(self.operations, self.outcomes, strict=True):
            if operation.answer.done():
                continue  # the caller was cancelled; the operation happened all the same
            if isinstance(outcome, DisklessError):
                operation.answer.set_exception(outcome)
            else:
                operation.answer.set_result(outcome)


class _Appended(NamedTuple):
    """Groups whose records are durable, and the batches to apply."""

    groups: Sequence[_Group]
    batches: Sequence[MetadataRecordBatch]


class Pipeline:
    """What `perform` is given is decided, appended, applied and answered while `run` runs."""

    def __init__(
        self, replica: Replica, log: MetadataLog, *, clock: Clock, settings: CoordinatorSettings
    ) -> None:
        """`replica` is open and has applied all of `log`, which this process leads."""
        self._replica = replica
        self._log = log
        self._thread_log = log if isinstance(log, ThreadLog) else None
        self._clock = clock
        self._settings = settings
        self._view = SpeculativeView(replica.image)
        self._waiting: asyncio.Queue[_Operation] = asyncio.Queue(settings.pending_operations_max)
        self._decided: asyncio.Queue[_Group] = asyncio.Queue()
        self._may_decide = asyncio.Semaphore(GROUPS_DECIDED_MAX)
        self._appended: asyncio.Queue[_Appended] = asyncio.Queue(APPENDS_UNAPPLIED_MAX)
        self._unapplied = 0
        """Appends that the applying task was given and is not done with."""
        self._steady = asyncio.Event()
        self._steady.set()
        self._in_flight: dict[int, _Group] = {}
        self._deciding: list[_Operation] = []
        self._stopped: DisklessError | None = None
        self._is_ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._last_time_ms = replica.image.timestamp_ms

    # -- life -----------------------------------------------------------------------------------

    async def run(self, beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Serve until stopped or cancelled, with `beside` in a task that ends with the others.

        Raises when it cannot go on; the state must then be opened anew, which finds out what is
        durable.
        """
        if self._stopped is not None:
            return  # stopped before its task got to run
        stopped: DisklessError = NotCoordinator("the coordinator is stopping")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = [
                    tasks.create_task(self._decide_groups(), name="coordinator-decide"),
                    tasks.create_task(self._append_groups(), name="coordinator-append"),
                    tasks.create_task(self._apply_appended(), name="coordinator-apply"),
                    tasks.create_task(beside(), name="coordinator-lease"),
                ]
        except BaseExceptionGroup as errors:
            if isinstance(first := errors.exceptions[0], NotCoordinator):
                stopped = first
            raise
        finally:
            self._stop(stopped)
            self._ended.set()

    async def stop(self) -> None:
        """End `run` and see it end. An append under way still becomes durable."""
        self._stop(NotCoordinator("the coordinator is closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await self._ended.wait()

    def _stop(self, reason: DisklessError) -> None:
        """Fail what was not answered: what may be durable differently from what cannot be."""
        if self._stopped is None:
            self._stopped = reason
        for group in self._in_flight.values():
            for operation in group.operations:
                if not operation.answer.done():
                    operation.answer.set_exception(
                        CommitOutcomeUnknown(f"the coordinator stopped: {reason}")
                        if group.may_be_durable
                        else NotCoordinator(str(reason))
                    )
        self._in_flight.clear()
        undecided = [*self._deciding]
        while not self._waiting.empty():
            undecided.append(self._waiting.get_nowait())
        for operation in undecided:
            if not operation.answer.done():
                operation.answer.set_exception(NotCoordinator(str(reason)))

    # -- 1. decide ------------------------------------------------------------------------------

    async def perform(
        self,
        decide: Callable[[SpeculativeView, int], Decision[_Answer]],
        *,
        object_keys: Sequence[ObjectKey] = (),
        producers: Callable[[SpeculativeView], Sequence[ProducerKey]] | None = None,
        closed: Callable[[SpeculativeView], Sequence[ClosedKey]] | None = None,
        row_count: int = 0,
    ) -> _Answer:
        """Queue an operation and wait for its answer; waits when too many are queued already."""
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.refuse_when_stopped()
        await self._waiting.put(
            _Operation(decide, answer, object_keys, producers, closed, row_count)
        )
        if not answer.done():
            # It may have stopped while this call waited for room in a queue nobody empties now.
            self.refuse_when_stopped()
        return await answer

    @property
    def is_ending(self) -> bool:
        """Whether its last record is under way: another broker may lead from any moment on."""
        return self._is_ending

    async def end_with(self, record: MetadataRecord) -> None:
        """Append `record` behind all that was decided; what comes later waits until `run` ends.

        Raises: CommitFailed, Overloaded (nothing happened, and it goes on), NotCoordinator,
        CommitOutcomeUnknown.
        """
        self.refuse_when_stopped()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_ending = True
        try:
            await self._waiting.put(
                _Operation(lambda *_: Decision((record,), None), answer, is_last=True)
            )
            if not answer.done():
                self.refuse_when_stopped()
            await answer
        except (CommitFailed, Overloaded):
            self._is_ending = False
            raise

    def refuse_when_stopped(self) -> None:
        """Raises NotCoordinator."""
        if self._stopped is not None:
            raise NotCoordinator(str(self._stopped))

    async def _decide_groups(self) -> None:
        number = 0
        while True:
            # Room first: operations that come while there is none join this group.
            await self._may_decide.acquire()
            operations = self._deciding
            operations.append(await self._waiting.get())
            row_count = operations[-1].row_count
            while (
                not self._waiting.empty()
                and not operations[-1].is_last
                and len(operations) < self._settings.group_records_max
                and row_count < GROUP_ROWS_MAX
            ):
                operations.append(self._waiting.get_nowait())
                row_count += operations[-1].row_count
            if row_count >= GROUP_ROWS_MAX:
                # The next group is as large, perhaps; everybody else has a turn in between.
                await asyncio.sleep(0)
            await self._look_up(operations)
            # No await from here on: the view must not change under the decisions.
            number += 1
            group = self._decide(number, operations)
            self._deciding = []
            self._in_flight[number] = group
            self._decided.put_nowait(group)
            if operations[-1].is_last and await _is_done(operations[-1].answer):
                return

    async def _look_up(self, operations: Sequence[_Operation]) -> None:
        """Make the view answer everything that `operations` will ask, without any waiting.

        Repeated when something pending was dropped or applied meanwhile and a producer that was in
        memory is no longer there: an unknown producer may start anywhere, so guessing is no option.
        """
        view = self._view
        keys = [key for operation in operations for key in operation.object_keys]
        while True:
            await self._steady.wait()
            # First, so that what an earlier look-up found does not count as known: it may be stale.
            view.start_look_up()
            missing = [*self._unknown_producers(operations)]
            asked = [key for key in keys if view.may_be_stored(key)]
            closed = self._unknown_closed(operations)
            if not asked and not missing and not closed:
                return
            found = await self._replica.state.read(
                partial(
                    look_up,
                    keys=asked,
                    producers=missing,
                    closed=closed,
                    with_newest=not view.knows_newest_file,
                )
            )
            view.finish_look_up(*found)
            if (
                self._steady.is_set()
                and not self._unknown_producers(operations)
                and not self._unknown_closed(operations)
            ):
                return

    def _unknown_producers(self, operations: Sequence[_Operation]) -> set[ProducerKey]:
        """Those that `operations` will ask for and the view cannot answer."""
        unknown: set[ProducerKey] = set()
        for operation in operations:
            if operation.producers is not None:
                unknown |= self._view.unknown_producers(operation.producers(self._view))
        return unknown

    def _unknown_closed(self, operations: Sequence[_Operation]) -> set[ClosedKey]:
        """The same of what was closed."""
        unknown: set[ClosedKey] = set()
        for operation in operations:
            if operation.closed is not None:
                keys = operation.closed(self._view)
                if keys:
                    unknown |= self._view.transactions.unknown(keys)
        return unknown

    def _decide(self, number: int, operations: list[_Operation]) -> _Group:
        view = self._view
        view.group = number
        now_ms = self._now_ms()
        group = _Group(number, view.next_offset, operations)
        for operation in operations:
            try:
                decision = operation.decide(view, now_ms)
            except DisklessError as error:
                group.outcomes.append(error)
                continue
            group.outcomes.append(decision.answer)
            if decision.records:
                group.batches.append([encode_record(record) for record in decision.records])
                group.has_segments |= isinstance(decision.records[0], SegmentCommittedRecord)
                view.next_offset += len(decision.records)
        group.record_count = view.next_offset - group.first_offset
        return group

    def _now_ms(self) -> int:
        """Wall time that never goes back, not even over a restart: it becomes LogAppendTime."""
        self._last_time_ms = max(self._last_time_ms, self._clock.now_ms())
        return self._last_time_ms

    # -- 2. append ------------------------------------------------------------------------------

    async def _append_groups(self) -> None:
        while True:
            groups = [await self._decided.get()]
            record_count = groups[0].record_count
            while not self._decided.empty() and record_count < self._settings.group_records_max:
                groups.append(self._decided.get_nowait())
                record_count += groups[-1].record_count
            batches: list[MetadataRecordBatch] = []
            timestamp_ms = self._now_ms()
            offset = groups[0].first_offset
            for group in groups:
                for records in group.batches:
                    batches.append(MetadataRecordBatch(offset, timestamp_ms, records))
                    offset += len(records)
            changes: Changes | Exception | None = None
            if batches:
                for group in groups:
                    group.may_be_durable = True
                failpoint("commit.before_log")
                try:
                    if self._thread_log is not None and self._is_alone(groups):
                        merged = partial(self._view.retire, groups[0].number)
                        changes = await append_and_apply(
                            self._thread_log, self._replica, batches, on_merged=merged
                        )
                    else:
                        await self._append(batches)
                except (CommitFailed, Overloaded, AppendTooLarge) as error:
                    await self._fail_pending(groups, error)
                    continue
                except NotCoordinator:
                    for group in groups:
                        group.may_be_durable = False
                    raise
                if any(group.has_segments for group in groups):
                    failpoint("segment.after_log")
            elif self._may_be_deposed():
                try:
                    await self._log.prove()
                except StorageFailed as error:
                    await self._fail_pending(groups, error)
                    continue
            if isinstance(changes, Changes):
                self._answer(groups)
            elif changes is None or isinstance(changes, StorageFailed):
                self._unapplied += 1
                await self._appended.put(_Appended(groups, batches))
            else:
                raise changes
            for _ in groups:
                self._may_decide.release()

    async def _append(self, batches: Sequence[MetadataRecordBatch]) -> None:
        offset, timestamp_ms, _ = batches[0]
        await self._log.append([batch.records for batch in batches], timestamp_ms, at_offset=offset)
        failpoint("commit.after_log")

    def _is_alone(self, groups: Sequence[_Group]) -> bool:
        """Whether there is nothing to append or decide while these are applied."""
        return (
            len(groups) == 1
            and not self._unapplied
            and self._decided.empty()
            and self._waiting.empty()
            and not groups[0].has_segments
        )

    def _may_be_deposed(self) -> bool:
        """Whether somebody else may lead who keeps to the lease."""
        expires_at = self._log.lease_expires_at
        return expires_at is None or self._clock.monotonic() >= expires_at

    async def _fail_pending(self, groups: list[_Group], error: DisklessError) -> None:
        """Nothing of `groups` happened, hence nothing of what was decided on top of them."""
        self._steady.clear()
        while not self._decided.empty():
            groups.append(self._decided.get_nowait())
        for group in groups:
            self._in_flight.pop(group.number)
            group.outcomes = [
                CommitFailed(f"the metadata log refused: {error}") for _ in group.operations
            ]
            group.answer()
        await self._appended.join()
        self._view.reset()
        self._steady.set()
        for _ in groups:
            self._may_decide.release()

    # -- 3. apply, 4. answer --------------------------------------------------------------------

    async def _apply_appended(self) -> None:
        while True:
            appended = [await self._appended.get()]
            while not self._appended.empty():
                appended.append(self._appended.get_nowait())
            groups = [group for item in appended for group in item.groups]
            batches = [batch for item in appended for batch in item.batches]
            if batches:
                await self._replica.apply(
                    batches, on_merged=partial(self._view.retire, groups[-1].number)
                )
            self._answer(groups)
            for _ in appended:
                self._unapplied -= 1
                self._appended.task_done()

    def _answer(self, groups: Sequence[_Group]) -> None:
        for group in groups:
            del self._in_flight[group.number]
            group.answer()


async def _is_done(answer: asyncio.Future[Any]) -> bool:
    """Whether what was asked has happened, or may have; nobody may be waiting for it any more."""
    await asyncio.wait([answer])
    return answer.cancelled() or answer.exception() is None
