"""Brokers on one bucket, as processes, with the metadata log in the object store.

    with ExitStack() as stack:
        cluster = Cluster(tmp_path, "s3://bucket/cluster", stack)
        cluster.start(1)
        cluster.start(2, {"broker.rack": "b"})
        topic_id = cluster.create(1, "t")
        cluster.brokers[1].kill()

Leaving the stack kills them.
"""

import asyncio
import base64
import random
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from demo.broker_process import BrokerProcess
from metadata.clients.wire_client import WireClient
from metadata.operations import LATEST_TIMESTAMP, BatchCommit, CommitFile, ListedOffset, ListOffsets
from tests.support.clients.numbered_records import PARTITIONS
from tests.support.coordinators.coordinator_bench import batch
from wal.clock import SystemClock
from wal.coordinates import ByteOffset, TopicIdPartition
from wal.errors import DisklessError
from wal.ulid import mint_ulid, wal_object_key

LEASE_MS: Final = 5_000
"""A busy machine may keep a leader from its lease for seconds."""
SETTINGS: Final[Mapping[str, str]] = {
    "diskless.metadata.log": "object",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.coordinator.lease.ms": str(LEASE_MS),
    "diskless.metadata.follow.interval.ms": "200",
    "broker.session.timeout.ms": "5000",
    "wal.commit.interval.ms": "20",
    "num.partitions": str(PARTITIONS),
}


class Cluster:
    """Broker processes of one bucket, by node id."""

    def __init__(self, directory: Path, store_url: str, stack: ExitStack) -> None:
        self._directory = directory
        self._store_url = store_url
        self._stack = stack
        self._rng = random.Random(7)
        self.brokers: dict[int, BrokerProcess] = {}

    def start(self, node_id: int, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        """A new broker, or another life of one that was killed."""
        broker = self.brokers.get(node_id)
        if broker is None:
            work = self._directory / f"work-{node_id}"
            work.mkdir()
            broker = BrokerProcess(
                self._directory / f"data-{node_id}",
                work,
                {**SETTINGS, "node.id": str(node_id), **(settings or {})},
                object_store=self._store_url,
            )
            self.brokers[node_id] = self._stack.enter_context(broker)
        broker.start()
        return broker

    def log(self, node_id: int) -> str:
        """What a broker has written in all its lives."""
        return (self._directory / f"work-{node_id}" / "broker.log").read_text()

    @property
    def bootstrap(self) -> str:
        """Every broker there ever was."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def live_brokers(self, node_id: int) -> set[int]:
        """The brokers that one of them tells clients of."""
        admin = AdminClient({"bootstrap.servers": self.brokers[node_id].bootstrap})
        return set(admin.list_topics(timeout=120).brokers)

    def create(self, node_id: int, topic: str, partitions: int = PARTITIONS) -> UUID:
        """Create a topic through one broker; its id."""
        admin = AdminClient({"bootstrap.servers": self.brokers[node_id].bootstrap})
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
        return self.topic_id(node_id, topic)

    def topic_id(self, node_id: int, topic: str) -> UUID:
        admin = AdminClient({"bootstrap.servers": self.brokers[node_id].bootstrap})
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
        # Kafka's spelling of a UUID: URL-safe base 64 without padding.
        return UUID(bytes=base64.urlsafe_b64decode(f"{described.topic_id}=="))

    def ask(self, node_id: int, partition: TopicIdPartition) -> ListedOffset | DisklessError:
        """What one broker's coordinators say to a strict read."""
        return asyncio.run(self._ask(node_id, partition))

    async def _ask(self, node_id: int, partition: TopicIdPartition) -> ListedOffset | DisklessError:
        async with self._client(node_id) as client:
            try:
                (listed,) = await client.list_offsets(
                    [ListOffsets(partition, LATEST_TIMESTAMP)], timeout_ms=5_000
                )
            except DisklessError as error:
                return error
            return listed

    def _client(self, node_id: int) -> WireClient:
        host, _, port = self.brokers[node_id].bootstrap.partition(":")
        return WireClient(host, int(port), clock=SystemClock(), rng=self._rng)

    def leads(self, node_id: int, partition: TopicIdPartition) -> bool:
        answer = self.ask(node_id, partition)
        return isinstance(answer, ListedOffset) and answer.error is None

    async def commit_and_read(
        self, node_id: int, partition: TopicIdPartition
    ) -> tuple[BatchCommit | DisklessError, ListedOffset | DisklessError]:
        """A commit and a strict read, sent together, to one broker."""

        async def commit() -> BatchCommit | DisklessError:
            async with self._client(node_id) as client:
                try:
                    (answer,) = await client.commit_file(self._file(partition), timeout_ms=20_000)
                except DisklessError as error:
                    return error
                return answer

        return await asyncio.gather(commit(), self._ask(node_id, partition))

    def _file(self, partition: TopicIdPartition) -> CommitFile:
        return CommitFile(
            object_key=wal_object_key(mint_ulid(SystemClock(), self._rng)),
            file_size_bytes=200,
            uploader_broker_id=9,
            batches=[batch(partition, 3)._replace(byte_offset=ByteOffset(16))],
        )
