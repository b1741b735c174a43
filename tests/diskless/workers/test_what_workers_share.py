"""Two workers of a broker are one broker: what one has taken the other serves, limits and counts.

Which worker has a connection, nobody is told; both are used, so of a few each has some, and what
holds for all of them holds for both.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.broker_process import BrokerProcess
from tests.support.questions.kafka_raw_client import RawClient, fetch_frame
from tests.support.questions.worker_clients import (
    ALTER_QUOTAS,
    CREATE_TOPICS,
    METADATA,
    fetched,
    produce,
)

pytestmark = pytest.mark.clients

CONNECTIONS = 6
QUOTA = 10_000.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place: Path = tmp_path_factory.mktemp("workers")
    settings = {
        "broker.workers": "2",
        "broker.workers.active.min": "2",
        "wal.commit.interval.ms": "5",
        "max.connections.per.ip": str(2 * CONNECTIONS),
    }
    with BrokerProcess(place / "data", place, settings) as broker:
        broker.start()
        yield broker
        broker.stop()


def address_of(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


@asynccontextmanager
async def connections(broker: BrokerProcess, count: int) -> AsyncIterator[list[RawClient]]:
    address = address_of(broker)
    clients = [await RawClient.connect(address) for _ in range(count)]
    try:
        for client in clients:
            # From here on it is known which worker has it.
            await client.ask(METADATA, 12, topics=[])
        yield clients
    finally:
        for client in clients:
            await client.close()


async def create(client: RawClient, topic: str) -> None:
    wanted: dict[str, Any] = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    wanted |= {"assignments": [], "configs": []}
    answer = await client.ask(
        CREATE_TOPICS, 5, topics=[wanted], timeout=timedelta(seconds=60), validate_only=False
    )
    assert [int(one.error_code) for one in answer.topics] == [0]


async def test_what_was_acknowledged_is_read_at_once_through_any_connection(
    broker: BrokerProcess,
) -> None:
    async with connections(broker, CONNECTIONS) as clients:
        await create(clients[0], "near")
        values: list[bytes] = []
        for number, producer in enumerate(clients):
            values.append(b"value %d of many" % number)
            assert (await produce(producer, "near", values[-1]))[0] == number
            for answer in await asyncio.gather(*(fetched(one, "near") for one in clients)):
                assert [value for value in values if value not in answer] == []
    broker.refresh_counters()
    sources = {
        source: broker.counters[f'diskless_fetch_bytes_total{{source="{source}"}}']
        for source in ("chunk", "object")
    }
    # Each reads the chunks of both, and asks the store for nothing.
    assert sources["object"] == 0
    assert sources["chunk"] > len(clients) * sum(map(len, values))
    requests = broker.counters['diskless_request_bytes_total{api="Fetch"}']
    assert requests >= len(clients) ** 2 * len(fetch_frame(5, topic="near"))


async def test_workers_find_batches_while_the_head_is_stopped(broker: BrokerProcess) -> None:
    async with connections(broker, CONNECTIONS) as clients:
        await create(clients[0], "found")
        await produce(clients[0], "found", b"found without it")
        # Not one of them has asked for it before.
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*(fetched(one, "found") for one in clients))
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    assert all(b"found without it" in answer for answer in answers)


async def test_an_address_has_no_more_connections_than_it_may_have(broker: BrokerProcess) -> None:
    address = address_of(broker)
    admitted: list[RawClient] = []
    # Those of the tests before may not have ended in everybody's books yet.
    async with asyncio.timeout(60):
        while len(admitted) < 2 * CONNECTIONS:
            client = await RawClient.connect(address)
            try:
                await client.ask(METADATA, 12, topics=[])
            except (asyncio.IncompleteReadError, ConnectionError):
                await client.close()
            else:
                admitted.append(client)
    one_too_many = await RawClient.connect(address)
    assert await one_too_many.is_closed_by_server()
    for client in (one_too_many, *admitted):
        await client.close()


async def test_a_quota_is_one_however_many_workers_its_client_reaches(
    broker: BrokerProcess,
) -> None:
    async with connections(broker, CONNECTIONS) as clients:
        await create(clients[0], "limited")
        entity = [{"entity_type": "client-id", "entity_name": "raw"}]
        limit = {"key": "producer_byte_rate", "value": QUOTA, "remove": False}
        await clients[0].ask(
            ALTER_QUOTAS, 1, entries=[{"entity": entity, "ops": [limit]}], validate_only=False
        )
        # Ten seconds' worth may come at once; half as much again comes, a part through each.
        part = bytes(int(15 * QUOTA / len(clients)))
        waits: Sequence[float] = [(await produce(client, "limited", part))[1] for client in clients]
        await clients[-1].close()
        # What fits is nobody's half.
        assert waits[:3] == [0, 0, 0]
        assert max(waits) > 2, waits
        remove = {"key": "producer_byte_rate", "value": 0.0, "remove": True}
        async with connections(broker, 1) as (other,):
            await other.ask(
                ALTER_QUOTAS, 1, entries=[{"entity": entity, "ops": [remove]}], validate_only=False
            )
