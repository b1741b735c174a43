"""What this broker tells clients about the cluster: itself, its topics, its configuration.

A broker with a local metadata log is a cluster of its own; one with the metadata log in the object
store shares it with others (diskless/membership.py). Handlers know only the protocols in
`diskless.ports`.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import cast
from uuid import UUID

from diskless.config import BrokerSettings, Config, explain_all
from diskless.ports import BrokerConfigEntry, BrokerEndpoint, ClientInfo
from metadata.operations import Coordinator, CreateTopic, TopicDescription
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, InvalidTopic

MAX_PARTITIONS_PER_TOPIC = 10_000
"""Upper bound of one topic; each partition costs a row and a little memory, used or not."""


class SingleBroker:
    """`diskless.ports.Cluster` of one broker: it leads everything and is its own controller."""

    def __init__(self, cluster_id: str, myself: BrokerEndpoint) -> None:
        self._cluster_id = cluster_id
        self._endpoint = myself

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def node_id(self) -> int:
        return self._endpoint.node_id

    @property
    def controller_id(self) -> int:
        return self._endpoint.node_id

    def brokers(self) -> Sequence[BrokerEndpoint]:
        return (self._endpoint,)

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        return self._endpoint.node_id

    def preferred_produce_brokers(
        self, topic_id: UUID, partition: int, client: ClientInfo
    ) -> Sequence[int]:
        return (self._endpoint.node_id,)


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
        on_deleted: Callable[[Sequence[TopicIdPartition]], None],
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._internal = {metadata_topic.name: metadata_topic}
        self._on_deleted = on_deleted

    @property
    def auto_create_enabled(self) -> bool:
        return self._settings.auto_create_topics

    @property
    def default_partition_count(self) -> int:
        return self._settings.default_partitions

    @property
    def max_partition_count(self) -> int:
        return MAX_PARTITIONS_PER_TOPIC

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


class ConfiguredValues:
    """`diskless.ports.BrokerConfigs` on the broker's configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def entries(self) -> Sequence[BrokerConfigEntry]:
        values = self._config.values()
        return [
            BrokerConfigEntry(key, _text(values[key]), _text(default), why, type(default))
            for key, default, why in explain_all()
        ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
