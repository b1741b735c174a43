"""Transactions by raw requests: what comes late, from zombies, or not as clients send it."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import confluent_admin, confluent_consumer, create_topic
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.questions.raw_transactions import RawProducer

PARTITIONS: Final = 4
TOPIC: Final = "t"
OUT_OF_ORDER: Final = 45
INVALID_EPOCH: Final = 47
INVALID_STATE: Final = 48
INVALID_MAPPING: Final = 49
NOT_AUTHORIZED: Final = 53
GIVEN_AGAIN: Final = 59
FENCED: Final = 90
UNSTABLE: Final = 88
ABORTABLE: Final = 120


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("1", id="one log"),
        pytest.param("3", id="three logs", marks=pytest.mark.exhaustive),
    ],
)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    settings = {
        "wal.commit.interval.ms": "5",
        "diskless.metadata.topic.num.partitions": request.param,
    }
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        create_topic(confluent_admin(broker.bootstrap), TOPIC, PARTITIONS)
        yield broker


@pytest.fixture
async def client(broker: LiveBroker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    yield client
    await client.close()


@pytest.fixture
async def producer(client: RawClient, request: pytest.FixtureRequest) -> RawProducer:
    """Of an id that nobody used before."""
    producer = RawProducer(client, f"id of {request.node.name}")
    assert await producer.init() == 0
    return producer


def committed(broker: LiveBroker, partition: int, value: bytes) -> int:
    """How often a reader of committed records sees `value`."""
    consumer = confluent_consumer(broker.bootstrap, isolation_level="read_committed")
    place = TopicPartition(TOPIC, partition, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=60)
    seen = 0
    while consumer.position([place])[0].offset < end:
        for message in consumer.consume(100, timeout=0.05):
            assert message.error() is None, message.error()
            seen += message.value() == value
        if consumer.position([place])[0].offset < 0 and not end:
            break
    consumer.close()
    return seen


async def test_a_batch_that_comes_after_its_transaction_has_ended_is_nowhere(
    producer: RawProducer,
) -> None:
    assert await producer.add(TOPIC, 0) == 0
    assert (await producer.produce(TOPIC, 0, producer.batch(0, b"first")))[0] == 0
    assert await producer.end(is_commit=True) == 0
    late = producer.batch(1, b"late")
    assert (await producer.produce(TOPIC, 0, late))[0] == INVALID_STATE
    assert (await producer.produce(TOPIC, 0, late, version=11))[0] == ABORTABLE


async def test_a_late_batch_of_one_transaction_does_not_land_in_the_next(
    broker: LiveBroker, producer: RawProducer
) -> None:
    assert await producer.add(TOPIC, 0) == 0
    first = producer.batch(0, b"once")
    code, offset = await producer.produce(TOPIC, 0, first)
    assert code == 0
    # Sent again: a success with its old offset, and not once more.
    assert await producer.produce(TOPIC, 0, first) == (0, offset)
    assert await producer.end(is_commit=True) == 0
    assert await producer.add(TOPIC, 0, 1) == 0
    # A repeat that comes so late has nobody who waits for its answer.
    assert (await producer.produce(TOPIC, 0, first))[0] == GIVEN_AGAIN
    # Sent, lost on its way with the batch before it, and here at last.
    lost = producer.batch(2, b"lost")
    assert (await producer.produce(TOPIC, 0, lost))[0] == OUT_OF_ORDER
    assert await producer.end(is_commit=True) == 0
    assert committed(broker, 0, b"once") == 1
    assert committed(broker, 0, b"lost") == 0


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
async def test_a_sequence_given_again_in_the_next_transaction_is_not_called_a_duplicate(
    broker: LiveBroker, producer: RawProducer, is_first: bool
) -> None:
    """librdkafka does so behind an abort that did not wait for a batch on its way.

    A success would be a record that nobody ever sees; what it is told here makes it abort and ask
    for a new epoch.
    """
    assert await producer.add(TOPIC, 2) == 0
    assert (await producer.produce(TOPIC, 2, producer.batch(0, b"aborted")))[0] == 0
    assert await producer.end(is_commit=False) == 0
    assert await producer.add(TOPIC, 2) == 0
    if not is_first:
        assert (await producer.produce(TOPIC, 2, producer.batch(1, b"of its own")))[0] == 0
    code, _ = await producer.produce(TOPIC, 2, producer.batch(0, b"other"))
    assert code == GIVEN_AGAIN
    assert await producer.end(is_commit=False) == 0


async def test_what_the_protocol_cannot_tell_apart_lands_in_the_next(
    broker: LiveBroker, producer: RawProducer
) -> None:
    """The batch that was lost was the last one: its sequence is just the next, as in Kafka.

    Nothing in the request says of which transaction it is, before transaction.version 2.
    """
    assert await producer.add(TOPIC, 1) == 0
    assert (await producer.produce(TOPIC, 1, producer.batch(0, b"first")))[0] == 0
    late = producer.batch(1, b"of the one before")
    assert await producer.end(is_commit=False) == 0
    assert await producer.add(TOPIC, 1) == 0
    assert (await producer.produce(TOPIC, 1, late))[0] == 0
    assert await producer.end(is_commit=True) == 0
    assert committed(broker, 1, b"of the one before") == 1
    assert committed(broker, 1, b"first") == 0


async def test_a_partition_that_was_not_added_takes_nothing(producer: RawProducer) -> None:
    assert (await producer.produce(TOPIC, 2, producer.batch(0, b"x")))[0] == INVALID_STATE
    assert await producer.add(TOPIC, 0) == 0
    assert (await producer.produce(TOPIC, 2, producer.batch(0, b"x")))[0] == INVALID_STATE
    assert await producer.end(is_commit=False) == 0


async def test_what_does_not_say_whose_it_is_is_refused(producer: RawProducer) -> None:
    assert await producer.add(TOPIC, 0) == 0
    batch = producer.batch(0, b"x")
    assert (await producer.produce(TOPIC, 0, batch, has_id=False))[0] == NOT_AUTHORIZED
    assert (await producer.produce(TOPIC, 0, batch, name="nobody's"))[0] == INVALID_MAPPING
    assert (await producer.produce(TOPIC, 0, batch))[0] == 0
    # A record of no transaction, while the producer has one there.
    plain = producer.batch(1, b"y", bits=0)
    assert (await producer.produce(TOPIC, 0, plain))[0] == INVALID_STATE
    assert await producer.end(is_commit=False) == 0


async def test_a_producer_whose_successor_has_begun_can_do_nothing(
    client: RawClient, producer: RawProducer
) -> None:
    assert await producer.add(TOPIC, 0) == 0
    assert await producer.add_group("g") == 0
    assert (await producer.produce(TOPIC, 0, producer.batch(0, b"x")))[0] == 0
    successor = RawProducer(client, producer.name)
    assert await successor.init() == 0
    assert successor.producer_id == producer.producer_id
    assert successor.epoch > producer.epoch
    assert (await producer.produce(TOPIC, 0, producer.batch(1, b"y")))[0] == INVALID_EPOCH
    assert await producer.commit_offset("g", TOPIC, 0, 5) == INVALID_EPOCH
    assert await producer.add(TOPIC, 1) == FENCED
    assert await producer.end(is_commit=True) == FENCED
    # Also while the successor has a transaction there.
    assert await successor.add(TOPIC, 0) == 0
    assert (await producer.produce(TOPIC, 0, producer.batch(1, b"y")))[0] == INVALID_EPOCH
    assert (await successor.produce(TOPIC, 0, successor.batch(0, b"z")))[0] == 0
    assert await successor.end(is_commit=True) == 0


async def test_offsets_wait_for_their_transaction(producer: RawProducer) -> None:
    group = producer.name
    assert await producer.commit_offset(group, TOPIC, 0, 5) == INVALID_STATE
    assert await producer.commit_offset(group, TOPIC, 0, 5, version=4) == ABORTABLE
    assert await producer.add_group(group) == 0
    assert await producer.commit_offset(group, TOPIC, 0, 5) == 0
    assert await producer.offset(group, TOPIC, 0, require_stable=False) == (0, -1)
    assert await producer.offset(group, TOPIC, 0, require_stable=True) == (UNSTABLE, -1)
    assert await producer.offset(group, TOPIC, 1, require_stable=True) == (0, -1)
    assert await producer.end(is_commit=True) == 0
    assert await producer.offset(group, TOPIC, 0, require_stable=True) == (0, 5)
    # Of one that is aborted, nothing is left.
    assert await producer.add_group(group) == 0
    assert await producer.commit_offset(group, TOPIC, 0, 9) == 0
    assert await producer.end(is_commit=False) == 0
    assert await producer.offset(group, TOPIC, 0, require_stable=True) == (0, 5)


@pytest.mark.parametrize("version", range(5))
async def test_every_version_commits_offsets(producer: RawProducer, version: int) -> None:
    assert await producer.add_group(producer.name) == 0
    code = await producer.commit_offset(producer.name, TOPIC, 3, 7, version=version)
    assert code == 0
    assert await producer.commit_offset(producer.name, "no-such", 3, 7, version=version) == 3
    assert await producer.end(is_commit=True) == 0
    assert await producer.offset(producer.name, TOPIC, 3, require_stable=True) == (0, 7)


async def test_a_group_that_nobody_knows_has_no_generation(producer: RawProducer) -> None:
    assert await producer.add_group(producer.name) == 0
    member = {"generation_id": 4, "member_id": "m"}
    assert await producer.commit_offset(producer.name, TOPIC, 0, 5, **member) == 22
    assert await producer.end(is_commit=False) == 0
