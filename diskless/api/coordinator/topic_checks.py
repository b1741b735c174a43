"""Checks the topics that another broker, or a client of KIP-1164, wants changed.

Names, counts and configs are checked as in CreateTopics (key 19), except that names which differ
only in '.' against '_' are let through: the broker that took the client's request knows all topics
and has refused them. Each function gives the entry as it is passed on, and raises InvalidTopic,
TopicExists (the metadata topic), InvalidPartitions, InvalidConfig.
"""

from dataclasses import replace

from diskless.cluster.cluster import MAX_PARTITIONS_PER_TOPIC
from diskless.topics.topic_configs import check_topic_configs
from diskless.topics.topic_names import check_topic_name
from metadata import operations as ops
from wal.errors import InvalidPartitions, TopicExists


def checked_topic(topic: ops.CreateTopic) -> ops.CreateTopic:
    _check(topic.name, topic.partition_count)
    return replace(topic, configs=check_topic_configs(topic.configs))


def checked_growth(topic: ops.CreatePartitions) -> ops.CreatePartitions:
    _check(topic.name, topic.partition_count)
    return topic


def checked_share(topic: ops.CreatePartitionsAt) -> ops.CreatePartitionsAt:
    indexes = sorted(topic.partitions)
    _check(topic.name, indexes[-1] + 1 if indexes else 1)
    if indexes and indexes[0] < 0:
        raise InvalidPartitions(f"topic {topic.name!r} cannot have a partition {indexes[0]}")
    return topic


def checked_configs(request: ops.AlterTopicConfigs) -> ops.AlterTopicConfigs:
    return replace(request, configs=check_topic_configs(request.configs))


def _check(name: str, partition_count: int) -> None:
    check_topic_name(name)
    if name == ops.METADATA_TOPIC:
        raise TopicExists(f"{name} is the coordinators' own")
    if not 1 <= partition_count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(
            f"{partition_count} partitions: must be between 1 and {MAX_PARTITIONS_PER_TOPIC}"
        )
