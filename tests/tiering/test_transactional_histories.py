"""Random histories of topics with transactions, of which three in ten are aborted.

Producers write to four topics, with transactions and without, while ranges are rolled, merged and
compacted, records are deleted, tables are brought up to date, brokers die. After each step a read
of the Spark source has exactly the committed records below the last stable offset, as the model
says; a micro-batch that is read again has the same rows; no segment has a record of an aborted
transaction, and the state fits together.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import pytest
from tiered_topics import TieredTopics
from tiering_samples import SampleBatch, SampleRecord

from metadata.operations import BatchCommit, FindBatches, FoundBatches
from metadata.replica.verify import check_state
from metadata.transaction_operations import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    TransactionPartition,
)
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.profiles import seeds
from tests.tiering.located_log import LocatedLog
from tiering.source.planning import Share
from tiering.source.rows.share_rows import Wanted, share_tables
from wal.coordinates import TopicIdPartition

STEPS: Final = 60 if IS_EXHAUSTIVE else 28
KEYS: Final = [b"key %d" % number for number in range(5)]
WANTED: Final = Wanted(columns=["offset", "key", "value"])


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes


@dataclass
class Ended:
    """What became of a transaction; None: it is open."""

    is_commit: bool | None = None


@dataclass
class Topic:
    name: str
    partition: TopicIdPartition
    rows: list[tuple[Row, Ended]] = field(default_factory=list)
    start: int = 0
    batches: list[tuple[int, int, list[Row]]] = field(default_factory=list)
    """Micro-batches that were read: from where to where, and what they had."""

    @property
    def is_compacted(self) -> bool:
        return self.name == "compacted"

    def stable_end(self, high_watermark: int) -> int:
        opened = [row.offset for row, ended in self.rows if ended.is_commit is None]
        return max(min(opened, default=high_watermark), self.start)

    def committed(self, start: int, end: int) -> list[Row]:
        return [row for row, one in self.rows if one.is_commit and start <= row.offset < end]


@dataclass
class Producer:
    name: str
    id: int = -1
    epoch: int = -1
    sequences: dict[TopicIdPartition, int] = field(default_factory=dict)
    open: Ended | None = None
    number: int = -1
    joined: set[TopicIdPartition] = field(default_factory=set)


class History:
    def __init__(self, world: TieredTopics, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.topics: list[Topic] = []
        self.producers = [Producer(f"t{number}") for number in range(3)]
        self.aborted = self.ended = self.values = 0

    @property
    def transactions(self) -> Any:
        return self.world.coordinator.transactions

    async def begin(self) -> None:
        small = {"segment_bytes": "1"}
        merged = {**small, "segment_merge_bytes": "60000"}
        table = {**merged, "table_enabled": "true", "table_commit_interval_ms": "0"}
        compacted = {**small, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
        for name, configs in (
            ("merged", merged),
            ("table", table),
            ("cut", small),
            ("compacted", compacted),
        ):
            self.topics.append(Topic(name, await self.world.create(name, **configs)))
        for producer in self.producers:
            await self._init(producer)

    async def play(self, steps: int) -> None:
        chosen: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.produce, 10),
            (self.end, 6),
            (self.fence, 1),
            (self.roll, 5),
            (self.rewrite, 3),
            (self.delete_records, 1),
            (self.world.clean, 2),
            (self.world.run_table_pass, 1),
            (self.restart, 1),
        ]
        actions, weights = zip(*chosen, strict=True)
        for action in self.rng.choices(actions, weights, k=steps):
            self.world.clock.advance(self.rng.choice([0.001, 1]))
            await action()
            await self.check()

    # -- steps ----------------------------------------------------------------------------------

    async def _init(self, producer: Producer) -> None:
        ids = await self.world.coordinator.allocate_producer_ids()
        answer = await self.transactions.init_producer(InitProducer(producer.name, 60_000, ids[0]))
        assert answer.error is None
        producer.id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.sequences.clear()
        self._close(producer, is_commit=False)

    def _close(self, producer: Producer, *, is_commit: bool) -> None:
        if producer.open is not None:
            producer.open.is_commit = is_commit
            self.ended += 1
            self.aborted += not is_commit
        producer.open = None
        producer.joined.clear()

    async def produce(self) -> None:
        """Batches of several producers in one object; a producer may write to several topics."""
        items: list[tuple[Topic, SampleBatch, Ended]] = []
        for _ in range(self.rng.randint(1, 5)):
            topic = self.rng.choice(self.topics)
            producer = self.rng.choice([None, *self.producers])
            records = [self._record() for _ in range(self.rng.randint(1, 3))]
            if producer is None:
                items.append((topic, SampleBatch(records), Ended(is_commit=True)))
            else:
                items.append((topic, *await self._of(producer, topic.partition, records)))
        answers = await self.world.produce([(one.partition, batch) for one, batch, _ in items])
        for (topic, batch, ended), answer in zip(items, answers, strict=True):
            self._written(topic, batch, ended, answer)

    def _record(self) -> SampleRecord:
        self.values += 1
        return SampleRecord(self.rng.choice(KEYS), b"%d" % self.values, self.world.clock.now_ms())

    async def _of(
        self, producer: Producer, partition: TopicIdPartition, records: Sequence[SampleRecord]
    ) -> tuple[SampleBatch, Ended]:
        if partition not in producer.joined:
            asked = AddToTransaction(
                producer.name, producer.id, producer.epoch, [TransactionPartition(partition, 0)]
            )
            joined = await self.transactions.add_to_transaction(asked)
            assert joined.error is None
            producer.number = joined.number
            producer.joined.add(partition)
        producer.open = producer.open or Ended()
        sequence = producer.sequences.get(partition, 0)
        producer.sequences[partition] = sequence + len(records)
        batch = SampleBatch(
            records,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transaction_number=producer.number,
        )
        return batch, producer.open

    def _written(self, topic: Topic, batch: SampleBatch, ended: Ended, answer: BatchCommit) -> None:
        assert answer.error is None, answer
        for at, record in enumerate(batch.records):
            assert record.key is not None
            assert record.value is not None
            topic.rows.append((Row(answer.base_offset + at, record.key, record.value), ended))

    async def end(self) -> None:
        producer = self.rng.choice(self.producers)
        if not producer.joined:
            return
        is_commit = self.rng.random() >= 0.3
        ended = await self.transactions.end_transaction(
            EndTransaction(producer.name, producer.id, producer.epoch, is_commit)
        )
        assert ended.is_completed, ended
        self._close(producer, is_commit=is_commit)

    async def fence(self) -> None:
        """A producer begins anew; what it has open is aborted."""
        await self._init(self.rng.choice(self.producers))

    async def roll(self) -> None:
        await self.world.roll(is_killed=self.rng.random() < 0.2)

    async def rewrite(self) -> None:
        for plan in await self.world.plan_rewrites():
            rewrite = self.world.written(plan)
            if self.rng.random() < 0.8:
                assert await self.world.commit(rewrite)

    async def delete_records(self) -> None:
        (topic,) = (one for one in self.topics if one.name == "cut")
        state = self._state(topic)
        topic.start = self.rng.randint(topic.start, state.high_watermark)
        await self.world.delete_records(topic.partition, topic.start)

    async def restart(self) -> None:
        await self.world.restart(keeps_state=self.rng.random() < 0.5)

    # -- what must be -----------------------------------------------------------------------------

    def _state(self, topic: Topic) -> Any:
        return self.world.coordinator.replica.image.partitions[topic.partition]

    async def check(self) -> None:
        assert await self.world.coordinator.replica.state.read(check_state) == []
        for topic in self.topics:
            state = self._state(topic)
            end = topic.stable_end(state.high_watermark)
            assert state.last_stable_offset == end
            found = await self._read(topic, topic.start, end)
            committed = topic.committed(topic.start, end)
            if topic.is_compacted:
                assert set(found) <= set(committed)
                newest = {row.key: row for row in committed}
                assert set(newest.values()) <= set(found)
                assert found == sorted(found)
                continue
            assert found == committed
            first = topic.batches[-1][1] if topic.batches else 0
            first = max(first, topic.start)
            if first < end:
                topic.batches.append((first, end, committed_from(committed, first)))
            first, last, rows = self.rng.choice(topic.batches or [(0, 0, [])])
            if first >= topic.start:
                assert await self._read(topic, first, last) == rows, "a micro-batch comes again"
            await self._check_segments(topic)

    async def _check_segments(self, topic: Topic) -> None:
        committed = {row.offset for row, one in topic.rows if one.is_commit}
        for segment in await self.world.live_segments(topic.partition):
            path = self.world.directory / "objects" / segment.object_key
            offsets = pq.read_table(path, columns=["offset"]).column("offset").to_pylist()
            inside = range(segment.base_offset, segment.last_offset + 1)
            assert offsets == sorted(committed & set(inside))

    async def _read(self, topic: Topic, start: int, end: int) -> list[Row]:
        log = LocatedLog(topic.name, self._find, page=self.rng.choice([1, 3, 100]))
        cut = self.rng.randint(start, end)
        shares = [
            Share(0, *bounds) for bounds in ((start, cut), (cut, end)) if bounds[0] < bounds[1]
        ]

        def read() -> list[Row]:
            store = self.world.blocking
            return [
                Row(**row)
                for share in shares
                for table in share_tables(log, topic.partition, share, store, WANTED)
                for row in table.to_pylist()
            ]

        return await asyncio.to_thread(read)

    async def _find(self, asked: FindBatches, isolation: int, most: int) -> FoundBatches:
        (found,) = await self.world.coordinator.replica.find_batches(
            [asked], max_bytes=1 << 30, rows_per_partition_max=most, isolation=isolation
        )
        assert isinstance(found, FoundBatches)
        return found


def committed_from(rows: Sequence[Row], start: int) -> list[Row]:
    return [row for row in rows if row.offset >= start]


@pytest.mark.parametrize("seed", range(30) if IS_EXHAUSTIVE else seeds(1))
async def test_readers_have_the_committed_records_whatever_happens(
    tmp_path: Path, seed: int
) -> None:
    async with TieredTopics(tmp_path, seed) as world:
        history = History(world, seed)
        await history.begin()
        await history.play(STEPS)
        assert 0 < history.aborted < history.ended
