"""A running cluster goes from plain text between its brokers to SASL, broker by broker."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.ports import own_port

LEADER: Final = 1
BROKERS: Final = (LEADER, 2, 3)
TIMEOUT_S: Final = 60.0
PARTITIONS: Final = 6
SHARED: Final = {
    "diskless.metadata.log": "object",
    "diskless.metadata.follow.interval.ms": "50",
    "wal.commit.interval.ms": "5",
    "listener.security.protocol.map": "OLD:PLAINTEXT,NEW:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "bootstrap.admin": "admin",
    "super.users": "User:admin",
}
STEPS: Final = (
    (("OLD", "NEW"), {"inter.broker.listener.name": "OLD,NEW"}),
    (("NEW",), {"inter.broker.listener.name": "NEW", "authorizer": "acl"}),
)
"""The listeners between brokers, and settings, as docs/security.md has them."""


class MovingCluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._password = directory / "password"
        self._password.write_text("pass word")
        self._password.chmod(0o600)
        self._ports: Final = {
            (name, node_id): own_port() for name in ("OLD", "NEW", "CLIENTS") for node_id in BROKERS
        }
        self.brokers: dict[int, LiveBroker] = {}
        addresses = [f"127.0.0.1:{self._ports['CLIENTS', node_id]}" for node_id in BROKERS]
        self.client: Final = {
            "bootstrap.servers": ",".join(addresses),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "pass word",
        }

    def start(self, node_id: int, names: tuple[str, ...], more: Mapping[str, str]) -> None:
        listeners = [
            f"{name}://127.0.0.1:{self._ports[name, node_id]}" for name in (*names, "CLIENTS")
        ]
        settings = {
            **SHARED,
            "node.id": str(node_id),
            "diskless.coordinator.candidate": str(node_id == LEADER).lower(),
            "object.store.url": f"file://{self._directory / 'bucket'}",
            "listeners": ",".join(listeners),
            "bootstrap.admin.password": f"file:{self._password}",
            **more,
        }
        broker = LiveBroker(self._directory / f"data-{node_id}", settings)
        self.brokers[node_id] = broker.__enter__()

    def everybody_commits(self) -> None:
        """Through each broker, a record of every partition is acknowledged."""
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for node_id in BROKERS:
            address = f"127.0.0.1:{self._ports['CLIENTS', node_id]}"
            producer = Producer({**self.client, "bootstrap.servers": address})
            for partition in range(PARTITIONS):
                producer.produce("made", b"record", partition=partition, on_delivery=delivered)
            assert producer.flush(TIMEOUT_S) == 0
        assert not failed

    def failed_log_ins(self) -> float:
        """Of brokers and of clients, at all brokers in their lives of now."""
        labels = {"mechanism": "SCRAM-SHA-512", "result": "failure"}
        samples = (
            broker.broker.base.registry.get_sample_value("diskless_authentications_total", labels)
            for broker in self.brokers.values()
        )
        return sum(sample or 0 for sample in samples)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MovingCluster]:
    moving = MovingCluster(tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in moving.brokers.values()])
        for node_id in BROKERS:
            moving.start(node_id, ("OLD",), {"inter.broker.listener.name": "OLD"})
        yield moving


@pytest.mark.exhaustive
def test_a_cluster_moves_to_sasl_between_its_brokers(cluster: MovingCluster) -> None:
    admin = AdminClient(cluster.client)
    admin.create_topics([NewTopic("made", PARTITIONS)])["made"].result(TIMEOUT_S)
    cluster.everybody_commits()
    for names, more in STEPS:
        # One that has moved asks a leader that has not, then one that has not a leader that has.
        for node_id in (2, LEADER, 3):
            cluster.brokers[node_id].stop()
            cluster.start(node_id, names, more)
            until(
                lambda: len(admin.list_topics(timeout=TIMEOUT_S).brokers) == len(BROKERS),
                "all brokers",
            )
            cluster.everybody_commits()
            assert not cluster.failed_log_ins()
    for broker in cluster.brokers.values():
        assert [listener.name for listener in broker.broker.base.inter_broker] == ["NEW"]
