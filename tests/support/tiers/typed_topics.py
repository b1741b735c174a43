"""Topics with schemas, on a broker beside a schema registry: written, rolled and read."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from metadata.operations import PlanSegments, SegmentPlan
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.schema_registry import SchemaRegistry
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import RollReport, roll_once
from tiering.roll import Rolled
from tiering.rounds import Done, Failed, RunSettings, Written, attempted
from tiering.segment_verification import verify_segment
from tiering.types.registry import HttpRegistry, RegistrySettings
from tiering.types.typed_roll import roll_as_planned
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.stores.blocking_store import BlockingStore, open_blocking_store

Outcomes = Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]


class TypingRoller:
    """Rolls in this process what a task of Spark would."""

    def __init__(self, registry: RegistrySettings | None) -> None:
        self._registry = registry

    def __call__(self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done) -> Outcomes:
        clock = SystemClock()
        with open_blocking_store(object_store_url, sync=False) as store:
            return [attempted(self._rolled, plan, store, clock) for plan in plans]

    def _rolled(self, plan: SegmentPlan, store: BlockingStore) -> Rolled:
        return roll_as_planned(plan, store, self._registry, SystemClock())


class World:
    """A broker, a registry, and topics that are written, rolled and read."""

    def __init__(self, broker: LiveBroker, registry: SchemaRegistry, directory: Path) -> None:
        self.broker = broker
        self.registry = registry
        self._directory = directory
        self._names = 0
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.settings = RegistrySettings(url=registry.url)

    def topic(self, **configs: str) -> str:
        self._names += 1
        name = f"t{self._names}"
        self._admin.create_topics([NewTopic(name, 1, config=_named(configs))])[name].result(60)
        return name

    def alter(self, topic: str, **configs: str) -> None:
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in _named(configs).items()
        ]
        resource = ConfigResource("topic", topic, incremental_configs=changes)
        self._admin.incremental_alter_configs([resource])[resource].result(60)

    def send(self, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 50})
        for value in values:
            producer.produce(topic, value, key, partition=0)
        assert producer.flush(30) == 0

    def roll(self, topic: str, *, with_registry: bool = True) -> RollReport:
        settings = self.settings if with_registry else None
        return roll_once(
            CoordinatorClient(self.broker.bootstrap),
            TypingRoller(settings),
            asked=PlanSegments(include_partial=True, topics=[topic]),
            registry=None if settings is None else HttpRegistry(settings, SystemClock()),
            run=RunSettings(sleep=lambda _: None),
        )

    def rows(self, topic: str) -> pa.Table:
        """All rows of all segments, those of later ones behind, by what each file says itself."""
        files = sorted(self._directory.glob(f"**/segments/topic={topic}/**/*.parquet"))
        tables = []
        for file in files:
            with open_blocking_store(f"file://{self._root(file)}", sync=False) as store:
                verify_segment(store, ObjectKey(str(file.relative_to(self._root(file)))))
            tables.append(pq.ParquetFile(file).read())
        return pa.concat_tables(tables, promote_options="default")

    def consumed(self, topic: str, count: int) -> list[bytes | None]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        consumer.close()
        return found

    @staticmethod
    def _root(file: Path) -> Path:
        return next(parent.parent for parent in file.parents if parent.name == "segments")


def _named(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in configs.items()}
