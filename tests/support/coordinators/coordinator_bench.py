"""A running coordinator over an in-memory metadata log, and short ways to talk to it."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from metadata import operations as ops
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.sink_notes import NotePlace
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.log.log_batch import encode_batch
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import MetadataRecord, decode_record
from tests.support.coordinators.standalone_coordinator import standalone_coordinator
from wal.clock import Clock, ManualClock
from wal.coordinates import (
    CREATE_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    ObjectKey,
    TopicIdPartition,
)
from wal.errors import CommitFailed, OutOfBounds
from wal.ulid import mint_ulid, wal_object_key


class MemoryMetadataLog:
    """A metadata log in a list. Appends can be held back, and made to fail."""

    def __init__(self) -> None:
        self.batches: list[MetadataRecordBatch] = []
        self.append_calls = 0
        self.failures: list[Exception] = []
        """Raised by the next appends, first one first."""
        self.gate = asyncio.Event()
        """Appends wait here; set unless a test clears it."""
        self.gate.set()
        self.entered = asyncio.Event()
        """Set by every append when it is called."""
        self.lease_expires_at: float | None = math.inf
        self.proofs: list[Exception] = []
        """Raised by the next calls of `prove`, first one first."""
        self.prove_calls = 0

    @property
    def start_offset(self) -> int:
        return 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def proven_since(self) -> float | None:
        return math.inf

    async def prove(self) -> None:
        self.prove_calls += 1
        if self.proofs:
            raise self.proofs.pop(0)

    async def refresh(self) -> int:
        return self.end_offset

    async def peek(self) -> bool:
        return False

    async def lead(self, records: Sequence[bytes], timestamp_ms: int, *, at_offset: int) -> int:
        return await self.append([records], timestamp_ms, at_offset=at_offset)

    async def append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int | None = None,
    ) -> int:
        self.append_calls += 1
        self.entered.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        first = self.end_offset
        if at_offset is not None and at_offset != first:
            raise CommitFailed(f"offset {at_offset} wanted, {first} is next")
        for batch in batches:
            # As bytes: what is read from a log has to be decoded.
            records = tuple(map(bytes, batch))
            self.batches.append(MetadataRecordBatch(self.end_offset, timestamp_ms, records))
        return first

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        if not 0 <= offset <= self.end_offset:
            raise OutOfBounds(f"{offset} is not within 0..{self.end_offset}")
        found = []
        for batch in self.batches:
            if batch.next_offset > offset:
                found.append(batch)
                max_bytes -= sum(map(len, batch.records))
                if max_bytes <= 0:
                    break
        return found

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]:
        return [encode_batch(*batch) for batch in await self.read(offset, max_bytes)]

    async def prune(self, before_offset: int) -> int:
        return 0

    async def close(self) -> None:
        """Nothing to let go of: the next coordinator of a test opens the same list."""

    def records(self) -> list[MetadataRecord]:
        return [decode_record(data) for batch in self.batches for data in batch.records]


class CoordinatorBench:
    """A coordinator in `directory`, its log and its clock; every helper numbers its objects."""

    def __init__(
        self,
        coordinator: PartitionCoordinator,
        log: MetadataLog,
        clock: ManualClock,
        rng: random.Random,
    ) -> None:
        self.coordinator = coordinator
        self.log = log
        self.clock = clock
        self.rng = rng

    async def topic(
        self, name: str = "flights", partitions: int = 1, **configs: str
    ) -> ops.TopicDescription:
        """Create a topic; config names have `_` for `.`."""
        (created,) = await self.coordinator.create_topics(
            [
                ops.CreateTopic(
                    name=name,
                    partition_count=partitions,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ]
        )
        assert isinstance(created, ops.TopicDescription), created
        return created

    async def partition(self, name: str = "flights") -> TopicIdPartition:
        """The only partition of a new topic."""
        return TopicIdPartition((await self.topic(name)).topic_id, 0)

    def key(self) -> ObjectKey:
        return wal_object_key(mint_ulid(self.clock, self.rng))

    def file(self, *batches: BatchExtent, key: ObjectKey | None = None) -> ops.CommitFile:
        """A commit request; batches are laid out back to back as they come."""
        placed = []
        position = 16
        for batch in batches:
            placed.append(batch._replace(byte_offset=ByteOffset(position)))
            position += batch.length_bytes
        return ops.CommitFile(
            object_key=key or self.key(),
            file_size_bytes=position + 64,
            uploader_broker_id=0,
            batches=placed,
        )

    async def commit(self, *batches: BatchExtent) -> Sequence[ops.BatchCommit]:
        return await self.coordinator.commit_file(self.file(*batches))

    async def commit_one(self, *args: Any, **fields: Any) -> ops.BatchCommit:
        (answer,) = await self.commit(batch(*args, **fields))
        return answer

    async def find(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
    ) -> ops.FoundBatches:
        (found,) = await self.coordinator.replica.find_batches(
            [ops.FindBatches(partition, offset, max_bytes)], max_bytes=1 << 30
        )
        return found


def batch(
    partition: TopicIdPartition,
    records: int = 1,
    *,
    size: int = 100,
    producer: int = NO_PRODUCER_ID,
    epoch: int = NO_PRODUCER_EPOCH,
    sequence: int = NO_SEQUENCE,
    timestamp_ms: int = 1_000,
    timestamp_type: int = CREATE_TIME,
) -> BatchExtent:
    """A batch of `records` records; its place is set by `CoordinatorBench.file`."""
    if producer >= 0:
        epoch = max(epoch, 0)
        sequence = max(sequence, 0)
    return BatchExtent(
        partition=partition,
        byte_offset=ByteOffset(0),
        length_bytes=size,
        record_count=records,
        crc=0,
        max_timestamp_ms=timestamp_ms,
        timestamp_type=timestamp_type,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        request_id=0,
    )


def rolled(plan: ops.SegmentPlan, *, max_timestamp_ms: int = 1_000) -> ops.RolledSegment:
    """What a task that did its work reports for `plan`."""
    return ops.RolledSegment(
        partition=plan.partition,
        object_key=plan.object_key,
        base_offset=plan.base_offset,
        last_offset=plan.last_offset,
        object_bytes=500,
        crc32c=7,
        record_count=plan.last_offset - plan.base_offset + 1,
        max_timestamp_ms=max_timestamp_ms,
    )


UNKNOWN_PARTITION = TopicIdPartition(UUID(int=7), 0)


@asynccontextmanager
async def running_coordinator(
    directory: Path,
    log: MetadataLog,
    *,
    clock: Clock | None = None,
    seed: int = 1,
    settings: CoordinatorSettings | None = None,
    note_place: NotePlace | None = None,
) -> AsyncIterator[CoordinatorBench]:
    """Open and run a coordinator; a failure of its `run` fails the test."""
    manual = clock if isinstance(clock, ManualClock) else ManualClock()
    rng = random.Random(seed)
    async with (
        asyncio.TaskGroup() as tasks,
        standalone_coordinator(
            directory,
            log,
            clock=manual,
            rng=rng,
            settings=settings or CoordinatorSettings(state_readers=2),
            note_place=note_place,
        ) as coordinator,
    ):
        tasks.create_task(coordinator.run())
        yield CoordinatorBench(coordinator, log, manual, rng)
