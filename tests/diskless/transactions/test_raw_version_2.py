"""Version 2 of transactions by raw requests: nothing is added by hand, every end has an epoch."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import confluent_admin, create_topic
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.questions.raw_transactions import RawProducer

TOPIC: Final = "t"
PRODUCE: Final = 12
INVALID_EPOCH: Final = 47
INVALID_STATE: Final = 48
FENCED: Final = 90


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("1", id="one log", marks=pytest.mark.exhaustive),
        pytest.param("3", id="three logs"),
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
        create_topic(confluent_admin(broker.bootstrap), TOPIC, 4)
        yield broker


@pytest.fixture
async def client(broker: LiveBroker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    yield client
    await client.close()


@pytest.fixture
async def producer(client: RawClient, request: pytest.FixtureRequest) -> RawProducer:
    producer = RawProducer(client, f"id of {request.node.name}")
    assert await producer.init() == 0
    return producer


async def test_partitions_and_groups_are_added_by_being_written_to(producer: RawProducer) -> None:
    group = producer.name
    for sequence, partition in ((0, 0), (0, 1), (1, 0)):
        batch = producer.batch(sequence, b"x")
        code, _ = await producer.produce(TOPIC, partition, batch, version=PRODUCE)
        assert code == 0
    assert await producer.commit_offset(group, TOPIC, 0, 5, version=5) == 0
    assert (await producer.offset(group, TOPIC, 0, require_stable=True))[0] == 88
    before = producer.epoch
    assert await producer.end(is_commit=True, version=5) == 0
    assert producer.epoch == before + 1
    assert await producer.offset(group, TOPIC, 0, require_stable=True) == (0, 5)
    # The next one begins with the new epoch, and its sequences at 0.
    assert (await producer.produce(TOPIC, 0, producer.batch(0, b"y"), version=PRODUCE))[0] == 0
    assert await producer.end(is_commit=False, version=5) == 0
    assert producer.epoch == before + 2


async def test_what_comes_late_lands_in_no_other_transaction(producer: RawProducer) -> None:
    assert (await producer.produce(TOPIC, 2, producer.batch(0, b"x"), version=PRODUCE))[0] == 0
    late = producer.batch(1, b"late")
    elsewhere = producer.batch(0, b"late")
    first_epoch = producer.epoch
    assert await producer.end(is_commit=True, version=5) == 0
    for batch, partition in ((late, 2), (elsewhere, 3)):
        code, _ = await producer.produce(TOPIC, partition, batch, version=PRODUCE)
        assert code == INVALID_EPOCH
    # Nor when the next one is open there.
    assert (await producer.produce(TOPIC, 2, producer.batch(0, b"y"), version=PRODUCE))[0] == 0
    assert (await producer.produce(TOPIC, 2, late, version=PRODUCE))[0] == INVALID_EPOCH
    # An end that comes late ends nothing but its own.
    epoch, producer.epoch = producer.epoch, first_epoch
    assert await producer.end(is_commit=False, version=5) in (INVALID_STATE, FENCED)
    producer.epoch = epoch
    assert await producer.end(is_commit=True, version=5) == 0


async def test_an_end_that_is_repeated_answers_the_same_epoch(producer: RawProducer) -> None:
    assert (await producer.produce(TOPIC, 0, producer.batch(0, b"x"), version=PRODUCE))[0] == 0
    before = producer.epoch
    assert await producer.end(is_commit=True, version=5) == 0
    after, producer.epoch = producer.epoch, before
    assert await producer.end(is_commit=True, version=5) == 0
    assert producer.epoch == after == before + 1


async def test_a_successor_fences_the_producer(client: RawClient, producer: RawProducer) -> None:
    assert (await producer.produce(TOPIC, 0, producer.batch(0, b"x"), version=PRODUCE))[0] == 0
    successor = RawProducer(client, producer.name)
    assert await successor.init() == 0
    for partition in (0, 1):
        batch = producer.batch(1, b"y")
        code, _ = await producer.produce(TOPIC, partition, batch, version=PRODUCE)
        assert code == INVALID_EPOCH
    assert await producer.commit_offset("g", TOPIC, 0, 5, version=5) == INVALID_EPOCH
    assert await producer.end(is_commit=True, version=5) == FENCED
