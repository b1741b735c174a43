"""Append: from a Produce request to the write loop, and back to its producer.

The API handlers decode, call this, and encode. A batch is checked by its topic's rules and handed
to the write loop; the commit lane delivers its outcome. The other calls of the port have files of
their own: diskless/replica/fetcher.py, diskless/replica/offset_lookup.py.

A batch of an idempotent producer that repeats one without outcome is not appended: it waits for the
outcome of the first (`diskless/replica/delayed_produce.py`). One that belongs to a transaction is
appended with the transaction's number, which a coordinator is asked for
(`diskless/transactions/numbered_batches.py`).

A **delayed produce** waits until each of its batches has an outcome. They come one by one; the last
one completes the operation. Its deadline answers REQUEST_TIMED_OUT, because a batch whose outcome
is not known may still be committed.

Invariants: `append` hands its batches to the write loop before it returns, in request order. Those
that need work or a number first follow later, and keep the order of their connection within each
partition (`diskless/replica/batch_lanes.py`). Every batch gets exactly one outcome, and every
fragment chain is released exactly once. Nothing can be appended to the metadata topic.

Source: "Purgatory Redesign"; KIP-1163/1164; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from diskless.fetch.read_ahead import ReadAhead
from diskless.loop.long_work import Steps
from diskless.ports import AppendBatch, ClientInfo
from diskless.replica.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader
from diskless.replica.delayed_produce import BatchesUnderWay, BatchWaiter, DelayedProduce
from diskless.replica.fetcher import Fetcher
from diskless.replica.metadata_topic import MetadataTopic
from diskless.replica.offset_lookup import OffsetLookup
from diskless.replica.purgatory import Purgatory
from diskless.replica.served_topics import ServedTopics, nothing_new
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.topic_configs import compression_of, topic_rules
from diskless.transactions.numbered_batches import ADDED_FROM, NumberedBatches, Numbers
from diskless.transactions.transaction_numbers import Answer
from metadata.clients.coordinator_client import Coordinator
from metadata.operations import BatchCommit, TopicDescription
from wal.chunks.write_loop import PendingBatch, WriteLoop
from wal.clock import Clock
from wal.coordinates import LOG_APPEND_TIME, TopicIdPartition
from wal.errors import DisklessError, InvalidRecord, InvalidTopic, detached
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES, NeededWork, needed_work
from wal.records.batch_validation import TopicRules, check_contents, check_header, opens_records
from wal.records.recompression import Compression
from wal.records.record_batch import TRANSACTIONAL_BIT

BATCHES_AT_ONCE: Final = 64
"""Batches of a request that are checked and handed on between two yields: a millisecond."""
_SUMMED_BETWEEN_YIELDS_BYTES: Final = 16 << 20
"""... unless they are together larger than this, which takes 0.7 ms."""


class _Appending(NamedTuple):
    """One Produce request on its way to the write loop."""

    batches: Sequence[AppendBatch]
    produce: DelayedProduce
    request_id: int
    produce_version: int
    connection_id: int
    transactional_id: str | None


class _TopicRules(NamedTuple):
    """What produced batches are judged by and made into, made of a topic's configs once."""

    topic: TopicDescription
    batches: TopicRules
    compression: Compression | None
    may_need_work: bool
    """Whether any batch does that is not very large."""


class ReplicaManager:
    """`diskless.ports.ReplicaManager` over write loop, coordinator and batch reader."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        write_loop: WriteLoop,
        reader: BatchReader,
        search: TimestampSearch,
        clock: Clock,
        fetch_max_bytes: int,
        lanes: BatchLanes,
        ahead: ReadAhead,
        numbers: Numbers,
        metadata_topic: MetadataTopic | None = None,
        topic_defaults: Mapping[str, str] | None = None,
        refresh: Callable[[], None] = nothing_new,
    ) -> None:
        """`topic_defaults` are the configs of topics that do not set them, where these differ from
        the built-in ones. `refresh` takes in what this process has been told and has not looked at.
        """
        metadata_topic = metadata_topic or MetadataTopic(())
        self._topics = topics = ServedTopics(coordinator, metadata_topic, refresh)
        self.fetcher = fetcher = Fetcher(
            topics, coordinator, reader, metadata_topic, max_bytes=fetch_max_bytes, ahead=ahead
        )
        # The rest of the port, as it is: passing nine arguments on would say nothing.
        self.fetch = fetcher.fetch
        self.bounds = fetcher.bounds
        self.committed = fetcher.committed
        self.list_offsets = OffsetLookup(topics, coordinator, search, metadata_topic).list_offsets
        self._write_loop = write_loop
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.produce_purgatory: Purgatory[TopicIdPartition] = Purgatory("produce")
        self._under_way = BatchesUnderWay()
        self._lanes = lanes
        self._numbers = numbers
        self._topic_defaults = topic_defaults or {}
        # By name: to hash a UUID is Python code.
        self._rules: dict[str, _TopicRules] = {}
        self._next_request_id = 0
        self.batches_appended = 0
        self.batches_rejected = 0

    def close(self) -> None:
        """Answer whatever still waits, and let nothing wait any more; for a clean stop."""
        self.produce_purgatory.expire_all()
        self.fetcher.close()

    @property
    def batches_repeated(self) -> int:
        """Batches that were sent again before they had an outcome, and not appended."""
        return self._under_way.repeats

    def forget(self, partitions: Collection[TopicIdPartition]) -> None:
        """These partitions are gone: fetches that wait for them find that out now."""
        self.fetcher.forget(partitions)
        gone = {partition.topic_id for partition in partitions}
        for rules in [*self._rules.values()]:
            if rules.topic.topic_id in gone:
                del self._rules[rules.topic.name]

    def append(
        self,
        batches: Sequence[AppendBatch],
        *,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
        transactional_id: str | None = None,
    ) -> Steps["asyncio.Future[Sequence[BatchCommit]]"]:
        """See `diskless.ports.ReplicaManager.append`."""
        future: asyncio.Future[Sequence[BatchCommit]] = self._loop.create_future()
        produce = DelayedProduce(future, len(batches))
        request_id = self._next_request_id
        self._next_request_id = (request_id + 1) & 0x7FFFFFFF
        request = _Appending(
            batches, produce, request_id, produce_version, client.connection_id, transactional_id
        )
        position = 0
        try:
            while position < len(batches):
                if position:
                    yield
                position = self._append_some(request, position)
        except GeneratorExit:
            for batch in batches[position:]:
                if batch.records is not None:
                    batch.records.release()
            raise
        # Only the deadline is watched: outcomes of batches come by themselves.
        self.produce_purgatory.try_complete_else_watch(produce, (), max(timeout_ms, 1) / 1000)
        return future

    def _append_some(self, request: _Appending, position: int) -> int:
        """Check some batches from `position` on and hand them on; the position behind them."""
        pending: list[PendingBatch] = []
        lanes = self._lanes
        now_ms = self._clock.now_ms()
        left_bytes = _SUMMED_BETWEEN_YIELDS_BYTES
        end = min(position + BATCHES_AT_ONCE, len(request.batches))
        rules = named = number = numbered = None
        if request.transactional_id is not None:
            adds = request.produce_version >= ADDED_FROM
            numbered = NumberedBatches(self._numbers, request.transactional_id, adds=adds)
        while position < end and left_bytes > 0:
            batch = request.batches[position]
            try:
                # Nearly always the topic of the batch before: its name, or id, is the same object.
                if rules is None or named is not (batch.topic_id or batch.topic_name):
                    rules = self._rules_for(batch)
                    named = batch.topic_id or batch.topic_name
                valid, needed = self._checked(request, position, rules, now_ms)
                if numbered is not None:
                    number = _number_of(valid, rules.topic, numbered)
                    valid = valid._replace(number_asked_ms=now_ms)
            except DisklessError as error:
                self.batches_rejected += 1
                request.produce.settle(position, BatchCommit(error=detached(error)))
                if batch.records is not None:
                    batch.records.release()
            else:
                left_bytes -= valid.header.length_bytes
                if not self._under_way.is_new(valid.token):
                    valid.payload.release()
                elif (needed is None and number is None and lanes.are_empty) or not lanes.takes(
                    valid,
                    needed,
                    client=request.connection_id,
                    hand_on=self._hand_on_one,
                    refuse=self._refuse,
                    number=number,
                ):
                    pending.append(valid)
            position += 1
        if pending:
            self._hand_on(pending)
        if numbered is not None:
            numbered.ask()
        return position

    def _hand_on(self, batches: Sequence[PendingBatch]) -> None:
        try:
            self._write_loop.append_nowait(batches)
        except DisklessError as error:
            for batch in batches:
                _refuse(batch, detached(error))
        else:
            self.batches_appended += len(batches)

    def _hand_on_one(self, batch: PendingBatch) -> None:
        self._hand_on((batch,))

    def _refuse(self, batch: PendingBatch, error: DisklessError) -> None:
        self.batches_rejected += 1
        _refuse(batch, error)

    def _rules_for(self, batch: AppendBatch) -> _TopicRules:
        """Raises UnknownTopicId, UnknownPartition, InvalidTopic."""
        topic = self._topics.with_partition(batch.topic_name, batch.topic_id, batch.partition)
        if self._topics.is_internal(topic):
            raise InvalidTopic(f"{topic.name} is the cluster's own: clients can only read it")
        return self._rules_of(topic)

    def _checked(
        self, request: _Appending, position: int, rules: _TopicRules, now_ms: int
    ) -> tuple[PendingBatch, NeededWork | None]:
        """Kafka's per-partition checks. Raises the Rejected that names what is wrong."""
        batches, produce, request_id, produce_version, _, transactional_id = request
        _, _, partition, records = batch = batches[position]
        topic, batch_rules, _, may_need_work = rules
        if not 0 <= partition < topic.partition_count:
            self._rules_for(batch)
        if records is None or records.length_bytes == 0:
            raise InvalidRecord(f"no batch for {topic.name}-{partition}")
        payload = records.views()
        header = check_header(
            payload,
            total_bytes=records.length_bytes,
            rules=batch_rules,
            produce_version=produce_version,
        )
        needed = None
        has_transactional_id = transactional_id is not None
        if may_need_work or header.length_bytes > SUMMED_AT_ONCE_BYTES:
            needed = needed_work(
                header,
                batch_rules,
                rules.compression,
                now_ms=now_ms,
                has_transactional_id=has_transactional_id,
            )
        if needed is None or not needed.is_unchecked:
            check_contents(
                payload,
                header,
                rules=batch_rules,
                now_ms=now_ms,
                has_transactional_id=has_transactional_id,
            )
        timestamp_type = batch_rules.timestamp_type
        has_append_time = timestamp_type == LOG_APPEND_TIME
        pending = PendingBatch(
            # Half the time of a call of the NamedTuple.
            tuple.__new__(TopicIdPartition, (topic.topic_id, partition)),
            header,
            timestamp_type,
            request_id,
            records,
            BatchWaiter(produce, position, has_append_time, topic.name, partition, header),
        )
        return pending, needed

    def _rules_of(self, topic: TopicDescription) -> _TopicRules:
        known = self._rules.get(topic.name)
        # Whatever changes about a topic makes another description of it.
        if known is None or known.topic is not topic:
            configs = {**self._topic_defaults, **topic.configs}
            rules, compression = topic_rules(configs), compression_of(configs)
            may_need_work = compression is not None or opens_records(rules)
            known = _TopicRules(topic, rules, compression, may_need_work)
            self._rules[topic.name] = known
        return known


def _number_of(
    batch: PendingBatch, topic: TopicDescription, numbered: NumberedBatches
) -> Answer | None:
    """None: the batch belongs to no transaction. Raises InvalidProducerIdMapping."""
    if not batch.header.attributes & TRANSACTIONAL_BIT:
        return None
    partition = batch.partition
    return numbered.number_of(partition, batch.header, topic.coordinator_of(partition.partition))


def _refuse(batch: PendingBatch, error: DisklessError) -> None:
    batch.payload.release()
    batch.token.batch_done(BatchCommit(error=error))


def append_failed(batches: Sequence[PendingBatch], error: DisklessError) -> None:
    """The write loop could not store these batches: that is their outcome."""
    for batch in batches:
        batch.token.batch_done(BatchCommit(error=error))
