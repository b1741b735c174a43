"""What a coordinator must answer, worked out in plain dicts with an entry for every record.

    model = CoordinatorModel(settings)
    expected = model.commit(request, now_ms=now, wall_ms=now)
    assert outcomes_of(await coordinator.commit_file(request)) == expected
    await model.check(coordinator.replica)

It knows nothing of rows, columns, groups or pending operations, and it is written from KIP-1164 and
Kafka's rules for idempotent producers, not from the code. Operations happen one after the other, in
the order in which the model is asked; each answers what the coordinator has to answer and changes
the model as the coordinator has to be changed. What an operation that was refused leaves behind is
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.state.queries.file_queries import describe_files
from wal import errors
from wal.coordinates import LOG_APPEND_TIME, BatchExtent, ObjectKey, Offset, TopicIdPartition
from wal.ulid import minted_ms

SEQUENCES: Final = 2**31
WINDOW: Final = 5
WHOLE: Final = 1 << 40


class Outcome(NamedTuple):
    """The answer for one batch; of an error its kind."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    is_duplicate: bool = False
    error: type[errors.DisklessError] | None = None


def outcomes_of(answer: Sequence[ops.BatchCommit]) -> list[Outcome]:
    return [
        Outcome(*commit[:4], None if commit.error is None else type(commit.error))
        for commit in answer
    ]


class StoredBatch(NamedTuple):
    """A batch that was appended."""

    sent: BatchExtent
    key: ObjectKey
    base_offset: int
    append_time_ms: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.sent.record_count - 1

    @property
    def timestamp_ms(self) -> int:
        is_append_time = self.sent.timestamp_type == LOG_APPEND_TIME
        return self.append_time_ms if is_append_time else self.sent.max_timestamp_ms


@dataclass(slots=True)
class Window:
    """A producer on one partition: (base, last, base offset, append time) of its last batches."""

    epoch: int
    batches: list[tuple[int, int, int, int]]

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1][1] + 1) % SEQUENCES

    @property
    def last_append_ms(self) -> int:
        return self.batches[-1][3]


@dataclass(slots=True)
class ModelPartition:
    """Everything that was ever appended to it, whether it can still be read or not."""

    log_start: int = 0
    batches: list[StoredBatch] = field(default_factory=list)
    of_offset: list[int] = field(default_factory=list)
    """The place in `batches` of every offset from 0 on."""
    producers: dict[int, Window] = field(default_factory=dict)
    segments: list[ops.RolledSegment] = field(default_factory=list)
    planned_end: int = 0

    @property
    def end(self) -> int:
        return len(self.of_offset)

    def append(self, batch: StoredBatch) -> None:
        assert batch.base_offset == self.end
        self.of_offset += [len(self.batches)] * batch.sent.record_count
        self.batches.append(batch)

    def batches_of(self, first: int, last: int) -> list[StoredBatch]:
        return self.batches[self.of_offset[first] : self.of_offset[last] + 1]

    def segment_of(self, offset: int) -> ops.RolledSegment | None:
        for segment in self.segments:
            if segment.base_offset <= offset <= segment.last_offset:
                return segment
        return None


COMMITTED: Final = "committed"
HANDED_OVER: Final = "handed over"
SEALED: Final = "sealed"
TOMBSTONED: Final = "tombstoned"


@dataclass(slots=True)
class ModelFile:
    """A key that the coordinator knows."""

    standing: str
    content: object = None
    answer: Sequence[Outcome] = ()
    is_owner: bool = True
    spans: list[tuple[TopicIdPartition, int, int]] = field(default_factory=list)
    """The offsets that it got, per partition."""


@dataclass(slots=True)
class ModelTopic:
    name: str
    configs: Mapping[str, str]
    partition_count: int


class CoordinatorModel:
    """One coordinator that has all partitions itself."""

    def __init__(self, settings: CoordinatorSettings, coordinator_id: int = 0) -> None:
        self.settings = settings
        self.coordinator_id = coordinator_id
        self.topics: dict[UUID, ModelTopic] = {}
        self.partitions: dict[TopicIdPartition, ModelPartition] = {}
        self.files: dict[ObjectKey, ModelFile] = {}
        self.plans: dict[ObjectKey, ops.SegmentPlan] = {}
        self.brokers: dict[int, ops.RegisteredBroker] = {}
        self.forgotten_until_ms = -1
        self.producer_ids: set[int] = set()
        self.half_swept: set[ObjectKey] = set()
        """Files of deleted topics whose rows may still be there."""

    # -- topics ---------------------------------------------------------------------------------

    def refuses_topic(self, name: str) -> type[errors.DisklessError] | None:
        taken = any(topic.name == name for topic in self.topics.values())
        return errors.TopicExists if taken else None

    def create_topic(self, topic: ops.TopicDescription) -> None:
        assert topic.topic_id not in self.topics
        self.topics[topic.topic_id] = ModelTopic(topic.name, topic.configs, 0)
        self.grow_topic(topic.topic_id, topic.name, topic.partition_count)

    def grow_topic(
        self, topic_id: UUID, name: str, count: int
    ) -> type[errors.DisklessError] | None:
        """The topic has `count` partitions from now on; it is created if there is none."""
        named = {known for known, topic in self.topics.items() if topic.name == name}
        if named != self.topics.keys() & {topic_id}:
            return errors.TopicExists
        topic = self.topics.setdefault(topic_id, ModelTopic(name, {}, 0))
        if count < topic.partition_count:
            return errors.InvalidPartitions
        for index in range(topic.partition_count, count):
            self.partitions[TopicIdPartition(topic_id, index)] = ModelPartition()
        topic.partition_count = count
        return None

    def delete_topic(self, topic_id: UUID) -> type[errors.DisklessError] | None:
        if topic_id not in self.topics:
            return errors.UnknownTopicId
        before = {key for key in self.files if self.is_live(key)}
        del self.topics[topic_id]
        for partition in [known for known in self.partitions if known.topic_id == topic_id]:
            del self.partitions[partition]
        for key, plan in list(self.plans.items()):
            if plan.partition.topic_id == topic_id:
                del self.plans[key]
        self.half_swept |= {key for key in before if not self.is_live(key)}
        return None

    def swept(self) -> None:
        self.half_swept.clear()

    # -- commits --------------------------------------------------------------------------------

    def refuses_file(
        self, request: ops.CommitFile, *, wall_ms: int
    ) -> type[errors.DisklessError] | None:
        """Why the commit as a whole is refused, if it is."""
        key = request.object_key
        known = self.files.get(key)
        if known is not None and known.standing == COMMITTED:
            return None if known.content == _content(request) else errors.Rejected
        if known is not None and known.standing != HANDED_OVER:
            return errors.ObjectExpired
        minted = minted_ms(key)
        is_old = wall_ms - minted > self.settings.max_commit_age_ms
        return errors.ObjectExpired if is_old or minted <= self.forgotten_until_ms else None

    def commit(
        self, request: ops.CommitFile, *, now_ms: int, wall_ms: int
    ) -> Sequence[Outcome] | type[errors.DisklessError]:
        refusal = self.refuses_file(request, wall_ms=wall_ms)
        if refusal is not None:
            return refusal
        key = request.object_key
        known = self.files.get(key)
        if known is not None and known.standing == COMMITTED:
            return known.answer
        is_owner = known is not None or (*request.owner_ids, self.coordinator_id)[0] == (
            self.coordinator_id
        )
        file = ModelFile(COMMITTED, _content(request), is_owner=is_owner)
        file.answer = [self._commit_batch(file, key, batch, now_ms) for batch in request.batches]
        self.files[key] = file
        return file.answer

    def _commit_batch(
        self, file: ModelFile, key: ObjectKey, sent: BatchExtent, now_ms: int
    ) -> Outcome:
        partition = self.partitions.get(sent.partition)
        if partition is None:
            return Outcome(error=errors.UnknownPartition)
        last = (sent.base_sequence + sent.record_count - 1) % SEQUENCES
        if sent.producer_id >= 0:
            window = partition.producers.get(sent.producer_id)
            verdict = self._check_sequence(window, sent, last, now_ms)
            if isinstance(verdict, tuple):
                return Outcome(verdict[2], verdict[3], partition.log_start, True)
            if verdict is not None:
                return Outcome(error=verdict)
        base = partition.end
        partition.append(StoredBatch(sent, key, base, now_ms))
        file.spans.append((sent.partition, base, partition.end - 1))
        if sent.producer_id >= 0:
            stored = (sent.base_sequence, last, base, now_ms)
            if (
                window is None
                or window.epoch != sent.producer_epoch
                or window.next_sequence != sent.base_sequence
            ):
                window = partition.producers[sent.producer_id] = Window(sent.producer_epoch, [])
            window.batches = [*window.batches, stored][-WINDOW:]
        return Outcome(base, now_ms, partition.log_start)

    def _check_sequence(
        self, window: Window | None, sent: BatchExtent, last: int, now_ms: int
    ) -> tuple[int, int, int, int] | type[errors.DisklessError] | None:
        if window is None:
            return None
        if sent.producer_epoch == window.epoch:
            for stored in reversed(window.batches):
                if stored[:2] == (sent.base_sequence, last):
                    return stored
        if now_ms - window.last_append_ms > self.settings.producer_expiration_ms:
            return None
        if sent.producer_epoch < window.epoch:
            return errors.StaleProducerEpoch
        expected = 0 if sent.producer_epoch > window.epoch else window.next_sequence
        return None if sent.base_sequence == expected else errors.OutOfOrderSequence

    def expire_producers(self, *, now_ms: int) -> None:
        before_ms = now_ms - self.settings.producer_expiration_ms
        for partition in self.partitions.values():
            for producer, window in list(partition.producers.items()):
                if window.last_append_ms < before_ms:
                    del partition.producers[producer]

    # -- deleting records -----------------------------------------------------------------------

    def delete_records(
        self, name: TopicIdPartition, before_offset: int
    ) -> tuple[int, type[errors.DisklessError] | None]:
        """(log start offset, error)."""
        partition = self.partitions.get(name)
        if partition is None:
            return -1, errors.UnknownPartition
        target = partition.end if before_offset == -1 else before_offset
        if not 0 <= target <= partition.end:
            return partition.log_start, errors.OffsetOutOfRange
        partition.log_start = max(partition.log_start, target)
        return partition.log_start, None

    # -- segments -------------------------------------------------------------------------------

    def plan(self, answered: Sequence[ops.SegmentPlan], *, is_everything: bool) -> None:
        """Take over what was planned, which is to be what may be planned.

        `is_everything`: partial segments too, and there was room for as many plans as there were.
        """
        by_key = {plan.object_key: plan for plan in answered}
        assert len(by_key) == len(answered) <= self.settings.plans_per_call_max
        for key, plan in self.plans.items():
            assert by_key[key] == plan, "an outstanding plan has changed, or is gone"
        for plan in sorted(answered, key=lambda plan: plan.base_offset):
            partition = self.partitions[plan.partition]
            assert plan.topic_name == self.topics[plan.partition.topic_id].name
            _check_wal_extents(partition, plan.extents, plan.base_offset, plan.last_offset)
            if plan.object_key in self.plans:
                continue
            if partition.log_start <= partition.planned_end:
                assert plan.base_offset == partition.planned_end
            else:
                # Planning goes on with the first row that stays, which may begin further down.
                assert partition.planned_end <= plan.base_offset <= partition.log_start
            assert plan.last_offset >= partition.log_start
            partition.planned_end = plan.last_offset + 1
            self.plans[plan.object_key] = plan
        if is_everything and len(answered) < self.settings.plans_per_call_max:
            for partition in self.partitions.values():
                assert partition.end == max(partition.planned_end, partition.log_start)

    def commit_segment(
        self, segment: ops.RolledSegment
    ) -> tuple[bool, type[errors.DisklessError] | None]:
        """(is a duplicate, error)."""
        known = self.files.get(segment.object_key)
        if known is not None:
            return (True, None) if known.content == segment else (False, errors.Rejected)
        partition = self.partitions.get(segment.partition)
        if partition is None:
            return False, errors.UnknownPartition
        plan = self.plans.get(segment.object_key)
        if plan is None or (plan.partition, plan.base_offset, plan.last_offset) != (
            segment.partition,
            segment.base_offset,
            segment.last_offset,
        ):
            return False, errors.Rejected
        del self.plans[segment.object_key]
        partition.segments.append(segment)
        file = ModelFile(COMMITTED, segment)
        file.spans.append((segment.partition, segment.base_offset, segment.last_offset))
        self.files[segment.object_key] = file
        return False, None

    # -- files ----------------------------------------------------------------------------------

    def is_live(self, key: ObjectKey) -> bool:
        """Whether anything of the file can still be read, or is about to be rolled."""
        return any(self._is_span_live(key, *span) for span in self.files[key].spans)

    def _is_span_live(self, key: ObjectKey, name: TopicIdPartition, first: int, last: int) -> bool:
        partition = self.partitions.get(name)
        if partition is None:
            return False
        if isinstance(self.files[key].content, ops.RolledSegment):
            return last >= partition.log_start
        return any(
            partition.segment_of(offset) is None
            and (offset >= partition.log_start or self._is_planned(name, offset))
            for offset in range(first, last + 1)
        )

    def _is_planned(self, name: TopicIdPartition, offset: int) -> bool:
        """A row that is about to be rolled stays until then, whatever is deleted."""
        return any(
            plan.partition == name and plan.base_offset <= offset <= plan.last_offset
            for plan in self.plans.values()
        )

    def tombstone(self, key: ObjectKey) -> bool:
        """Whether the file is known, so that it was not tombstoned."""
        known = self.files.get(key)
        if known is None:
            self.files[key] = ModelFile(TOMBSTONED)
        return known is not None and known.standing != TOMBSTONED

    def hand_over(self, file: ops.HandedFile) -> None:
        known = self.files.get(file.object_key)
        if known is None:
            self.files[file.object_key] = ModelFile(HANDED_OVER)
        elif known.standing == TOMBSTONED:
            known.standing = SEALED
        else:
            known.is_owner = True

    def seal(self, key: ObjectKey) -> None:
        known = self.files.get(key)
        if known is not None and known.standing == HANDED_OVER:
            known.standing = SEALED

    def forget(self, keys: Iterable[ObjectKey], *, tombstones: bool) -> None:
        for key in keys:
            known = self.files.get(key)
            if known is None or (known.standing == TOMBSTONED) is not tombstones:
                continue
            del self.files[key]
            if not isinstance(known.content, ops.RolledSegment):
                self.forgotten_until_ms = max(self.forgotten_until_ms, minted_ms(key))

    def forgettable(self, *, tombstones: bool) -> list[ObjectKey]:
        return [
            key
            for key, file in self.files.items()
            if (file.standing == TOMBSTONED) is tombstones
            and key not in self.half_swept
            and not self.is_live(key)
        ]

    # -- comparing ------------------------------------------------------------------------------

    async def check(self, replica: Replica) -> None:
        """Everything that can be read of `replica` is what the model has."""
        self._check_topics(replica)
        assert dict(replica.brokers()) == self.brokers
        await self.read(replica)
        await self._check_bounds(replica)
        await self._check_files(replica)

    def _check_topics(self, replica: Replica) -> None:
        described = {
            topic.topic_id: ModelTopic(topic.name, topic.configs, topic.partition_count)
            for topic in replica.topics().values()
        }
        assert described == self.topics
        assert set(replica.image.partitions) == set(self.partitions)
        for name, partition in self.partitions.items():
            assert replica.high_watermark(name) == partition.end
            assert replica.log_start_offset(name) == partition.log_start

    async def _check_bounds(self, replica: Replica) -> None:
        """Beyond its ends a partition has nothing, and says so."""
        wanted: list[ops.FindBatches] = []
        for name, partition in self.partitions.items():
            wanted.append(ops.FindBatches(name, partition.end + 1, WHOLE))
            if partition.log_start:
                wanted.append(ops.FindBatches(name, partition.log_start - 1, WHOLE))
        for answer in await replica.find_batches(wanted, max_bytes=WHOLE):
            assert isinstance(answer.error, errors.OffsetOutOfRange)

    async def _check_files(self, replica: Replica) -> None:
        keys = [key for key in self.files if key not in self.half_swept]
        described = await replica.state.read(partial(describe_files, keys=keys))
        for key, answer in zip(keys, described, strict=True):
            if self.files[key].standing == TOMBSTONED:
                assert isinstance(answer.error, errors.UnknownFile), key
            else:
                assert answer.error is None, key
                assert answer.has_live_batches == self.is_live(key), key

    async def read(self, replica: Replica) -> dict[TopicIdPartition, list[ops.Extent]]:
        """All extents of all partitions from their log starts on: exactly what was appended."""
        extents: dict[TopicIdPartition, list[ops.Extent]] = {name: [] for name in self.partitions}
        wanted = {name: partition.log_start for name, partition in self.partitions.items()}
        while wanted:
            # One segment is an answer; so a partition is read in as many answers as it has.
            found = await replica.find_batches(
                [ops.FindBatches(name, offset, WHOLE) for name, offset in wanted.items()],
                max_bytes=WHOLE * len(wanted),
            )
            for (name, offset), answer in zip(list(wanted.items()), found, strict=True):
                wanted[name] = self._check_found(name, offset, answer)
                extents[name] += answer.extents
                if wanted[name] == self.partitions[name].end:
                    del wanted[name]
        return extents

    def _check_found(self, name: TopicIdPartition, offset: int, found: ops.FoundBatches) -> int:
        """How far an answer to FindBatches reaches."""
        partition = self.partitions[name]
        assert found.error is None
        assert (found.log_start_offset, found.high_watermark) == (
            partition.log_start,
            partition.end,
        )
        assert found.extents or offset == partition.end, f"{name}: nothing holds {offset}"
        for extent in found.extents:
            assert extent.base_offset <= offset <= extent.last_offset
            if isinstance(extent, ops.SegmentExtent):
                segment = partition.segment_of(offset)
                assert segment is not None
                assert extent == ops.SegmentExtent(
                    segment.object_key,
                    segment.object_bytes,
                    Offset(segment.base_offset),
                    Offset(segment.last_offset),
                    segment.max_timestamp_ms,
                )
            else:
                assert partition.segment_of(offset) is None
                _check_wal_extents(partition, [extent], extent.base_offset, extent.last_offset)
            offset = extent.last_offset + 1
        return offset


def _check_wal_extents(
    partition: ModelPartition, extents: Sequence[ops.Extent], first: int, last: int
) -> None:
    """The extents hold exactly the batches of these offsets, each at its place in its object."""
    for extent in extents:
        assert isinstance(extent, ops.WalExtent)
        assert extent.base_offset == first
        batches = partition.batches_of(first, extent.last_offset)
        assert batches[0].base_offset == first, "a row begins within a batch"
        assert batches[-1].last_offset == extent.last_offset, "a row ends within a batch"
        assert {batch.key for batch in batches} == {extent.object_key}
        position = int(extent.byte_offset)
        for batch in batches:
            assert batch.sent.byte_offset == position
            position += batch.sent.length_bytes
            assert batch.append_time_ms == extent.log_append_time_ms
            assert batch.sent.timestamp_type == extent.timestamp_type
        assert extent.length_bytes == position - extent.byte_offset
        assert extent.max_timestamp_ms == max(batch.sent.max_timestamp_ms for batch in batches)
        first = extent.last_offset + 1
    assert first == last + 1


def rows_of(extents: Sequence[ops.Extent]) -> Iterator[tuple[int, int, int]]:
    """(last offset, bytes, timestamp) of each, as retention counts it."""
    for extent in extents:
        if isinstance(extent, ops.SegmentExtent):
            yield extent.last_offset, extent.object_bytes, extent.max_timestamp_ms
        else:
            is_append_time = extent.timestamp_type == LOG_APPEND_TIME
            yield (
                extent.last_offset,
                extent.length_bytes,
                extent.log_append_time_ms if is_append_time else extent.max_timestamp_ms,
            )


def _content(request: ops.CommitFile) -> object:
    """What makes two commits of a key the same; who uploaded it does not matter."""
    return request.file_size_bytes, tuple(request.batches)
