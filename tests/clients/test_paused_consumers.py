"""Consumers that stop reading for long, beside clients that never read and keep others waiting.

`make test` pauses them for a second or two, with limits to match; `make test-all` for a minute,
with a broker's own limits. PAUSE_SECONDS says for how long else, with the latter.

Of the clients that never read, some hold more answers than their share and are cut off. The others
hold less, each and far too much together: others wait to the end, and what a paused consumer has
not read counts as much as theirs. Only that it is within its share keeps its connection.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import TopicPartition

from bench.limits.deaf_clients import TOPIC, DeafClients, Innocent, fill
from diskless.server.connection import Connection
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.jvm import NEWEST, JvmUnavailable, KafkaTools
from tests.support.clients.stock_clients import TIMEOUT_S, confluent_consumer
from tests.support.exhaustive import IS_EXHAUSTIVE

pytestmark = [pytest.mark.clients, pytest.mark.measures]

IS_LONG: Final = IS_EXHAUSTIVE or "PAUSE_SECONDS" in os.environ
PAUSE_S: Final = float(os.environ.get("PAUSE_SECONDS", "60" if IS_LONG else "1.5"))
UNREAD_MAX_S: Final = 10.0 if IS_LONG else 2.0
"""Those that read must not be taken for deaf ones because the machine is busy."""
SETTINGS: Final = {
    "num.partitions": "3",
    "wal.commit.interval.ms": "5",
    "message.max.bytes": str(2 << 20),
    "connections.unread.max.ms": str(int(UNREAD_MAX_S * 1000)),
    "queued.max.response.bytes": str((128 if IS_LONG else 32) << 20),
}

PAUSED, LARGE, SMALL = range(3)
"""Partitions: of consumers that pause, of clients beyond their share, of those within theirs."""
RECORDS: Final = 8
LARGE_RECORDS: Final = 4
LARGE_BYTES: Final = 1_600_000
"""A batch that is more than the share by itself: no Fetch gets less than one."""
SMALL_BYTES: Final = 1_200_000 if IS_LONG else 400_000
BEYOND: Final = 16
WITHIN: Final = 64
"""Of their answers all together the broker still holds more than one address may."""


class Waiting:
    """A client that asks again and again for more than the broker has memory for, and waits."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = Innocent(address, "127.0.0.1", LARGE)
        self.close = self._client.close

    def read_everything(self) -> None:
        self._client.seek(0)
        for _ in range(LARGE_RECORDS):
            self._client.fetch(b"")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        address = ("127.0.0.1", broker.port)
        fill(address, PAUSED, count=RECORDS)
        fill(address, LARGE, count=LARGE_RECORDS, size=LARGE_BYTES)
        fill(address, SMALL, count=1, size=SMALL_BYTES)
        yield broker


@pytest.fixture
def waiting(broker: LiveBroker) -> Iterator[Waiting]:
    with closing(Waiting(("127.0.0.1", broker.port))) as waiting:
        yield waiting


@pytest.fixture(params=NEWEST)
def tools(request: pytest.FixtureRequest) -> KafkaTools:
    try:
        return KafkaTools(request.param)
    except JvmUnavailable as missing:
        pytest.skip(str(missing))


def connections_of(broker: LiveBroker, client_id: str) -> set[Connection]:
    async def found() -> set[Connection]:
        connections = broker.broker.server._connections
        return {one for one in connections if one._client.client_id == client_id}

    return broker.run(found())


def unread(connections: set[Connection]) -> float:
    """For how long one of them has read nothing of what it was sent."""
    since = [one.unread_since for one in connections]
    return max((time.monotonic() - one for one in since if one is not None), default=0.0)


def cut_as_slow_readers(broker: LiveBroker) -> float:
    labels = {"reason": "slow reader"}
    return (
        broker.broker.base.registry.get_sample_value("diskless_connections_cut_total", labels)
        or 0.0
    )


def pause_beside_the_deaf(broker: LiveBroker, waiting: Waiting, paused: Sequence[str]) -> None:
    """Checks that nobody but the deaf is cut off, and of them those beyond their share."""
    address = ("127.0.0.1", broker.port)
    before = {name: connections_of(broker, name) for name in paused}
    assert all(before.values())
    ends_at = time.monotonic() + PAUSE_S
    with ExitStack() as stack:
        for count, partition in ((BEYOND, LARGE), (WITHIN, SMALL)):
            deaf = DeafClients(address, count, "Fetch of data", partition=partition, chunks=1)
            stack.enter_context(deaf).ask_on()
        while time.monotonic() < ends_at or cut_as_slow_readers(broker) < BEYOND:
            assert time.monotonic() < ends_at + TIMEOUT_S
            waiting.read_everything()
        for name, connections in before.items():
            # librdkafka may add one for the group.
            assert connections_of(broker, name) >= connections
        assert cut_as_slow_readers(broker) == BEYOND
        # With nobody left beyond a share there is still too much: others wait as before.
        responses = broker.broker.server._shared.responses
        assert responses.unsent_bytes > 0.75 * responses.owner_limit_bytes


def test_a_librdkafka_consumer_that_pauses_keeps_its_connections(
    broker: LiveBroker, waiting: Waiting
) -> None:
    """It fetches no more when its queue is full, which is so at the second record here."""
    consumer = confluent_consumer(
        broker.bootstrap, client_id="paused", queued_max_messages_kbytes=1, queued_min_messages=1
    )
    consumer.assign([TopicPartition(TOPIC, PAUSED, 0)])
    offsets: list[int | None] = []
    while len(offsets) < RECORDS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        offsets.append(message.offset())
        if len(offsets) == 1:
            pause_beside_the_deaf(broker, waiting, ["paused"])
    assert offsets == list(range(RECORDS))
    consumer.close()


def test_java_consumers_that_do_not_poll_or_pause_keep_their_connections(
    broker: LiveBroker, waiting: Waiting, tools: KafkaTools
) -> None:
    arguments = ("stop reading", broker.bootstrap, TOPIC, str(RECORDS))
    with tools.start("ClientScenarios", *arguments) as process:
        process.wait_for(lambda line: line == '"stopped"')
        pause_beside_the_deaf(broker, waiting, ["silent", "paused"])
        until(
            lambda: unread(connections_of(broker, "silent")) > 2 * UNREAD_MAX_S,
            "a consumer that read nothing for long",
        )
        process.write("\n")
        finished = process.finish()
    assert finished.status == 0, finished.stderr
    found = json.loads(finished.lines[-1])
    everything = list(range(RECORDS))
    assert found["offsets"] == {"silent": everything, "paused": everything}
    for before, altogether in found["connections"].values():
        assert before == altogether
