"""Operations of a coordinator at random, each compared with a model in plain dicts.

`CoordinatorMachine` is given a world by those who inherit it.
"""

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metadata import operations as ops
from metadata.apply import apply_topics
from metadata.replica.replica import Replica
from metadata.retention_settings import RetentionSettings
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper
from tests.support.coordinators.contender import LEASE_MS
from tests.support.coordinators.coordinator_bench import batch, rolled
from tests.support.coordinators.coordinator_model import (
    SEQUENCES,
    CoordinatorModel,
    Outcome,
    outcomes_of,
    rows_of,
)
from tests.support.coordinators.coordinator_worlds import SETTINGS, StateFate, World
from tests.support.transactions.transaction_rules import GROUPS, TransactionRules
from wal import errors
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME, BatchExtent, ByteOffset, TopicIdPartition
from wal.failpoint import arm

TOPICS_MAX: Final = 3
PARTITIONS_MAX: Final = 4
PRODUCERS: Final = 3
RETENTION: Final = RetentionSettings(retention_ms=20_000, retention_bytes=900, step_rows_max=2)

_Result = TypeVar("_Result")

numbers = st.integers(0, 999)
"""Chooses among what there is."""
fates = st.sampled_from(StateFate)
batches = st.lists(
    st.tuples(
        numbers,
        st.integers(-1, PRODUCERS - 1),
        st.integers(1, 4),
        st.sampled_from([0, 0, 0, 0, 0, -1, -2, 1]),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
        st.booleans(),
    ),
    max_size=8,
)
"""(partition, producer or -1, records, how far from the next sequence and epoch, LogAppendTime)."""


class CoordinatorMachine(TransactionRules, RuleBasedStateMachine):
    """The operations, on whatever world."""

    def make_world(self, directory: Path) -> World:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.scratch = tempfile.TemporaryDirectory(prefix="coordinator-machine-")
        # Deleted topics leave something behind to be swept.
        self.patches = [patch.object(apply_topics, "SWEPT_WITH_TOPIC_MAX", 2)]
        for patched in self.patches:
            patched.start()
        self.world = self.make_world(Path(self.scratch.name))
        self.model = CoordinatorModel(SETTINGS)
        self.names = itertools.count()
        self.commits: list[ops.CommitFile] = []
        self.last_answers: list[ops.BatchCommit] = []
        self.is_open = False

    @initialize()
    def open(self) -> None:
        self.run(self.world.open())
        self.is_open = True
        self.create_topic(PARTITIONS_MAX - 1, 0)

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return self.loop.run_until_complete(work)

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    # -- what there is to choose from -----------------------------------------------------------

    def partition(self, number: int) -> TopicIdPartition:
        """One that exists; now and then one that does not."""
        names = list(self.model.partitions)
        if not names or number % 50 == 49:
            return TopicIdPartition(self.world.life(), 0)
        return names[number % len(names)]

    def sent(self, wanted: tuple[int, int, int, int, int, bool]) -> BatchExtent:
        number, producer, count, shift, epoch_shift, is_append_time = wanted
        name = self.partition(number)
        fields: dict[str, Any] = {
            "size": 60 + 10 * count,
            "timestamp_ms": self.now_ms - 7 * (number % 5),
            "timestamp_type": LOG_APPEND_TIME if is_append_time else CREATE_TIME,
        }
        if producer >= 0:
            epoch, sequence = self.next_of(name, producer)
            # The last producer begins where sequences wrap soon.
            fields["epoch"] = max(epoch + epoch_shift, 0)
            fields["sequence"] = (sequence + shift) % SEQUENCES if epoch_shift <= 0 else 0
        return batch(name, count, producer=producer, **fields)

    def next_of(self, name: TopicIdPartition, producer: int) -> tuple[int, int]:
        """What the client would send next."""
        partition = self.model.partitions.get(name)
        window = None if partition is None else partition.producers.get(producer)
        if window is None:
            return 0, SEQUENCES - 5 if producer == PRODUCERS - 1 else 0
        return window.epoch, window.next_sequence

    def file(self, sent: Sequence[BatchExtent], owners: Sequence[int] = (0,)) -> ops.CommitFile:
        self.world.pass_time(0.001)
        placed, position = [], 16
        for one in sent:
            placed.append(one._replace(byte_offset=ByteOffset(position)))
            position += one.length_bytes
        return ops.CommitFile(
            object_key=self.world.key(),
            file_size_bytes=position + 64,
            uploader_broker_id=0,
            batches=placed,
            owner_ids=owners,
        )

    # -- commits --------------------------------------------------------------------------------

    @rule(wanted=batches, owners=st.sampled_from([(0,), (0,), (0, 1), (1, 0), (1,)]))
    def commit(self, wanted: list[tuple[int, int, int, int, int, bool]], owners: Any) -> None:
        request = self.file([], owners)
        # A producer's batches in one file follow each other, unless they are shifted.
        sent: list[BatchExtent] = []
        ends: dict[tuple[TopicIdPartition, int], int] = {}
        for one in map(self.sent, wanted):
            key = (one.partition, one.producer_id)
            if one.producer_id >= 0 and key in ends and one.base_sequence:
                one = one._replace(base_sequence=ends[key])
            ends[key] = (one.base_sequence + one.record_count) % SEQUENCES
            sent.append(one)
        request = self.file(sent, owners)
        self.commits.append(request)
        self.commit_now(request)

    def commit_now(self, request: ops.CommitFile, times: Sequence[int] = ()) -> None:
        """Commit, and compare; `times`: it may have been committed at one of these."""
        expected = self.answer_of(self.world.coordinator.commit_file(request))
        if isinstance(expected, type):
            now_ms = self.now_ms
        else:
            fresh = [one.log_append_time_ms for one in expected if not one.is_duplicate]
            now_ms = next((time for time in times if time in fresh), self.now_ms)
        modelled = self.model.commit(request, now_ms=now_ms, wall_ms=self.now_ms)
        assert expected == modelled

    def answer_of(
        self, work: Coroutine[Any, Any, Sequence[ops.BatchCommit]]
    ) -> Sequence[Outcome] | type[errors.DisklessError]:
        async def answer() -> Sequence[Outcome] | type[errors.DisklessError]:
            try:
                return outcomes_of(await work)
            except errors.DisklessError as error:
                return type(error)

        return self.run(answer())

    @precondition(lambda self: self.commits)
    @rule(number=numbers, is_other=st.booleans())
    def commit_again(self, number: int, is_other: bool) -> None:
        """Sent once more by a broker that never got the answer; or other content under its key."""
        request = self.commits[number % len(self.commits)]
        if is_other:
            request = ops.CommitFile(
                object_key=request.object_key,
                file_size_bytes=request.file_size_bytes + 1,
                uploader_broker_id=0,
                batches=request.batches,
                owner_ids=request.owner_ids,
            )
        self.commit_now(request)

    @rule(
        wanted=st.lists(batches, min_size=2, max_size=4),
        fails=st.booleans(),
        deletes=st.booleans(),
        number=numbers,
    )
    def commit_together(
        self,
        wanted: list[list[tuple[int, int, int, int, int, bool]]],
        fails: bool,
        deletes: bool,
        number: int,
    ) -> None:
        """Operations that are decided on top of each other; the first append may fail.

        Whatever was decided on top of it then fails with it, or is decided anew.
        """
        requests = [self.file([self.sent(one) for one in some]) for some in wanted]
        self.commits += requests
        name = self.partition(number)
        coordinator = self.world.coordinator

        async def together() -> list[Any]:
            work: list[Coroutine[Any, Any, Any]] = [
                coordinator.commit_file(request) for request in requests
            ]
            if deletes:
                work.insert(1, coordinator.delete_records_at_once([ops.DeleteRecords(name, -1)]))
            return await asyncio.gather(*work, return_exceptions=True)

        if fails:
            self.run(self.world.settle())
            self.fail_next_append()
        answers = self.run(together())
        self.heal()
        if fails and (requests[0].batches or not deletes):
            assert isinstance(answers[0], errors.CommitFailed)
        if deletes:
            deleted = answers.pop(1)
        for position, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if deletes and position == 1 and not isinstance(deleted, errors.CommitFailed):
                expected = self.model.delete_records(name, -1)
                assert (deleted[0].log_start_offset, self.kind(deleted[0].error)) == expected
            if isinstance(answer, errors.CommitFailed):
                assert fails
                continue
            expected_answer = self.model.commit(request, now_ms=self.now_ms, wall_ms=self.now_ms)
            if isinstance(answer, errors.DisklessError):
                assert type(answer) is expected_answer
            else:
                assert outcomes_of(answer) == expected_answer

    def fail_next_append(self) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        raise NotImplementedError

    @staticmethod
    def kind(error: errors.DisklessError | None) -> type[errors.DisklessError] | None:
        return None if error is None else type(error)

    # -- topics ---------------------------------------------------------------------------------

    @rule(count=st.integers(1, PARTITIONS_MAX), number=numbers)
    def create_topic(self, count: int, number: int) -> None:
        taken = [topic.name for topic in self.model.topics.values()]
        if len(taken) >= TOPICS_MAX or (taken and number % 5 == 0):
            name = taken[number % len(taken)]
        else:
            name = f"topic-{next(self.names)}"
        (answer,) = self.run(
            self.world.coordinator.create_topics(
                [ops.CreateTopic(name=name, partition_count=count, configs={"a": str(number)})]
            )
        )
        refused = self.model.refuses_topic(name)
        if isinstance(answer, ops.TopicDescription):
            assert refused is None
            assert (answer.name, answer.partition_count) == (name, count)
            self.model.create_topic(answer)
        else:
            assert type(answer) is refused, repr(answer)

    @precondition(lambda self: self.model.topics)
    @rule(number=numbers, count=st.integers(1, PARTITIONS_MAX))
    def create_partitions(self, number: int, count: int) -> None:
        topic_id, topic = list(self.model.topics.items())[number % len(self.model.topics)]
        name = topic.name if number % 7 else f"not {topic.name}"
        (error,) = self.run(
            self.world.coordinator.create_partitions(
                [ops.CreatePartitions(topic_id=topic_id, name=name, partition_count=count)]
            )
        )
        assert self.kind(error) == self.model.grow_topic(topic_id, name, count)

    @precondition(lambda self: self.model.topics)
    @rule(number=numbers)
    def delete_topic(self, number: int) -> None:
        topic_id = list(self.model.topics)[number % len(self.model.topics)]
        gone = TopicIdPartition(topic_id, 0)
        for _ in range(2):
            (error,) = self.run(self.world.coordinator.delete_topics([topic_id]))
            assert self.kind(error) == self.model.delete_topic(topic_id)
        (found,) = self.run(
            self.world.replica.find_batches([ops.FindBatches(gone, 0, 1)], max_bytes=1)
        )
        assert isinstance(found.error, errors.UnknownPartition)

    @rule()
    def sweep(self) -> None:
        sweeper = RowSweeper(self.world.coordinator, settings=RETENTION)
        self.run(sweeper.pass_once())
        self.model.swept()

    # -- deleting -------------------------------------------------------------------------------

    @rule(number=numbers, fraction=st.floats(-0.1, 1.1), is_all=st.booleans())
    def delete_records(self, number: int, fraction: float, is_all: bool) -> None:
        name = self.partition(number)
        partition = self.model.partitions.get(name)
        end = 10 if partition is None else partition.end
        before = -1 if is_all else int(end * fraction) + (fraction > 1)
        (answer,) = self.run(
            self.world.coordinator.delete_records([ops.DeleteRecords(name, before)])
        )
        expected = self.model.delete_records(name, before)
        assert (answer.log_start_offset, self.kind(answer.error)) == expected

    @rule()
    def retain(self) -> None:
        """By what can be read of each partition, it is known beforehand what goes."""
        expected = {}
        for name, extents in self.run(self.model.read(self.world.replica)).items():
            rows = list(rows_of(extents))
            expected[name] = self.model.partitions[name].log_start
            left = sum(size for _, size, _ in rows)
            for last_offset, size, timestamp_ms in rows:
                left -= size
                is_old = timestamp_ms < self.now_ms - RETENTION.retention_ms
                if left < RETENTION.retention_bytes and not is_old:
                    break
                expected[name] = last_offset + 1
        worker = RetentionWorker(
            self.world.coordinator,
            settings=RETENTION,
            clock=self.world.clock,
        )
        self.run(worker.pass_once())
        for name, log_start in expected.items():
            assert self.world.replica.log_start_offset(name) == log_start
            self.model.delete_records(name, log_start)

    @rule()
    def expire_producers(self) -> None:
        worker = ProducerExpiry(
            self.world.coordinator,
            expiration_ms=SETTINGS.producer_expiration_ms,
            settings=RETENTION,
        )
        self.run(worker.pass_once())
        self.model.expire_producers(now_ms=self.now_ms)

    # -- segments -------------------------------------------------------------------------------

    @rule(include_partial=st.booleans(), keep=st.integers(0, 4), damage=st.booleans())
    def roll(self, include_partial: bool, keep: int, damage: bool) -> None:
        coordinator = self.world.coordinator
        asked = ops.PlanSegments(include_partial=include_partial)
        plans = self.run(coordinator.plan_segments(asked))
        self.model.plan(plans, is_everything=include_partial)
        segments = [rolled(plan) for plan in plans[keep:]]
        if damage and segments:
            wrong = segments[0].object_key
            lie = rolled(plans[keep], max_timestamp_ms=5)
            segments = [*segments, *segments[:1], lie]
            assert wrong == lie.object_key
        answers = self.run(coordinator.commit_segments(segments))
        for segment, answer in zip(segments, answers, strict=True):
            expected = self.model.commit_segment(segment)
            assert (answer.is_duplicate, self.kind(answer.error)) == expected

    # -- files ----------------------------------------------------------------------------------

    @rule(number=numbers, is_new=st.booleans())
    def tombstone(self, number: int, is_new: bool) -> None:
        keys = [*self.model.files][number % (len(self.model.files) or 1) :][:2]
        if is_new:
            request = self.file([batch(self.partition(number))])
            keys.append(request.object_key)
            self.commits.append(request)
        keys = [key for key in keys if key.startswith("wal/")]
        answers = self.run(self.world.coordinator.tombstone_files(keys))
        assert [answer.is_known for answer in answers] == [*map(self.model.tombstone, keys)]

    @rule(number=numbers, is_new=st.booleans())
    def hand_over(self, number: int, is_new: bool) -> None:
        if is_new:
            self.commits.append(self.file([batch(self.partition(number))], owners=(1, 0)))
        if not self.commits:
            return
        request = self.commits[-1 if is_new else number % len(self.commits)]
        file = ops.HandedFile(
            object_key=request.object_key,
            object_format=request.object_format,
            file_size_bytes=request.file_size_bytes,
            owner_ids=(1, 0),
        )
        assert self.run(self.world.coordinator.hand_over_files([file])) == [None]
        self.model.hand_over(file)
        strange = ops.HandedFile(
            object_key=request.object_key, object_format=1, file_size_bytes=1, owner_ids=(5,)
        )
        (error,) = self.run(self.world.coordinator.hand_over_files([strange]))
        assert isinstance(error, errors.InvalidRequest)

    @rule()
    def seal(self) -> None:
        keys = [key for key in self.model.files if key.startswith("wal/")]
        self.run(self.world.coordinator.seal_files(keys))
        for key in keys:
            self.model.seal(key)

    @rule(tombstones=st.booleans(), number=numbers)
    def forget(self, tombstones: bool, number: int) -> None:
        keys = self.model.forgettable(tombstones=tombstones)[: number % 3]
        # Those of the other kind must not go with them.
        others = self.model.forgettable(tombstones=not tombstones)[:1]
        coordinator = self.world.coordinator
        self.run(coordinator.forget_files([*keys, *others], tombstones=tombstones))
        self.model.forget([*keys, *others], tombstones=tombstones)

    # -- producers and brokers ------------------------------------------------------------------

    @rule()
    def allocate_producer_ids(self) -> None:
        block = set(self.run(self.world.coordinator.allocate_producer_ids()))
        assert not block & self.model.producer_ids, "an id was given out twice"
        self.model.producer_ids |= block

    @rule(number=st.integers(1, 3))
    def register_broker(self, number: int) -> None:
        broker = ops.RegisteredBroker(
            number, f"b{number}", 9092, "", self.world.life(), f"X://b{number}:9093"
        )
        self.run(self.world.coordinator.register_broker(broker))
        self.model.brokers[number] = broker

    @rule(number=st.integers(1, 3), is_another=st.booleans())
    def leave(self, number: int, is_another: bool) -> None:
        known = self.model.brokers.get(number)
        is_known = known is not None and not is_another
        life = known.incarnation if known is not None and is_known else self.world.life()
        gone = ops.RegisteredBroker(number, "", 0, "", life, "")
        self.run(self.world.coordinator.register_broker(gone))
        if is_known:
            del self.model.brokers[number]

    # -- reading --------------------------------------------------------------------------------

    @rule(number=numbers, timestamp_back_ms=st.integers(0, 40_000))
    def list_offsets(self, number: int, timestamp_back_ms: int) -> None:
        name = self.partition(number)
        wanted = [
            self.now_ms - timestamp_back_ms,
            ops.EARLIEST_TIMESTAMP,
            ops.LATEST_TIMESTAMP,
            ops.MAX_TIMESTAMP,
            ops.EARLIEST_LOCAL_TIMESTAMP,
            ops.LATEST_TIERED_TIMESTAMP,
        ]
        since, earliest, latest, greatest, local, tiered = self.run(
            self.world.coordinator.list_offsets([ops.ListOffsets(name, at) for at in wanted])
        )
        partition = self.model.partitions.get(name)
        if partition is None:
            assert isinstance(latest.error, errors.UnknownPartition)
            return
        extents = self.run(self.model.read(self.world.replica))[name]
        timed = list(zip(rows_of(extents), extents, strict=True))
        assert (earliest.offset, latest.offset) == (partition.log_start, partition.end)
        assert since.extent == next(
            (extent for (_, _, time), extent in timed if time >= wanted[0]), None
        )
        most = max((time for (_, _, time), _ in timed), default=None)
        assert greatest.extent == next(
            (extent for (_, _, time), extent in timed if time == most), None
        )
        live = [one for one in partition.segments if one.last_offset >= partition.log_start]
        last = max((one.last_offset for one in live), default=None)
        assert tiered.offset == (-1 if last is None else last)
        unrolled = [
            offset
            for offset in range(partition.log_start, partition.end)
            if partition.segment_of(offset) is None
        ]
        assert local.offset == min(unrolled, default=partition.end)

    # -- time, snapshots, restarts --------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 3.0, 21.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def snapshot(self) -> None:
        """Two of them, so that the log is pruned; a leader prunes only when it has led for long."""
        self.world.pass_time(LEASE_MS * 1.2 / 1000)
        for _ in range(2):
            self.allocate_producer_ids()
            self.run(self.world.snapshot())

    @rule(fate=fates, is_crash=st.booleans())
    def restart(self, fate: StateFate, is_crash: bool) -> None:
        self.run(self.world.restart(fate, is_crash=is_crash))

    @rule(is_applied=st.booleans(), fate=fates)
    def die_before_the_answer(self, is_applied: bool, fate: StateFate) -> None:
        """A commit that is durable and was never answered is there, once, when it is sent again."""
        # Where others apply too, they would be the ones that die.
        is_applied = is_applied and not self.world.has_rivals
        point = "commit.after_apply" if is_applied else "commit.after_log"
        self.run(self.world.settle())
        request = self.file([self.sent((0, 0, 2, 0, 0, False)), self.sent((1, -1, 1, 0, 0, False))])
        self.commits.append(request)
        sent_ms = self.now_ms
        arm(f"{point}=raise")
        try:
            answer = self.answer_of(self.world.coordinator.commit_file(request))
        finally:
            arm("")
        assert answer is errors.CommitOutcomeUnknown
        self.run(self.world.restart(fate, is_crash=False))
        self.commit_now(request, [sent_ms])
        if self.model.files[request.object_key].spans:
            (_, first, _), *_ = self.model.files[request.object_key].spans
            stored = self.model.partitions[request.batches[0].partition]
            assert stored.batches_of(first, first)[0].append_time_ms == sent_ms

    # -- what is always true --------------------------------------------------------------------

    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        if self.is_open:
            self.run(self.world.observe())
            self.run(self.check(self.world.replica))

    async def check(self, replica: Replica) -> None:
        """The replica has all that the models have."""
        await self.model.check(replica)
        await self.transactions.check(replica, GROUPS)

    def teardown(self) -> None:
        try:
            # What a step has found is not to be covered up by what follows from it.
            if self.is_open and sys.exc_info()[0] is None:
                self.run(self.finish())
        finally:
            for patched in self.patches:
                patched.stop()
            self.run(self.abandon())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.scratch.cleanup()

    async def abandon(self) -> None:
        """Of a machine that found something, nothing stays."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
            for task in left:
                if not task.cancelled():
                    task.exception()

    async def finish(self) -> None:
        for replica in await self.world.followers():
            await self.check(replica)
        await self.world.close()
