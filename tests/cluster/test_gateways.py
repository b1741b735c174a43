"""Racks, gateways and leaders that spread, as processes under stock clients.

One metadata partition for each broker: every broker leads one, is a gateway for some, and clients
are sent to brokers of their own rack, as long as there are any.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support import stock_clients as clients
from tests.support.broker_cluster import Cluster
from tests.support.live_broker import until
from tests.support.numbered_records import NumberedProducer, assert_each_once
from wal.coordinates import TopicIdPartition

TOPIC: Final = "t"
PARTITIONS: Final = 12
INTERVAL_MS: Final = 1_000


class Racks:
    """A cluster of brokers in racks, of which each leads one metadata partition."""

    def __init__(self, path: Path, stack: ExitStack, racks: Mapping[int, str]) -> None:
        self.cluster = Cluster(path, f"file://{path}/bucket", stack)
        self.racks = racks
        for node_id in racks:
            self.start(node_id)
        topic_id = self.cluster.create(1, TOPIC, PARTITIONS)
        self.partitions = [TopicIdPartition(topic_id, index) for index in range(PARTITIONS)]

    def start(self, node_id: int) -> None:
        self.cluster.start(
            node_id,
            {
                "broker.rack": self.racks[node_id],
                "diskless.metadata.topic.num.partitions": str(len(self.racks)),
                "diskless.metadata.leader.rebalance.interval.ms": str(INTERVAL_MS),
            },
        )

    def leaders(self, alive: set[int]) -> set[int]:
        """Who leads a coordinator of the topic's partitions."""
        return {
            node_id
            for node_id in alive
            if any(self.cluster.leads(node_id, partition) for partition in self.partitions)
        }

    def until_each_leads(self, alive: set[int]) -> None:
        until(lambda: self.leaders(alive) == alive, "each broker leads")

    def sent_to(self, client_id: str, node_id: int) -> set[int]:
        """The brokers that a client with this id writes to and reads from."""
        admin = AdminClient(
            {"bootstrap.servers": self.cluster.brokers[node_id].bootstrap, "client.id": client_id}
        )
        found = admin.list_topics(TOPIC, timeout=120).topics[TOPIC].partitions
        return {partition.leader for partition in found.values()}

    def of(self, rack: str) -> set[int]:
        return {node_id for node_id, where in self.racks.items() if where == rack}

    def until_sent_to(self, client_id: str, brokers: set[int], asked: int) -> None:
        until(
            lambda: bool(found := self.sent_to(client_id, asked)) and found <= brokers,
            f"{client_id} is sent to {brokers}",
        )

    def read_all(self, rack: str, node_id: int, producer: NumberedProducer) -> None:
        """A consumer in `rack` that knows one broker reads what was acknowledged."""
        bootstrap = self.cluster.brokers[node_id].bootstrap
        with closing(clients.confluent_consumer(bootstrap, client_rack=rack)) as consumer:
            consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(3)])
            found: set[int] = set()
            while len(found) < len(producer.acknowledged):
                message = consumer.poll(clients.TIMEOUT_S)
                assert message, f"{len(found)} of {len(producer.acknowledged)} records came"
                found.add(int(clients.value_of(message)))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_each_broker_leads_and_clients_stay_in_their_rack(tmp_path: Path, stack: ExitStack) -> None:
    """A broker that stops, one that is killed, and a rack that is left without brokers."""
    racks = Racks(tmp_path, stack, {1: "a", 2: "b", 3: "b"})
    everybody = {1, 2, 3}
    racks.until_each_leads(everybody)
    for rack in ("a", "b"):
        racks.until_sent_to(f"diskless_az={rack}", racks.of(rack), 2)
    producer = NumberedProducer(
        racks.cluster.bootstrap, client_id="diskless_az=a", socket_timeout_ms=5_000
    )
    producer.send(60)
    producer.flush()

    racks.cluster.brokers[1].stop()
    racks.until_sent_to("diskless_az=a", racks.of("b"), 2)
    producer.send(60)
    producer.flush()
    racks.read_all("a", 3, producer)
    racks.start(1)
    racks.until_each_leads(everybody)
    racks.until_sent_to("diskless_az=a", racks.of("a"), 2)

    racks.cluster.brokers[3].kill()
    producer.send(60)
    producer.flush()
    racks.until_sent_to("diskless_az=b", {2}, 1)
    assert_each_once(racks.cluster.brokers[2].bootstrap, producer)
