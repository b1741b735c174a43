"""Creations of one name at the same time, where partitions live at several coordinators.

Partitions come into being at their coordinators before the catalogue hears of the topic. Whoever
gets the name has all of them; whoever does not has taken none away.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from metadata.operations import CreatePartitions, CreateTopic, TopicDescription
from tests.support.brokers.live_broker import LiveBroker
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, TopicExists

COORDINATORS = 3
PARTITIONS = 6


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {"diskless.metadata.topic.num.partitions": str(COORDINATORS)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


def assert_complete(broker: LiveBroker, topic: TopicDescription) -> None:
    """The topic has its name, and every partition where the catalogue says that it is."""
    assert broker.broker.coordination.client.topics()[topic.name] == topic
    assert topic.partition_count == PARTITIONS
    coordinators = broker.broker.coordination.partitions
    for index in range(topic.partition_count):
        replica = coordinators[topic.coordinator_of(index)].replica
        assert replica.has_partition(TopicIdPartition(topic.topic_id, index)), index


def the_one(
    answers: list[TopicDescription | DisklessError],
) -> TopicDescription:
    (created,) = (answer for answer in answers if isinstance(answer, TopicDescription))
    assert sum(isinstance(answer, TopicExists) for answer in answers) == len(answers) - 1
    return created


def test_one_of_many_creators_gets_a_whole_topic(broker: LiveBroker) -> None:
    async def create_at_once(name: str) -> list[TopicDescription | DisklessError]:
        request = CreateTopic(name=name, partition_count=PARTITIONS)
        answers = await asyncio.gather(
            *[broker.broker.coordination.client.create_topics([request]) for _ in range(8)]
        )
        return [answer for (answer,) in answers]

    for number in range(5):
        assert_complete(broker, the_one(broker.run(create_at_once(f"topic-{number}"))))


def test_a_name_that_is_twice_in_a_request_becomes_one_whole_topic(broker: LiveBroker) -> None:
    request = CreateTopic(name="twice", partition_count=PARTITIONS)
    answers = list(broker.run(broker.broker.coordination.client.create_topics([request, request])))
    assert_complete(broker, the_one(answers))


def test_one_of_many_ids_gets_the_name_and_all_its_partitions(broker: LiveBroker) -> None:
    requests = [
        CreatePartitions(
            topic_id=UUID(int=number << 64 | 0x4000 << 64 | 1),
            name="flights",
            partition_count=PARTITIONS,
        )
        for number in range(1, 7)
    ]

    async def create_at_once() -> list[DisklessError | None]:
        client = broker.broker.coordination.local
        one, two, *others = requests
        answers = await asyncio.gather(
            client.create_partitions([one, two]),
            *[client.create_partitions([request]) for request in others],
        )
        return [error for answer in answers for error in answer]

    errors = broker.run(create_at_once())
    assert sum(isinstance(error, TopicExists) for error in errors) == len(requests) - 1
    (topic_id,) = (
        request.topic_id for request, error in zip(requests, errors, strict=True) if error is None
    )
    topic = broker.broker.coordination.client.topic_by_id(topic_id)
    assert topic is not None
    assert_complete(broker, topic)


def test_a_topic_created_while_one_of_its_name_is_deleted_is_whole(broker: LiveBroker) -> None:
    coordinator = broker.broker.coordination.client
    request = CreateTopic(name="again", partition_count=PARTITIONS)

    async def replace(topic_id: UUID) -> TopicDescription | DisklessError:
        _, (created,) = await asyncio.gather(
            coordinator.delete_topics([topic_id]), coordinator.create_topics([request])
        )
        return created

    (topic,) = broker.run(coordinator.create_topics([request]))
    replaced = 0
    for _ in range(10):
        assert isinstance(topic, TopicDescription)
        created = broker.run(replace(topic.topic_id))
        if isinstance(created, TopicExists):
            (created,) = broker.run(coordinator.create_topics([request]))
        assert isinstance(created, TopicDescription)
        assert_complete(broker, created)
        replaced += created.topic_id != topic.topic_id
        topic = created
    assert replaced == 10
