"""Stock clients read the metadata log as a topic, and can do nothing else with it."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence

import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from metadata.log.log import MetadataRecordBatch
from metadata.operations import METADATA_TOPIC
from metadata.records.file_committed import FileCommittedRecord
from metadata.records.records import MetadataRecord, PartitionCreatedRecord, decode_record
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients

pytestmark = pytest.mark.clients

each_client = pytest.mark.parametrize(
    "client", clients.STOCK_CLIENTS, ids=lambda client: client.name
)

PARTITIONS = 2

_names = itertools.count()


@pytest.fixture(scope="module", params=["local", "object-in-a-directory", "object-in-memory"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    settings = {
        "diskless.metadata.topic.num.partitions": str(PARTITIONS),
        "diskless.metadata.log": request.param.partition("-")[0],
        "wal.commit.interval.ms": "5",
    }
    if request.param.endswith("memory"):
        settings["object.store.url"] = "memory://metadata-topic"
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        yield broker


def new_topic(admin: AdminClient, partitions: int = 4) -> str:
    """A topic of a name that nobody used before, spread over all coordinators."""
    name = f"topic-{next(_names)}"
    clients.create_topic(admin, name, partitions)
    return name


def logged(broker: LiveBroker, partition: int) -> Sequence[MetadataRecordBatch]:
    """All batches that the coordinator has in its log and has applied."""
    found = broker.broker.coordination.partitions[partition]

    async def read() -> Sequence[MetadataRecordBatch]:
        batches: list[MetadataRecordBatch] = []
        end_offset = found.replica.applied_offset
        offset = found.log.start_offset
        while offset < end_offset:
            batches += await found.log.read(offset, 1 << 20)
            offset = batches[-1].next_offset
        return [batch for batch in batches if batch.next_offset <= end_offset]

    return broker.run(read())


def as_stored(batches: Sequence[MetadataRecordBatch]) -> list[clients.StoredRecord]:
    """What a consumer gets from these batches."""
    return [
        clients.StoredRecord(offset, clients.Record(None, value, (), batch.timestamp_ms))
        for batch in batches
        for offset, value in enumerate(batch.records, batch.base_offset)
    ]


@each_client
def test_every_record_is_read_as_the_coordinator_has_it(
    broker: LiveBroker, admin: AdminClient, client: clients.StockClient
) -> None:
    topic = new_topic(admin)
    for partition in range(4):
        clients.ConfluentKafka().produce(
            broker.bootstrap, topic, [clients.Record()] * 50, partition=partition
        )
    records: list[MetadataRecord] = []
    for partition in range(PARTITIONS):
        expected = as_stored(logged(broker, partition))
        found = client.read(broker.bootstrap, METADATA_TOPIC, len(expected), partition=partition)
        assert found == expected
        records += [decode_record(item.record.value or b"") for item in found]
    # And what is in them is what was done.
    created = {
        record.partition
        for record in records
        if isinstance(record, PartitionCreatedRecord) and record.name == topic
    }
    assert created == {0, 1, 2, 3}
    topic_id = broker.broker.coordination.client.topics()[topic].topic_id
    appended = [
        batch
        for record in records
        if isinstance(record, FileCommittedRecord)
        for batch in record.batches
        if batch.partition.topic_id == topic_id
    ]
    assert sum(batch.last_offset - batch.base_offset + 1 for batch in appended) == 200


def test_a_reader_at_the_end_is_woken_by_what_is_applied(
    broker: LiveBroker, admin: AdminClient
) -> None:
    new_topic(admin)
    ends = {index: logged(broker, index)[-1].next_offset for index in range(PARTITIONS)}
    # It waits longer at the broker than the test waits for it: only being woken gets it its record.
    consumer = clients.confluent_consumer(
        broker.bootstrap, fetch_wait_max_ms=4 * clients.TIMEOUT_S * 1000, socket_timeout_ms=280_000
    )
    try:
        consumer.assign([TopicPartition(METADATA_TOPIC, index, end) for index, end in ends.items()])
        assert consumer.poll(0) is None
        until(
            lambda: broker.broker.reads.replicas.fetcher.purgatory.statistics().watched > 0,
            "a fetch",
        )
        topic = new_topic(admin)
        names: set[str] = set()
        while topic not in names:
            (message,) = consumer.consume(1, timeout=clients.TIMEOUT_S)
            partition, offset = clients.place_of(message)
            assert offset >= ends[partition]
            record = decode_record(clients.value_of(message))
            names.add(getattr(record, "name", ""))
    finally:
        consumer.close()


def test_one_consumer_reads_it_beside_other_topics(broker: LiveBroker, admin: AdminClient) -> None:
    topic = new_topic(admin, 1)
    clients.ConfluentKafka().produce(
        broker.bootstrap, topic, [clients.Record(value=bytes(500))] * 300
    )
    batches = logged(broker, 0)
    # Small answers, so that both have to take turns.
    consumer = clients.confluent_consumer(
        broker.bootstrap,
        fetch_max_bytes=1_000,
        fetch_message_max_bytes=1_000,
        message_max_bytes=1_000,
    )
    metadata: list[int] = []
    users: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(METADATA_TOPIC, 0, 0)])
        while len(users) < 300 or len(metadata) < batches[-1].next_offset:
            message = consumer.poll(clients.TIMEOUT_S)
            assert message is not None
            offsets = metadata if message.topic() == METADATA_TOPIC else users
            offsets.append(clients.place_of(message)[1])
    finally:
        consumer.close()
    assert users == list(range(300))
    assert metadata == list(range(len(metadata)))


def test_it_is_listed_as_a_topic_of_so_many_partitions(
    broker: LiveBroker, admin: AdminClient
) -> None:
    found = admin.list_topics(timeout=clients.TIMEOUT_S).topics
    assert set(found[METADATA_TOPIC].partitions) == set(range(PARTITIONS))
    resource = ConfigResource(ResourceType.TOPIC, METADATA_TOPIC)
    configs = admin.describe_configs([resource])[resource].result(clients.TIMEOUT_S)
    assert configs["retention.ms"].value == "-1"


def test_its_offsets_are_found_by_time(broker: LiveBroker, admin: AdminClient) -> None:
    new_topic(admin)
    place = TopicPartition(METADATA_TOPIC, 1)

    def listed(spec: OffsetSpec) -> int:
        offset = admin.list_offsets({place: spec})[place].result(clients.TIMEOUT_S).offset
        assert isinstance(offset, int)
        return offset

    batches = logged(broker, 1)
    assert listed(OffsetSpec.earliest()) == 0
    for batch in batches[-3:]:
        first = next(b for b in batches if b.timestamp_ms >= batch.timestamp_ms)
        assert listed(OffsetSpec.for_timestamp(batch.timestamp_ms)) == first.base_offset
    # The coordinator may go on appending by itself, so these only never go back.
    assert listed(OffsetSpec.latest()) >= batches[-1].next_offset
    assert listed(OffsetSpec.max_timestamp()) >= first.base_offset


@each_client
def test_nobody_produces_to_it(broker: LiveBroker, client: clients.StockClient) -> None:
    # kafka-python finds no partition of an internal topic to send to; the others ask the broker.
    refusals = "Partitioner did not assign|TOPIC_EXCEPTION|[Ii]nvalid ?[Tt]opic"
    with pytest.raises((AssertionError, ValueError, AioKafkaError), match=refusals):
        client.produce(broker.bootstrap, METADATA_TOPIC, [clients.Record(value=b"forged")])
    assert all(
        record.record.value != b"forged"
        for partition in range(PARTITIONS)
        for record in as_stored(logged(broker, partition))
    )


def test_an_idempotent_producer_gives_up_at_once(broker: LiveBroker) -> None:
    errors: list[KafkaError] = []
    producer = clients.confluent_producer(broker.bootstrap, enable_idempotence=True)
    producer.produce(METADATA_TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(clients.TIMEOUT_S) == 0
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


def test_it_can_be_neither_created_nor_deleted(broker: LiveBroker, admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as exists:
        clients.create_topic(admin, METADATA_TOPIC, 1)
    assert exists.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as collides:
        admin.create_topics([NewTopic("__diskless.metadata", 1)])["__diskless.metadata"].result(
            clients.TIMEOUT_S
        )
    assert collides.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics([METADATA_TOPIC])[METADATA_TOPIC].result(clients.TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    # A request that names others as well deletes those.
    topic = new_topic(admin)
    answers = admin.delete_topics([METADATA_TOPIC, topic])
    answers[topic].result(clients.TIMEOUT_S)
    with pytest.raises(KafkaException):
        answers[METADATA_TOPIC].result(clients.TIMEOUT_S)
    listed = admin.list_topics(timeout=clients.TIMEOUT_S).topics
    assert METADATA_TOPIC in listed
    assert topic not in listed


def test_a_reader_that_asks_beyond_the_end_is_told_so(broker: LiveBroker) -> None:
    consumer = clients.confluent_consumer(broker.bootstrap)
    try:
        consumer.assign([TopicPartition(METADATA_TOPIC, 0, 1_000_000)])
        (message,) = consumer.consume(1, timeout=clients.TIMEOUT_S)
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in error.str()
    finally:
        consumer.close()


def test_a_client_that_goes_away_leaves_no_watch_behind(broker: LiveBroker) -> None:
    async def watched() -> int:
        await asyncio.sleep(0)
        return broker.broker.reads.replicas.fetcher.purgatory.statistics().watched

    consumer = clients.confluent_consumer(broker.bootstrap, fetch_wait_max_ms=60_000)
    end = logged(broker, 0)[-1].next_offset
    consumer.assign([TopicPartition(METADATA_TOPIC, 0, end)])
    assert consumer.poll(0) is None
    until(lambda: broker.run(watched()) > 0, "a fetch that waits")
    consumer.close()
    until(lambda: broker.run(watched()) == 0, "the fetch to be given up")
