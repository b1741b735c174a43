"""Stock Kafka clients against a whole broker: what one of them writes, every other reads equal."""

import asyncio
import json
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    OFFSET_END,
    IsolationLevel,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from metadata.operations import METADATA_TOPIC
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import (
    CODECS,
    STOCK_CLIENTS,
    TIMEOUT_S,
    ConfluentKafka,
    KafkaConsumer,
    PythonTopicPartition,
    Record,
    StockClient,
    StoredRecord,
    confluent_admin,
    confluent_consumer,
    confluent_producer,
    create_topic,
    place_of,
    stored,
    value_of,
)

pytestmark = pytest.mark.clients

each_client = pytest.mark.parametrize("client", STOCK_CLIENTS, ids=lambda client: client.name)

SETTINGS = {"wal.commit.interval.ms": "5"}


@pytest.fixture(autouse=True)
def nobody_waits(broker: LiveBroker) -> None:
    """The broker is every test's: a Fetch of the consumer before would be taken for one's own."""
    wait_for_parked_fetch(broker, 0)


def awkward_records() -> list[Record]:
    """Everything a record may hold that some implementation somewhere mixes up."""
    early = 1_600_000_000_123
    return [
        Record(),
        Record(key=b"", value=b""),
        Record(key=b"a key", value=None),
        Record(key=None, value=None),
        Record(headers=(("same", b"1"), ("same", b"2"), ("other", b"x"), ("same", b"1"))),
        Record(headers=(("empty", b""), ("", b"no name"))),
        Record(headers=(("null", None),)),
        Record(value=bytes(range(256)) * 40, timestamp_ms=early + 5),
        Record(key=bytes(range(256)), timestamp_ms=early),
        Record(value="ünïcödé \N{HOT BEVERAGE}".encode(), timestamp_ms=1),
        *(Record(str(n).encode(), b"x" * n, timestamp_ms=early + n % 7) for n in range(100)),
    ]


@pytest.mark.parametrize("codec", CODECS)
@each_client
def test_what_one_client_writes_every_client_reads_equal(
    broker: LiveBroker, topic: str, client: StockClient, codec: str
) -> None:
    sent = [record for record in awkward_records() if client.can_send(record)]
    offsets = client.produce(broker.bootstrap, topic, sent, codec=codec)
    assert offsets == list(range(len(sent)))
    expected = [StoredRecord(offset, record) for offset, record in enumerate(sent)]
    for reader in STOCK_CLIENTS:
        assert reader.read(broker.bootstrap, topic, len(sent)) == expected, reader.name


@each_client
def test_an_idempotent_producer_writes_every_record_once(
    broker: LiveBroker, topic: str, client: StockClient
) -> None:
    sent = [Record(value=str(number).encode()) for number in range(2_000)]
    for start in (0, 1_000):
        part = sent[start : start + 1_000]
        offsets = client.produce(broker.bootstrap, topic, part, idempotent=True)
        assert offsets == list(range(start, start + 1_000))
    read = client.read(broker.bootstrap, topic, 2_000)
    assert [record for _, record in read] == sent


@pytest.mark.parametrize("acks", [0, 1, -1])
@each_client
def test_every_kind_of_acknowledgement_stores_the_records_in_order(
    broker: LiveBroker, topic: str, client: StockClient, acks: int, admin: AdminClient
) -> None:
    create_topic(admin, topic)
    sent = [Record(value=str(number).encode()) for number in range(50)]
    offsets = client.produce(broker.bootstrap, topic, sent, acks=acks)
    assert acks == 0 or offsets == list(range(50))
    assert [record for _, record in client.read(broker.bootstrap, topic, 50)] == sent


@each_client
def test_a_topic_with_append_time_shows_the_time_of_the_commit(
    broker: LiveBroker, topic: str, client: StockClient, admin: AdminClient
) -> None:
    create_topic(admin, topic, message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    sent = [Record(key=str(n).encode(), timestamp_ms=1_000 + n) for n in range(5)]
    client.produce(broker.bootstrap, topic, sent, codec="gzip")
    after_ms = time.time_ns() // 1_000_000
    for reader in STOCK_CLIENTS:
        read = reader.read(broker.bootstrap, topic, 5)
        assert [(offset, record.key) for offset, record in read] == [
            (n, str(n).encode()) for n in range(5)
        ]
        times = {record.timestamp_ms for _, record in read}
        assert all(before_ms <= moment <= after_ms for moment in times), (reader.name, times)


def test_kcat_writes_reads_and_lists(broker: LiveBroker, topic: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            [kcat, "-b", broker.bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
        ).stdout

    lines = b"".join(b"key %d:value %d\n" % (n, n) for n in range(200))
    run("-P", "-t", topic, "-K:", "-H", "a=1", "-H", "a=2", "-z", "snappy", stdin=lines)
    for reader in STOCK_CLIENTS:
        assert [
            (offset, record.key, record.value, record.headers)
            for offset, record in reader.read(broker.bootstrap, topic, 200)
        ] == [
            (n, b"key %d" % n, b"value %d" % n, (("a", b"1"), ("a", b"2"))) for n in range(200)
        ], reader.name

    sent = [Record(b"k", b"v", (("h", b"x"), ("h", None)), 1_234_567), Record(b"", b"")]
    ConfluentKafka().produce(broker.bootstrap, topic, [*sent, Record(None, None)], codec="zstd")
    read = [
        json.loads(line)
        for line in run("-C", "-t", topic, "-J", "-e", "-o", "200", "-q").splitlines()
    ]
    assert [(line["offset"], line["key"], line["payload"]) for line in read] == [
        (200, "k", "v"),
        (201, "", ""),
        (202, None, None),
    ]
    assert (read[0]["ts"], read[0]["headers"]) == (1_234_567, ["h", "x", "h", None])
    listed = json.loads(run("-L", "-J"))
    assert topic in {entry["topic"] for entry in listed["topics"]}


# Topics


@each_client
def test_the_first_producer_creates_the_topic_with_as_many_partitions_as_configured(
    tmp_path: Path, client: StockClient
) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": "3"}) as broker:
        client.produce(broker.bootstrap, "made", [Record()], partition=2)
        admin = confluent_admin(broker.bootstrap)
        assert set(admin.list_topics(timeout=TIMEOUT_S).topics["made"].partitions) == {0, 1, 2}
        assert client.read(broker.bootstrap, "made", 1, partition=2)[0].record == Record()


def test_without_auto_creation_an_unknown_topic_stays_unknown(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", {"auto.create.topics.enable": "false"}) as broker:
        failures: list[KafkaError | None] = []
        producer = confluent_producer(
            broker.bootstrap, message_timeout_ms=5_000, topic_metadata_propagation_max_ms=0
        )
        producer.produce("typo", b"x", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert failures[0] is not None
        assert failures[0].name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
        admin = confluent_admin(broker.bootstrap)
        assert list(admin.list_topics(timeout=TIMEOUT_S).topics) == [METADATA_TOPIC]
        create_topic(admin, "typo")
        ConfluentKafka().produce(broker.bootstrap, "typo", [Record()])


def test_a_client_goes_on_after_its_topic_was_deleted_and_created_anew(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 2)
    producer = confluent_producer(broker.bootstrap, topic_metadata_refresh_fast_interval_ms=20)
    acknowledged: list[tuple[KafkaError | None, Message]] = []

    def send(value: bytes) -> None:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda *delivery: acknowledged.append(delivery)
        )
        assert producer.flush(TIMEOUT_S) == 0

    for number in range(10):
        send(b"old %d" % number)
    with closing(confluent_consumer(broker.bootstrap, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        old = consumer.consume(10, timeout=TIMEOUT_S)
        assert [message.value() for message in old] == [b"old %d" % n for n in range(10)]

        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        create_topic(admin, topic, 2)
        # The new topic starts at 0: nothing of the old one may show.
        send(b"new")
        error, message = acknowledged[-1]
        assert (error, message.offset()) == (None, 0)
        assert ConfluentKafka().read(broker.bootstrap, topic, 1)[0].record.value == b"new"
        # And a consumer that stood at 10 is told so, and starts over.
        received: list[Message] = []
        ends_at = time.monotonic() + TIMEOUT_S
        while not [message for message in received if message.error() is None]:
            assert time.monotonic() < ends_at, [message.error() for message in received]
            received += consumer.consume(1, timeout=1)
        assert received[-1].value() == b"new"


def test_a_deleted_topic_ends_the_fetches_that_wait_for_it(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic)
    consumer = confluent_consumer(
        broker.bootstrap, fetch_wait_max_ms=200_000, socket_timeout_ms=250_000
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0) is None
        wait_for_parked_fetch(broker)
        expired = broker.broker.reads.replicas.fetcher.purgatory.statistics().expired
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        statistics = broker.broker.reads.replicas.fetcher.purgatory.statistics()
        assert (statistics.watched, statistics.expired) == (0, expired)


def test_a_hundred_partitions_are_written_and_read_by_one_client(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 100)
    producer = confluent_producer(broker.bootstrap, enable_idempotence=True)
    failures: list[KafkaError] = []
    for number in range(3_000):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % 100,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures
    found: dict[tuple[int, int], int] = {}
    with closing(confluent_consumer(broker.bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(100)])
        while len(found) < 3_000:
            messages = consumer.consume(3_000, timeout=TIMEOUT_S)
            assert messages, f"{len(found)} of 3000 records came"
            for message in messages:
                place = place_of(message)
                assert place not in found
                found[place] = int(value_of(message))
    assert found == {(n % 100, n // 100): n for n in range(3_000)}


# Sizes


def test_only_the_message_that_is_too_large_is_refused(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, max_message_bytes="100000")
    results: dict[int, KafkaError | int | None] = {}
    producer = confluent_producer(
        broker.bootstrap,
        message_max_bytes=10_000_000,
        batch_num_messages=1,
        enable_idempotence=True,
    )

    def delivered(size: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, message: results.__setitem__(size, error or message.offset())

    overhead = 61 + 11  # batch header; lengths, deltas and counts of a single record this large
    fits, too_large = 100_000 - overhead, 100_001 - overhead
    for size in (10, 99_000, fits):
        producer.produce(topic, b"x" * size, on_delivery=delivered(size))
        assert producer.flush(TIMEOUT_S) == 0
    assert list(results.values()) == [0, 1, 2]

    plain = confluent_producer(broker.bootstrap, message_max_bytes=10_000_000, batch_num_messages=1)
    for size in (too_large, 5_000_000, 11):
        plain.produce(topic, b"x" * size, on_delivery=delivered(size))
    assert plain.flush(TIMEOUT_S) == 0
    for size in (too_large, 5_000_000):
        error = results[size]
        assert isinstance(error, KafkaError)
        assert error.name() == "MSG_SIZE_TOO_LARGE"
    assert results[11] == 3
    read = ConfluentKafka().read(broker.bootstrap, topic, 4)
    assert [len(record.value or b"") for _, record in read] == [10, 99_000, fits, 11]


@each_client
def test_a_message_larger_than_a_chunk_goes_through_where_the_topic_allows_it(
    tmp_path: Path, client: StockClient
) -> None:
    settings = {"wal.chunk.max.bytes": str(64 << 10)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        # 900 KB fit into every client's own limit of a request, and hold fourteen such chunks.
        sent = [Record(value=bytes([number]) * 900_000) for number in range(4)]
        assert client.produce(broker.bootstrap, "t", sent) == [0, 1, 2, 3]
        for reader in STOCK_CLIENTS:
            assert [record for _, record in reader.read(broker.bootstrap, "t", 4)] == sent


def test_a_consumer_with_tiny_limits_gets_one_batch_at_a_time_and_all_in_the_end(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 3)
    sent = [Record(value=bytes([number]) * 20_000) for number in range(10)]
    for partition in range(3):
        for record in sent:
            ConfluentKafka().produce(broker.bootstrap, topic, [record], partition=partition)
    consumer = confluent_consumer(
        broker.bootstrap,
        fetch_message_max_bytes=1_000,
        fetch_max_bytes=1_000,
        message_max_bytes=1_000,
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        found: list[Message] = []
        while len(found) < 30:
            messages = consumer.consume(30, timeout=TIMEOUT_S)
            assert messages, f"{len(found)} of 30 records came"
            found += messages
        for partition in range(3):
            mine = [stored(message) for message in found if message.partition() == partition]
            assert mine == [StoredRecord(n, record) for n, record in enumerate(sent)]


# Waiting


def wait_for_parked_fetch(broker: LiveBroker, count: int = 1) -> None:
    purgatory = broker.broker.reads.replicas.fetcher.purgatory
    until(lambda: purgatory.statistics().watched == count, f"{count} waiting fetches")


def test_a_consumer_at_the_tail_is_woken_by_the_commit_and_not_by_its_deadline(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic)
    # A fetch may wait longer than the poll below does: only a commit can end it in time.
    consumer = confluent_consumer(
        broker.bootstrap, fetch_wait_max_ms=200_000, socket_timeout_ms=250_000
    )
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert consumer.poll(0) is None
        for number in range(20):
            wait_for_parked_fetch(broker)
            expired = broker.broker.reads.replicas.fetcher.purgatory.statistics().expired
            ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"%d" % number)])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the commit woke nobody"
            assert stored(message).offset == number
            assert broker.broker.reads.replicas.fetcher.purgatory.statistics().expired == expired


def test_a_commit_to_another_partition_does_not_end_the_wait(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 2)
    with closing(confluent_consumer(broker.bootstrap, fetch_wait_max_ms=25_000)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0) is None
        purgatory = broker.broker.reads.replicas.fetcher.purgatory
        completed = purgatory.statistics().completed
        for _ in range(10):
            wait_for_parked_fetch(broker)
            ConfluentKafka().produce(broker.bootstrap, topic, [Record()], partition=1)
        # Not one per commit. Metadata that the client asks for behind its Fetch ends that early.
        assert purgatory.statistics().completed - completed < 10
        ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"mine")], partition=0)
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"mine"


def test_many_consumers_waiting_on_one_partition_are_all_woken(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic)
    consumers = [confluent_consumer(broker.bootstrap, fetch_wait_max_ms=25_000) for _ in range(8)]
    try:
        for consumer in consumers:
            consumer.assign([TopicPartition(topic, 0, 0)])
            consumer.poll(0)
        wait_for_parked_fetch(broker, len(consumers))
        ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"all")])
        for consumer in consumers:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.value() == b"all"
    finally:
        for consumer in consumers:
            consumer.close()


# Offsets


TIMES = [1_000, 1_010, 1_005, 1_020, 1_020, 1_030, 990, 1_040]
"""Timestamps, less a large base, of the records at offsets 0, 1, ... in batches of uneven size."""
BASE_MS = 1_700_000_000_000
BATCHES = [(0, 1), (1, 4), (4, 5), (5, 8)]


def first_at_or_after(moment: int) -> int:
    """Kafka's rule: the first record, by offset, whose timestamp is not smaller; -1 for none."""
    return next((offset for offset, at in enumerate(TIMES) if at >= moment), -1)


@pytest.fixture
def timed_topic(broker: LiveBroker, topic: str, admin: AdminClient) -> str:
    create_topic(admin, topic)
    for codec, (start, end) in zip(("none", "gzip", "lz4", "zstd"), BATCHES, strict=True):
        records = [Record(timestamp_ms=BASE_MS + at) for at in TIMES[start:end]]
        ConfluentKafka().produce(broker.bootstrap, topic, records, codec=codec)
    return topic


def test_librdkafka_finds_every_timestamp_at_its_record(
    broker: LiveBroker, timed_topic: str
) -> None:
    with closing(confluent_consumer(broker.bootstrap)) as consumer:
        for moment in range(980, 1_050):
            (found,) = consumer.offsets_for_times(
                [TopicPartition(timed_topic, 0, BASE_MS + moment)], timeout=TIMEOUT_S
            )
            expected = first_at_or_after(moment)
            assert found.error is None
            assert found.offset == (expected if expected >= 0 else OFFSET_END), moment
        place = TopicPartition(timed_topic, 0)
        assert consumer.get_watermark_offsets(place, timeout=TIMEOUT_S) == (0, len(TIMES))


def test_kafka_python_and_aiokafka_find_the_same_record_and_its_timestamp(
    broker: LiveBroker, timed_topic: str
) -> None:
    moments = [0, 989, 990, 1_000, 1_001, 1_010, 1_011, 1_020, 1_021, 1_040, 1_041]
    expected = [(moment, first_at_or_after(moment)) for moment in moments]

    place = PythonTopicPartition(timed_topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap)) as consumer:
        for moment, offset in expected:
            found = consumer.offsets_for_times({place: BASE_MS + moment})[place]
            if offset < 0:
                assert found is None
            else:
                assert (found.offset, found.timestamp) == (offset, BASE_MS + TIMES[offset])
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: len(TIMES)}

    async def ask() -> None:
        place = AioTopicPartition(timed_topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            for moment, offset in expected:
                found = (await consumer.offsets_for_times({place: BASE_MS + moment}))[place]
                if offset < 0:
                    assert found is None
                else:
                    assert (found.offset, found.timestamp) == (offset, BASE_MS + TIMES[offset])

    asyncio.run(ask())


def test_the_record_with_the_greatest_timestamp_is_found(
    broker: LiveBroker, timed_topic: str, admin: AdminClient
) -> None:
    place = TopicPartition(timed_topic, 0)

    def ask(spec: OffsetSpec) -> tuple[int, int | None]:
        answer = admin.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)[
            place
        ].result(TIMEOUT_S)
        return answer.offset, answer.timestamp

    assert ask(OffsetSpec.max_timestamp()) == (7, BASE_MS + 1_040)
    ConfluentKafka().produce(
        broker.bootstrap, timed_topic, [Record(timestamp_ms=BASE_MS + at) for at in (7, 2_000, 8)]
    )
    assert ask(OffsetSpec.max_timestamp()) == (9, BASE_MS + 2_000)
    assert ask(OffsetSpec.earliest())[0] == 0
    assert ask(OffsetSpec.latest())[0] == len(TIMES) + 3


def test_an_offset_outside_the_log_is_an_error_and_the_reset_policy_heals_it(
    broker: LiveBroker, topic: str
) -> None:
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"only")])
    with closing(confluent_consumer(broker.bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 5)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
    with closing(confluent_consumer(broker.bootstrap, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 5)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert stored(message) == StoredRecord(0, Record(value=b"only"))


def test_producers_and_consumers_at_once_keep_order_within_every_partition(
    broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 2)
    per_producer = 1_500

    def produce(writer: int) -> None:
        client = STOCK_CLIENTS[writer]
        records = [Record(value=struct.pack(">ii", writer, n)) for n in range(per_producer)]
        client.produce(broker.bootstrap, topic, records, partition=writer % 2, idempotent=True)

    writers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in writers:
        thread.start()
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    next_offsets = {0: 0, 1: 0}
    with closing(confluent_consumer(broker.bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
        while sum(map(len, seen.values())) < 3 * per_producer:
            messages = consumer.consume(100, timeout=TIMEOUT_S)
            assert messages
            for message in messages:
                partition, offset = place_of(message)
                assert offset == next_offsets[partition]
                next_offsets[partition] += 1
                writer, number = struct.unpack(">ii", value_of(message))
                seen[writer].append(number)
    for thread in writers:
        thread.join()
    assert seen == {key: list(range(per_producer)) for key in range(3)}


def test_a_producer_learns_which_records_of_a_compacted_topic_have_no_key(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, cleanup_policy="compact")
    told: dict[bytes, int | None] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        told[value_of(message)] = None if error is None else error.code()

    with confluent_producer(broker.bootstrap, **{"linger.ms": 500}) as producer:
        for number in range(5):
            key = None if number in (1, 3) else b"key"
            producer.produce(topic, b"%d" % number, key, partition=0, on_delivery=delivered)
        assert producer.flush(TIMEOUT_S) == 0
    others = KafkaError._INVALID_DIFFERENT_RECORD
    assert told == {
        b"0": others,
        b"1": KafkaError.INVALID_RECORD,
        b"2": others,
        b"3": KafkaError.INVALID_RECORD,
        b"4": others,
    }
