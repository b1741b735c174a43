"""Quotas set through one broker: in force there and at the others, and after restarts."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.questions.kafka_raw_client import RawClient, a_batch, produce_frame

DESCRIBE, ALTER = 48, 49
ANY = 2
SHORT_BURST = {"quota.window.num": "2"}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[LiveBroker, LiveBroker]]:
    """One that leads the catalogue, and one that follows."""
    shared = {
        **SHORT_BURST,
        "diskless.metadata.log": "object",
        "diskless.metadata.follow.interval.ms": "20",
        "object.store.url": f"file://{tmp_path / 'objects'}",
    }
    with ExitStack() as stack:
        leader = stack.enter_context(LiveBroker(tmp_path / "one", {**shared, "node.id": "1"}))
        settings = {**shared, "node.id": "2", "diskless.coordinator.candidate": "false"}
        yield leader, stack.enter_context(LiveBroker(tmp_path / "two", settings))


async def _ask(port: int, key: int, values: Mapping[str, Any]) -> Any:
    client = await RawClient.connect(("127.0.0.1", port))
    try:
        return await client.ask(key, 1, **values)
    finally:
        await client.close()


def alter(broker: LiveBroker, client_id: str | None, **values: float | None) -> None:
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in values.items()
    ]
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    entries = [{"entity": entity, "ops": ops}]
    values_of_request = {"entries": entries, "validate_only": False}
    answer = asyncio.run(_ask(broker.port, ALTER, values_of_request))
    assert [entry.error_code for entry in answer.entries] == [0]


def known(broker: LiveBroker) -> Mapping[str | None, Mapping[str, float]]:
    """Quotas by client id, as this very broker describes them."""
    components = [{"entity_type": "client-id", "match_type": ANY, "match": None}]
    asked = {"components": components, "strict": True}
    answer = asyncio.run(_ask(broker.port, DESCRIBE, asked))
    assert answer.error_code == 0
    return {
        entry.entity[0].entity_name: {value.key: value.value for value in entry.values}
        for entry in answer.entries
    }


async def _throttle_ms(port: int, size_bytes: int) -> int:
    client = await RawClient.connect(("127.0.0.1", port))
    try:
        await client.send(produce_frame(1, [a_batch(size_bytes)]))
        _, rest = await client.receive()
        response, _ = entity_reader(load_response_schema(0, 9))(rest, 1)
        return round(response.throttle_time.total_seconds() * 1000)
    finally:
        await client.close()


def throttle_ms(broker: LiveBroker, size_bytes: int) -> int:
    """What this very broker tells the client "raw", which produces so much, to wait."""
    return asyncio.run(_throttle_ms(broker.port, size_bytes))


@pytest.mark.parametrize("altering", ["leader", "follower"])
def test_a_quota_is_in_force_where_it_is_answered_and_then_everywhere(
    brokers: tuple[LiveBroker, LiveBroker], altering: str
) -> None:
    here, there = brokers if altering == "leader" else brokers[::-1]
    alter(here, "raw", producer_byte_rate=10_000.0)
    assert known(here) == {"raw": {"producer_byte_rate": 10_000.0}}
    assert throttle_ms(here, 50_000) > 4_000
    until(lambda: known(there) == known(here), "the quota there")
    # Each broker grants all of it, as with Kafka.
    assert throttle_ms(there, 5_000) == 0
    assert throttle_ms(there, 50_000) > 4_000
    alter(there, "raw", producer_byte_rate=None, consumer_byte_rate=5.0)
    assert throttle_ms(there, 50_000) == 0
    until(lambda: known(here) == {"raw": {"consumer_byte_rate": 5.0}}, "the alteration here")
    assert throttle_ms(here, 50_000) == 0


def test_alterations_through_different_brokers_do_not_undo_each_other(
    brokers: tuple[LiveBroker, LiveBroker],
) -> None:
    here, there = brokers
    for number in range(1, 11):
        alter(here, None, producer_byte_rate=float(number))
        alter(there, None, consumer_byte_rate=float(100 + number))
        assert known(there)[None] == {
            "producer_byte_rate": number,
            "consumer_byte_rate": 100 + number,
        }


def test_quotas_survive_a_restart_and_a_lost_sqlite(tmp_path: Path) -> None:
    expected = {"raw": {"producer_byte_rate": 10_000.0}, None: {"consumer_byte_rate": 7.0}}
    with LiveBroker(tmp_path, SHORT_BURST) as broker:
        alter(broker, "raw", producer_byte_rate=10_000.0, consumer_byte_rate=6.0)
        alter(broker, None, consumer_byte_rate=7.0)
        alter(broker, "raw", consumer_byte_rate=None)
        assert known(broker) == expected
    with LiveBroker(tmp_path, SHORT_BURST) as broker:
        assert known(broker) == expected
        assert throttle_ms(broker, 50_000) > 4_000
    states = list(tmp_path.rglob("state.sqlite"))
    assert states
    for state in states:
        state.unlink()
    with LiveBroker(tmp_path, SHORT_BURST) as broker:
        assert known(broker) == expected
