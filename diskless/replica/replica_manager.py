"""Append: from a Produce request to the write loop, and back to its producer.

The API handlers decode, call this, and encode. A batch is checked by its topic's rules and handed
to the write loop; the commit lane delivers its outcome. The other calls of the port have files of
their own: diskless/replica/fetcher.py, diskless/replica/offset_lookup.py.

A batch of an idempotent producer that repeats one without outcome is not appended: it waits for the
outcome of the first (`diskless/produce/delayed_produce.py`). One that belongs to a transaction is
appended with the transaction's number, which a coordinator is asked for
(`diskless/transactions/numbered_batches.py`).

A **delayed produce** waits until each of its batches has an outcome. They come one by one; the last
one completes the operation. Its deadline answers REQUEST_TIMED_OUT, because a batch whose outcome
is not known may still be committed.

Invariants: `append` hands its batches to the write loop before it returns, in request order. Those
that need work or a number first follow later, and keep the order of their connection within each
partition (`diskless/produce/batch_lanes.py`). Every batch gets exactly one outcome, and every
fragment chain is released exactly once. Nothing can be appended to the metadata topic.

Source: "Purgatory Redesign"; KIP-1163/1164; reference behaviour per Kafka's ReplicaManager.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from diskless.fetch.read_ahead import ReadAhead
from diskless.loop.long_work import Steps
from diskless.loop.purgatory import Purgatory
from diskless.ports import ClientInfo, ProducedBatches
from diskless.produce.batch_lanes import BatchLanes, CheckedBatch
from diskless.produce.delayed_produce import (
    NO_NAME,
    BatchesUnderWay,
    BatchWaiter,
    DelayedProduce,
)
from diskless.produce.request_batches import CheckedTopic, RequestBatches, names_in
from diskless.protocol.batch_scan import SCANNED, ScannedBatch, columns_of, scanned_batches
from diskless.replica.batch_reader import BatchReader
from diskless.replica.fetcher import Fetcher
from diskless.replica.metadata_topic import MetadataTopic
from diskless.replica.offset_lookup import OffsetLookup
from diskless.replica.served_topics import ServedTopics, nothing_new
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.topic_configs import compression_of, topic_rules
from diskless.transactions.numbered_batches import ADDED_FROM, NumberedBatches, Numbers
from diskless.transactions.transaction_numbers import Answer
from metadata.clients.coordinator_client import Coordinator
from metadata.operations import BatchCommit, TopicDescription
from wal.chunks.batch_rows import batch_name
from wal.chunks.chunk import PendingBatches
from wal.clock import Clock
from wal.columns import FEW_MAX
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, InvalidTopic, detached
from wal.records.batch_validation import opens_records
from wal.records.plain_batches import are_plain
from wal.records.record_batch import TRANSACTIONAL_BIT
from wal.write_path.write_loop import WriteLoop

BATCHES_AT_ONCE: Final = 64
"""Batches of a request that are checked one by one between two yields: a millisecond."""
COLUMNS_AT_ONCE: Final = 1_024
"""... as columns."""


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
        self._rules: dict[str, CheckedTopic] = {}
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
        batches: ProducedBatches,
        *,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
        transactional_id: str | None = None,
    ) -> Steps["asyncio.Future[Sequence[BatchCommit]]"]:
        """See `diskless.ports.ReplicaManager.append`."""
        future: asyncio.Future[Sequence[BatchCommit]] = self._loop.create_future()
        produce = DelayedProduce(future, len(batches.rows) // SCANNED.size)
        request = RequestBatches(
            batches,
            produce,
            request_id=self._next_request_id,
            produce_version=produce_version,
            connection_id=client.connection_id,
            transactional_id=transactional_id,
        )
        self._next_request_id = (self._next_request_id + 1) & 0x7FFFFFFF
        yield from self._append_all(request)
        # Only the deadline is watched: outcomes of batches come by themselves.
        self.produce_purgatory.try_complete_else_watch(produce, (), max(timeout_ms, 1) / 1000)
        return future

    def _append_all(self, request: RequestBatches) -> Steps[None]:
        """Check the batches topic by topic and hand them on, some at a time."""
        position = singly_until = taken = 0
        numbered = self._numbered(request)
        for named, count in request.batches.topics:
            end = position + count
            while position < end:
                if taken >= BATCHES_AT_ONCE:
                    self._hand_on(request, numbered)
                    yield
                    numbered = self._numbered(request)
                    taken = 0
                start = position
                try:
                    topic = self._topic_named(named)
                except DisklessError as error:
                    position = end
                    self._reject(request, range(start, end), error)
                    taken += 1
                    continue
                if (
                    end - position > FEW_MAX
                    and position >= singly_until
                    and numbered is None
                    and not topic.may_need_work
                    and self._lanes.are_empty
                ):
                    position, singly_until = self._take_plain(request, topic, position, end)
                    taken += (position - start) * BATCHES_AT_ONCE // COLUMNS_AT_ONCE
                    continue
                last = end if singly_until <= start else min(end, singly_until)
                position = min(last, start + BATCHES_AT_ONCE - taken)
                self._take_each(request, topic, start, position, numbered)
                taken += position - start
        self._hand_on(request, numbered)

    def _numbered(self, request: RequestBatches) -> NumberedBatches | None:
        if request.transactional_id is None:
            return None
        adds = request.produce_version >= ADDED_FROM
        return NumberedBatches(self._numbers, request.transactional_id, adds=adds)

    def _take_plain(
        self, request: RequestBatches, topic: CheckedTopic, position: int, end: int
    ) -> tuple[int, int]:
        """Collect the batches from `position` on that are right and new, if they are many.

        Gives where they end, and until where the next ones are to be looked at one by one.
        """
        end = min(end, position + COLUMNS_AT_ONCE)
        rows = request.batches.rows[position * SCANNED.size : end * SCANNED.size]
        scanned = columns_of(rows)
        partition = scanned["partition"]
        plain = are_plain(
            scanned,
            rules=topic.rules,
            produce_version=request.produce_version,
            now_ms=self._clock.now_ms(),
        )
        plain &= (partition >= 0) & (partition < topic.topic.partition_count)
        count = len(plain) if plain.all() else int(plain.argmin())
        if count > FEW_MAX:
            scanned = scanned[:count]
            made = request.rows_of(topic, scanned)
            names = names_in(made, scanned)
            if names and self._under_way.has_any(names):
                return position, position + count
            request.add_all(topic, position, scanned, made, names)
            return position + count, 0
        # Those that are not plain stand together, as a rule.
        behind = plain[count:]
        others = int(behind.argmax()) if behind.any() else len(behind)
        return position, position + max(count + others, FEW_MAX)

    def _take_each(
        self,
        request: RequestBatches,
        topic: CheckedTopic,
        start: int,
        end: int,
        numbered: NumberedBatches | None,
    ) -> None:
        """Check batches one by one; each is collected, waits, repeats another or is refused."""
        now_ms = self._clock.now_ms()
        batches = scanned_batches(request.batches.rows, start, end)
        for position, batch in enumerate(batches, start):
            try:
                self._take(request, topic, position, batch, numbered, now_ms)
            except DisklessError as error:
                self._reject(request, (position,), error)

    def _take(
        self,
        request: RequestBatches,
        topic: CheckedTopic,
        position: int,
        batch: ScannedBatch,
        numbered: NumberedBatches | None,
        now_ms: int,
    ) -> None:
        """Raises the Rejected that names what is wrong."""
        if not 0 <= batch.partition < topic.topic.partition_count:
            description = topic.topic
            self._topics.with_partition(description.name, description.topic_id, batch.partition)
        needed = request.check(topic, batch, now_ms=now_ms)
        number = None
        if numbered is not None:
            number = _number_of(topic.topic, batch, numbered)
        row = request.row_of(topic, batch)
        name = NO_NAME
        if batch.header.producer_id >= 0:
            name = batch_name(row)
            if self._under_way.has(name):
                waiter = BatchWaiter(request.produce, (position,), bytearray(row))
                if self._under_way.is_repeat(name, waiter):
                    return
        if needed is None and number is None and self._lanes.are_empty:
            request.add(topic, position, batch, row, name)
            return
        waiter = BatchWaiter(request.produce, (position,), bytearray(row))
        checked = CheckedBatch(
            TopicIdPartition(topic.topic.topic_id, batch.partition),
            batch.header,
            topic.rules.timestamp_type,
            request.request_id,
            request.batches.frame.share(batch.position, batch.size),
            waiter,
        )
        if numbered is not None:
            checked = checked._replace(number_asked_ms=now_ms)
        is_held = self._lanes.takes(
            checked,
            needed,
            client=request.connection_id,
            hand_on=self._hand_on_one,
            refuse=self._refuse,
            number=number,
        )
        if not is_held:
            # Nothing of its partition waits.
            checked.payload.release()
            request.add(topic, position, batch, row, name)
        elif name:
            self._under_way.add(waiter, (name,))

    def _hand_on(self, request: RequestBatches, numbered: NumberedBatches | None) -> None:
        """What was collected goes to the write loop, and what waits for numbers is asked for."""
        collected = request.pending()
        if collected is not None:
            pending, waiter, names = collected
            if names:
                self._under_way.add(waiter, names)
            self._append(pending)
        if numbered is not None:
            numbered.ask()

    def _hand_on_one(self, batch: CheckedBatch) -> None:
        self._append(batch.pending)

    def _append(self, pending: PendingBatches) -> None:
        try:
            self._write_loop.append_nowait(pending)
        except DisklessError as error:
            pending.payload.release()
            pending.token.all_failed(detached(error))
        else:
            self.batches_appended += pending.batch_count

    def _reject(
        self, request: RequestBatches, positions: Sequence[int], error: DisklessError
    ) -> None:
        self.batches_rejected += len(positions)
        failed = BatchCommit(error=detached(error))
        request.produce.settle(positions, [failed] * len(positions))

    def _refuse(self, batch: CheckedBatch, error: DisklessError) -> None:
        self.batches_rejected += 1
        batch.payload.release()
        batch.token.all_failed(error)

    def _topic_named(self, named: str | UUID) -> CheckedTopic:
        """Raises UnknownTopicId, UnknownPartition, InvalidTopic."""
        name, topic_id = ("", named) if isinstance(named, UUID) else (named, None)
        topic = self._topics.with_partition(name, topic_id, 0)
        if self._topics.is_internal(topic):
            raise InvalidTopic(f"{topic.name} is the cluster's own: clients can only read it")
        return self._rules_of(topic)

    def _rules_of(self, topic: TopicDescription) -> CheckedTopic:
        known = self._rules.get(topic.name)
        # Whatever changes about a topic makes another description of it.
        if known is None or known.topic is not topic:
            configs = {**self._topic_defaults, **topic.configs}
            rules, compression = topic_rules(configs), compression_of(configs)
            may_need_work = compression is not None or opens_records(rules)
            id_bytes = topic.topic_id.bytes
            known = CheckedTopic(topic, id_bytes, rules, compression, may_need_work)
            self._rules[topic.name] = known
        return known


def _number_of(
    topic: TopicDescription, batch: ScannedBatch, numbered: NumberedBatches
) -> Answer | None:
    """None: the batch belongs to no transaction. Raises InvalidProducerIdMapping."""
    if not batch.header.attributes & TRANSACTIONAL_BIT:
        return None
    index = batch.partition
    partition = TopicIdPartition(topic.topic_id, index)
    return numbered.number_of(partition, batch.header, topic.coordinator_of(index))


def append_failed(batches: Sequence[PendingBatches], error: DisklessError) -> None:
    """The write loop could not store these batches: that is their outcome."""
    for some in batches:
        some.token.all_failed(error)
