"""KIP-1164's operations as bytes, field by field as in its schemas, version 0.

     93 CreatePartitions     96 DeleteRecords     98 FindBatches (metadata/messages/find_batches.py)
     94 DeleteTopics         97 ListOffsets      100 DescribeFiles
     95 CommitFile (metadata/messages/commit_file.py)

metadata/messages/codec.py has what they have in common, docs/coordinator-api.md the fields of all.
What we add is in tagged fields from 10000 up, so that who knows the KIP alone can still ask and be
answered. Here it is one, in the request of DescribeFiles:

    10000 CoordinatorId int32   -1 (all that are led where it arrives) when left out
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from metadata.messages.codec import (
    TOPIC_ID,
    MessageReader,
    Operation,
    Steps,
    error_fields,
    in_order,
    read_entries,
    write_answers_by_topic,
    write_by_topic,
    write_entries,
)
from metadata.operations import (
    CreatePartitions,
    DeletedRecords,
    DeleteRecords,
    DescribedFile,
    ListedOffset,
    ListOffsets,
)
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError
from wal.wire.fields import INT8, INT32, INT64, NO_TAGS, compact_string, uvarint
from wal.wire.layouts import layout

CREATE_PARTITIONS_KEY: Final = 93
DELETE_TOPICS_KEY: Final = 94
DELETE_RECORDS_KEY: Final = 96
LIST_OFFSETS_KEY: Final = 97
DESCRIBE_FILES_KEY: Final = 100

COORDINATOR_ID_TAG: Final = 10_000

# --- 93 CreatePartitions, 94 DeleteTopics -------------------------------------------------------


def _error_of(error: DisklessError) -> DisklessError | None:
    return error


_TOPIC: Final = layout(CreatePartitions, "topic_id", "name", "partition_count")


def _write_topic_errors(
    topic_ids: Iterable[UUID], errors: Sequence[DisklessError | None], parts: list[bytes]
) -> Steps[None]:
    parts.append(uvarint(len(errors) + 1))
    for topic_id, error in zip(topic_ids, errors, strict=True):
        parts += (topic_id.bytes, error_fields(error), NO_TAGS)
        yield


def _read_topic_errors(
    reader: MessageReader, topic_ids: Sequence[UUID]
) -> Sequence[DisklessError | None]:
    answered = []
    for _ in reader.entries(20):
        answered.append((reader.uuid(), reader.error()))
        reader.skip_tags()
    return in_order(topic_ids, answered, reader)


CREATE_PARTITIONS: Final[Operation[Sequence[CreatePartitions], DisklessError | None]] = Operation(
    key=CREATE_PARTITIONS_KEY,
    name="DisklessCreatePartitions",
    changes_state=True,
    write_request=partial(write_entries, _TOPIC),
    read_request=partial(read_entries, _TOPIC),
    write_answers=lambda topics, errors, parts: _write_topic_errors(
        (topic.topic_id for topic in topics), errors, parts
    ),
    read_answers=lambda reader, topics: _read_topic_errors(
        reader, [topic.topic_id for topic in topics]
    ),
    failed=_error_of,
    count=len,
)


DELETE_TOPICS: Final[Operation[Sequence[UUID], DisklessError | None]] = Operation(
    key=DELETE_TOPICS_KEY,
    name="DisklessDeleteTopics",
    changes_state=True,
    write_request=partial(write_entries, TOPIC_ID),
    read_request=partial(read_entries, TOPIC_ID),
    write_answers=_write_topic_errors,
    read_answers=_read_topic_errors,
    failed=_error_of,
    count=len,
)


# --- 96 DeleteRecords ---------------------------------------------------------------------------


def _write_delete_records(
    requests: Sequence[DeleteRecords], parts: list[bytes]
) -> Mapping[int, bytes]:
    write_by_topic(
        parts,
        [request.partition for request in requests],
        [INT64.pack(request.before_offset) + NO_TAGS for request in requests],
    )
    return {}


def _read_delete_records(reader: MessageReader) -> Steps[tuple[Sequence[DeleteRecords], int]]:
    requests = yield from reader.by_topic_in_steps(
        8, lambda partition: DeleteRecords(partition, reader.int64())
    )
    timeout_ms, _ = reader.request_end()
    return requests, timeout_ms


def _write_deleted(
    requests: Sequence[DeleteRecords], answers: Sequence[DeletedRecords], parts: list[bytes]
) -> Steps[None]:
    yield from write_answers_by_topic(
        parts,
        (request.partition for request in requests),
        (
            INT64.pack(answer.log_start_offset) + error_fields(answer.error) + NO_TAGS
            for answer in answers
        ),
    )


def _read_deleted(
    reader: MessageReader, requests: Sequence[DeleteRecords]
) -> Sequence[DeletedRecords]:
    answered = reader.by_topic(
        11, lambda partition: (partition, DeletedRecords(reader.int64(), reader.error()))
    )
    return in_order([request.partition for request in requests], answered, reader)


DELETE_RECORDS: Final[Operation[Sequence[DeleteRecords], DeletedRecords]] = Operation(
    key=DELETE_RECORDS_KEY,
    name="DisklessDeleteRecords",
    changes_state=True,
    write_request=_write_delete_records,
    read_request=_read_delete_records,
    write_answers=_write_deleted,
    read_answers=_read_deleted,
    failed=lambda error: DeletedRecords(error=error),
    count=len,
)


# --- 97 ListOffsets -----------------------------------------------------------------------------


def _write_list_offsets(requests: Sequence[ListOffsets], parts: list[bytes]) -> Mapping[int, bytes]:
    write_by_topic(
        parts,
        [request.partition for request in requests],
        [INT64.pack(request.timestamp) + NO_TAGS for request in requests],
    )
    return {}


def _read_list_offsets(reader: MessageReader) -> Steps[tuple[Sequence[ListOffsets], int]]:
    requests = yield from reader.by_topic_in_steps(
        8, lambda partition: ListOffsets(partition, reader.int64())
    )
    timeout_ms, _ = reader.request_end()
    return requests, timeout_ms


def _write_listed(
    requests: Sequence[ListOffsets], answers: Sequence[ListedOffset], parts: list[bytes]
) -> Steps[None]:
    """An extent has no place in an answer: who answers looks into it first."""
    yield from write_answers_by_topic(
        parts,
        (request.partition for request in requests),
        (
            error_fields(answer.error)
            + INT64.pack(answer.timestamp_ms)
            + INT64.pack(answer.offset)
            + NO_TAGS
            for answer in answers
        ),
    )


def _read_listed(reader: MessageReader, requests: Sequence[ListOffsets]) -> Sequence[ListedOffset]:
    def read(partition: TopicIdPartition) -> tuple[TopicIdPartition, ListedOffset]:
        error, timestamp_ms, offset = reader.error(), reader.int64(), reader.int64()
        return partition, ListedOffset(offset, timestamp_ms, error=error)

    answered = reader.by_topic(19, read)
    return in_order([request.partition for request in requests], answered, reader)


LIST_OFFSETS: Final[Operation[Sequence[ListOffsets], ListedOffset]] = Operation(
    key=LIST_OFFSETS_KEY,
    name="DisklessListOffsets",
    changes_state=False,
    write_request=_write_list_offsets,
    read_request=_read_list_offsets,
    write_answers=_write_listed,
    read_answers=_read_listed,
    failed=lambda error: ListedOffset(error=error),
    count=len,
)


# --- 100 DescribeFiles --------------------------------------------------------------------------


class DescribeFilesMessage(NamedTuple):
    """A DescribeFiles request; `coordinator` None: all that are led where it arrives."""

    keys: Sequence[ObjectKey]
    coordinator: int | None = None


def _write_describe_files(message: DescribeFilesMessage, parts: list[bytes]) -> Mapping[int, bytes]:
    parts.append(uvarint(len(message.keys) + 1))
    parts += [compact_string(key) + NO_TAGS for key in message.keys]
    if message.coordinator is None:
        return {}
    return {COORDINATOR_ID_TAG: INT32.pack(message.coordinator)}


def _read_describe_files(reader: MessageReader) -> Steps[tuple[DescribeFilesMessage, int]]:
    keys = []
    for _ in reader.entries(2):
        keys.append(ObjectKey(reader.compact_string()))
        reader.skip_tags()
        yield
    timeout_ms, tags = reader.request_end()
    coordinator = None
    if COORDINATOR_ID_TAG in tags:
        named = tags[COORDINATOR_ID_TAG].int32()
        coordinator = None if named == -1 else named
    return DescribeFilesMessage(keys, coordinator), timeout_ms


def _write_described(
    message: DescribeFilesMessage, answers: Sequence[DescribedFile], parts: list[bytes]
) -> Steps[None]:
    parts.append(uvarint(len(answers) + 1))
    for key, answer in zip(message.keys, answers, strict=True):
        parts += (
            compact_string(key),
            error_fields(answer.error),
            INT8.pack(answer.has_live_batches),
            NO_TAGS,
        )
        yield


def _read_described(
    reader: MessageReader, message: DescribeFilesMessage
) -> Sequence[DescribedFile]:
    answered = []
    for _ in reader.entries(6):
        key = ObjectKey(reader.compact_string())
        error = reader.error()
        answered.append((key, DescribedFile(reader.boolean(), error)))
        reader.skip_tags()
    return in_order(message.keys, answered, reader)


DESCRIBE_FILES: Final[Operation[DescribeFilesMessage, DescribedFile]] = Operation(
    key=DESCRIBE_FILES_KEY,
    name="DisklessDescribeFiles",
    changes_state=False,
    write_request=_write_describe_files,
    read_request=_read_describe_files,
    write_answers=_write_described,
    read_answers=_read_described,
    failed=lambda error: DescribedFile(error=error),
    count=lambda message: len(message.keys),
)
