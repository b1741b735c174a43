"""Decides the creation, change and deletion of topics, deletes records, hands out producer ids.

Pure functions over the speculative view, like metadata/rules/commit.py: they write what the
operation will have done into the view and return the records that make it so.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from metadata import operations as ops
from metadata.records.control import PartitionsAssignedRecord
from metadata.records.records import (
    MetadataRecord,
    PartitionCreatedRecord,
    ProducerIdsAllocatedRecord,
    RecordsDeletedRecord,
    TopicConfigsRecord,
    TopicDeletedRecord,
)
from metadata.rules.commit import Decision
from metadata.state.image import PartitionState, StoredTopic
from metadata.state.speculative import SpeculativeView
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


def coordinator_assignments(
    topic_id: UUID, first: int, end: int, coordinator_count: int
) -> Mapping[int, int]:
    """Coordinators of the partitions `first` .. `end` - 1, without those the catalogue keeps."""
    assigned = {
        index: coordinator_of_new(topic_id, index, coordinator_count) for index in range(first, end)
    }
    return {index: number for index, number in assigned.items() if number != ops.CATALOGUE}


def coordinator_of_new(topic_id: UUID, partition: int, coordinator_count: int) -> int:
    """Returns the coordinator of a partition that is created.

    Round robin from a start that depends on the topic, so that topics of one partition spread too.
    """
    return (topic_id.int + partition) % coordinator_count


def decide_create_topics(
    view: SpeculativeView, topics: Sequence[ops.CreateTopic], rng: random.Random
) -> Decision[Sequence[ops.TopicDescription | DisklessError]]:
    """Each topic becomes its partitions' records and, when it has any, its configs' record."""
    records: list[MetadataRecord] = []
    answer: list[ops.TopicDescription | DisklessError] = []
    for topic in topics:
        if _is_metadata_topic(topic.name, topic.topic_id):
            answer.append(_metadata_topic_exists())
            continue
        if view.topic_by_name(topic.name) is not None:
            answer.append(TopicExists(f"topic {topic.name} exists"))
            continue
        if not 0 < topic.partition_count <= PARTITIONS_PER_TOPIC_MAX:
            answer.append(InvalidPartitions(f"{topic.partition_count} partitions"))
            continue
        topic_id = topic.topic_id or UUID(int=rng.getrandbits(128), version=4)
        if view.topic_by_id(topic_id) is not None:
            answer.append(TopicExists(f"topic id {topic_id} is in use"))
            continue
        description = ops.TopicDescription(
            topic_id=topic_id,
            name=topic.name,
            partition_count=topic.partition_count,
            configs=dict(topic.configs),
            assignments=dict(topic.assignments),
        )
        first_offset = view.next_offset + len(records)
        records += _partition_records(view, description, 0, first_offset, first_offset)
        if topic.configs:
            records.append(TopicConfigsRecord(topic_id=topic_id, configs=dict(topic.configs)))
        view.put_topic(StoredTopic(first_offset, description))
        answer.append(description)
    return Decision(records, answer)


def decide_create_partitions(
    view: SpeculativeView, requests: Sequence[ops.CreatePartitions]
) -> Decision[Sequence[DisklessError | None]]:
    """The catalogue's part: a topic grows, or is created, under the id that the caller chose."""
    records: list[MetadataRecord] = []
    answer: list[DisklessError | None] = []
    for request in requests:
        if _is_metadata_topic(request.name, request.topic_id):
            answer.append(_metadata_topic_exists())
            continue
        named, topic = view.stored_topic_by_name(request.name), view.stored_topic(request.topic_id)
        if named != topic:
            answer.append(TopicExists(f"topic {request.name} exists under another id or name"))
            continue
        have = 0 if topic is None else topic.description.partition_count
        if not max(have, 1) <= request.partition_count <= PARTITIONS_PER_TOPIC_MAX:
            answer.append(
                InvalidPartitions(f"{request.partition_count} partitions, there are {have}")
            )
            continue
        answer.append(None)
        if have == request.partition_count:
            continue
        known = {} if topic is None else topic.description.assignments
        description = ops.TopicDescription(
            topic_id=request.topic_id,
            name=request.name,
            partition_count=request.partition_count,
            configs={} if topic is None else topic.description.configs,
            assignments={
                **known,
                **{index: at for index, at in request.assignments.items() if index >= have},
            },
        )
        offset = view.next_offset + len(records)
        row_id = offset if topic is None else topic.id
        records += _partition_records(view, description, have, offset, row_id)
        view.put_topic(StoredTopic(row_id, description, _columns_of(topic)))
    return Decision(records, answer)


def _columns_of(topic: StoredTopic | None) -> ops.TopicColumns:
    return ops.TopicColumns() if topic is None else topic.columns


def _partition_records(
    view: SpeculativeView, topic: ops.TopicDescription, first: int, offset: int, topic_row_id: int
) -> Sequence[MetadataRecord]:
    """Records for the partitions from `first` on, in order; `offset` is that of the first record.

    Partitions that live elsewhere and follow each other share a record.
    """
    records: list[MetadataRecord] = []
    index = first
    while index < topic.partition_count:
        elsewhere: list[int] = []
        while (number := topic.assignments.get(index + len(elsewhere))) is not None:
            elsewhere.append(number)
        if elsewhere:
            records.append(
                PartitionsAssignedRecord(
                    topic_id=topic.topic_id,
                    name=topic.name,
                    first_partition=index,
                    coordinators=tuple(elsewhere),
                )
            )
            index += len(elsewhere)
            continue
        # A surrogate key is the offset of the record that creates the row.
        view.put_partition(
            TopicIdPartition(topic.topic_id, index),
            PartitionState(offset + len(records), topic_row_id, index),
        )
        records.append(
            PartitionCreatedRecord(topic_id=topic.topic_id, name=topic.name, partition=index)
        )
        index += 1
    return records


def decide_create_partitions_at(
    view: SpeculativeView, requests: Sequence[ops.CreatePartitionsAt]
) -> Decision[Sequence[DisklessError | None]]:
    """The part of a coordinator beside the catalogue: partitions it has already stay as they are.

    Names mean nothing here. The catalogue gives a name to one topic at a time, but this coordinator
    may still have partitions of an earlier topic of that name, or of one whose creation failed.
    """
    records: list[MetadataRecord] = []
    answer: list[DisklessError | None] = []
    for request in requests:
        if _is_metadata_topic(request.name, request.topic_id):
            answer.append(_metadata_topic_exists())
            continue
        topic = view.stored_topic(request.topic_id)
        missing = [
            index
            for index in sorted(set(request.partitions))
            if view.partition(TopicIdPartition(request.topic_id, index)) is None
        ]
        have = 0 if topic is None else topic.description.partition_count
        if missing and not have <= missing[0] <= missing[-1] < PARTITIONS_PER_TOPIC_MAX:
            answer.append(InvalidPartitions(f"partitions {missing[0]} .. after {have}"))
            continue
        answer.append(None)
        if not missing:
            continue
        row_id = view.next_offset + len(records) if topic is None else topic.id
        for index in missing:
            view.put_partition(
                TopicIdPartition(request.topic_id, index),
                PartitionState(view.next_offset + len(records), row_id, index),
            )
            records.append(
                PartitionCreatedRecord(
                    topic_id=request.topic_id, name=request.name, partition=index
                )
            )
        view.put_topic(
            StoredTopic(
                row_id,
                ops.TopicDescription(
                    topic_id=request.topic_id, name=request.name, partition_count=missing[-1] + 1
                ),
            )
        )
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


def decide_alter_topic_configs(
    view: SpeculativeView, requests: Sequence[ops.AlterTopicConfigs]
) -> Decision[Sequence[ops.AlteredTopicConfigs]]:
    """Each topic whose configs are still those that the caller saw gets the new ones."""
    records: list[MetadataRecord] = []
    answer: list[ops.AlteredTopicConfigs] = []
    for request in requests:
        topic = view.stored_topic(request.topic_id)
        if topic is None:
            error = UnknownTopicId(f"no topic has the id {request.topic_id}")
            answer.append(ops.AlteredTopicConfigs(error=error))
            continue
        have, wanted = dict(topic.description.configs), dict(request.configs)
        # What is as wanted already may be the first try of this very request.
        if have != wanted and have == dict(request.before):
            have = wanted
            records.append(TopicConfigsRecord(topic_id=request.topic_id, configs=wanted))
            view.put_topic(topic._replace(description=replace(topic.description, configs=wanted)))
        answer.append(ops.AlteredTopicConfigs(have == wanted, have))
    return Decision(records, answer)


def decide_delete_records(
    view: SpeculativeView, requests: Sequence[ops.DeleteRecords]
) -> Decision[Sequence[ops.DeletedRecords]]:
    """The log start offset moves up, never down; two requests for a partition apply in order."""
    records: list[MetadataRecord] = []
    answer: list[ops.DeletedRecords] = []
    for partition, before_offset in requests:
        state = view.partition(partition)
        if state is None:
            answer.append(ops.DeletedRecords(error=UnknownPartition(f"no partition {partition}")))
            continue
        start = state.high_watermark if before_offset == BEFORE_HIGH_WATERMARK else before_offset
        if not 0 <= start <= state.high_watermark:
            answer.append(
                ops.DeletedRecords(
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
        answer.append(ops.DeletedRecords(max(start, state.log_start_offset)))
    return Decision(records, answer)


def decide_allocate_producer_ids(view: SpeculativeView) -> Decision[int]:
    """Reserve one block; the answer is its first id."""
    first = view.next_producer_id
    view.put_next_producer_id(first + PRODUCER_ID_BLOCK)
    record = ProducerIdsAllocatedRecord(next_producer_id=first + PRODUCER_ID_BLOCK)
    return Decision((record,), first)


def _is_metadata_topic(name: str, topic_id: UUID | None) -> bool:
    """The metadata log can be read as a topic of this name and id: no other may bear either."""
    return name == ops.METADATA_TOPIC or topic_id == ops.METADATA_TOPIC_ID


def _metadata_topic_exists() -> TopicExists:
    return TopicExists(f"{ops.METADATA_TOPIC} is the metadata log itself")
