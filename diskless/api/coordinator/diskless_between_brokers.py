"""Private operations between brokers, API keys 10002 to 10012, version 0.

    10002 CreateTopics          10005 HandOverFiles          10008 RegisterBroker
    10003 AllocateProducerIds   10006 CreatePartitionsAt     10009 PlanSegmentsHere
    10004 TombstoneFiles        10007 DeleteTopicsAt         10010 CommitSegmentsHere
                                                             10011 AlterTopicConfigs
                                                             10012 AlterClientQuotas

Not Kafka's, and not listed by ApiVersions; metadata/messages/brokers.py has the bytes. Each is the
`CoordinatorClient` operation of its name. Names, counts and configs of topics are checked here as
in CreateTopics (key 19), except that names which differ only in '.' against '_' are let through:
the broker that took the client's request knows all topics and has refused them. Quotas are checked
as in AlterClientQuotas (key 49).
"""

from collections.abc import Sequence
from dataclasses import replace

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    RunningOperations,
    checked,
    coordinator_api,
    in_parts,
)
from diskless.api.coordinator.diskless_create_partitions import check_new_topic
from diskless.api.coordinator.plan_segments import within_limit
from diskless.quotas.quota_entities import check_quotas
from diskless.server.registry import Api
from diskless.topics.topic_configs import check_topic_configs
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages import brokers as messages
from metadata.messages.quotas import ALTER_CLIENT_QUOTAS
from metadata.operations import (
    AlterClientQuotas,
    AlteredTopicConfigs,
    AlterTopicConfigs,
    CreatePartitionsAt,
    CreateTopic,
    RegisteredBroker,
    RolledSegment,
    SegmentCommit,
    SegmentPlan,
    Tombstone,
    TopicDescription,
)
from wal.errors import DisklessError, InvalidPartitions


def apis(client: CoordinatorClient, running: RunningOperations, access: Access) -> Sequence[Api]:
    async def create_topics(
        topics: Sequence[CreateTopic], timeout_ms: int
    ) -> Sequence[TopicDescription | DisklessError]:
        async def created(
            some: Sequence[CreateTopic],
        ) -> Sequence[TopicDescription | DisklessError]:
            return await checked(
                some, _checked_topic, lambda good: client.create_topics(good, timeout_ms=timeout_ms)
            )

        return await in_parts(topics, created, messages.CREATE_TOPICS.failed)

    async def allocate_producer_ids(asked: None, timeout_ms: int) -> Sequence[range]:
        return [await client.allocate_producer_ids(timeout_ms=timeout_ms)]

    async def tombstone_files(
        message: messages.TombstoneFilesMessage, timeout_ms: int
    ) -> Sequence[Tombstone]:
        return await in_parts(
            message.keys,
            lambda some: client.tombstone_files(message.coordinator, some, timeout_ms=timeout_ms),
            messages.TOMBSTONE_FILES.failed,
        )

    async def hand_over_files(
        message: messages.HandOverFilesMessage, timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        return await in_parts(
            message.files,
            lambda some: client.hand_over_files(message.coordinator, some, timeout_ms=timeout_ms),
            messages.HAND_OVER_FILES.failed,
        )

    async def create_partitions_at(
        message: messages.CreatePartitionsAtMessage, timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        async def created(some: Sequence[CreatePartitionsAt]) -> Sequence[DisklessError | None]:
            return await checked(
                some,
                _checked_partitions,
                lambda good: client.create_partitions_at(
                    message.coordinator, good, timeout_ms=timeout_ms
                ),
            )

        return await in_parts(message.topics, created, messages.CREATE_PARTITIONS_AT.failed)

    async def delete_topics_at(
        message: messages.DeleteTopicsAtMessage, timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        return await in_parts(
            message.topic_ids,
            lambda some: client.delete_topics_at(message.coordinator, some, timeout_ms=timeout_ms),
            messages.DELETE_TOPICS_AT.failed,
        )

    async def register_broker(
        broker: RegisteredBroker, timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        await client.register_broker(broker, timeout_ms=timeout_ms)
        return [None]

    async def plan_segments(
        include_partial: bool, timeout_ms: int
    ) -> Sequence[Sequence[SegmentPlan]]:
        plans = await client.plan_segments(include_partial=include_partial, timeout_ms=timeout_ms)
        return [within_limit(plans)]

    async def commit_segments(
        segments: Sequence[RolledSegment], timeout_ms: int
    ) -> Sequence[SegmentCommit]:
        return await client.commit_segments(segments, timeout_ms=timeout_ms)

    async def alter_topic_configs(
        requests: Sequence[AlterTopicConfigs], timeout_ms: int
    ) -> Sequence[AlteredTopicConfigs]:
        async def altered(some: Sequence[AlterTopicConfigs]) -> Sequence[AlteredTopicConfigs]:
            answers = await checked(
                some,
                _checked_configs,
                lambda good: client.alter_topic_configs(good, timeout_ms=timeout_ms),
            )
            return [
                AlteredTopicConfigs(error=answer) if isinstance(answer, DisklessError) else answer
                for answer in answers
            ]

        return await in_parts(requests, altered, messages.ALTER_TOPIC_CONFIGS.failed)

    async def alter_client_quotas(
        requests: Sequence[AlterClientQuotas], timeout_ms: int
    ) -> Sequence[DisklessError | None]:
        async def altered(some: Sequence[AlterClientQuotas]) -> Sequence[DisklessError | None]:
            return await checked(
                some,
                check_quotas,
                lambda good: client.alter_client_quotas(good, timeout_ms=timeout_ms),
            )

        return await in_parts(requests, altered, ALTER_CLIENT_QUOTAS.failed)

    return [
        coordinator_api(messages.CREATE_TOPICS, create_topics, running, access),
        coordinator_api(messages.ALLOCATE_PRODUCER_IDS, allocate_producer_ids, running, access),
        coordinator_api(messages.TOMBSTONE_FILES, tombstone_files, running, access),
        coordinator_api(messages.HAND_OVER_FILES, hand_over_files, running, access),
        coordinator_api(messages.CREATE_PARTITIONS_AT, create_partitions_at, running, access),
        coordinator_api(messages.DELETE_TOPICS_AT, delete_topics_at, running, access),
        coordinator_api(messages.REGISTER_BROKER, register_broker, running, access),
        coordinator_api(messages.PLAN_SEGMENTS_HERE, plan_segments, running, access),
        coordinator_api(messages.COMMIT_SEGMENTS_HERE, commit_segments, running, access),
        coordinator_api(messages.ALTER_TOPIC_CONFIGS, alter_topic_configs, running, access),
        coordinator_api(ALTER_CLIENT_QUOTAS, alter_client_quotas, running, access),
    ]


def _checked_topic(topic: CreateTopic) -> CreateTopic:
    check_new_topic(topic.name, topic.partition_count)
    return replace(topic, configs=check_topic_configs(topic.configs))


def _checked_configs(request: AlterTopicConfigs) -> AlterTopicConfigs:
    return replace(request, configs=check_topic_configs(request.configs))


def _checked_partitions(topic: CreatePartitionsAt) -> CreatePartitionsAt:
    indexes = sorted(topic.partitions)
    check_new_topic(topic.name, indexes[-1] + 1 if indexes else 1)
    if indexes and indexes[0] < 0:
        raise InvalidPartitions(f"topic {topic.name!r} cannot have a partition {indexes[0]}")
    return topic
