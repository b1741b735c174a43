"""A cluster of broker processes in racks, what its clients are told, and what it has committed.

racks = Racks(tmp_path, stack, {1: "a", 2: "b"}, coordinators=2)
racks.until_each_leads({1, 2})
racks.until_sent_to("diskless_az=a", {1}, asked=2)
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from diskless.cli.metadata_sources import Range, read_bucket
from metadata.records.control import NO_BROKER, LeaderChangeRecord
from metadata.records.file_committed import FileCommittedRecord
from metadata.records.records import MetadataRecord, decode_record
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.live_broker import until
from tests.support.clients import stock_clients as clients
from wal.coordinates import ObjectKey, TopicIdPartition

TOPIC: Final = "t"
PARTITIONS: Final = 12
ROUNDS: Final = 10
INTERVAL_MS: Final = 1_000


def logged_records(store_url: str) -> Iterator[tuple[int, MetadataRecord]]:
    """All records of the metadata logs in a store, each with its metadata partition."""
    for logged in read_bucket(store_url, Range()):
        yield logged.partition, decode_record(logged.value)


class CommittedObject(NamedTuple):
    """A WAL object, and who knows of it."""

    uploader: int
    coordinators: frozenset[int]
    hosts: frozenset[int]
    """Of those coordinators, by who leads them now."""


class Racks:
    """Brokers by node id, and the rack of each; a topic is spread over all coordinators."""

    def __init__(
        self,
        path: Path,
        stack: ExitStack,
        racks: Mapping[int, str],
        *,
        coordinators: int | None = None,
        gateways_only: Collection[int] = (),
        interval_ms: int | None = INTERVAL_MS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """As many coordinators as brokers, unless another number is given.

        Those that are `gateways_only` lead nothing. A broker that was registered for `interval_ms`
        gets what it should lead; None: for as long as by default.
        """
        self._store_url = f"file://{path}/bucket"
        self.cluster = Cluster(path, self._store_url, stack)
        self.racks = racks
        self._gateways_only = gateways_only
        self._settings = {
            "diskless.metadata.topic.num.partitions": str(coordinators or len(racks)),
            **(settings or {}),
        }
        if interval_ms is not None:
            self._settings["diskless.metadata.leader.rebalance.interval.ms"] = str(interval_ms)
        for node_id in racks:
            self.start(node_id)
        topic_id = self.cluster.create(min(racks), TOPIC, PARTITIONS)
        self.partitions = [TopicIdPartition(topic_id, index) for index in range(PARTITIONS)]

    def start(self, node_id: int) -> None:
        may_lead = "false" if node_id in self._gateways_only else "true"
        own = {"broker.rack": self.racks[node_id], "diskless.coordinator.candidate": may_lead}
        self.cluster.start(node_id, {**self._settings, **own})

    def leaders(self, alive: set[int]) -> set[int]:
        """Who leads a coordinator of the topic's partitions."""
        return {
            node_id
            for node_id in alive
            if any(self.cluster.leads(node_id, partition) for partition in self.partitions)
        }

    def until_each_leads(self, alive: set[int]) -> None:
        until(lambda: self.leaders(alive) == alive, "each broker leads")

    def writers(self, client_id: str, asked: int) -> Mapping[int, int]:
        """Partition -> the broker that a client with this id writes to and reads from."""
        admin = AdminClient(
            {"bootstrap.servers": self.cluster.brokers[asked].bootstrap, "client.id": client_id}
        )
        found = admin.list_topics(TOPIC, timeout=120).topics[TOPIC].partitions
        return {index: partition.leader for index, partition in found.items()}

    def sent_to(self, client_id: str, asked: int) -> set[int]:
        return set(self.writers(client_id, asked).values())

    def of(self, rack: str) -> set[int]:
        return {node_id for node_id, where in self.racks.items() if where == rack}

    def until_sent_to(self, client_id: str, brokers: Collection[int], asked: int) -> None:
        until(
            lambda: bool(found := self.sent_to(client_id, asked)) and found <= set(brokers),
            f"{client_id} is sent to {brokers}",
        )

    def produce(self, rack: str, topic: str = TOPIC) -> list[tuple[int, int]]:
        """Write one record to every partition from a rack, `ROUNDS` times; where they are."""
        places: list[tuple[int, int]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            places.append(clients.place_of(message))

        producer = clients.confluent_producer(
            self.cluster.bootstrap, client_id=f"diskless_az={rack}", enable_idempotence=True
        )
        for number in range(ROUNDS):
            for index in range(PARTITIONS):
                producer.produce(topic, b"%d" % number, partition=index, on_delivery=delivered)
            assert producer.flush(clients.TIMEOUT_S) == 0
        assert len(places) == ROUNDS * PARTITIONS
        return places

    def read_all(self, rack: str, node_id: int, places: Sequence[tuple[int, int]]) -> None:
        """A consumer in `rack` that knows one broker reads what is at these offsets."""
        bootstrap = self.cluster.brokers[node_id].bootstrap
        with closing(clients.confluent_consumer(bootstrap, client_rack=rack)) as consumer:
            partitions = sorted({partition for partition, _ in places})
            consumer.assign([TopicPartition(TOPIC, index, 0) for index in partitions])
            missing = set(places)
            while missing:
                message = consumer.poll(clients.TIMEOUT_S)
                assert message, f"{len(missing)} of {len(places)} records did not come"
                missing.discard(clients.place_of(message))

    def read_bytes(self, node_id: int) -> float:
        """Of batches that a broker has handed to consumers in all its lives."""
        broker = self.cluster.brokers[node_id]
        broker.refresh_counters()
        return sum(
            value
            for name, value in broker.counters.items()
            if name.startswith("diskless_fetch_bytes_total")
        )

    def committed(self) -> Mapping[ObjectKey, CommittedObject]:
        """All WAL objects that the metadata logs tell of."""
        uploaders: dict[ObjectKey, int] = {}
        coordinators: dict[ObjectKey, set[int]] = {}
        hosts: dict[int, int] = {}
        for index, record in logged_records(self._store_url):
            match record:
                case FileCommittedRecord() as file:
                    uploaders[file.object_key] = file.uploader_broker_id
                    coordinators.setdefault(file.object_key, set()).add(index)
                case LeaderChangeRecord(broker_id=broker_id) if broker_id != NO_BROKER:
                    hosts[index] = broker_id
        return {
            key: CommittedObject(
                uploader,
                frozenset(coordinators[key]),
                frozenset(hosts[index] for index in coordinators[key]),
            )
            for key, uploader in uploaders.items()
        }
