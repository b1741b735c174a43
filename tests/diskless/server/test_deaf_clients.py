"""Clients that do not read their answers, beside clients that do: who has to wait, and who is cut.

A whole broker, and real sockets. The deaf ask as much as the broker takes of
them, then stay; meanwhile everybody else is served, from their address and from another.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.limits.deaf_clients import KINDS, DeafClients, Innocent, fetch_request, fill
from tests.support.brokers.live_broker import LiveBroker, until

pytestmark = pytest.mark.measures

DEAF = 64
SLOW_READERS = 200
CHUNKS = 2
ROUNDS = 1
VALUES = (b"small" * 10, b"large" * 60_000)
"""A Produce that is always received, and one that may have to wait for its turn."""
OWN_PARTITION = 8
"""That of the deaf; each innocent client has one of those before it."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {
        "num.partitions": "9",
        "wal.commit.interval.ms": "5",
        # What the deaf ask would hold this three times, were there no shares.
        "queued.max.request.bytes": str(16 << 20),
        # Nobody is cut off here: the deaf are to stay.
        "connections.unread.max.ms": "600000",
    }
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


def innocents(stack: ExitStack, address: tuple[str, int]) -> Sequence[Innocent]:
    """Two on the address that the deaf have, one on another; each was served once."""
    found = []
    for partition, source in enumerate(("127.0.0.1", "127.0.0.1", "127.0.0.2")):
        one = Innocent(address, source, partition)
        stack.callback(one.close)
        one.go_round(b"before")
        found.append(one)
    return found


def all_are_served(clients: Sequence[Innocent], rounds: int = ROUNDS) -> None:
    for _ in range(rounds):
        for value in VALUES:
            for client in clients:
                client.go_round(value)


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_is_served_beside_clients_that_do_not_read(broker: LiveBroker, kind: str) -> None:
    address = ("127.0.0.1", broker.port)
    with ExitStack() as stack:
        clients = innocents(stack, address)
        if kind == "Fetch of data":
            fill(address, OWN_PARTITION)
        deaf = stack.enter_context(
            DeafClients(address, DEAF, kind, partition=OWN_PARTITION, chunks=CHUNKS)
        )
        assert deaf.ask_on() > DEAF * 1_000
        all_are_served(clients)
        assert deaf.closed_by_broker() == 0


def test_everybody_is_served_beside_clients_that_read_a_kibibyte_at_a_time(
    broker: LiveBroker,
) -> None:
    address = ("127.0.0.1", broker.port)
    with ExitStack() as stack:
        clients = innocents(stack, address)
        fill(address, OWN_PARTITION)
        slow = stack.enter_context(
            DeafClients(address, SLOW_READERS, "Fetch of data", partition=OWN_PARTITION, chunks=1)
        )
        slow.ask_on()
        all_are_served(clients)
        until(lambda: slow.read_slowly() > 0, "an answer to a slow reader")
        all_are_served(clients)
        assert slow.closed_by_broker() == 0


def test_the_system_takes_little_of_an_answer_that_nobody_reads(broker: LiveBroker) -> None:
    """What it took would count for nobody, and no limit would hold it."""
    address = ("127.0.0.1", broker.port)
    fill(address, 0, count=1, size=1_000_000)
    server = broker.broker.server
    with DeafClients(address, 1, "Fetch of data") as deaf:
        deaf.sockets[0].sendall(fetch_request())
        until(lambda: server.statistics().unsent_bytes > 700_000, "an answer that is not read")
