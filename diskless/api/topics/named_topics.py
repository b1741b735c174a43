"""Finds or refuses the topics that a request names."""

from diskless.ports import TopicAdmin
from diskless.protocol.messages import Fields
from diskless.topics.topic_names import check_topic_name
from metadata.operations import METADATA_TOPIC_ID, TopicDescription
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidTopic, UnknownPartition


def named_topic(topics: TopicAdmin, name: str) -> TopicDescription:
    """Raises InvalidTopic or UnknownPartition."""
    check_topic_name(name)
    topic = topics.topics().get(name)
    if topic is None:
        raise no_topic(name)
    return topic


def changeable_topic(topics: TopicAdmin, name: str) -> TopicDescription:
    """The same, but not the metadata topic. Raises InvalidTopic or UnknownPartition."""
    topic = named_topic(topics, name)
    if topic.topic_id == METADATA_TOPIC_ID:
        raise InvalidTopic(f"{name} is the cluster's own: clients can only read it")
    return topic


def partition_of(topic: TopicDescription, partition: int) -> TopicIdPartition:
    """Raises UnknownPartition."""
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartition(
            f"topic {topic.name} has {topic.partition_count} partitions, no {partition}"
        )
    return TopicIdPartition(topic.topic_id, partition)


def known_partition(topics: TopicAdmin, name: str, partition: int) -> TopicIdPartition:
    """Of any topic, in the words of Kafka's controller. Raises UnknownPartition."""
    topic = topics.topics().get(name)
    if topic is None:
        raise UnknownPartition(f"No such topic as {name}")
    if not 0 <= partition < topic.partition_count:
        raise UnknownPartition(f"No such partition as {name}-{partition}")
    return TopicIdPartition(topic.topic_id, partition)


def topic_of_row(row: Fields) -> str:
    """How the audit log names the topic of an answer's row."""
    return f"topic:{row['name']}"


def no_topic(name: str) -> UnknownPartition:
    """In the words that Kafka's tools show."""
    return UnknownPartition(f"The topic '{name}' does not exist.")
