"""Deciding what creates and deletes topics, deletes records and hands out producer ids.

Pure functions over the speculative view, like metadata/commit_rules.py: they write what the
operation will have done into the view and return the records that make it so.
"""

import random
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from metadata.commit_rules import Decision
from metadata.image import PartitionState, StoredTopic
from metadata.operations import CreateTopic, DeletedRecords, DeleteRecords, TopicDescription
from metadata.records import (
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
)
from metadata.speculative import SpeculativeView
from wal.coordinates import TopicIdPartition
from wal.errors import (
    DisklessError,
    InvalidPartitions,
    OffsetOutOfRange,
    TopicExists,
    UnknownPartition,
    UnknownTopicId,
)

PRODUCER_ID_BLOCK: Final = 1_000
"""Producer ids reserved by one record; what is left of a block at a crash is never given out."""

PARTITIONS_PER_TOPIC_MAX: Final = 100_000

BEFORE_HIGH_WATERMARK: Final = -1
"""DeleteRecords offset that means: everything."""


def decide_create_topics(
    view: SpeculativeView, topics: Sequence[CreateTopic], rng: random.Random
) -> Decision[Sequence[TopicDescription | DisklessError]]:
    """Each topic becomes its partitions' records and, when it has any, its configs' record."""
    records: list[MetadataRecord] = []
    answer: list[TopicDescription | DisklessError] = []
    for topic in topics:
        if view.topic_by_name(topic.name) is not None:
            answer.append(TopicExists(f"topic {topic.name} exists"))
            continue
        if not 0 < topic.partition_count <= PARTITIONS_PER_TOPIC_MAX:
            answer.append(InvalidPartitions(f"{topic.partition_count} partitions"))
            continue
        topic_id = UUID(int=rng.getrandbits(128), version=4)
        # A surrogate key is the offset of the record that creates the row.
        first_offset = view.next_offset + len(records)
        for index in range(topic.partition_count):
            records.append(
                PartitionCreatedRecord(topic_id=topic_id, name=topic.name, partition=index)
            )
            view.put_partition(
                TopicIdPartition(topic_id, index),
                PartitionState(first_offset + index, first_offset, index),
            )
        if topic.configs:
            records.append(TopicConfigsRecord(topic_id=topic_id, configs=dict(topic.configs)))
        description = TopicDescription(
            topic_id=topic_id,
            name=topic.name,
            partition_count=topic.partition_count,
            configs=dict(topic.configs),
        )
        view.put_topic(StoredTopic(first_offset, description))
        answer.append(description)
    return Decision(records, answer)


def decide_delete_topics(
    view: SpeculativeView, topic_ids: Sequence[UUID]
) -> Decision[Sequence[DisklessError | None]]:
    """Deleting what is not there has no effect and says UnknownTopicId."""
    records: list[MetadataRecord] = []
    answer: list[DisklessError | None] = []
    for topic_id in topic_ids:
        description = view.topic_by_id(topic_id)
        if description is None:
            answer.append(UnknownTopicId(f"no topic has the id {topic_id}"))
            continue
        view.delete_topic(description)
        records.append(TopicDeletedRecord(topic_id=topic_id))
        answer.append(None)
    return Decision(records, answer)


def decide_delete_records(
    view: SpeculativeView, requests: Sequence[DeleteRecords]
) -> Decision[Sequence[DeletedRecords]]:
    """The log start offset moves up, never down; two requests for a partition apply in order."""
    records: list[MetadataRecord] = []
    answer: list[DeletedRecords] = []
    for partition, before_offset in requests:
        state = view.partition(partition)
        if state is None:
            answer.append(DeletedRecords(error=UnknownPartition(f"no partition {partition}")))
            continue
        start = state.high_watermark if before_offset == BEFORE_HIGH_WATERMARK else before_offset
        if not 0 <= start <= state.high_watermark:
            answer.append(
                DeletedRecords(
                    state.log_start_offset,
                    OffsetOutOfRange(
                        f"{partition}: cannot delete before {before_offset}, the high watermark "
                        f"is {state.high_watermark}"
                    ),
                )
            )
            continue
        if start > state.log_start_offset:
            view.put_partition(partition, state._replace(log_start_offset=start))
            planned_end = view.planned_end(partition)
            if planned_end is not None and start > planned_end:
                # Where planning goes on is the first row that stays: known when this is applied.
                view.put_planned_end(partition, None)
            records.append(RecordsDeletedRecord(partition=partition, new_log_start_offset=start))
        answer.append(DeletedRecords(max(start, state.log_start_offset)))
    return Decision(records, answer)


def decide_allocate_producer_ids(view: SpeculativeView) -> Decision[int]:
    """Reserve one block; the answer is its first id."""
    first = view.next_producer_id
    view.put_next_producer_id(first + PRODUCER_ID_BLOCK)
    record = ProducerIdsAllocatedRecord(next_producer_id=first + PRODUCER_ID_BLOCK)
    return Decision((record,), first)
