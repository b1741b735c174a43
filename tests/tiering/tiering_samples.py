"""What the tiering tests are made of: records, WAL objects with batches of them, and plans.

Batches are built by aiokafka, so that our own encoder is not the judge of itself.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from metadata.operations import RolledSegment, SegmentExtent, SegmentPlan, WalExtent
from metadata.records.segment_identity import segment_key
from metadata.rewrites import Rewrite, RewritePlan, outcome_of
from tiering.merging.merge import merge
from tiering.roll import Rolled, roll
from tiering.rounds import Done, Failed, Written, attempted
from wal.clock import SystemClock
from wal.coordinates import LOG_APPEND_TIME, ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.stores.blocking_store import BlockingStore
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import BytesBody

TOPIC_ID = UUID("6b1c2f3e-0000-4000-8000-00000000000a")
PARTITION = TopicIdPartition(TOPIC_ID, 3)
NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)

Headers = Sequence[tuple[str, bytes | None]]


class SampleRecord(NamedTuple):
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    timestamp_ms: int = 1_700_000_000_000
    headers: Headers = ()


class SampleBatch(NamedTuple):
    records: Sequence[SampleRecord]
    codec: int = NO_CODEC
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transaction_number: int = -1

    def encoded(self) -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=self.codec,
            is_transactional=self.transaction_number >= 0,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            batch_size=1 << 30,
        )
        for offset, record in enumerate(self.records):
            appended = builder.append(
                offset, record.timestamp_ms, record.key, record.value, list(record.headers)
            )
            assert appended is not None
        return bytes(builder.build())


class PreparedBatch(NamedTuple):
    """Bytes as they are, for as many records as `records`, of which the timestamps alone count."""

    records: Sequence[SampleRecord]
    data: bytes

    def encoded(self) -> bytes:
        return self.data


class ReadBatch(NamedTuple):
    """Everything of a batch that a consumer can see."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp_type: int
    max_timestamp_ms: int
    records: Sequence[tuple[int, int, bytes | None, bytes | None, Headers]]


def read_batch(data: bytes) -> ReadBatch:
    """Open one batch with aiokafka, after checking its CRC."""
    batch = DefaultRecordBatch(bytearray(data))
    assert batch.validate_crc()
    return ReadBatch(
        batch.base_offset,
        batch.base_offset + batch.last_offset_delta,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.timestamp_type,
        batch.max_timestamp,
        [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch],
    )


def expected_batches(
    batches: Iterable[SampleBatch],
    base_offset: int = 0,
    timestamp_type: int = 0,
    log_append_time_ms: int = -1,
) -> list[ReadBatch]:
    """What a consumer sees of `batches`, from their description alone."""
    seen = []
    for batch in batches:
        by_broker = timestamp_type == LOG_APPEND_TIME
        times = [log_append_time_ms if by_broker else r.timestamp_ms for r in batch.records]
        records = [
            (base_offset + at, times[at], r.key, r.value, list(r.headers))
            for at, r in enumerate(batch.records)
        ]
        seen.append(
            ReadBatch(
                base_offset,
                base_offset + len(records) - 1,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                timestamp_type,
                max(times),
                records,
            )
        )
        base_offset += len(records)
    return seen


def file_store(directory: Path) -> BlockingFileStore:
    """A store in a directory, durable against nothing: tests do not cut the power."""
    return BlockingFileStore(
        str(directory), clock=SystemClock(), rng=random.SystemRandom(), sync=False
    )


def put_wal_object(
    store: Any,
    key: str,
    extents: Sequence[Sequence[SampleBatch | PreparedBatch]],
    *,
    base_offset: int = 0,
    gap: bytes = b"",
    timestamp_type: int = 0,
    log_append_time_ms: int = -1,
) -> list[WalExtent]:
    """Store the batches of each extent back to back, `gap` between extents; offsets are dense."""
    body = bytearray(b"header of the object")
    placed = []
    for batches in extents:
        data = b"".join(batch.encoded() for batch in batches)
        count = sum(len(batch.records) for batch in batches)
        times = [record.timestamp_ms for batch in batches for record in batch.records]
        placed.append(
            WalExtent(
                object_key=ObjectKey(key),
                byte_offset=ByteOffset(len(body)),
                length_bytes=len(data),
                base_offset=Offset(base_offset),
                last_offset=Offset(base_offset + count - 1),
                log_append_time_ms=log_append_time_ms,
                max_timestamp_ms=max(times),
                timestamp_type=timestamp_type,
            )
        )
        base_offset += count
        body += data + gap
    store.put(ObjectKey(key), BytesBody(bytes(body)))
    return placed


def plan_of(
    extents: Sequence[WalExtent],
    topic_name: str = "flights",
    partition: TopicIdPartition = PARTITION,
) -> SegmentPlan:
    base, last = extents[0].base_offset, extents[-1].last_offset
    return SegmentPlan(
        partition=partition,
        topic_name=topic_name,
        object_key=segment_key(topic_name, partition, base, last),
        base_offset=base,
        last_offset=last,
        extents=extents,
    )


def extent_of(segment: RolledSegment) -> SegmentExtent:
    return SegmentExtent(
        object_key=segment.object_key,
        object_bytes=segment.object_bytes,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


def range_reader(store: Any) -> Any:
    """The async range reader a `SegmentReader` takes, over a blocking store; counts its calls."""

    async def read(key: ObjectKey, start: int, length: int, object_length: int) -> bytes:
        assert 0 <= start <= start + length <= object_length
        read.calls.append((key, start, length))  # type: ignore[attr-defined]
        data: bytes = store.get_range(key, start, length)
        return data

    read.calls = []  # type: ignore[attr-defined]
    return read


class PlainRoller:
    """Rolls in this process, one after the other."""

    def __init__(self, store: BlockingFileStore) -> None:
        self.store = store
        self.urls: list[str] = []

    def __call__(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
    ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
        self.urls.append(object_store_url)
        results = []
        for number, plan in enumerate(plans):
            results.append(attempted(roll, plan, self.store, SystemClock()))
            done(number + 1)
        return results


class PlainMerger:
    """Merges in this process, one after the other."""

    def __init__(self, store: BlockingFileStore) -> None:
        self._store = store
        self.urls: list[str] = []

    def __call__(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: Done
    ) -> Sequence[Written[RewritePlan, Rewrite] | Failed[RewritePlan]]:
        self.urls.append(object_store_url)
        return [attempted(_merged, plan, self._store, SystemClock()) for plan in plans]


def _merged(plan: RewritePlan, store: BlockingStore) -> Rewrite:
    return outcome_of(plan, [merge(plan, store)])
