"""Leaders elected and partitions reassigned: as a Kafka with nothing to do answers, raw."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.brokers.kafka_fakes import connected
from tests.support.questions.kafka_raw_client import RawClient

ELECT, ALTER, LIST = 43, 45, 46
NO_TOPIC, BAD_FACTOR, BAD_REPLICAS, NOT_NEEDED, NOT_MOVING, INVALID = 3, 38, 39, 84, 85, 42


async def elected(client: RawClient, version: int, kind: int = 0) -> tuple[int, list[int]]:
    """The whole's error code, and those of partitions 0 and 9 of "t" and 0 of "nobody"."""
    wanted = [{"topic": "t", "partitions": [0, 9]}, {"topic": "nobody", "partitions": [0]}]
    answer = await client.ask(ELECT, version, election_type=kind, topic_partitions=wanted)
    rows = [row for topic in answer.replica_election_results for row in topic.partition_result]
    assert [row.partition_id for row in rows] == [0, 9, 0]
    return int(getattr(answer, "error_code", 0)), [int(row.error_code) for row in rows]


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_ever_needed(version: int) -> None:
    async with connected() as (broker, client):
        broker.topics.add("t")
        assert await elected(client, version) == (0, [NOT_NEEDED, NO_TOPIC, NO_TOPIC])
        answer = await client.ask(ELECT, version, topic_partitions=None)
        assert len(answer.replica_election_results) == 0, "nothing had a problem"


async def test_elections_are_preferred_or_unclean_ones() -> None:
    async with connected() as (broker, client):
        broker.topics.add("t")
        assert await elected(client, 2, kind=1) == (0, [NOT_NEEDED, NO_TOPIC, NO_TOPIC])
        assert await elected(client, 2, kind=2) == (INVALID, [INVALID] * 3)


async def reassigned(
    client: RawClient, version: int, replicas: Sequence[int] | None, **fields: Any
) -> tuple[int, str]:
    """What partition 0 of "t" is told."""
    moved = [{"partition_index": 0, "replicas": replicas}]
    topics = [{"name": "t", "partitions": moved}]
    answer = await client.ask(ALTER, version, topics=topics, **fields)
    assert int(answer.error_code) == 0
    (row,) = answer.responses[0].partitions
    return int(row.error_code), row.error_message or ""


@pytest.mark.parametrize("version", range(2))
async def test_a_reassignment_is_checked_and_done_at_once(version: int) -> None:
    async with connected() as (broker, client):
        broker.topics.add("t")
        node_id = broker.cluster.node_id
        assert await reassigned(client, version, [node_id]) == (0, "")
        code, said = await reassigned(client, version, [])
        assert (code, "empty" in said) == (BAD_REPLICAS, True)
        code, said = await reassigned(client, version, [node_id, node_id])
        assert (code, "more than once" in said) == (BAD_REPLICAS, True)
        code, said = await reassigned(client, version, [99])
        assert (code, "broker 99" in said) == (BAD_REPLICAS, True)
        assert (await reassigned(client, version, None))[0] == NOT_MOVING
        listed = await client.ask(LIST, 0, topics=[{"name": "t", "partition_indexes": [0]}])
        assert (int(listed.error_code), len(listed.topics)) == (0, 0)


async def test_partitions_that_there_are_not_cannot_be_reassigned() -> None:
    async with connected() as (broker, client):
        assert (await reassigned(client, 1, [broker.cluster.node_id]))[0] == NO_TOPIC


async def test_the_replication_factor_stays_where_it_must_not_change() -> None:
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.cluster.readers = {"another rack": [7]}
        one = [broker.cluster.node_id]
        assert (await reassigned(client, 1, one, allow_replication_factor_change=True))[0] == 0
        code, _ = await reassigned(client, 1, one, allow_replication_factor_change=False)
        assert code == BAD_FACTOR


async def test_limits_of_replication_can_be_taken_away_and_not_set() -> None:
    """kafka-reassign-partitions --verify does so."""
    limits = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]

    async def altered(operation: int, *names: str) -> int:
        changes = [{"name": name, "config_operation": operation, "value": "1"} for name in names]
        broker_config = {"resource_type": 4, "resource_name": "0", "configs": changes}
        answer = await client.ask(44, 1, resources=[broker_config], validate_only=False)
        return int(answer.responses[0].error_code)

    async with connected() as (_, client):
        assert await altered(1, *limits) == 0
        assert await altered(0, *limits) == INVALID
        assert await altered(1, *limits, "num.partitions") == INVALID
        assert await altered(1) == INVALID
