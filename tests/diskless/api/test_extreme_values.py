"""No value that a client can write makes a handler fail: it is served, refused, or cut off."""

import asyncio
import itertools
import struct
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest

from diskless.server.problem_log import ProblemLog
from diskless.server.registry import Api
from tests.support.brokers.live_broker import LiveBroker
from tests.support.profiles import seeds
from tests.support.questions.extreme_requests import Taste, body_of, mixed_taste, plain_tastes
from tests.support.questions.kafka_raw_client import RawClient, frame

METADATA, JOIN_GROUP, API_VERSIONS = 3, 11, 18
TOPIC: Final = "t"
MIXES: Final = seeds(6)
BYTES_ALIKE: Final = (0x00, 0x01, 0x7F, 0x80, 0xFF)
KAFKA_KEYS: Final = range(93)
"""From there on they are not Kafka's."""

_names = itertools.count()


def a_name(field: str) -> str:
    """Groups of their own, so that nobody waits for the members of another request's group."""
    return f"{field}-{next(_names)}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    settings = {"wal.commit.interval.ms": "5", "group.initial.rebalance.delay.ms": "0"}
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        yield broker


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Exception]]:
    """What handlers failed with, in the words of the log, and none of it suppressed."""
    found: list[tuple[str, Exception]] = []

    def failed(_: Any, client: Any, api_name: str, version: int, error: Exception) -> None:
        found.append((f"{api_name} v{version}", error))

    monkeypatch.setattr(ProblemLog, "handler_failed", failed)
    return found


async def the_topic(broker: LiveBroker, client: RawClient) -> UUID:
    """Its id; the topic is made when it is not there (any more)."""
    await client.ask(METADATA, 8, topics=[{"name": TOPIC}], allow_auto_topic_creation=True)
    return broker.broker.coordination.client.topics()[TOPIC].topic_id


def served(broker: LiveBroker) -> list[Api]:
    return list(broker.broker.server._shared.apis)


class Asker:
    """Asks one API after the other on one connection, as long as that is not cut off."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: RawClient | None = None

    async def ask(self, api: Api, version: int, body: bytes) -> None:
        """Send it, and wait for its answer or the end of the connection."""
        client = self._client or await RawClient.connect(("127.0.0.1", self._port))
        self._client = client
        header = struct.pack(">hhih", api.key, version, 1, 3) + b"raw"
        if api.is_flexible(version):
            header += b"\x00"
        await client.send(struct.pack(">i", len(header) + len(body)) + header + body)
        # Behind a Fetch, whose wait another answer ends.
        await client.send(frame(API_VERSIONS, 0, 2, b""))
        try:
            # One that joins a group may wait for others; it is left alone.
            while api.key != JOIN_GROUP and (await client.receive())[0] != 2:
                pass
        except (asyncio.IncompleteReadError, ConnectionResetError):
            await self.close()
        if api.key == JOIN_GROUP:
            await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def tastes(topic_id: UUID) -> Iterator[Taste]:
    yield from plain_tastes(TOPIC, topic_id, a_name)
    for seed in MIXES:
        yield mixed_taste(seed, TOPIC, topic_id, a_name)


async def test_no_extreme_value_of_a_field_makes_a_handler_fail(
    broker: LiveBroker, failures: list[tuple[str, Exception]]
) -> None:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    asker = Asker(broker.port)
    for api in served(broker):
        if api.key not in KAFKA_KEYS:
            continue
        topic_id = await the_topic(broker, client)
        for version in api.versions:
            for taste in tastes(topic_id):
                await asker.ask(api, version, body_of(api.key, version, taste))
                assert not failures, taste.name
    await the_topic(broker, client)
    await asker.close()
    await client.close()


async def test_no_run_of_equal_bytes_makes_a_handler_fail(
    broker: LiveBroker, failures: list[tuple[str, Exception]]
) -> None:
    """Also in what brokers ask each other, which has no schemas here."""
    asker = Asker(broker.port)
    for api in served(broker):
        for version in {api.min_version, api.max_version}:
            for byte in BYTES_ALIKE:
                await asker.ask(api, version, bytes([byte]) * 200)
                assert not failures, byte
    await asker.close()
