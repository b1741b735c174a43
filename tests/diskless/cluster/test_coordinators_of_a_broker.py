"""A whole broker's coordinators, asked over the wire: what was produced is found, to the record."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer

from metadata.clients.wire_client import WireClient
from metadata.log.log_object import log_prefix
from metadata.messages.brokers import DELETE_TOPICS_AT
from metadata.messages.shapes import Addressed
from metadata.operations import (
    CommitFile,
    CreatePartitions,
    CreateTopic,
    DeleteRecords,
    FindBatches,
    ListOffsets,
    TopicDescription,
    WalExtent,
)
from tests.support.brokers.live_broker import LiveBroker
from tests.support.stores.faulty_store import FaultyStore, StoreFaults
from wal import errors
from wal.clock import SystemClock
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.stores.object_store import ObjectStat, ObjectStore
from wal.stores.store_url import open_store
from wal.ulid import mint_ulid, wal_object_key

NOW_MS = 1_704_067_200_000
RECORDS = 50


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {"diskless.metadata.topic.num.partitions": "2"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


@asynccontextmanager
async def asked(broker: LiveBroker) -> AsyncIterator[WireClient]:
    clock, rng = SystemClock(), random.Random(3)
    async with WireClient("127.0.0.1", broker.port, clock=clock, rng=rng) as client:
        yield client


async def a_topic(client: WireClient, partition_count: int = 2) -> TopicDescription:
    (topic,) = await client.create_topics(
        [CreateTopic(name="flights", partition_count=partition_count)]
    )
    assert isinstance(topic, TopicDescription)
    return topic


def produce(broker: LiveBroker, partition: int) -> None:
    """Records 10 ms apart, but for the fifth, which is the youngest."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for number in range(RECORDS):
        timestamp = NOW_MS + number * 10 if number != 5 else NOW_MS + 99_000
        producer.produce("flights", str(number), partition=partition, timestamp=timestamp)
    assert producer.flush(30) == 0


async def test_what_was_produced_is_found_over_the_wire(broker: LiveBroker) -> None:
    async with asked(broker) as client:
        topic = await a_topic(client)
        for partition in range(2):
            produce(broker, partition)
            place = TopicIdPartition(topic.topic_id, partition)
            timestamps = [-1, -2, -3, -4, -5, NOW_MS + 101, NOW_MS + 490, NOW_MS + 99_001]
            answers = await client.list_offsets([ListOffsets(place, at) for at in timestamps])
            assert [(answer.offset, answer.timestamp_ms) for answer in answers] == [
                (RECORDS, -1),
                (0, -1),
                (5, NOW_MS + 99_000),
                (0, -1),
                (-1, -1),
                # The first record at or after 101 ms in offset order is the young fifth.
                (5, NOW_MS + 99_000),
                (5, NOW_MS + 99_000),
                (-1, -1),
            ]
            (found,) = await client.find_batches(
                [FindBatches(place, 0, 1 << 20)], max_bytes=1 << 20
            )
            assert (found.log_start_offset, found.high_watermark) == (0, RECORDS)
            assert found.extents[-1].last_offset == RECORDS - 1
            keys = [extent.object_key for extent in found.extents]
            described = await client.describe_files([*keys, ObjectKey("wal/00/none")])
            assert [file.has_live_batches for file in described] == [True] * len(keys) + [False]
            assert type(described[-1].error) is errors.UnknownFile


async def test_deleted_records_are_out_of_range_and_deleted_topics_unknown(
    broker: LiveBroker,
) -> None:
    async with asked(broker) as client:
        topic = await a_topic(client)
        produce(broker, 1)
        place = TopicIdPartition(topic.topic_id, 1)
        deleted = await client.delete_records(
            [DeleteRecords(place, 10), DeleteRecords(place, 5), DeleteRecords(place, RECORDS + 1)]
        )
        assert [answer.log_start_offset for answer in deleted[:2]] == [10, 10]
        assert type(deleted[2].error) is errors.OffsetOutOfRange
        below, above = await client.find_batches(
            [FindBatches(place, 9, 100), FindBatches(place, 10, 100)], max_bytes=1_000
        )
        assert type(below.error) is errors.OffsetOutOfRange
        assert above.error is None
        (earliest,) = await client.list_offsets([ListOffsets(place, -2)])
        assert earliest.offset == 10
        assert await client.delete_topics([topic.topic_id]) == [None]
        (again,) = await client.delete_topics([topic.topic_id])
        assert type(again) is errors.UnknownTopicId
        (gone,) = await client.list_offsets([ListOffsets(place, -1)])
        assert type(gone.error) is errors.UnknownPartition


async def test_a_commit_is_answered_once_and_for_all(broker: LiveBroker) -> None:
    async with asked(broker) as client:
        topic = await a_topic(client, 4)
        key = wal_object_key(mint_ulid(SystemClock(), random.Random()))

        def file(size: int, partition_count: int = 4) -> CommitFile:
            return CommitFile(
                object_key=key,
                file_size_bytes=size,
                uploader_broker_id=7,
                batches=[
                    BatchExtent(
                        TopicIdPartition(topic.topic_id, index),
                        ByteOffset(index * 100),
                        100,
                        5,
                        index + 1,
                        NOW_MS,
                        0,
                        -1,
                        -1,
                        -1,
                        0,
                    )
                    for index in range(partition_count)
                ],
                owner_ids=sorted({topic.coordinator_of(index) for index in range(4)}),
            )

        first = await client.commit_file(file(400))
        assert [(commit.base_offset, commit.error) for commit in first] == [(0, None)] * 4
        assert await client.commit_file(file(400)) == first
        # Other content under this key; each coordinator refuses its share.
        for commit in await client.commit_file(file(500)):
            assert type(commit.error) is errors.Rejected
        # A partition that nobody has is refused alone.
        key = wal_object_key(mint_ulid(SystemClock(), random.Random()))
        *good, bad = await client.commit_file(file(600, 5))
        assert [commit.base_offset for commit in good] == [5] * 4
        assert type(bad.error) is errors.UnknownPartition
        (found,) = await client.find_batches(
            [FindBatches(TopicIdPartition(topic.topic_id, 2), 0, 1_000)], max_bytes=1_000
        )
        assert [
            (extent.base_offset, extent.last_offset, isinstance(extent, WalExtent))
            for extent in found.extents
        ] == [(0, 4, True), (5, 9, True)]


async def test_topics_grow_and_names_stay(broker: LiveBroker) -> None:
    async with asked(broker) as client:
        topic = await a_topic(client)
        grown = CreatePartitions(topic_id=topic.topic_id, name="flights", partition_count=6)
        assert await client.create_partitions([grown]) == [None]
        assert await client.create_partitions([grown]) == [None]
        (same_name,) = await client.create_topics([CreateTopic(name="flights", partition_count=1)])
        assert type(same_name) is errors.TopicExists
        places = [TopicIdPartition(topic.topic_id, index) for index in range(7)]
        answers = await client.list_offsets([ListOffsets(place, -1) for place in places])
        assert [answer.offset for answer in answers] == [0] * 6 + [-1]
        assert type(answers[-1].error) is errors.UnknownPartition


async def test_producer_ids_are_given_out_once(broker: LiveBroker) -> None:
    async with asked(broker) as client:
        blocks = [await client.allocate_producer_ids() for _ in range(3)]
        ids = [number for block in blocks for number in block]
        assert len(set(ids)) == len(ids) > 3


async def test_a_coordinator_that_is_not_led_here_is_named_as_such(broker: LiveBroker) -> None:
    async with asked(broker) as client:
        for asking in (
            client.describe_files([ObjectKey("k")], coordinator=9),
            client.tombstone_files(9, [ObjectKey("k")]),
            client.call(DELETE_TOPICS_AT, Addressed(9, [])),
        ):
            with pytest.raises(errors.NotCoordinator):
                await asking


class MeetingStore(FaultyStore):
    """The first listing of each log waits until all of them have been asked for."""

    logs: ClassVar[set[str]] = {log_prefix(index) for index in range(3)}

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, StoreFaults())
        self._asked: set[str] = set()
        self._met = asyncio.Event()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        if prefix in self.logs:
            self._asked.add(prefix)
            if self._asked == self.logs:
                self._met.set()
            try:
                async with asyncio.timeout(120):
                    await self._met.wait()
            except TimeoutError as error:
                raise errors.ObjectStoreUnavailable("they come one after the other") from error
        async for stat in super().list(prefix, start_after):
            yield stat


def test_the_logs_of_all_metadata_partitions_are_opened_side_by_side(tmp_path: Path) -> None:
    def opener(url: str, **doors: Any) -> ObjectStore:
        return MeetingStore(open_store(url, **doors))

    settings = {
        "diskless.metadata.topic.num.partitions": "3",
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path / 'bucket'}",
    }
    with LiveBroker(tmp_path / "data", settings, opener=opener):
        pass
