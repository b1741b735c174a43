"""Serves the metadata log as the topic `__diskless_metadata` to any Kafka client.

It has a partition for each coordinator. A broker serves it from the logs that it follows or leads
itself, so any of them serves all of it, a follower as far as it has come. The batches are those of
the log, byte for byte but for what is stored of passwords (metadata/log/shown_batches.py): they
carry their final offsets, and every replica applied these very ones.
docs/formats.md says what is in a record.

The high watermark is the replica's applied offset: what can be read here is durable and has become
state. Reading the topic changes nothing, and nothing is ever written through it: producing to it,
creating it and deleting it are refused elsewhere (diskless/replica/replica_manager.py,
diskless/cluster/cluster.py, metadata/rules/topics.py).

Failure cases, each an error of its partition alone: damaged batches are CorruptLog; what was pruned
under a reader's hands is OffsetOutOfRange; a store or disk that does not answer is retriable. An
offset that lies beyond what this broker has seen is looked for before it is called out of range,
because the client may come from a broker that has seen more.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from diskless.ports import Buffer, ListOffsetsResult
from diskless.replica.batch_reader import ReadResult
from metadata import operations as ops
from metadata.log.log import MetadataRecordBatch
from metadata.log.shown_batches import shown_batch
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, OffsetOutOfRange, OutOfBounds
from wal.records.record_batch import parse_header

READ_BYTES_MAX: Final = 1 << 20
"""Of one partition for one Fetch: a coordinator's appends wait for no longer read than this."""

_CONFIGS: Final = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""What tools are told. Pruning follows snapshots, neither time nor size."""


class AppliedLog(Protocol):
    """The part of `Replica` that the metadata topic uses."""

    @property
    def applied_offset(self) -> int: ...

    def subscribe_applied(self, listener: Callable[[], None]) -> None: ...


class ShownLog(Protocol):
    """The part of `MetadataLog` that the metadata topic uses."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    async def refresh(self) -> int: ...

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]: ...

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]: ...


class LoggedPartition(Protocol):
    """The part of `MetadataPartition` that the metadata topic uses."""

    @property
    def log(self) -> ShownLog: ...

    @property
    def replica(self) -> AppliedLog: ...


class LogPartition(NamedTuple):
    """A partition of the metadata topic: the one of this coordinator."""

    coordinator_id: int

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(ops.METADATA_TOPIC_ID, self.coordinator_id)


class LogRead(NamedTuple):
    """From where, and how much at most, to read a partition."""

    partition: LogPartition
    offset: int
    max_bytes: int


class MetadataTopic:
    """Reads the logs of this broker's metadata partitions, given by index."""

    def __init__(self, partitions: Sequence[LoggedPartition]) -> None:
        self._partitions = tuple(partitions)
        self.description: Final = ops.TopicDescription(
            topic_id=ops.METADATA_TOPIC_ID,
            name=ops.METADATA_TOPIC,
            partition_count=len(self._partitions),
            configs=_CONFIGS,
        )

    def subscribe(self, listener: Callable[[Collection[TopicIdPartition]], None]) -> None:
        """Call `listener` with the partition of which there is more to read."""
        for index, partition in enumerate(self._partitions):
            partition.replica.subscribe_applied(partial(listener, (LogPartition(index).key,)))

    async def find(self, partition: LogPartition, offset: int) -> ops.FoundBatches:
        """The bounds of a partition; an error when `offset` is not within them.

        There is something to read when `offset` is below the high watermark.
        """
        log = self._partitions[partition.coordinator_id].log
        try:
            if offset > log.end_offset:
                await log.refresh()
        except DisklessError as error:
            return ops.FoundBatches(error=error)
        start_offset, high_watermark = self._bounds(partition)
        if start_offset <= offset <= max(log.end_offset, high_watermark):
            return ops.FoundBatches(start_offset, high_watermark)
        return ops.FoundBatches(
            start_offset,
            high_watermark,
            error=OffsetOutOfRange(
                f"{ops.METADATA_TOPIC}-{partition.coordinator_id}: offset {offset} is not within"
                f" {start_offset} .. {high_watermark}"
            ),
        )

    async def read(
        self, reads: Sequence[LogRead], *, max_bytes: int, at_least_one: bool
    ) -> list[ReadResult]:
        """Whole batches from the one that holds each offset on, in request order.

        With `at_least_one` the first that can be read gives one batch, whatever the limits.
        """
        results = []
        for read in reads:
            limit = min(read.max_bytes, max_bytes, READ_BYTES_MAX)
            result = await self._read(read, limit, at_least_one=at_least_one)
            max_bytes -= result.size_bytes
            at_least_one = at_least_one and not result.size_bytes
            results.append(result)
        return results

    async def list_offset(self, partition: LogPartition, timestamp: int) -> ListOffsetsResult:
        """As ListOffsets; every record has the time of its batch, and times never fall."""
        start_offset, high_watermark = self._bounds(partition)
        match timestamp:
            case _ if timestamp == ops.LATEST_TIMESTAMP:
                return ListOffsetsResult(offset=high_watermark)
            case _ if timestamp in (ops.EARLIEST_TIMESTAMP, ops.EARLIEST_LOCAL_TIMESTAMP):
                return ListOffsetsResult(offset=start_offset)
            case _ if timestamp == ops.LATEST_TIERED_TIMESTAMP or start_offset == high_watermark:
                return ListOffsetsResult()
        try:
            if timestamp == ops.MAX_TIMESTAMP:
                timestamp = (await self._batch_at(partition, high_watermark - 1)).timestamp_ms
            found = await self._first_at(partition, timestamp, high_watermark)
        except DisklessError as error:
            return ListOffsetsResult(error=error)
        if found is None:
            return ListOffsetsResult()
        return ListOffsetsResult(None, max(found.base_offset, start_offset), found.timestamp_ms)

    def _bounds(self, partition: LogPartition) -> tuple[int, int]:
        """(log start offset, high watermark)"""
        logged = self._partitions[partition.coordinator_id]
        start_offset = logged.log.start_offset
        # A follower that was away for long may have to catch up with the start first.
        return start_offset, max(start_offset, logged.replica.applied_offset)

    async def _read(self, read: LogRead, limit: int, *, at_least_one: bool) -> ReadResult:
        if limit <= 0 and not at_least_one:
            return ReadResult()
        logged = self._partitions[read.partition.coordinator_id]
        end_offset = logged.replica.applied_offset
        records: list[Buffer] = []
        size = 0
        try:
            for batch in await logged.log.read_encoded(read.offset, max(limit, 0)):
                is_due = at_least_one and not records
                if size + len(batch) > limit and not is_due:
                    break
                if parse_header(batch).last_offset >= end_offset:
                    break
                records.append(shown_batch(batch))
                size += len(batch)
        except OutOfBounds as error:
            return ReadResult(error=OffsetOutOfRange(str(error)))
        except DisklessError as error:
            return ReadResult(error=error)
        return ReadResult(records, size)

    async def _first_at(
        self, partition: LogPartition, timestamp: int, end_offset: int
    ) -> MetadataRecordBatch | None:
        """The first batch at or after `timestamp`, by bisection over the offsets."""
        log = self._partitions[partition.coordinator_id].log
        low, high = log.start_offset, end_offset
        found = None
        while low < high:
            try:
                batch = await self._batch_at(partition, (low + high) // 2)
            except OutOfBounds:
                # Pruned meanwhile: the log begins above the offset that was asked for.
                low = log.start_offset
                continue
            if batch.timestamp_ms < timestamp:
                low = batch.next_offset
            else:
                found, high = batch, batch.base_offset
        return found

    async def _batch_at(self, partition: LogPartition, offset: int) -> MetadataRecordBatch:
        return (await self._partitions[partition.coordinator_id].log.read(offset, 0))[0]
