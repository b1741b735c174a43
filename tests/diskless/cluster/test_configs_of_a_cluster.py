"""Topics altered and grown through one broker, as other brokers of the same bucket see them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from metadata.operations import METADATA_TOPIC
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.questions.kafka_raw_client import (
    RawClient,
    a_batch,
    frame,
    produce_frame,
    written,
)
from tests.support.samples.kio_entities import entity_of

COORDINATORS = 3
PARTITIONS = 6
CREATE_TOPICS, ALTER, DESCRIBE, CREATE_PARTITIONS = 19, 44, 32, 37
TOPIC = 2
CORRUPT, TOO_LARGE = 2, 10
"""A batch without a right CRC is told from one that is too large, which is looked at first."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[LiveBroker, LiveBroker]]:
    """One that leads everything, and one that follows."""
    shared = {
        "diskless.metadata.log": "object",
        "diskless.metadata.topic.num.partitions": str(COORDINATORS),
        "diskless.metadata.follow.interval.ms": "20",
        "object.store.url": f"file://{tmp_path / 'objects'}",
        "log.retention.ms": "-1",
    }
    with ExitStack() as stack:
        leader = stack.enter_context(LiveBroker(tmp_path / "one", {**shared, "node.id": "1"}))
        settings = {**shared, "node.id": "2", "diskless.coordinator.candidate": "false"}
        yield leader, stack.enter_context(LiveBroker(tmp_path / "two", settings))


async def _ask(port: int, key: int, version: int, values: Mapping[str, Any]) -> Any:
    client = await RawClient.connect(("127.0.0.1", port))
    try:
        entity = entity_of(load_request_schema(key, version), values)
        await client.send(frame(key, version, 1, written(entity)))
        _, rest = await client.receive()
        return entity_reader(load_response_schema(key, version))(rest, 1)[0]
    finally:
        await client.close()


def ask(broker: LiveBroker, key: int, version: int, **values: Any) -> Any:
    """This very broker's answer, which a stock client would not make sure of."""
    return asyncio.run(_ask(broker.port, key, version, values))


async def _produce(port: int, topic: str, partition: int, size_bytes: int) -> int:
    client = await RawClient.connect(("127.0.0.1", port))
    try:
        await client.send(produce_frame(1, [a_batch(size_bytes)], topic=topic, partition=partition))
        _, rest = await client.receive()
        response, _ = entity_reader(load_response_schema(0, 9))(rest, 1)
        code: int = response.responses[0].partition_responses[0].error_code
        return code
    finally:
        await client.close()


def refusal(broker: LiveBroker, topic: str, size_bytes: int, partition: int = 0) -> int:
    """With which error this very broker refuses a damaged batch of this size."""
    return asyncio.run(_produce(broker.port, topic, partition, size_bytes))


def create(broker: LiveBroker, topic: str) -> None:
    answer = ask(
        broker,
        CREATE_TOPICS,
        7,
        topics=[
            {
                "name": topic,
                "num_partitions": PARTITIONS,
                "replication_factor": -1,
                "assignments": [],
                "configs": [],
            }
        ],
        validate_only=False,
    )
    assert answer.topics[0].error_code == 0


def alter(broker: LiveBroker, topic: str, name: str, value: str) -> None:
    change = {"name": name, "config_operation": 0, "value": value}
    answer = ask(
        broker,
        ALTER,
        1,
        resources=[{"resource_type": TOPIC, "resource_name": topic, "configs": [change]}],
        validate_only=False,
    )
    assert answer.responses[0].error_code == 0


def value_at(broker: LiveBroker, topic: str, name: str) -> str | None:
    """None: the broker has not heard of the topic."""
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [name]}
    answer = ask(broker, DESCRIBE, 4, resources=[resource], include_synonyms=False)
    configs = answer.results[0].configs
    return configs[0].value if configs else None


@pytest.mark.parametrize("altering", ["leader", "follower"])
def test_an_alteration_is_in_force_where_it_is_answered_and_then_everywhere(
    brokers: tuple[LiveBroker, LiveBroker], altering: str
) -> None:
    here, there = brokers if altering == "leader" else brokers[::-1]
    create(here, "t")
    assert refusal(here, "t", 5_000) == CORRUPT
    until(lambda: value_at(there, "t", "max.message.bytes") is not None, "the topic there")
    assert refusal(there, "t", 5_000) == CORRUPT
    for limit, code in (("1000", TOO_LARGE), ("10000", CORRUPT)):
        alter(here, "t", "max.message.bytes", limit)
        assert value_at(here, "t", "max.message.bytes") == limit
        assert refusal(here, "t", 5_000) == code
        until(
            lambda limit=limit: value_at(there, "t", "max.message.bytes") == limit,
            "the alteration there",
        )
        assert refusal(there, "t", 5_000) == code


def test_alterations_through_different_brokers_do_not_undo_each_other(
    brokers: tuple[LiveBroker, LiveBroker],
) -> None:
    here, there = brokers
    create(here, "t")
    until(lambda: value_at(there, "t", "segment.ms") is not None, "the topic there")
    # What each broker believes to be set may be behind by what the other one altered just now.
    for number in range(10):
        alter(here, "t", "segment.ms", str(100 + number))
        alter(there, "t", "segment.bytes", str(200 + number))
        assert value_at(there, "t", "segment.ms") == str(100 + number)
        assert value_at(there, "t", "segment.bytes") == str(200 + number)


def test_a_topic_grows_through_a_follower_over_all_coordinators(
    brokers: tuple[LiveBroker, LiveBroker],
) -> None:
    leader, follower = brokers
    create(follower, "t")
    answer = ask(
        follower,
        CREATE_PARTITIONS,
        3,
        topics=[{"name": "t", "count": PARTITIONS * 2, "assignments": None}],
        validate_only=False,
    )
    assert answer.results[0].error_code == 0
    topic = follower.broker.coordination.client.topics()["t"]
    homes = [topic.coordinator_of(index) for index in range(PARTITIONS, PARTITIONS * 2)]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2]
    for broker in (follower, leader):
        assert refusal(broker, "t", 100, PARTITIONS * 2 - 1) == CORRUPT


def test_the_metadata_topic_and_broker_settings_are_nobodys_to_alter(
    brokers: tuple[LiveBroker, LiveBroker],
) -> None:
    change = {"name": "segment.ms", "config_operation": 0, "value": "1"}
    answer = ask(
        brokers[0],
        ALTER,
        1,
        resources=[
            {"resource_type": TOPIC, "resource_name": METADATA_TOPIC, "configs": [change]},
            {"resource_type": 4, "resource_name": "1", "configs": [change]},
        ],
        validate_only=False,
    )
    assert [response.error_code for response in answer.responses] == [17, 42]
