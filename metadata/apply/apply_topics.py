"""Applies the records about topics: their partitions, their configs and their deletion.

Called by metadata/apply/apply.py, inside its transaction and with its rules.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import select

from metadata.apply.apply_deletions import RowDeletions
from metadata.apply.apply_tables import forget_table
from metadata.apply.apply_transactions import forget_open
from metadata.apply.transaction import StateTransaction
from metadata.operations import CATALOGUE, TopicColumns, TopicDescription
from metadata.records.records import (
    PartitionCreatedRecord,
    TopicColumnsRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
)
from metadata.state import schema
from metadata.state.image import PartitionState, StoredTopic
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState

SWEPT_WITH_TOPIC_MAX: Final = 500
"""Rows that TopicDeleted deletes itself; part of STATE_VERSION. Small topics leave nothing."""


def create_partition(
    transaction: StateTransaction, offset: int, record: PartitionCreatedRecord
) -> None:
    topic_row_id = extend_topic(
        transaction, offset, record.topic_id, record.name, record.partition, ()
    )
    state = PartitionState(offset, topic_row_id, record.partition)
    transaction.insert(schema.PARTITIONS, *state)
    transaction.changes.partitions[TopicIdPartition(record.topic_id, record.partition)] = state


def extend_topic(
    transaction: StateTransaction,
    offset: int,
    topic_id: UUID,
    name: str,
    first: int,
    coordinators: Sequence[int],
) -> int:
    """Count partitions from `first` on to a topic, which begins with its first ones.

    One partition that lives here, or as many as there are other `coordinators` they live at.
    The catalogue knows of every partition, so there are no gaps there; another coordinator
    has those that were assigned to it. Returns the topic's surrogate key.
    """
    topic = transaction.topic(topic_id)
    end = first + max(len(coordinators), 1)
    assignments = dict(enumerate(coordinators, first))
    if topic is None:
        row_id, count, configs, columns = offset, 0, {}, TopicColumns()
        transaction.insert(schema.TOPICS, offset, end, topic_id.bytes, name)
    else:
        row_id, description, columns = topic
        count, configs = description.partition_count, dict(description.configs)
        assignments = {**description.assignments, **assignments}
        if name != description.name:
            raise CorruptState(f"topic {topic_id} is {description.name}, not {name}")
        transaction.replace_row(
            schema.TOPICS,
            (row_id, count, topic_id.bytes, name),
            (row_id, end, topic_id.bytes, name),
        )
    if first < count or (first > count and transaction.coordinator_id == CATALOGUE):
        raise CorruptState(f"topic {name}: partition {first} after {count}")
    transaction.changes.topics[topic_id] = StoredTopic(
        row_id,
        TopicDescription(
            topic_id=topic_id,
            name=name,
            partition_count=end,
            configs=configs,
            assignments=assignments,
        ),
        columns,
    )
    return row_id


def set_configs(transaction: StateTransaction, record: TopicConfigsRecord) -> None:
    topic = transaction.topic(record.topic_id)
    if topic is None:
        raise CorruptState(f"configs of the unknown topic {record.topic_id}")
    transaction.delete_where(schema.TOPIC_CONFIGS, schema.TOPIC_CONFIGS.table.c.topic == topic.id)
    for name, value in sorted(record.configs.items()):
        transaction.insert(schema.TOPIC_CONFIGS, topic.id, name, value)
    old = topic.description
    transaction.changes.topics[record.topic_id] = StoredTopic(
        topic.id,
        TopicDescription(
            topic_id=old.topic_id,
            name=old.name,
            partition_count=old.partition_count,
            configs=dict(record.configs),
            assignments=old.assignments,
        ),
        topic.columns,
    )


def set_columns(transaction: StateTransaction, record: TopicColumnsRecord) -> None:
    topic = transaction.topic(record.topic_id)
    if topic is None:
        raise CorruptState(f"columns of the unknown topic {record.topic_id}")
    if record.version != topic.columns.version + 1:
        raise CorruptState(
            f"columns {record.version} of {record.topic_id} after {topic.columns[0]}"
        )
    transaction.delete_where(schema.TOPIC_COLUMNS, schema.TOPIC_COLUMNS.table.c.topic == topic.id)
    transaction.insert(schema.TOPIC_COLUMNS, topic.id, record.version, record.basis, record.columns)
    columns = TopicColumns(record.version, record.basis, record.columns)
    transaction.changes.topics[record.topic_id] = topic._replace(columns=columns)


def delete_topic(
    transaction: StateTransaction,
    deletions: RowDeletions,
    record: TopicDeletedRecord,
    timestamp_ms: int,
) -> None:
    topic = transaction.topic(record.topic_id)
    if topic is None:
        raise CorruptState(f"the unknown topic {record.topic_id} was deleted")
    partition_ids: set[int] = set()
    left_behind: list[int] = []
    for index in range(topic.description.partition_count):
        if index in topic.description.assignments:
            continue
        partition = TopicIdPartition(record.topic_id, index)
        state = transaction.partition_or_none(partition)
        if state is None:
            continue  # a coordinator beside the catalogue has only some of a topic's partitions
        if state.high_watermark:
            left_behind.append(state.id)
        partition_ids.add(state.id)
        transaction.changes.partitions[partition] = None
        transaction.changes.rewrites[partition] = None
    partitions = schema.PARTITIONS.table.c
    transaction.delete_where(
        schema.SEGMENT_PLANS,
        schema.SEGMENT_PLANS.table.c.partition.in_(
            select(partitions.id).where(partitions.topic == topic.id)
        ),
    )
    transaction.delete_where(
        schema.REWRITES,
        schema.REWRITES.table.c.partition.in_(
            select(partitions.id).where(partitions.topic == topic.id)
        ),
    )
    transaction.delete_where(schema.PARTITIONS, partitions.topic == topic.id)
    deletions.leave_behind(left_behind)
    transaction.delete_where(schema.TOPIC_CONFIGS, schema.TOPIC_CONFIGS.table.c.topic == topic.id)
    transaction.delete_where(schema.TOPIC_COLUMNS, schema.TOPIC_COLUMNS.table.c.topic == topic.id)
    transaction.delete_where(schema.ASSIGNMENTS, schema.ASSIGNMENTS.table.c.topic == topic.id)
    transaction.delete_where(schema.TOPICS, schema.TOPICS.table.c.id == topic.id)
    transaction.changes.topics[record.topic_id] = None
    forget_table(transaction, topic.id, record.topic_id)
    for key in [*transaction.image.producers, *transaction.changes.producers]:
        if key[0] in partition_ids:
            transaction.changes.producers[key] = None
    forget_open(transaction, partition_ids)
    for plan in transaction.plans():
        if plan.partition.topic_id == record.topic_id:
            transaction.changes.plans[plan.object_key] = None
    deletions.sweep(SWEPT_WITH_TOPIC_MAX, timestamp_ms)
