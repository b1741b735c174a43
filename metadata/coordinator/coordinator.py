"""The coordinator of one metadata partition: decide, append, apply, answer.

How one operation goes through it:

1. *decide* - the deciding task takes all operations that wait (a group), looks up in SQLite what
   they need and memory has not (files by key, producer states), and then, without another await,
   decides one after the other against the speculative view: committed state plus everything that
   is pending. An operation becomes records and an answer.
2. *append* - the appending task takes all groups that were decided meanwhile and appends them to
   the metadata log with one call: one sync or one put for however many operations (group commit).
   While it waits, the next groups are decided on top: that is the pipeline.
3. *apply* - the applying task hands durable batches to the writer thread, which turns them into
   rows in one SQLite transaction together with the applied offset and the state hash.
4. *answer* - memory takes over what was applied, listeners hear which partitions grew, callers get
   their answers. So whatever was answered can be read by whoever asks afterwards.

An append that fails (CommitFailed) left the log as it was. Then every operation that was decided on
top of it fails the same way, everything durable is applied, the view is dropped, and deciding goes
on from the committed state: no offset hole, no answer built on what never happened. After an append
with an unknown outcome, or when the log says that somebody else writes it now, the coordinator
stops: `run` raises, its callers get CommitOutcomeUnknown or NotCoordinator, and whoever leads next
finds out by replay what became durable. Replay and live operation share `RecordApplier`.

An operation without records (an answer that was known, a refusal) still waits its turn behind what
it was decided on: its answer may rest on something pending.

Strict reads ask for the lease after they have read: as long as it holds, nobody else can have
changed anything that was acknowledged before.

metadata/coordinator/metadata_partition.py makes one of these when this process has come to lead,
runs `run`, and drops it when it ends. Source: KIP-1164, "How operations are performed".
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from metadata import operations as ops
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import NoOpRecord, ProducersExpiredRecord, RowsSweptRecord
from metadata.records.groups import WHENEVER_COMMITTED, CommittedOffset
from metadata.records.records import SegmentCommittedRecord, encode_record
from metadata.replica.replica import ROWS_PER_PARTITION_MAX, Replica
from metadata.rules.brokers import decide_register_broker, decide_unregister_brokers
from metadata.rules.commit import Decision, check_commit, decide_commit, producers_of
from metadata.rules.files import (
    check_file_keys,
    decide_forget,
    decide_hand_over,
    decide_seal,
    decide_tombstone,
)
from metadata.rules.groups import (
    commit_offsets_decisions,
    delete_group_decision,
    delete_offsets_decisions,
    store_group_decision,
)
from metadata.rules.quotas import decide_alter_client_quotas
from metadata.rules.segments import candidates, decide_commit_segments, decide_plans, survey
from metadata.rules.topics import (
    PRODUCER_ID_BLOCK,
    decide_allocate_producer_ids,
    decide_alter_topic_configs,
    decide_create_partitions,
    decide_create_partitions_at,
    decide_create_topics,
    decide_delete_records,
    decide_delete_topics,
)
from metadata.state.image import ProducerKey
from metadata.state.queries import (
    DeletableFile,
    deletable_files,
    describe_files,
    look_up,
    segment_plan,
)
from metadata.state.speculative import SpeculativeView
from metadata.workers.broker_sessions import BrokerSessions
from metadata.workers.deletion_steps import delete_records_in_steps
from wal.clock import Clock, Sleep
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    Overloaded,
)
from wal.failpoint import failpoint
from wal.steady_clock import SteadyClock

GROUP_ROWS_MAX: Final = 1_000
"""Rows that are decided at once, unless one operation has more of them; some 5 ms of the event
loop."""
GROUPS_DECIDED_MAX: Final = 4
"""Groups decided and not yet appended; more would only deepen what one failure takes along."""
APPENDS_UNAPPLIED_MAX: Final = 4
"""Appends that are durable but not in SQLite yet; when it falls behind, appending waits."""
_LEASE_RETRY_S: Final = 0.5

_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


@dataclass(slots=True, eq=False)
class _Operation:
    """One call waiting for its turn. `decide` may raise DisklessError; then it changed nothing."""

    decide: Callable[[SpeculativeView, int], Decision[Any]]
    answer: "asyncio.Future[Any]"
    object_keys: Sequence[ObjectKey] = ()
    producers: Callable[[SpeculativeView], Sequence[ProducerKey]] | None = None
    row_count: int = 0
    """What it walks while it decides, where that may be much."""


@dataclass(slots=True, eq=False)
class _Group:
    """Operations that were decided together."""

    number: int
    first_offset: int
    operations: list[_Operation] = field(default_factory=list)
    outcomes: list[object | DisklessError] = field(default_factory=list)
    batches: list[Sequence[bytes]] = field(default_factory=list)
    has_segments: bool = False

    @property
    def record_count(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def answer(self) -> None:
        for operation, outcome in zip(self.operations, self.outcomes, strict=True):
            if operation.answer.done():
                continue  # the caller was cancelled; the operation happened all the same
            if isinstance(outcome, DisklessError):
                operation.answer.set_exception(outcome)
            else:
                operation.answer.set_result(outcome)


@dataclass(slots=True, eq=False)
class _Appended:
    """Groups whose records are durable, and the batches to apply."""

    groups: Sequence[_Group]
    batches: Sequence[MetadataRecordBatch]


class PartitionCoordinator:
    """The coordinator of one metadata partition: leads its log, decides on its replica's state.

    `metadata.coordinator.metadata_partition` makes one when this process has come to lead, and a
    new one each time; `run` ends when it does not lead any more.
    """

    def __init__(
        self,
        replica: Replica,
        log: MetadataLog,
        *,
        clock: Clock,
        rng: random.Random,
        settings: CoordinatorSettings,
        sleep: Sleep = asyncio.sleep,
        lease_renewal_ms: int = 0,
        deposed: int | None = None,
    ) -> None:
        """`replica` is open and has applied all of `log`, which this process leads.

        `lease_renewal_ms`: an idle leader appends something when its lease has only that long left.
        `deposed`: the broker that led before, if it let its lease end instead of resigning.
        """
        self.replica: Final = replica
        self._log = log
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._sleep = sleep
        self._lease_renewal_s = lease_renewal_ms / 1000
        self._state = replica.state
        self._image = replica.image
        self._view = SpeculativeView(self._image)
        self._names = replica.names
        self._waiting: asyncio.Queue[_Operation] = asyncio.Queue(settings.pending_operations_max)
        self._decided: asyncio.Queue[_Group] = asyncio.Queue()
        self._may_decide = asyncio.Semaphore(GROUPS_DECIDED_MAX)
        self._appended: asyncio.Queue[_Appended] = asyncio.Queue(APPENDS_UNAPPLIED_MAX)
        self._steady = asyncio.Event()
        self._steady.set()
        self._in_flight: dict[int, _Group] = {}
        self._deciding: list[_Operation] = []
        self._maybe_durable: set[int] = set()
        self._stopped: DisklessError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._last_time_ms = self._image.timestamp_ms
        self._steady_clock = SteadyClock(clock)

        self.sessions: Final = BrokerSessions(
            replica.brokers,
            self.unregister_brokers,
            clock=clock,
            timeout_ms=settings.session_timeout_ms,
            deposed=deposed,
            sleep=sleep,
        )
        """Of the brokers of the cluster, if this is the catalogue; run it beside."""

    # -- life -----------------------------------------------------------------------------------

    @property
    def coordinator_id(self) -> int:
        """The metadata partition it leads."""
        return self.replica.coordinator_id

    @property
    def steady_ms(self) -> int:
        """The time by which producers expire: a wall clock that jumps ahead does not move it."""
        return self._steady_clock.now_ms()

    async def stop(self) -> None:
        """End `run` and see it end. An append under way still becomes durable."""
        self._stop(NotCoordinator("the coordinator is closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await self._ended.wait()

    async def run(self) -> None:
        """Serve until closed or cancelled.

        Raises when it cannot go on; it must then be opened anew, which finds out what is durable.
        """
        if self._stopped is not None:
            return  # closed before its task got to run
        stopped: DisklessError = NotCoordinator("the coordinator is stopping")
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = [
                    tasks.create_task(self._decide_groups(), name="coordinator-decide"),
                    tasks.create_task(self._append_groups(), name="coordinator-append"),
                    tasks.create_task(self._apply_appended(), name="coordinator-apply"),
                    tasks.create_task(self._keep_lease(), name="coordinator-lease"),
                ]
        except BaseExceptionGroup as errors:
            if isinstance(first := errors.exceptions[0], NotCoordinator):
                stopped = first
            raise
        finally:
            self._stop(stopped)
            self._ended.set()

    def _stop(self, reason: DisklessError) -> None:
        """Fail what was not answered: what may be durable differently from what cannot be."""
        if self._stopped is None:
            self._stopped = reason
        for group in self._in_flight.values():
            for operation in group.operations:
                if not operation.answer.done():
                    operation.answer.set_exception(
                        CommitOutcomeUnknown(f"the coordinator stopped: {reason}")
                        if group.number in self._maybe_durable
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

    async def _perform(
        self,
        decide: Callable[[SpeculativeView, int], Decision[_Answer]],
        *,
        object_keys: Sequence[ObjectKey] = (),
        producers: Callable[[SpeculativeView], Sequence[ProducerKey]] | None = None,
        row_count: int = 0,
    ) -> _Answer:
        """Queue an operation and wait for its answer; waits when too many are queued already."""
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._refuse_when_stopped()
        await self._waiting.put(_Operation(decide, answer, object_keys, producers, row_count))
        if not answer.done():
            # It may have stopped while this call waited for room in a queue nobody empties now.
            self._refuse_when_stopped()
        return await answer

    def _refuse_when_stopped(self) -> None:
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
            if keys or missing:
                found = await self._state.read(partial(look_up, keys=keys, producers=missing))
                view.finish_look_up(found.files, found.producers)
            if self._steady.is_set() and not self._unknown_producers(operations):
                return

    def _unknown_producers(self, operations: Sequence[_Operation]) -> set[ProducerKey]:
        """Those that `operations` will ask for and the view cannot answer."""
        unknown: set[ProducerKey] = set()
        for operation in operations:
            if operation.producers is not None:
                unknown |= self._view.unknown_producers(operation.producers(self._view))
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
        return group

    def _now_ms(self) -> int:
        """Wall time that never goes back, not even over a restart: it becomes LogAppendTime."""
        self._last_time_ms = max(self._last_time_ms, self._clock.now_ms())
        return self._last_time_ms

    # -- 2. append ------------------------------------------------------------------------------

    async def _append_groups(self) -> None:
        while True:
            groups = [await self._decided.get()]
            records = groups[0].record_count
            while not self._decided.empty() and records < self._settings.group_records_max:
                groups.append(self._decided.get_nowait())
                records += groups[-1].record_count
            batches: list[Sequence[bytes]] = [batch for group in groups for batch in group.batches]
            timestamp_ms = self._now_ms()
            offset = groups[0].first_offset
            if batches:
                self._maybe_durable.update(group.number for group in groups)
                failpoint("commit.before_log")
                try:
                    await self._log.append(batches, timestamp_ms, at_offset=offset)
                except (CommitFailed, Overloaded, AppendTooLarge) as error:
                    await self._fail_pending(groups, error)
                    continue
                except NotCoordinator:
                    self._maybe_durable.difference_update(group.number for group in groups)
                    raise
                failpoint("commit.after_log")
                if any(group.has_segments for group in groups):
                    failpoint("segment.after_log")
            appended = []
            for batch in batches:
                appended.append(MetadataRecordBatch(offset, timestamp_ms, batch))
                offset += len(batch)
            await self._appended.put(_Appended(groups, appended))
            for _ in groups:
                self._may_decide.release()

    async def _fail_pending(self, groups: list[_Group], error: DisklessError) -> None:
        """Nothing of `groups` happened, hence nothing of what was decided on top of them."""
        self._steady.clear()
        while not self._decided.empty():
            groups.append(self._decided.get_nowait())
        for group in groups:
            self._in_flight.pop(group.number)
            self._maybe_durable.discard(group.number)
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
                await self.replica.apply(
                    batches, on_merged=partial(self._view.retire, groups[-1].number)
                )
            for group in groups:
                del self._in_flight[group.number]
                self._maybe_durable.discard(group.number)
                group.answer()
            for _ in appended:
                self._appended.task_done()

    # -- operations: topics ---------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        """An entry is the created topic, TopicExists or InvalidPartitions. Raises CommitFailed."""
        return await self._perform(lambda view, _: decide_create_topics(view, topics, self._rng))

    async def create_partitions(
        self, requests: Sequence[ops.CreatePartitions]
    ) -> Sequence[DisklessError | None]:
        """The catalogue's part. An entry is None, TopicExists or InvalidPartitions."""
        return await self._perform(lambda view, _: decide_create_partitions(view, requests))

    async def create_partitions_at(
        self, requests: Sequence[ops.CreatePartitionsAt]
    ) -> Sequence[DisklessError | None]:
        """This coordinator's share of topics. An entry is None or InvalidPartitions."""
        return await self._perform(lambda view, _: decide_create_partitions_at(view, requests))

    async def register_broker(self, broker: ops.RegisteredBroker) -> None:
        """A broker is alive; written down when it is new or somewhere else.

        One without a host says that it stops.
        Raises: InvalidRequest (another live broker has its node id), CommitFailed.
        """
        if not broker.host:
            self.sessions.forget(broker.broker_id)
            await self.unregister_brokers([broker.broker_id])
            return
        self.sessions.hear(broker)
        await self._perform(lambda view, _: decide_register_broker(view, broker))

    async def unregister_brokers(self, broker_ids: Sequence[int]) -> None:
        """These brokers are gone; those that are not registered are skipped."""
        await self._perform(lambda view, _: decide_unregister_brokers(view, broker_ids))

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]:
        """An entry is None or UnknownTopicId. Raises CommitFailed."""
        return await self._perform(lambda view, _: decide_delete_topics(view, topic_ids))

    # -- operations: data -----------------------------------------------------------------------

    async def commit_file(self, request: ops.CommitFile) -> Sequence[ops.BatchCommit]:
        """See the protocol. Raises: Rejected, ObjectExpired, CommitFailed, CommitOutcomeUnknown."""
        commit = check_commit(request, self._settings)
        return await self._perform(
            lambda view, now_ms: decide_commit(
                view,
                commit,
                now_ms=now_ms,
                wall_ms=self._clock.now_ms(),
                steady_ms=self.steady_ms,
                settings=self._settings,
            ),
            object_keys=(request.object_key,),
            producers=partial(producers_of, commit),
        )

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords]
    ) -> Sequence[ops.DeletedRecords]:
        """An entry has the new log start, OffsetOutOfRange or UnknownPartition.

        A deletion of many rows is several operations, so that commits have their turn in between.
        """
        return await delete_records_in_steps(self, requests)

    async def delete_records_at_once(
        self, requests: Sequence[ops.DeleteRecords]
    ) -> Sequence[ops.DeletedRecords]:
        """The same in one operation; the caller bounds how many rows it deletes."""
        return await self._perform(lambda view, _: decide_delete_records(view, requests))

    async def sweep_rows(self, limit: int) -> None:
        """Delete up to `limit` rows that deleted topics have left behind. Raises CommitFailed."""
        record = RowsSweptRecord(limit=limit)
        await self._perform(lambda view, _: Decision((record,), None))

    async def expire_producers(self, limit: int) -> None:
        """Forget up to `limit` producers that have expired by now. Raises CommitFailed."""
        expiration_ms = self._settings.producer_expiration_ms
        await self._perform(
            lambda view, _: Decision(
                (ProducersExpiredRecord(before_ms=self.steady_ms - expiration_ms, limit=limit),),
                None,
            )
        )

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        rows_per_partition_max: int = ROWS_PER_PARTITION_MAX,
    ) -> Sequence[ops.FoundBatches]:
        """See `Replica.find_batches`; what was answered before can be found."""
        return await self.replica.find_batches(
            requests,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            rows_per_partition_max=rows_per_partition_max,
        )

    async def list_offsets(self, requests: Sequence[ops.ListOffsets]) -> Sequence[ops.ListedOffset]:
        """Strictly consistent. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown.

        What was answered has been applied, so committed state is enough, as long as nobody else
        led before it was read. That is asked afterwards.
        """
        listed = await self.replica.list_offsets(requests)
        await self.confirm_leadership()
        return listed

    async def confirm_leadership(self) -> None:
        """Return when nobody else can have led until now: by the lease, else by an append.

        Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown.
        """
        self._refuse_when_stopped()
        expires_at = self._log.lease_expires_at
        if expires_at is None:
            raise NotCoordinator("this process does not lead the metadata log")
        if self._clock.monotonic() >= expires_at:
            await self.append_no_op()

    async def _keep_lease(self) -> None:
        """Whoever commits renews the lease by it; an idle leader appends for that alone."""
        while (expires_at := self._log.lease_expires_at) is not None and expires_at < math.inf:
            left_s = expires_at - self._clock.monotonic()
            if left_s > self._lease_renewal_s:
                await self._sleep(left_s - self._lease_renewal_s)
                continue
            try:
                await self.append_no_op()
            except (CommitFailed, Overloaded) as error:
                _logger.warning("the lease of coordinator %d: %s", self.coordinator_id, error)
                await self._sleep(_LEASE_RETRY_S)

    async def append_no_op(self) -> None:
        """Prove and prolong leadership. Raises like `confirm_leadership`."""
        leader = self._image.leader
        record = NoOpRecord(leader_epoch=0 if leader is None else leader.leader_epoch)
        await self._perform(lambda view, _: Decision((record,), None))

    async def allocate_producer_ids(self) -> range:
        """A block of ids, reserved durably before any of it is given out."""
        first = await self._perform(lambda view, _: decide_allocate_producer_ids(view))
        return range(first, first + PRODUCER_ID_BLOCK)

    # -- operations: segments and files ---------------------------------------------------------

    async def plan_segments(self, *, include_partial: bool = False) -> Sequence[ops.SegmentPlan]:
        """See the protocol; at most `plans_per_call_max` plans are outstanding at any time."""
        limit = self._settings.plans_per_call_max
        room = limit - len(self._image.plans)
        found = (
            candidates(self._image, self._settings, self.replica.topic_configs) if room > 0 else ()
        )
        if found:
            proposals = await self._state.read(
                partial(
                    survey,
                    partitions=found,
                    now_ms=self._clock.now_ms(),
                    include_partial=include_partial,
                    proposals_max=room,
                )
            )
            if proposals:
                await self._perform(
                    lambda view, now_ms: decide_plans(
                        view, proposals, now_ms, outstanding_max=limit
                    )
                )
        outstanding = []
        for plan in sorted(self._image.plans.values(), key=lambda plan: plan.object_key):
            partition_id = self.replica.partition_id(plan.partition)
            topic = self.replica.topic_by_id(plan.partition.topic_id)
            if partition_id is not None and topic is not None:
                outstanding.append((plan, partition_id, topic.name))
        plans = await self._state.read(
            lambda connection: [
                segment_plan(connection, self._names, *planned) for planned in outstanding
            ]
        )
        return [plan for plan in plans if plan is not None]

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment]
    ) -> Sequence[ops.SegmentCommit]:
        """An entry is empty, a duplicate, UnknownPartition or Rejected (is not as planned)."""
        return await self._perform(
            lambda view, _: decide_commit_segments(view, segments),
            object_keys=[segment.object_key for segment in segments],
        )

    async def deletable_files(
        self, *, before_ms: int, after: tuple[int, int], limit: int, is_owner: bool
    ) -> Sequence[tuple[tuple[int, int], DeletableFile]]:
        """For the file workers: files without live batches since before `before_ms`, by age."""
        return await self._state.read(
            partial(
                deletable_files,
                before_ms=before_ms,
                after=after,
                limit=limit,
                is_owner=is_owner,
            )
        )

    async def describe_files(self, keys: Sequence[ObjectKey]) -> Sequence[ops.DescribedFile]:
        """Whether there are live batches in each file; an entry may be UnknownFile."""
        check_file_keys(keys)
        return await self._state.read(partial(describe_files, keys=keys))

    async def hand_over_files(
        self, files: Sequence[ops.HandedFile]
    ) -> Sequence[DisklessError | None]:
        """Own these files from now on; an entry is None or InvalidRequest. Raises CommitFailed."""
        keys = [file.object_key for file in files]
        check_file_keys(keys)
        return await self._perform(lambda view, _: decide_hand_over(view, files), object_keys=keys)

    async def tombstone_files(self, keys: Sequence[ObjectKey]) -> Sequence[ops.Tombstone]:
        """Never commit these keys, except for those known here. Raises CommitFailed."""
        check_file_keys(keys)
        return await self._perform(lambda view, _: decide_tombstone(view, keys), object_keys=keys)

    async def seal_files(self, keys: Sequence[ObjectKey]) -> None:
        """For the file workers: never commit what was handed over to us and is too old now."""
        await self._perform(lambda view, _: decide_seal(view, keys), object_keys=keys)

    async def forget_files(self, keys: Sequence[ObjectKey], *, tombstones: bool = False) -> None:
        """For the file workers: these objects are dealt with. Raises CommitFailed."""
        await self._perform(
            lambda view, _: decide_forget(view, keys, tombstones=tombstones), object_keys=keys
        )

    # -- operations: configs --------------------------------------------------------------------

    async def alter_topic_configs(
        self, requests: Sequence[ops.AlterTopicConfigs]
    ) -> Sequence[ops.AlteredTopicConfigs]:
        """The catalogue's. An entry may be UnknownTopicId. Raises CommitFailed."""
        return await self._perform(lambda view, _: decide_alter_topic_configs(view, requests))

    # -- operations: quotas ---------------------------------------------------------------------

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas]
    ) -> Sequence[DisklessError | None]:
        """The catalogue's. An entry may be PolicyViolation. Raises CommitFailed."""
        return await self._perform(lambda view, _: decide_alter_client_quotas(view, requests))

    # -- operations: consumer groups ------------------------------------------------------------

    async def commit_offsets(self, group_id: str, offsets: Sequence[CommittedOffset]) -> None:
        """Durable on return; calls of many groups share an append. Whoever comes last wins.

        A call that fails may have committed some of very many offsets; it is repeated as a whole.

        Raises: InvalidRequest, AppendTooLarge, CommitFailed, CommitOutcomeUnknown, NotCoordinator.
        """
        for decision in commit_offsets_decisions(group_id, offsets):
            await self._perform(partial(_as_decided, decision), row_count=len(offsets))

    async def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicIdPartition],
        *,
        committed_until_ms: int = WHENEVER_COMMITTED,
    ) -> None:
        """Forget what the group committed of `partitions` until then. Raises as above."""
        for decision in delete_offsets_decisions(group_id, partitions, committed_until_ms):
            await self._perform(partial(_as_decided, decision), row_count=len(partitions))

    async def store_group(self, group_id: str, kind: int, state: bytes) -> None:
        """Remember `state` in place of what was stored before. Raises as `commit_offsets`."""
        await self._perform(
            lambda view, now_ms: store_group_decision(group_id, kind, state, now_ms)
        )

    async def delete_group(self, group_id: str) -> None:
        """Forget the group and its offsets, if there is any of it. Raises as `commit_offsets`."""
        await self._perform(partial(_as_decided, delete_group_decision(group_id)))


def _as_decided(decision: Decision[None], view: SpeculativeView, now_ms: int) -> Decision[None]:
    """For what does not depend on the state."""
    return decision
