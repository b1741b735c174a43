"""Brokers with two listeners each: clients are told addresses of the one they came through."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.ports import own_port

INSIDE: Final = "INSIDE"
OUTSIDE: Final = "OUTSIDE"
SHARED: Final = {
    "diskless.metadata.log": "object",
    "diskless.metadata.follow.interval.ms": "50",
    "wal.commit.interval.ms": "5",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter.broker.listener.name": INSIDE,
}
BROKERS: Final = (1, 2)
TIMEOUT_S: Final = 60.0


class Listeners(NamedTuple):
    """Where each broker is reached, by listener and node id."""

    addresses: Mapping[tuple[str, int], tuple[str, int]]

    def of(self, listener: str) -> Mapping[int, tuple[str, int]]:
        return {node_id: self.addresses[listener, node_id] for node_id in BROKERS}

    def client(self, listener: str, node_id: int = 1) -> dict[str, str]:
        host, port = self.addresses[listener, node_id]
        return {"bootstrap.servers": f"{host}:{port}"}


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    """Two brokers; OUTSIDE is told as `localhost`, which INSIDE is not."""
    directory: Path = tmp_path_factory.mktemp("listeners")
    addresses = {}
    with ExitStack() as stack:
        for node_id in BROKERS:
            addresses[INSIDE, node_id] = ("127.0.0.1", own_port())
            addresses[OUTSIDE, node_id] = ("localhost", own_port())
            inside, outside = (addresses[name, node_id][1] for name in (INSIDE, OUTSIDE))
            settings = {
                **SHARED,
                "node.id": str(node_id),
                "object.store.url": f"file://{directory / 'bucket'}",
                "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
                "advertised.listeners": f"OUTSIDE://localhost:{outside}",
            }
            stack.enter_context(LiveBroker(directory / f"data-{node_id}", settings))
        found = Listeners(addresses)
        admin = AdminClient(found.client(INSIDE))
        until(
            lambda: len(admin.list_topics(timeout=TIMEOUT_S).brokers) == len(BROKERS), "the cluster"
        )
        yield found


@pytest.mark.parametrize("name", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("node_id", BROKERS)
def test_every_answer_has_the_addresses_of_the_listener_that_was_asked(
    listeners: Listeners, name: str, node_id: int
) -> None:
    admin = AdminClient(listeners.client(name, node_id))
    there = listeners.of(name)
    until(lambda: len(admin.list_topics(timeout=TIMEOUT_S).brokers) == len(BROKERS), "both brokers")
    metadata = admin.list_topics(timeout=TIMEOUT_S).brokers
    assert {one.id: (one.host, one.port) for one in metadata.values()} == there
    nodes = admin.describe_cluster().result(TIMEOUT_S).nodes
    assert {one.id: (one.host, one.port) for one in nodes} == there
    (group,) = admin.describe_consumer_groups(["a-group"]).values()
    coordinator = group.result(TIMEOUT_S).coordinator
    assert (coordinator.host, coordinator.port) == there[coordinator.id]


def test_what_one_listener_took_the_other_gives(listeners: Listeners) -> None:
    producer = Producer(listeners.client(INSIDE, 1))
    producer.produce("across", b"record")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {**listeners.client(OUTSIDE, 2), "group.id": "across", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["across"])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"record"
    finally:
        consumer.close()
