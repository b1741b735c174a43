"""A consumer that says where it is reads from a broker there: on the wire, and stock clients."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from metadata.operations import CreateTopic, TopicDescription
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.jvm import NEWEST, JvmUnavailable, KafkaTools
from tests.support.clients.kafka_commands import KafkaCommands
from tests.support.clients.stock_clients import (
    QUIET,
    TIMEOUT_S,
    ConfluentKafka,
    Record,
    confluent_consumer,
    value_of,
)
from tests.support.questions.kafka_raw_client import RawClient, a_batch, produce_frame

PARTITIONS = 4

# -- on the wire ----------------------------------------------------------------------------------


async def asked(
    client: RawClient, version: int, rows: Mapping[tuple[str, UUID], Sequence[int]], **more: Any
) -> Any:
    topics = [
        {
            "topic": name,
            "topic_id": topic_id,
            "partitions": [
                {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
                for number in partitions
            ],
        }
        for (name, topic_id), partitions in rows.items()
    ]
    values = {"topics": topics, "max_bytes": 1 << 20, "session_epoch": -1, "session_id": 0}
    return await client.ask(1, version, forgotten_topics_data=(), **{**values, **more})


async def a_topic(broker: Broker, client: RawClient) -> tuple[str, UUID]:
    """`t` with a batch in each partition."""
    broker.topics.add("t", partitions=3)
    for partition in range(3):
        await client.send(produce_frame(1, [a_batch()], partition=partition))
        await client.receive()
    return "t", broker.topics.known["t"].topic_id


@pytest.mark.parametrize("version", range(11, 19))
async def test_a_fetch_from_another_rack_is_sent_there_with_offsets_and_no_records(version):
    async with running_broker() as broker:
        broker.cluster.readers = {"rack-b": [7, 8, 7]}
        client = await RawClient.connect(broker.server.address)
        topic = await a_topic(broker, client)
        rows = {topic: [2, 1], ("gone", UUID(int=9)): [0]}
        answer = await asked(client, version, rows, rack_id="rack-b")
        parts = [part for found in answer.responses for part in found.partitions]
        assert [part.preferred_read_replica for part in parts] == [7, 8, -1]
        assert [bool(part.error_code) for part in parts] == [False, False, True]
        assert {part.records for part in parts} == {b""}
        assert [part.high_watermark for part in parts] == [1, 1, -1]
        for rack in ("", "rack-a", "nowhere"):
            answer = await asked(client, version, {topic: [2]}, rack_id=rack)
            (part,) = answer.responses[0].partitions
            assert part.preferred_read_replica == -1
            assert part.records
        await client.close()


@pytest.mark.parametrize("version", [12, 18])
async def test_in_a_session_each_answer_says_whom_to_ask(version):
    async with running_broker() as broker:
        broker.cluster.readers = {"rack-b": [7, 8, 7]}
        client = await RawClient.connect(broker.server.address)
        topic = await a_topic(broker, client)
        answer = await asked(client, version, {topic: [0, 1]}, rack_id="rack-b", session_epoch=0)
        session = {"session_id": answer.session_id, "rack_id": "rack-b"}
        answer = await asked(client, version, {}, session_epoch=1, **session)
        (found,) = answer.responses
        assert [part.preferred_read_replica for part in found.partitions] == [7, 8]
        # The broker there went away: now the records come from here.
        broker.cluster.readers = {}
        answer = await asked(client, version, {}, session_epoch=2, **session)
        (found,) = answer.responses
        assert [part.preferred_read_replica for part in found.partitions] == [-1, -1]
        assert all(part.records for part in found.partitions)
        await client.close()


async def test_metadata_names_whom_a_fetch_may_be_sent_to():
    async with running_broker() as broker:
        broker.cluster.readers = {"rack-b": [7, 8, 7]}
        client = await RawClient.connect(broker.server.address)
        await a_topic(broker, client)
        answer = await client.ask(3, 12, topics=None)
        (topic,) = answer.topics
        for partition, reader in zip(topic.partitions, (7, 8, 7), strict=True):
            assert partition.leader_id == 0
            assert partition.replica_nodes == partition.isr_nodes == (0, reader)
        await client.close()


# -- stock clients on a cluster of two racks ------------------------------------------------------


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Mapping[str, LiveBroker]]:
    """A broker in each of two racks, on one bucket, with a topic that has records."""
    with ExitStack() as stack:
        brokers = {
            rack: stack.enter_context(
                LiveBroker(
                    tmp_path / rack,
                    {
                        "node.id": str(node_id),
                        "broker.rack": rack,
                        "object.store.url": f"file://{tmp_path / 'bucket'}",
                        "diskless.metadata.log": "object",
                        "diskless.metadata.follow.interval.ms": "10",
                        "wal.commit.interval.ms": "10",
                    },
                )
            )
            for node_id, rack in enumerate(("here", "there"), start=1)
        }
        leader = brokers["here"]
        catalogue = [each.broker.coordination.partitions[0].replica for each in brokers.values()]
        until(lambda: all(len(each.brokers()) == 2 for each in catalogue), "both to be registered")
        (created,) = leader.run(
            leader.broker.coordination.client.create_topics(
                [CreateTopic(name="t", partition_count=PARTITIONS)]
            )
        )
        assert isinstance(created, TopicDescription)
        until(
            lambda: all(replicas_told(each) == {1, 2} for each in brokers.values()),
            "readers to be sent to both",
        )
        for partition in range(PARTITIONS):
            ConfluentKafka().produce(
                leader.bootstrap, "t", [Record(value=b"%d" % partition)], partition=partition
            )
        yield brokers


def replicas_told(broker: LiveBroker) -> set[int]:
    """The brokers that this one names for the topic's partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
    partitions = admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions.values()
    return {replica for partition in partitions for replica in partition.replicas}


def served(broker: LiveBroker) -> int:
    """Bytes that consumers were given."""
    statistics = broker.broker.reads.reader.statistics()
    return statistics.chunk_bytes + statistics.object_bytes


@pytest.mark.parametrize(("rack", "other"), [("here", "there"), ("there", "here")])
def test_librdkafka_reads_from_its_rack(
    racks: Mapping[str, LiveBroker], rack: str, other: str
) -> None:
    # Whichever broker it asks first.
    consumer = confluent_consumer(racks[other].bootstrap, client_rack=rack)
    try:
        consumer.assign([TopicPartition("t", number, 0) for number in range(PARTITIONS)])
        found = []
        while len(found) < PARTITIONS:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            found.append(value_of(message))
    finally:
        consumer.close()
    assert sorted(found) == [b"%d" % number for number in range(PARTITIONS)]
    assert served(racks[rack]) > 0
    assert served(racks[other]) == 0


@pytest.mark.parametrize(("rack", "other"), [("here", "there"), ("there", "here")])
async def test_aiokafka_reads_from_its_rack(
    racks: Mapping[str, LiveBroker], rack: str, other: str
) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=racks[other].bootstrap, enable_auto_commit=False, client_rack=rack
    )
    async with asyncio.timeout(TIMEOUT_S), consumer:
        places = [AioTopicPartition("t", number) for number in range(PARTITIONS)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        found = [(await consumer.getone()).value for _ in places]
    assert sorted(found) == [b"%d" % number for number in range(PARTITIONS)]
    assert served(racks[rack]) > 0
    assert served(racks[other]) == 0


@pytest.mark.clients
@pytest.mark.jvm
@pytest.mark.parametrize("version", NEWEST)
def test_java_reads_from_its_rack(racks: Mapping[str, LiveBroker], version: str) -> None:
    try:
        tools = KafkaTools(version)
    except JvmUnavailable as missing:
        pytest.skip(str(missing))
    try:
        kafka = KafkaCommands(tools, racks["here"].bootstrap)
        of_client = "--command-property" if tools.is_4 else "--consumer-property"
        arguments = ("--topic", "t", "--from-beginning", "--max-messages", str(PARTITIONS))
        with kafka.start("ConsoleConsumer", *arguments, of_client, "client.rack=there") as consumer:
            finished = consumer.finish()
    finally:
        tools.close()
    assert finished.status == 0, finished
    assert sorted(finished.lines) == [str(number) for number in range(PARTITIONS)]
    assert served(racks["there"]) > 0
    assert served(racks["here"]) == 0
