"""All APIs for Kafka clients, wired to what they call."""

from diskless.api import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from diskless.api.registry import ApiRegistry
from diskless.ports import BrokerConfigs, Cluster, ProducerIds, ReplicaManager, TopicAdmin


def kafka_apis(
    *,
    manager: ReplicaManager,
    cluster: Cluster,
    topics: TopicAdmin,
    producer_ids: ProducerIds,
    broker_configs: BrokerConfigs,
) -> ApiRegistry:
    """A registry to which more may be added; ApiVersions lists what is in it when it is asked."""
    registry = ApiRegistry(
        [
            produce.api(manager),
            fetch.api(manager),
            list_offsets.api(manager),
            metadata.api(cluster, topics),
            find_coordinator.api(cluster),
            create_topics.api(topics),
            delete_topics.api(topics),
            init_producer_id.api(producer_ids),
            describe_configs.api(cluster, topics, broker_configs),
            describe_cluster.api(cluster),
        ]
    )
    registry.add(api_versions.api(registry))
    return registry
