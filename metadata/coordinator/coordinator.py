"""The coordinator of one metadata partition: what it can be asked, and which rule decides it.

An operation that changes something is a rule of `metadata.rules` that goes through the pipeline
(metadata/coordinator/pipeline.py): it is answered when its records are durable and applied. A read
is a question to the replica; one that has to be strictly consistent asks the log afterwards
(metadata/coordinator/lease.py).

metadata/coordinator/metadata_partition.py makes one of these when this process has come to lead,
runs `run`, and drops it when it ends.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from metadata import operations as ops
from metadata import rewrites as rw
from metadata.coordinator.catalogue import Catalogue
from metadata.coordinator.lease import NO_LEASE, Keeping, Lease
from metadata.coordinator.pipeline import Pipeline
from metadata.coordinator.rewrites import commit_rewrites, plan_rewrites
from metadata.coordinator.segment_plans import plan_segments, topic_schemas
from metadata.coordinator.sink_notes import NotePlace, SinkNotes
from metadata.coordinator.sinks import Sinks
from metadata.coordinator.transactions import Transactions
from metadata.log.log import MetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import ProducersExpiredRecord, RowsSweptRecord
from metadata.records.groups import WHENEVER_COMMITTED, CommittedOffset
from metadata.replica.replica import Replica
from metadata.retention_settings import DEFAULT_RETENTION, RetentionSettings
from metadata.rules.brokers import decide_leave, decide_register_broker, decide_unregister_brokers
from metadata.rules.commit import Decision, check_commit, closed_of, decide_commits, producers_of
from metadata.rules.commit_request import CheckedCommit
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
from metadata.rules.segments import decide_commit_segments
from metadata.rules.tables import Hold, hold_of
from metadata.rules.topics import (
    PRODUCER_ID_BLOCK,
    decide_allocate_producer_ids,
    decide_create_partitions,
    decide_create_partitions_at,
    decide_create_topics,
    decide_delete_records,
    decide_delete_topics,
)
from metadata.state.queries.file_queries import DeletableFile, deletable_files, describe_files
from metadata.state.speculative import SpeculativeView
from metadata.workers.broker_sessions import BrokerSessions
from metadata.workers.deletion_steps import delete_records_in_steps
from wal.clock import Clock, Sleep
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError, Rejected
from wal.steady_clock import SteadyClock


class PartitionCoordinator:
    """Leads the log of one metadata partition, and decides on its replica's state.

    There is a new one each time this process comes to lead; `run` ends when it does not any more.
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
        retention: RetentionSettings = DEFAULT_RETENTION,
        keeping: Keeping = NO_LEASE,
        deposed: ops.Leader | None = None,
        note_place: NotePlace | None = None,
    ) -> None:
        """`replica` is open and has applied all of `log`, which this process leads.

        `retention`: of topics that set none.
        `note_place`: where what sinks commit is noted.
        `deposed`: who led before, if it let its lease end instead of resigning.
        """
        self.replica: Final = replica
        self.deposed: Final = deposed
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._retention = retention
        self._steady_clock = SteadyClock(clock)
        self.pipeline: Final = Pipeline(replica, log, clock=clock, settings=settings)
        self._perform: Final = self.pipeline.perform
        self.catalogue: Final = Catalogue(self.pipeline, replica, clock=clock)
        """What it decides if it is the catalogue."""
        self.lease: Final = Lease(
            self.pipeline, replica, log, clock=clock, keeping=keeping, sleep=sleep
        )
        self.sessions: Final = BrokerSessions(
            replica.brokers,
            self.unregister_brokers,
            clock=clock,
            timeout_ms=settings.session_timeout_ms,
            deposed=None if deposed is None else deposed.broker_id,
            sleep=sleep,
        )
        """Of the brokers of the cluster, if this is the catalogue; run it beside."""
        self.sink_notes: Final = SinkNotes(replica, note_place, clock=clock, rng=rng, sleep=sleep)
        """Of what sinks commit; run it beside."""
        self.sinks: Final = Sinks(
            self.pipeline,
            replica,
            self.sink_notes,
            clock=clock,
            steady_clock=self._steady_clock,
            settings=settings,
        )
        self.transactions: Final = Transactions(
            self.pipeline, replica, clock=self._steady_clock, settings=settings
        )

    @property
    def coordinator_id(self) -> int:
        """The metadata partition it leads."""
        return self.replica.coordinator_id

    @property
    def steady_ms(self) -> int:
        """The time by which producers expire: a wall clock that jumps ahead does not move it."""
        return self._steady_clock.now_ms()

    async def run(self) -> None:
        """Serve until stopped or cancelled. Raises when it cannot go on, as `Pipeline.run` says."""
        await self.pipeline.run(self.lease.keep)

    async def stop(self) -> None:
        """End `run` and see it end. An append under way still becomes durable."""
        await self.pipeline.stop()

    # -- topics, brokers, quotas, acls ----------------------------------------------------------

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

        One without a host says that it stops, in that life. One that is registered already is not
        asked of the log: whom a deposed leader takes for registered reads that it is not.
        Raises: InvalidRequest (another live broker has its node id), CommitFailed.
        """
        if not broker.host:
            await self._perform(lambda view, _: decide_leave(view, broker))
            if broker.broker_id not in self.replica.brokers():
                self.sessions.forget(broker.broker_id)
            return
        self.sessions.hear(broker)
        if self.replica.brokers().get(broker.broker_id) != broker:
            await self._perform(lambda view, _: decide_register_broker(view, broker))

    async def unregister_brokers(self, broker_ids: Sequence[int]) -> None:
        """These brokers are gone; those that are not registered are skipped."""
        await self._perform(lambda view, _: decide_unregister_brokers(view, broker_ids))

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]:
        """An entry is None or UnknownTopicId. Raises CommitFailed."""
        return await self._perform(lambda view, _: decide_delete_topics(view, topic_ids))

    # -- data -------------------------------------------------------------------------------------

    async def commit_file(self, request: ops.CommitFile) -> Sequence[ops.BatchCommit]:
        """Raises: Rejected, ObjectExpired, CommitFailed, CommitOutcomeUnknown."""
        (file,) = await self.commit_files([request])
        if file.error is not None:
            raise file.error
        return file.batches

    async def commit_files(self, requests: Sequence[ops.CommitFile]) -> Sequence[ops.CommittedFile]:
        """Decide files in their order and append them together: all of them, or none.

        What is refused for one file is its answer, and the others are committed without it.
        Raises: CommitFailed, CommitOutcomeUnknown.
        """
        checked: list[CheckedCommit | DisklessError] = []
        for request in requests:
            try:
                checked.append(check_commit(request, self._settings))
            except Rejected as error:
                checked.append(error)
        commits = [commit for commit in checked if isinstance(commit, CheckedCommit)]
        if not commits:
            return [ops.CommittedFile(error=of) for of in checked if isinstance(of, Rejected)]
        return await self._perform(
            lambda view, now_ms: decide_commits(
                view,
                checked,
                now_ms=now_ms,
                wall_ms=self._clock.now_ms(),
                steady_ms=self.steady_ms,
                settings=self._settings,
            ),
            object_keys=[commit.request.object_key for commit in commits],
            producers=lambda view: [
                key for commit in commits for key in producers_of(commit, view)
            ],
            closed=lambda view: [key for commit in commits for key in closed_of(commit, view)],
        )

    async def expire_sinks(self, limit: int) -> int:
        """Forget up to `limit` sinks that have expired by now. Raises CommitFailed."""
        return await self.sinks.expire(limit)

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

    async def list_offsets(self, requests: Sequence[ops.ListOffsets]) -> Sequence[ops.ListedOffset]:
        """Strictly consistent. Raises: NotCoordinator, StorageFailed, CorruptLog.

        What was answered has been applied, so committed state is enough, as long as nobody else
        led before it was read. That is asked afterwards.
        """
        listed = await self.replica.list_offsets(requests)
        await self.lease.confirm()
        return listed

    async def allocate_producer_ids(self) -> range:
        """A block of ids, reserved durably before any of it is given out."""
        first = await self._perform(lambda view, _: decide_allocate_producer_ids(view))
        return range(first, first + PRODUCER_ID_BLOCK)

    # -- segments and files -----------------------------------------------------------------------

    async def plan_segments(
        self, asked: ops.PlanSegments = ops.WHATEVER_IS_DUE
    ) -> Sequence[ops.SegmentPlan]:
        """At most `plans_per_call_max` plans are outstanding at any time."""
        return await plan_segments(
            self.pipeline,
            self.replica,
            clock=self._clock,
            settings=self._settings,
            unsettled=self.sinks.unsettled,
            asked=asked,
        )

    def topic_schemas(
        self, asked: ops.PlanSegments = ops.WHATEVER_IS_DUE
    ) -> Sequence[ops.TopicSchemas]:
        """Of topics whose typed columns the job that asks should look after."""
        return topic_schemas(self.replica, asked)

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment]
    ) -> Sequence[ops.SegmentCommit]:
        """An entry is empty, a duplicate, UnknownPartition or Rejected (is not as planned)."""
        return await self._perform(
            lambda view, _: decide_commit_segments(view, segments),
            object_keys=[segment.object_key for segment in segments],
        )

    async def plan_rewrites(self, asked: rw.PlanRewrites) -> Sequence[rw.RewritePlan]:
        """At most `plans_per_call_max` rewrites are under way at any time, one for a partition."""
        return await plan_rewrites(
            self.pipeline,
            self.replica,
            clock=self._clock,
            settings=self._settings,
            retention=self._retention,
            asked=asked,
        )

    async def commit_rewrites(self, rewrites: Sequence[rw.Rewrite]) -> Sequence[rw.RewriteCommit]:
        """An entry is empty, a duplicate, UnknownPartition or Rejected (is not as planned)."""
        return await commit_rewrites(self.pipeline, self.replica, rewrites)

    async def deletable_files(
        self, *, before_ms: int, after: tuple[int, int], limit: int, is_owner: bool
    ) -> Sequence[tuple[tuple[int, int], DeletableFile]]:
        """For the file workers: files without live batches since before `before_ms`, by age."""
        return await self.replica.state.read(
            partial(
                deletable_files,
                before_ms=before_ms,
                after=after,
                limit=limit,
                is_owner=is_owner,
            )
        )

    def hold_of(self, file: DeletableFile, now_ms: int) -> Hold:
        """For the file workers: whether the table of a segment's topic may name it still."""
        if (left := file.segment_left) is None:
            return Hold.NONE
        topic_id, left_offset = left
        return hold_of(
            self.replica.topic_configs(topic_id),
            self.replica.table(topic_id) or self.replica.gone_table(topic_id),
            coordinator_id=self.coordinator_id,
            left_offset=left_offset,
            left_ms=file.deletable_since_ms,
            now_ms=now_ms,
            owner_max_ms=self._settings.table_owner_max_ms,
        )

    async def describe_files(self, keys: Sequence[ObjectKey]) -> Sequence[ops.DescribedFile]:
        """Whether there are live batches in each file; an entry may be UnknownFile."""
        check_file_keys(keys)
        return await self.replica.state.read(partial(describe_files, keys=keys))

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

    # -- consumer groups --------------------------------------------------------------------------

    async def commit_offsets(self, group_id: str, offsets: Sequence[CommittedOffset]) -> None:
        """Durable on return; calls of many groups share an append. The last one wins.

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
