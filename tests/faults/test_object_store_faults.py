"""A broker whose object store fails, lies, dawdles or is gone, under stock clients."""

import asyncio
import gc
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.clients.numbered_records import (
    PARTITIONS,
    NumberedProducer,
    assert_each_once,
    everything,
)
from tests.support.stores.faulty_s3 import Fault, FaultyS3
from tests.support.stores.faulty_store import StoreFaults
from tests.support.tiers.rolled import roll_everything
from wal.errors import ObjectStoreUnavailable

SETTINGS = {
    "wal.commit.interval.ms": "5",
    "wal.retry.backoff.ms": "5",
    "wal.retry.backoff.max.ms": "20",
}


@pytest.fixture
def faults() -> StoreFaults:
    return StoreFaults()


@pytest.fixture
def broker(tmp_path: Path, faults: StoreFaults) -> Iterator[LiveBroker]:
    settings = {**SETTINGS, "num.partitions": str(PARTITIONS)}
    with LiveBroker(tmp_path / "data", settings, opener=faults.opener) as broker:
        yield broker
        faults.heal()


# Writing


def test_nothing_is_acknowledged_while_the_store_is_away_and_all_is_when_it_is_back(
    broker: LiveBroker, faults: StoreFaults
) -> None:
    producer = NumberedProducer(broker.bootstrap)
    producer.send(300)
    producer.flush()
    faults.outage()
    producer.send(900)
    tried = faults.puts_tried

    def tried_often() -> bool:
        producer.poll()
        return faults.puts_tried >= tried + 30

    until(tried_often, "thirty puts that fail")
    assert len(producer.acknowledged) == 300
    assert not producer.errors
    faults.heal()
    producer.flush()
    assert_each_once(broker.bootstrap, producer)


def test_requests_time_out_during_an_outage_and_their_retries_store_nothing_twice(
    broker: LiveBroker, faults: StoreFaults
) -> None:
    # Every Produce times out several times before the store is back.
    producer = NumberedProducer(broker.bootstrap, request_timeout_ms=100)
    producer.send(60)
    producer.flush()
    faults.outage()
    producer.send(60)
    replicas = broker.broker.reads.replicas
    expired = replicas.produce_purgatory.statistics().expired

    def timed_out() -> bool:
        producer.poll()
        return replicas.produce_purgatory.statistics().expired >= expired + 12

    until(timed_out, "produces that time out")
    assert len(producer.acknowledged) == 60
    faults.heal()
    producer.flush()
    assert_each_once(broker.bootstrap, producer)
    # Three batches were sent four times and more. What came while the first had no outcome waited
    # for that, and was not kept beside it; what came in the moment behind it is a duplicate.
    assert replicas.batches_repeated >= 9
    assert broker.broker.writes.lane.batches_duplicate <= 3


def test_a_client_less_patient_than_the_store_gets_its_answers_all_the_same(
    broker: LiveBroker, faults: StoreFaults
) -> None:
    producer = NumberedProducer(broker.bootstrap, request_timeout_ms=300)
    faults.put_delay_s = 0.4
    producer.send(120)
    producer.flush()
    assert_each_once(broker.bootstrap, producer)


def test_puts_whose_answers_are_lost_store_every_record_once(
    broker: LiveBroker, faults: StoreFaults
) -> None:
    producer = NumberedProducer(broker.bootstrap)
    for _ in range(10):
        faults.lost_responses = 2
        producer.send(60)
        producer.flush()
    assert broker.broker.writes.uploader.upload_retries >= 10
    assert_each_once(broker.bootstrap, producer)


def test_a_slow_store_delays_and_nothing_else(broker: LiveBroker, faults: StoreFaults) -> None:
    faults.put_delay_s = 0.05
    producer = NumberedProducer(broker.bootstrap)
    for _ in range(20):
        producer.send(30)
        producer.poll()
    producer.flush()
    assert_each_once(broker.bootstrap, producer)


def test_a_broker_that_stops_during_an_outage_commits_what_it_had_when_it_is_back(
    tmp_path: Path, faults: StoreFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskless.parts.write_path._DRAIN_TIMEOUT_S", 0.1)
    settings = {
        **SETTINGS,
        "num.partitions": str(PARTITIONS),
        "server.stop.timeout.ms": "100",
    }
    with LiveBroker(tmp_path / "data", settings, opener=faults.opener) as first:
        port = first.port
        producer = NumberedProducer(first.bootstrap)
        producer.send(90)
        producer.flush()
        faults.outage()
        tried = faults.puts_tried
        producer.send(90)
        until(lambda: faults.puts_tried > tried, "a put that fails")
    faults.heal()
    with LiveBroker(tmp_path / "data", settings, port=port, opener=faults.opener) as second:
        producer.flush()
        assert_each_once(second.bootstrap, producer)


def test_memory_stays_capped_while_producers_push_against_a_store_that_is_gone(
    tmp_path: Path,
) -> None:
    settings = {
        "num.partitions": str(PARTITIONS),
        "wal.buffer.max.bytes": str(8 << 20),
        "wal.chunk.max.bytes": str(1 << 20),
        "wal.append.queue.max.bytes": str(40 << 20),
        "queued.max.request.bytes": str(16 << 20),
        "socket.request.max.bytes": str(4 << 20),
        "max.connections": "64",
    }
    objects = tmp_path / "objects"
    url = f"file://{objects}"
    with BrokerProcess(tmp_path / "data", tmp_path, settings, object_store=url) as broker:
        broker.start()
        producer = NumberedProducer(broker.bootstrap)
        producer.send(300)
        producer.flush()
        # It has as many requests under way as the broker takes; an idempotent one has five.
        pushing = clients.confluent_producer(
            broker.bootstrap, batch_num_messages=1_000, queue_buffering_max_kbytes=200_000
        )
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        # A directory that is no directory any more: every put fails.
        objects.rename(tmp_path / "away")
        objects.write_bytes(b"")
        producer.send(3_000)
        highest = before
        pushed = 0
        lost: list[KafkaError] = []
        for _ in range(100):
            for _ in range(1_000):
                pushing.produce(
                    "noise",
                    bytes(1_000),
                    on_delivery=lambda error, _: lost.append(error) if error else None,
                )
            pushed += 1_000
            pushing.poll(0)
            producer.poll()
            highest = max(highest, process.memory_info().rss)
        ends_at = time.monotonic() + 2  # what it takes in by then is what it takes in
        while time.monotonic() < ends_at:
            producer.poll()
            highest = max(highest, process.memory_info().rss)
        assert len(producer.acknowledged) == 300
        assert not producer.errors
        assert highest - before < 64 << 20, f"{(highest - before) >> 20} MiB more"
        objects.unlink()
        (tmp_path / "away").rename(objects)
        producer.flush()
        assert pushing.flush(clients.TIMEOUT_S) == 0
        assert not lost
        assert_each_once(broker.bootstrap, producer)
        broker.stop()


# The same against S3's own protocol


@pytest.mark.parametrize("action", ["status", "drop", "lose_response"])
async def test_s3_that_fails_for_a_while_loses_and_repeats_nothing(
    faulty_s3: FaultyS3, moto_bucket: str, tmp_path: Path, action: str
) -> None:
    settings = {**SETTINGS, "num.partitions": str(PARTITIONS)}
    settings["object.store.url"] = f"s3://{moto_bucket}/p?endpoint_url={faulty_s3.url}"

    def work() -> None:
        with LiveBroker(tmp_path / "data", settings) as broker:
            producer = NumberedProducer(broker.bootstrap)
            producer.send(60)
            producer.flush()
            fault = faulty_s3.add(
                Fault(action, method="PUT", key_prefix="p/wal/", count=6)  # type: ignore[arg-type]
            )
            for _ in range(4):
                producer.send(60)
                producer.poll()
            producer.flush()
            assert fault.hits > 0
            chunks = broker.broker.base.data.chunks
            assert_each_once(broker.bootstrap, producer)
        shutil.rmtree(chunks)
        with LiveBroker(tmp_path / "data", settings) as broker:
            assert_each_once(broker.bootstrap, producer)

    await asyncio.to_thread(work)


# Reading


def only_in_the_store(broker: LiveBroker) -> None:
    """Forget chunks and cached blocks of the running broker: every read asks the store."""
    directory = broker.broker.writes.directory
    for key in list(directory._chunks):

        async def forget(key: str = key) -> None:
            chunk = directory._chunks[key]  # type: ignore[index]
            directory.discard(chunk)
            await broker.broker.reads.cache.invalidate(chunk.object_key)

        broker.run(forget())


def first_error(consumer: Consumer) -> KafkaError:
    """The next thing that comes, which must be an error."""
    message = consumer.poll(clients.TIMEOUT_S)
    assert message is not None
    error = message.error()
    assert error is not None, f"offset {message.offset()} came"
    return error


def test_a_store_that_cannot_be_read_delays_consumers_and_loses_nothing(
    broker: LiveBroker, faults: StoreFaults
) -> None:
    producer = NumberedProducer(broker.bootstrap)
    producer.send(300)
    producer.flush()
    only_in_the_store(broker)
    faults.get_error = ObjectStoreUnavailable("away")
    fetches = broker.broker.reads.replicas.fetcher.fetches
    found: list[dict[tuple[int, int], int]] = []
    reading = threading.Thread(target=lambda: found.append(everything(broker.bootstrap)))
    reading.start()
    until(lambda: broker.broker.reads.replicas.fetcher.fetches > fetches + 2, "fetches that fail")
    assert not found
    faults.heal()
    reading.join()
    assert {number: place for place, number in found[0].items()} == producer.acknowledged


def three_partitions(broker: LiveBroker) -> None:
    """One batch in each partition, all in one WAL object or three, and nothing cached."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=clients.QUIET)
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(clients.TIMEOUT_S)
    for partition in range(PARTITIONS):
        values = [b"%d-%d" % (partition, number) * 20 for number in range(5)]
        for value in values:
            clients.ConfluentKafka().produce(
                broker.bootstrap, "t", [clients.Record(value=value)], partition=partition
            )


def flip(path: Path, find: bytes) -> None:
    """Flip a bit of the first place where `find` is."""
    content = bytearray(path.read_bytes())
    content[content.index(find)] ^= 1
    path.write_bytes(content)


def flip_where_it_is(directory: Path, find: bytes) -> None:
    (path,) = (p for p in directory.rglob("*") if p.is_file() and find in p.read_bytes())
    flip(path, find)


def read_values(bootstrap: str, partition: int, count: int) -> list[bytes]:
    read = clients.ConfluentKafka().read(bootstrap, "t", count, partition=partition)
    return [record.value or b"" for _, record in read]


def expected(partition: int) -> list[bytes]:
    return [b"%d-%d" % (partition, number) * 20 for number in range(5)]


def test_a_flipped_bit_in_a_wal_object_is_an_error_of_its_partition_only(
    broker: LiveBroker,
) -> None:
    three_partitions(broker)
    flip_where_it_is(broker.broker.base.data.objects, b"1-3" * 20)
    only_in_the_store(broker)
    # What lies before it comes, then the error, and never a wrong byte.
    assert read_values(broker.bootstrap, 1, 3) == expected(1)[:3]
    with closing(clients.confluent_consumer(broker.bootstrap)) as consumer:
        consumer.assign([TopicPartition("t", 1, 3)])
        assert first_error(consumer).name() in ("BAD_MSG", "_BAD_MSG", "INVALID_MSG")
    # What lies behind it is there for who asks for it, and so are the others.
    assert clients.ConfluentKafka().read(broker.bootstrap, "t", 1, partition=1, offset=4)[
        0
    ].record == (clients.Record(value=expected(1)[4]))
    assert read_values(broker.bootstrap, 0, 5) == expected(0)
    assert read_values(broker.bootstrap, 2, 5) == expected(2)


def test_a_flipped_bit_in_a_local_chunk_is_healed_by_the_store(broker: LiveBroker) -> None:
    three_partitions(broker)
    flip_where_it_is(broker.broker.base.data.chunks, b"1-3" * 20)
    gets = broker.broker.storage.store.statistics().gets
    for partition in range(PARTITIONS):
        assert read_values(broker.bootstrap, partition, 5) == expected(partition)
    assert broker.broker.storage.store.statistics().gets > gets


def test_a_flipped_bit_in_a_segment_is_an_error_and_never_wrong_bytes(tmp_path: Path) -> None:
    settings = {**SETTINGS, "num.partitions": str(PARTITIONS)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        three_partitions(broker)
        objects = broker.broker.base.data.objects
        keys = {segment.partition.partition: segment.object_key for segment in
                roll_everything(broker)}  # fmt: skip
    path = objects / keys[1]
    whole = path.read_bytes()
    harmed = 0
    for position in range(4, len(whole), len(whole) // 12):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 8]) + whole[position + 1 :])
        with LiveBroker(tmp_path / "data", settings) as broker:
            with closing(clients.confluent_consumer(broker.bootstrap)) as consumer:
                consumer.assign([TopicPartition("t", 1, 0)])
                found: list[bytes] = []
                while len(found) < 5:
                    message = consumer.poll(clients.TIMEOUT_S)
                    assert message is not None
                    if message.error() is not None:
                        harmed += 1
                        break
                    found.append(clients.value_of(message))
            assert found == expected(1)[: len(found)], f"byte {position}"
            assert read_values(broker.bootstrap, 0, 5) == expected(0)
    assert harmed > 3, "the flips met nothing that matters"


# Local state


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def scramble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(4_096, len(content), 997):
        content[position] ^= 0x40
    path.write_bytes(content)


def flip_value(path: Path) -> None:
    """Damage that SQLite itself does not notice: a bit in a stored row."""
    flip(path, b"wal/")


@pytest.mark.parametrize("harm", [delete, cut, scramble, flip_value])
def test_the_state_heals_from_the_log_whatever_happened_to_it(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    settings = {**SETTINGS, "num.partitions": str(PARTITIONS)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        port = broker.port
        producer = NumberedProducer(broker.bootstrap)
        for _ in range(10):
            producer.send(60)
            producer.flush()
        roll_everything(broker)
        producer.send(60)
        producer.flush()
        metadata = broker.broker.base.data.metadata
    gc.collect()
    (state,) = (p for p in metadata.iterdir() if p.is_file() and p.read_bytes()[:6] == b"SQLite")
    harm(state)
    with LiveBroker(tmp_path / "data", settings, port=port) as broker:
        assert_each_once(broker.bootstrap, producer)
        # Sequences are part of the state: the producer goes on where it was.
        producer.send(60)
        producer.flush()
        assert_each_once(broker.bootstrap, producer)
