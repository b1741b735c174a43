"""One log over two tiers: a stock consumer cannot tell what is Parquet and what is WAL."""

import asyncio
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.tiers.rolled import roll_everything

pytestmark = pytest.mark.clients

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "diskless.file.delete.grace.ms": "0",
    "diskless.file.cleaner.interval.ms": "100",
}
BASE_MS = 1_700_000_000_000


def some_records(count: int, seed: int) -> list[clients.Record]:
    """Null and empty keys and values, repeated and null headers, unordered times."""
    rng = random.Random(seed)
    return [
        clients.Record(
            key=rng.choice([None, b"", rng.randbytes(8)]),
            value=rng.choice([None, b"", rng.randbytes(rng.randrange(1, 300)), b"same " * 50]),
            headers=tuple(
                (rng.choice("abc"), rng.choice([None, b"", rng.randbytes(5)]))
                for _ in range(rng.randrange(4))
            ),
            timestamp_ms=BASE_MS + number // 10 * 10 + rng.randrange(7),
        )
        for number in range(count)
    ]


def numbered(records: Sequence[clients.Record], start: int = 0) -> list[clients.StoredRecord]:
    return [clients.StoredRecord(offset, record) for offset, record in enumerate(records, start)]


def produce_in_all_codecs(bootstrap: str, topic: str, records: Sequence[clients.Record]) -> None:
    """In order, a fifth of them with each codec, each fifth in several batches."""
    share = len(records) // len(clients.CODECS)
    assert share * len(clients.CODECS) == len(records)
    for number, codec in enumerate(clients.CODECS):
        for part in range(number * share, (number + 1) * share, share // 2):
            clients.ConfluentKafka().produce(
                bootstrap, topic, records[part : part + share // 2], codec=codec
            )


class TwoTiers:
    """A topic whose first half is a segment and whose second half is in WAL objects."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.records = some_records(600, seed=5)
        produce_in_all_codecs(broker.bootstrap, "t", self.records[:300])
        (segment,) = roll_everything(broker)
        assert (segment.base_offset, segment.last_offset) == (0, 299)
        produce_in_all_codecs(broker.bootstrap, "t", self.records[300:])


@pytest.fixture(scope="module")
def two_tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTiers]:
    data = tmp_path_factory.mktemp("tiers") / "data"
    with LiveBroker(data, SETTINGS) as broker:
        yield TwoTiers(broker)


@pytest.mark.parametrize("reader", clients.STOCK_CLIENTS, ids=lambda client: client.name)
def test_a_consumer_crosses_from_parquet_to_wal_without_noticing(
    two_tiers: TwoTiers, reader: clients.StockClient
) -> None:
    segment_bytes = two_tiers.broker.broker.reads.reader.statistics().segment_bytes
    read = reader.read(two_tiers.broker.bootstrap, "t", 600)
    assert read == numbered(two_tiers.records)
    assert two_tiers.broker.broker.reads.reader.statistics().segment_bytes > segment_bytes


def test_a_consumer_may_start_at_any_offset_of_either_tier(two_tiers: TwoTiers) -> None:
    expected = numbered(two_tiers.records)

    async def read() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=two_tiers.broker.bootstrap,
            enable_auto_commit=False,
            fetch_max_wait_ms=10,
        )
        async with asyncio.timeout(clients.TIMEOUT_S), consumer:
            place = AioTopicPartition("t", 0)
            consumer.assign([place])
            for start in [*range(0, 600, 23), 298, 299, 300, 301, 599]:
                consumer.seek(place, start)
                for offset in range(start, min(start + 5, 600)):
                    message = await consumer.getone()
                    assert (message.offset, message.value) == (
                        offset,
                        expected[offset].record.value,
                    )

    asyncio.run(read())


def test_timestamps_are_found_at_their_record_in_either_tier(two_tiers: TwoTiers) -> None:
    times = [record.timestamp_ms for record in two_tiers.records]
    with closing(clients.confluent_consumer(two_tiers.broker.bootstrap)) as consumer:
        for moment in range(BASE_MS - 3, BASE_MS + 615, 4):
            expected = next((n for n, at in enumerate(times) if at >= moment), OFFSET_END)
            (found,) = consumer.offsets_for_times(
                [TopicPartition("t", 0, moment)], timeout=clients.TIMEOUT_S
            )
            assert found.offset == expected, moment - BASE_MS


def test_without_chunks_and_caches_every_record_is_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {**SETTINGS, "object.cache.disk.bytes": str(1 << 20)}
    with LiveBroker(data, settings) as broker:
        expected = numbered(TwoTiers(broker).records)
        chunks, cache = broker.broker.base.data.chunks, broker.broker.base.data.cache
        assert clients.ConfluentKafka().read(broker.bootstrap, "t", 600) == expected
        assert broker.broker.reads.reader.statistics().chunk_bytes > 0
    shutil.rmtree(chunks)
    shutil.rmtree(cache, ignore_errors=True)
    with LiveBroker(data, settings) as broker:
        for reader in clients.STOCK_CLIENTS:
            assert reader.read(broker.bootstrap, "t", 600) == expected, reader.name
        statistics = broker.broker.reads.reader.statistics()
        assert statistics.chunk_bytes == 0
        assert statistics.object_bytes > 0
        assert statistics.segment_bytes > 0
        # And it goes on where it was.
        assert clients.ConfluentKafka().produce(broker.bootstrap, "t", [clients.Record()]) == [600]


def test_append_time_outlives_the_roll(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        admin = clients.confluent_admin(broker.bootstrap)
        new = NewTopic("t", 1, config={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([new])["t"].result(clients.TIMEOUT_S)
        for codec in clients.CODECS:
            clients.ConfluentKafka().produce(
                broker.bootstrap, "t", some_records(20, 3), codec=codec
            )
        before = clients.ConfluentKafka().read(broker.bootstrap, "t", 100)
        roll_everything(broker)
        assert broker.broker.reads.reader.statistics().segment_bytes == 0
        for reader in clients.STOCK_CLIENTS:
            assert reader.read(broker.bootstrap, "t", 100) == before, reader.name
        assert broker.broker.reads.reader.statistics().segment_bytes > 0


def test_an_idempotent_producer_goes_on_over_rolls_and_restarts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    acknowledged: list[int] = []
    with LiveBroker(data, SETTINGS) as first:
        port = first.port
        producer = clients.confluent_producer(
            first.bootstrap, enable_idempotence=True, reconnect_backoff_max_ms=100
        )

        def send(count: int) -> None:
            for _ in range(count):
                producer.produce(
                    "t",
                    str(len(acknowledged)).encode(),
                    on_delivery=lambda error, message: acknowledged.append(
                        -1 if error else message.offset() or 0
                    ),
                )
                assert producer.flush(clients.TIMEOUT_S) == 0

        send(20)
        roll_everything(first)
        send(20)
    with LiveBroker(data, SETTINGS, port=port) as second:
        send(20)
        roll_everything(second)
        send(20)
        assert acknowledged == list(range(80))
        read = clients.ConfluentKafka().read(second.bootstrap, "t", 80)
        assert [record.value for _, record in read] == [str(n).encode() for n in range(80)]


def test_a_consumer_reads_on_while_its_wal_objects_turn_into_segments(tmp_path: Path) -> None:
    # No chunks to read from, small fetches, no grace: objects go away right under the reader.
    settings = {**SETTINGS, "wal.cache.max.bytes": "0", "object.cache.memory.bytes": "0"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        records = [clients.Record(value=bytes([n % 256]) * 500) for n in range(2_000)]
        for start in range(0, 2_000, 100):
            clients.ConfluentKafka().produce(broker.bootstrap, "t", records[start : start + 100])
        objects = broker.broker.base.data.objects / "wal"
        rolling = threading.Thread(target=roll_everything, args=(broker,))
        found: list[clients.StoredRecord] = []
        consumer = clients.confluent_consumer(
            broker.bootstrap,
            fetch_message_max_bytes=10_000,
            fetch_max_bytes=10_000,
            message_max_bytes=10_000,
            queued_max_messages_kbytes=20,
            queued_min_messages=1,
            fetch_queue_backoff_ms=1,
        )
        with closing(consumer):
            consumer.assign([TopicPartition("t", 0, 0)])
            while len(found) < 2_000:
                message = consumer.poll(clients.TIMEOUT_S)
                assert message is not None
                found.append(clients.stored(message))
                if len(found) == 300:
                    rolling.start()
        rolling.join()
        assert found == numbered(records)
        until(lambda: not _files(objects), "the WAL to go")
        assert clients.ConfluentKafka().read(broker.bootstrap, "t", 2_000) == numbered(records)


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
