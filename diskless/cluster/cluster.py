"""Tells clients about the cluster: this broker, its topics, its configuration.

A broker with a local metadata log is a cluster of its own; one with the metadata log in the object
store shares it with others (diskless/cluster/membership.py). Handlers know only the protocols in
`diskless.ports`.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from operator import attrgetter
from typing import Final, cast
from uuid import UUID

from diskless.cluster.reachable import ReachableBroker, brokers_at
from diskless.config import BrokerSettings, Config, explain_all
from diskless.config_sources import LISTENER_PREFIX
from diskless.ports import ActiveProducer, BrokerConfigEntry, BrokerEndpoint, ClientInfo
from diskless.topics.schema_notes import SchemaNotes
from metadata.clients.coordinator_client import Coordinator
from metadata.clients.routed_client import RoutedClient
from metadata.messages.brokers import ALTER_TOPIC_CONFIGS
from metadata.operations import AlterTopicConfigs, CreateTopic, TopicDescription
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, DisklessError, InvalidTopic, UnknownTopicId

MAX_PARTITIONS_PER_TOPIC = 10_000
"""Upper bound of one topic; each partition costs a row and a little memory, used or not."""


ALTER_ATTEMPTS_MAX: Final = 20
"""How often in a row somebody else may alter a topic before an alteration is given up."""


class SingleBroker:
    """`diskless.ports.Cluster` of one broker: it leads everything and is its own controller."""

    def __init__(self, cluster_id: str, myself: ReachableBroker) -> None:
        self.cluster_id: Final = cluster_id
        self.node_id: Final = myself.node_id
        self.controller_id: Final = myself.node_id
        self._myself = myself

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        return brokers_at(listener, (self._myself,))

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        return self.node_id

    def replicas_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> Sequence[int]:
        return (self.node_id,)

    def is_another_rack(self, rack: str, client: ClientInfo) -> bool:
        return False

    def reader_in(self, rack: str, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        return self.node_id

    def preferred_produce_brokers(
        self, topic_id: UUID, partition: int, client: ClientInfo
    ) -> Sequence[int]:
        return (self.node_id,)


class CoordinatorTopics:
    """`diskless.ports.TopicAdmin` on the coordinator, and the metadata topic beside its topics.

    Creating that one finds that it exists, as with topics of Kafka's own. Deleting it is refused:
    Kafka lets its internal topics go, but this one is what all the others are made of.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: BrokerSettings,
        *,
        metadata_topic: TopicDescription,
        schema_notes: SchemaNotes,
        on_deleted: Callable[[Sequence[TopicIdPartition]], None],
    ) -> None:
        self._coordinator = coordinator
        self._schema_notes = schema_notes
        self.create_partitions = coordinator.create_partitions
        self.delete_records = coordinator.delete_records
        self.auto_create_enabled: Final = settings.auto_create_topics
        self.default_partition_count: Final = settings.default_partitions
        self.max_partition_count: Final = MAX_PARTITIONS_PER_TOPIC
        self._internal = {metadata_topic.name: metadata_topic}
        self._on_deleted = on_deleted

    def topics(self) -> Mapping[str, TopicDescription]:
        # A view, because there may be many; nobody writes to it.
        known = cast(MutableMapping[str, TopicDescription], self._coordinator.topics())
        return ChainMap(self._internal, known)

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        known = self._coordinator.topic_by_id(topic_id)
        if known is None:
            known = next((t for t in self._internal.values() if t.topic_id == topic_id), None)
        return known

    async def create_topics(
        self, topics: Sequence[CreateTopic]
    ) -> Sequence[TopicDescription | DisklessError]:
        """As the coordinator's; what a rebuild needs of their configs is durable before."""
        await self._schema_notes.keep(topic.configs for topic in topics)
        return await self._coordinator.create_topics(topics)

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]:
        """Fetches that wait for a deleted topic are answered at once."""
        internal = {topic.topic_id: topic for topic in self._internal.values()}
        known = {
            topic_id: self._coordinator.topic_by_id(topic_id)
            for topic_id in topic_ids
            if topic_id not in internal
        }
        results = iter(await self._coordinator.delete_topics([*known]) if known else ())
        errors: dict[UUID, DisklessError | None] = {
            topic_id: InvalidTopic(f"{topic.name} is the cluster's own and cannot be deleted")
            for topic_id, topic in internal.items()
        }
        for topic_id, topic in known.items():
            error = errors[topic_id] = next(results)
            if error is None and topic is not None:
                self._on_deleted(
                    [TopicIdPartition(topic_id, index) for index in range(topic.partition_count)]
                )
        return [errors[topic_id] for topic_id in topic_ids]

    async def alter_configs(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        topic = self._coordinator.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        before = topic.configs
        for _ in range(ALTER_ATTEMPTS_MAX):
            # Asked for even when it changes nothing: this broker's catalogue may be behind.
            request = AlterTopicConfigs(topic_id=topic_id, before=before, configs=change(before))
            await self._schema_notes.keep([request.configs])
            (altered,) = await self._coordinator.call(ALTER_TOPIC_CONFIGS, [request])
            if altered.error is not None:
                raise altered.error
            if altered.is_altered:
                return
            before = altered.configs
        raise CommitFailed(f"others alter {topic.name} all the time; try again")


class ReplicaPartitions:
    """`diskless.ports.StoredPartitions` on this broker's replicas of the coordinators."""

    def __init__(self, replicas: RoutedClient, store_url: str) -> None:
        self._replicas = replicas
        self.store_url: Final = store_url
        self.size_bytes = replicas.live_bytes

    async def producers(
        self, partition: TopicIdPartition, *, limit: int
    ) -> Sequence[ActiveProducer]:
        found = await self._replicas.producers(partition, limit=limit)
        return [ActiveProducer(*producer) for producer in found]


class ConfiguredValues:
    """`diskless.ports.BrokerConfigs` on the broker's configuration."""

    def __init__(self, config: Config, effective: Mapping[str, str]) -> None:
        """`effective` has values that follow from the configuration and the machine, by key."""
        self._config = config
        self._effective = effective

    def entries(self) -> Sequence[BrokerConfigEntry]:
        values = {**self._config.values(), **self._effective}
        own = {
            key: BrokerConfigEntry(key, _text(values[key]), _text(default), why, type(default))
            for key, default, why in explain_all()
        }
        of_listeners = (
            own[key]._replace(
                name=f"{LISTENER_PREFIX}{listener.lower()}.{key}",
                value=_text(value),
                of_all=own[key],
            )
            for listener, overrides in self._config.per_listener.items()
            for key, value in overrides.items()
        )
        return sorted((*own.values(), *of_listeners, *_FIXED), key=attrgetter("name"))


_FIXED: Final = (
    BrokerConfigEntry(
        "default.replication.factor",
        "1",
        "1",
        "the object store replicates; any factor is accepted and 1 is reported; cannot be set",
        int,
    ),
    BrokerConfigEntry(
        "delete.topic.enable", "true", "true", "topics can be deleted; cannot be set", bool
    ),
    BrokerConfigEntry(
        "inter.broker.protocol.version",
        "3.9",
        "3.9",
        "the Kafka whose client APIs are served, for tools that go by it; cannot be set",
    ),
)
"""What tools look for in a broker's configuration, and what it is here whatever is configured."""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
