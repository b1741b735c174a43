"""Operations between brokers that KIP-1164 leaves out, as bytes: API keys 10002 to 10011.

    10002 CreateTopics          10005 HandOverFiles          10008 RegisterBroker
    10003 AllocateProducerIds   10006 CreatePartitionsAt     10009 PlanSegmentsHere
    10004 TombstoneFiles        10007 DeleteTopicsAt         10010 CommitSegmentsHere
                                                             10011 AlterTopicConfigs

Laid out like the KIP's own (metadata/messages/codec.py); docs/coordinator-api.md has the fields.
Answers repeat nothing of the request and come in its order. Operations that are addressed to one
coordinator begin with its id, which is its metadata partition.

CreateTopics exists beside the KIP's CreatePartitions because a topic's configs are part of its
creation, and because the coordinator chooses the id of a topic that has none (a zero TopicId).

PlanSegmentsHere and CommitSegmentsHere exist beside PlanSegments and CommitSegments (10000, 10001,
metadata/messages/segments.py) because those are a tiering job's, which may ask any broker: that one
asks the others. A broker that is asked by a broker answers for the coordinators it leads itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from metadata.messages.codec import MessageReader, Operation, error_fields
from metadata.messages.segments import (
    PLAN_BYTES_MIN,
    SEGMENT_BYTES_MIN,
    encode_plan,
    encode_segment,
    read_plan,
    read_segment,
)
from metadata.operations import (
    AlteredTopicConfigs,
    AlterTopicConfigs,
    CreatePartitionsAt,
    CreateTopic,
    HandedFile,
    RegisteredBroker,
    RolledSegment,
    SegmentCommit,
    SegmentPlan,
    Tombstone,
    TopicDescription,
)
from wal.coordinates import ObjectKey
from wal.errors import DisklessError
from wal.wire.fields import INT8, INT32, INT64, NO_TAGS, UUID_BYTES, compact_string, uvarint

CREATE_TOPICS_KEY: Final = 10_002
ALLOCATE_PRODUCER_IDS_KEY: Final = 10_003
TOMBSTONE_FILES_KEY: Final = 10_004
HAND_OVER_FILES_KEY: Final = 10_005
CREATE_PARTITIONS_AT_KEY: Final = 10_006
DELETE_TOPICS_AT_KEY: Final = 10_007
REGISTER_BROKER_KEY: Final = 10_008
PLAN_SEGMENTS_HERE_KEY: Final = 10_009
COMMIT_SEGMENTS_HERE_KEY: Final = 10_010
ALTER_TOPIC_CONFIGS_KEY: Final = 10_011

_NO_UUID: Final = UUID(int=0)


def _int32s(numbers: Sequence[int]) -> bytes:
    return uvarint(len(numbers) + 1) + b"".join(map(INT32.pack, numbers))


def _error_of(error: DisklessError) -> DisklessError | None:
    return error


def _write_errors(errors: Sequence[DisklessError | None], parts: list[bytes]) -> None:
    parts.append(uvarint(len(errors) + 1))
    parts += [error_fields(error) + NO_TAGS for error in errors]


def _read_errors(reader: MessageReader) -> Sequence[DisklessError | None]:
    errors = []
    for _ in reader.entries(4):
        errors.append(reader.error())
        reader.skip_tags()
    return errors


# --- 10002 CreateTopics ---------------------------------------------------------------------------


def _configs(configs: Mapping[str, str]) -> bytes:
    parts = [uvarint(len(configs) + 1)]
    for name, value in sorted(configs.items()):
        parts += (compact_string(name), compact_string(value), NO_TAGS)
    return b"".join(parts)


def _read_configs(reader: MessageReader) -> Mapping[str, str]:
    configs: dict[str, str] = {}
    for _ in reader.entries(3):
        name = reader.compact_string()
        if name in configs:
            raise reader.corrupt(f"config {name!r} is there twice")
        configs[name] = reader.compact_string()
        reader.skip_tags()
    return configs


def _write_create_topics(topics: Sequence[CreateTopic], parts: list[bytes]) -> Mapping[int, bytes]:
    parts.append(uvarint(len(topics) + 1))
    for topic in topics:
        parts += (
            (topic.topic_id or _NO_UUID).bytes,
            compact_string(topic.name),
            INT32.pack(topic.partition_count),
            _configs(topic.configs),
            NO_TAGS,
        )
    return {}


def _read_create_topics(reader: MessageReader) -> tuple[Sequence[CreateTopic], int]:
    topics = []
    for _ in reader.entries(UUID_BYTES + 7):
        topic_id = reader.uuid()
        topics.append(
            CreateTopic(
                name=reader.compact_string(),
                partition_count=reader.int32(),
                configs=_read_configs(reader),
                topic_id=None if topic_id == _NO_UUID else topic_id,
            )
        )
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return topics, timeout_ms


def _write_created(
    topics: Sequence[CreateTopic],
    answers: Sequence[TopicDescription | DisklessError],
    parts: list[bytes],
) -> None:
    parts.append(uvarint(len(answers) + 1))
    for answer in answers:
        if isinstance(answer, DisklessError):
            parts += (error_fields(answer), _NO_TOPIC)
            continue
        parts += (
            error_fields(None),
            answer.topic_id.bytes,
            compact_string(answer.name),
            INT32.pack(answer.partition_count),
            _configs(answer.configs),
            uvarint(len(answer.assignments) + 1),
        )
        for partition, coordinator in sorted(answer.assignments.items()):
            parts += (INT32.pack(partition), INT32.pack(coordinator), NO_TAGS)
        parts.append(NO_TAGS)


_NO_TOPIC: Final = b"".join(
    (_NO_UUID.bytes, compact_string(""), INT32.pack(-1), uvarint(1), uvarint(1), NO_TAGS)
)


def _read_created(
    reader: MessageReader, topics: Sequence[CreateTopic]
) -> Sequence[TopicDescription | DisklessError]:
    answers: list[TopicDescription | DisklessError] = []
    for _ in reader.entries(UUID_BYTES + 11):
        error = reader.error()
        topic_id, name, partition_count = reader.uuid(), reader.compact_string(), reader.int32()
        configs = _read_configs(reader)
        assignments = {}
        for _ in reader.entries(9):
            partition = reader.int32()
            assignments[partition] = reader.int32()
            reader.skip_tags()
        reader.skip_tags()
        answers.append(
            error
            or TopicDescription(
                topic_id=topic_id,
                name=name,
                partition_count=partition_count,
                configs=configs,
                assignments=assignments,
            )
        )
    return answers


CREATE_TOPICS: Final[Operation[Sequence[CreateTopic], TopicDescription | DisklessError]] = (
    Operation(
        key=CREATE_TOPICS_KEY,
        name="CoordinatorCreateTopics",
        changes_state=True,
        write_request=_write_create_topics,
        read_request=_read_create_topics,
        write_answers=_write_created,
        read_answers=_read_created,
        failed=lambda error: error,
        count=len,
    )
)


# --- 10003 AllocateProducerIds --------------------------------------------------------------------


def _write_nothing(request: None, parts: list[bytes]) -> Mapping[int, bytes]:
    return {}


def _read_nothing(reader: MessageReader) -> tuple[None, int]:
    timeout_ms, _ = reader.request_end()
    return None, timeout_ms


def _write_block(
    request: None, answers: Sequence[range | DisklessError], parts: list[bytes]
) -> None:
    (block,) = answers
    if isinstance(block, DisklessError):
        parts += (error_fields(block), INT64.pack(-1), INT32.pack(0))
    else:
        parts += (error_fields(None), INT64.pack(block.start), INT32.pack(len(block)))


def _read_block(reader: MessageReader, request: None) -> Sequence[range | DisklessError]:
    error, first, count = reader.error(), reader.int64(), reader.int32()
    if error is not None:
        return (error,)
    if first < 0 or count < 1:
        raise reader.corrupt(f"{count} producer ids from {first}")
    return (range(first, first + count),)


ALLOCATE_PRODUCER_IDS: Final[Operation[None, range | DisklessError]] = Operation(
    key=ALLOCATE_PRODUCER_IDS_KEY,
    name="CoordinatorAllocateProducerIds",
    changes_state=True,
    write_request=_write_nothing,
    read_request=_read_nothing,
    write_answers=_write_block,
    read_answers=_read_block,
    failed=lambda error: error,
    count=lambda request: 1,
)


# --- 10004 TombstoneFiles, 10005 HandOverFiles ----------------------------------------------------


class TombstoneFilesMessage(NamedTuple):
    """Files that one coordinator shall never commit, unless it has already."""

    coordinator: int
    keys: Sequence[ObjectKey]


def _write_tombstone_files(
    message: TombstoneFilesMessage, parts: list[bytes]
) -> Mapping[int, bytes]:
    parts += (INT32.pack(message.coordinator), uvarint(len(message.keys) + 1))
    parts += [compact_string(key) + NO_TAGS for key in message.keys]
    return {}


def _read_tombstone_files(reader: MessageReader) -> tuple[TombstoneFilesMessage, int]:
    coordinator = reader.int32()
    keys = []
    for _ in reader.entries(2):
        keys.append(ObjectKey(reader.compact_string()))
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return TombstoneFilesMessage(coordinator, keys), timeout_ms


def _write_tombstones(
    message: TombstoneFilesMessage, answers: Sequence[Tombstone], parts: list[bytes]
) -> None:
    parts.append(uvarint(len(answers) + 1))
    for answer in answers:
        parts += (error_fields(answer.error), INT8.pack(answer.is_known), NO_TAGS)


def _read_tombstones(reader: MessageReader, message: TombstoneFilesMessage) -> Sequence[Tombstone]:
    answers = []
    for _ in reader.entries(5):
        error = reader.error()
        answers.append(Tombstone(reader.boolean(), error))
        reader.skip_tags()
    return answers


TOMBSTONE_FILES: Final[Operation[TombstoneFilesMessage, Tombstone]] = Operation(
    key=TOMBSTONE_FILES_KEY,
    name="CoordinatorTombstoneFiles",
    changes_state=True,
    write_request=_write_tombstone_files,
    read_request=_read_tombstone_files,
    write_answers=_write_tombstones,
    read_answers=_read_tombstones,
    failed=lambda error: Tombstone(error=error),
    count=lambda message: len(message.keys),
)


class HandOverFilesMessage(NamedTuple):
    """Files whose fate one coordinator decides from now on."""

    coordinator: int
    files: Sequence[HandedFile]


def _write_hand_over_files(
    message: HandOverFilesMessage, parts: list[bytes]
) -> Mapping[int, bytes]:
    parts += (INT32.pack(message.coordinator), uvarint(len(message.files) + 1))
    for file in message.files:
        parts += (
            compact_string(file.object_key),
            INT8.pack(file.object_format),
            INT64.pack(file.file_size_bytes),
            _int32s(file.owner_ids),
            NO_TAGS,
        )
    return {}


def _read_hand_over_files(reader: MessageReader) -> tuple[HandOverFilesMessage, int]:
    coordinator = reader.int32()
    files = []
    for _ in reader.entries(12):
        files.append(
            HandedFile(
                object_key=ObjectKey(reader.compact_string()),
                object_format=reader.int8(),
                file_size_bytes=reader.int64(),
                owner_ids=reader.int32s(),
            )
        )
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return HandOverFilesMessage(coordinator, files), timeout_ms


HAND_OVER_FILES: Final[Operation[HandOverFilesMessage, DisklessError | None]] = Operation(
    key=HAND_OVER_FILES_KEY,
    name="CoordinatorHandOverFiles",
    changes_state=True,
    write_request=_write_hand_over_files,
    read_request=_read_hand_over_files,
    write_answers=lambda message, errors, parts: _write_errors(errors, parts),
    read_answers=lambda reader, message: _read_errors(reader),
    failed=_error_of,
    count=lambda message: len(message.files),
)


# --- 10006 CreatePartitionsAt, 10007 DeleteTopicsAt -----------------------------------------------


class CreatePartitionsAtMessage(NamedTuple):
    """Partitions that one coordinator shall have."""

    coordinator: int
    topics: Sequence[CreatePartitionsAt]


def _write_create_partitions_at(
    message: CreatePartitionsAtMessage, parts: list[bytes]
) -> Mapping[int, bytes]:
    parts += (INT32.pack(message.coordinator), uvarint(len(message.topics) + 1))
    for topic in message.topics:
        parts += (
            topic.topic_id.bytes,
            compact_string(topic.name),
            _int32s(topic.partitions),
            NO_TAGS,
        )
    return {}


def _read_create_partitions_at(reader: MessageReader) -> tuple[CreatePartitionsAtMessage, int]:
    coordinator = reader.int32()
    topics = []
    for _ in reader.entries(UUID_BYTES + 3):
        topics.append(
            CreatePartitionsAt(
                topic_id=reader.uuid(), name=reader.compact_string(), partitions=reader.int32s()
            )
        )
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return CreatePartitionsAtMessage(coordinator, topics), timeout_ms


CREATE_PARTITIONS_AT: Final[Operation[CreatePartitionsAtMessage, DisklessError | None]] = Operation(
    key=CREATE_PARTITIONS_AT_KEY,
    name="CoordinatorCreatePartitionsAt",
    changes_state=True,
    write_request=_write_create_partitions_at,
    read_request=_read_create_partitions_at,
    write_answers=lambda message, errors, parts: _write_errors(errors, parts),
    read_answers=lambda reader, message: _read_errors(reader),
    failed=_error_of,
    count=lambda message: len(message.topics),
)


class DeleteTopicsAtMessage(NamedTuple):
    """Topics of which one coordinator shall forget its partitions."""

    coordinator: int
    topic_ids: Sequence[UUID]


def _write_delete_topics_at(
    message: DeleteTopicsAtMessage, parts: list[bytes]
) -> Mapping[int, bytes]:
    parts += (INT32.pack(message.coordinator), uvarint(len(message.topic_ids) + 1))
    parts += [topic_id.bytes + NO_TAGS for topic_id in message.topic_ids]
    return {}


def _read_delete_topics_at(reader: MessageReader) -> tuple[DeleteTopicsAtMessage, int]:
    coordinator = reader.int32()
    topic_ids = []
    for _ in reader.entries(UUID_BYTES + 1):
        topic_ids.append(reader.uuid())
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return DeleteTopicsAtMessage(coordinator, topic_ids), timeout_ms


DELETE_TOPICS_AT: Final[Operation[DeleteTopicsAtMessage, DisklessError | None]] = Operation(
    key=DELETE_TOPICS_AT_KEY,
    name="CoordinatorDeleteTopicsAt",
    changes_state=True,
    write_request=_write_delete_topics_at,
    read_request=_read_delete_topics_at,
    write_answers=lambda message, errors, parts: _write_errors(errors, parts),
    read_answers=lambda reader, message: _read_errors(reader),
    failed=_error_of,
    count=lambda message: len(message.topic_ids),
)


# --- 10008 RegisterBroker -------------------------------------------------------------------------


def _write_register_broker(broker: RegisteredBroker, parts: list[bytes]) -> Mapping[int, bytes]:
    parts += (
        INT32.pack(broker.broker_id),
        compact_string(broker.host),
        INT32.pack(broker.port),
        compact_string(broker.rack),
        broker.incarnation.bytes,
    )
    return {}


def _read_register_broker(reader: MessageReader) -> tuple[RegisteredBroker, int]:
    broker = RegisteredBroker(
        broker_id=reader.int32(),
        host=reader.compact_string(),
        port=reader.int32(),
        rack=reader.compact_string(),
        incarnation=reader.uuid(),
    )
    timeout_ms, _ = reader.request_end()
    return broker, timeout_ms


def _write_registered(
    broker: RegisteredBroker, answers: Sequence[DisklessError | None], parts: list[bytes]
) -> None:
    parts.append(error_fields(answers[0]))


REGISTER_BROKER: Final[Operation[RegisteredBroker, DisklessError | None]] = Operation(
    key=REGISTER_BROKER_KEY,
    name="CoordinatorRegisterBroker",
    changes_state=True,
    write_request=_write_register_broker,
    read_request=_read_register_broker,
    write_answers=_write_registered,
    read_answers=lambda reader, broker: (reader.error(),),
    failed=_error_of,
    count=lambda broker: 1,
)


# --- 10009 PlanSegmentsHere, 10010 CommitSegmentsHere ---------------------------------------------


def _write_plan_segments(include_partial: bool, parts: list[bytes]) -> Mapping[int, bytes]:
    parts.append(INT8.pack(include_partial))
    return {}


def _read_plan_segments(reader: MessageReader) -> tuple[bool, int]:
    include_partial = reader.boolean()
    timeout_ms, _ = reader.request_end()
    return include_partial, timeout_ms


def _write_plans(
    include_partial: bool,
    answers: Sequence[Sequence[SegmentPlan] | DisklessError],
    parts: list[bytes],
) -> None:
    (plans,) = answers
    if isinstance(plans, DisklessError):
        parts += (error_fields(plans), uvarint(1))
    else:
        parts += (error_fields(None), uvarint(len(plans) + 1), *map(encode_plan, plans))


def _read_plans(
    reader: MessageReader, include_partial: bool
) -> Sequence[Sequence[SegmentPlan] | DisklessError]:
    error = reader.error()
    plans = [read_plan(reader) for _ in range(reader.array_count(PLAN_BYTES_MIN))]
    return (plans,) if error is None else (error,)


PLAN_SEGMENTS_HERE: Final[Operation[bool, Sequence[SegmentPlan] | DisklessError]] = Operation(
    key=PLAN_SEGMENTS_HERE_KEY,
    name="CoordinatorPlanSegmentsHere",
    changes_state=True,
    write_request=_write_plan_segments,
    read_request=_read_plan_segments,
    write_answers=_write_plans,
    read_answers=_read_plans,
    failed=lambda error: error,
    count=lambda include_partial: 1,
)


def _write_commit_segments(
    segments: Sequence[RolledSegment], parts: list[bytes]
) -> Mapping[int, bytes]:
    parts += (uvarint(len(segments) + 1), *map(encode_segment, segments))
    return {}


def _read_commit_segments(reader: MessageReader) -> tuple[Sequence[RolledSegment], int]:
    segments = [read_segment(reader) for _ in reader.entries(SEGMENT_BYTES_MIN)]
    timeout_ms, _ = reader.request_end()
    return segments, timeout_ms


def _write_segment_commits(
    segments: Sequence[RolledSegment], answers: Sequence[SegmentCommit], parts: list[bytes]
) -> None:
    parts.append(uvarint(len(answers) + 1))
    for answer in answers:
        parts += (error_fields(answer.error), INT8.pack(answer.is_duplicate), NO_TAGS)


def _read_segment_commits(
    reader: MessageReader, segments: Sequence[RolledSegment]
) -> Sequence[SegmentCommit]:
    answers = []
    for _ in reader.entries(5):
        error = reader.error()
        answers.append(SegmentCommit(reader.boolean(), error))
        reader.skip_tags()
    return answers


COMMIT_SEGMENTS_HERE: Final[Operation[Sequence[RolledSegment], SegmentCommit]] = Operation(
    key=COMMIT_SEGMENTS_HERE_KEY,
    name="CoordinatorCommitSegmentsHere",
    changes_state=True,
    write_request=_write_commit_segments,
    read_request=_read_commit_segments,
    write_answers=_write_segment_commits,
    read_answers=_read_segment_commits,
    failed=lambda error: SegmentCommit(error=error),
    count=len,
)


# --- 10011 AlterTopicConfigs ----------------------------------------------------------------------


def _write_alter_topic_configs(
    requests: Sequence[AlterTopicConfigs], parts: list[bytes]
) -> Mapping[int, bytes]:
    parts.append(uvarint(len(requests) + 1))
    for request in requests:
        parts += (
            request.topic_id.bytes,
            _configs(request.before),
            _configs(request.configs),
            NO_TAGS,
        )
    return {}


def _read_alter_topic_configs(reader: MessageReader) -> tuple[Sequence[AlterTopicConfigs], int]:
    requests = []
    for _ in reader.entries(UUID_BYTES + 3):
        requests.append(
            AlterTopicConfigs(
                topic_id=reader.uuid(),
                before=_read_configs(reader),
                configs=_read_configs(reader),
            )
        )
        reader.skip_tags()
    timeout_ms, _ = reader.request_end()
    return requests, timeout_ms


def _write_altered(
    requests: Sequence[AlterTopicConfigs],
    answers: Sequence[AlteredTopicConfigs],
    parts: list[bytes],
) -> None:
    parts.append(uvarint(len(answers) + 1))
    for answer in answers:
        parts += (
            error_fields(answer.error),
            INT8.pack(answer.is_altered),
            _configs(answer.configs),
            NO_TAGS,
        )


def _read_altered(
    reader: MessageReader, requests: Sequence[AlterTopicConfigs]
) -> Sequence[AlteredTopicConfigs]:
    answers = []
    for _ in reader.entries(6):
        error = reader.error()
        answers.append(AlteredTopicConfigs(reader.boolean(), _read_configs(reader), error))
        reader.skip_tags()
    return answers


ALTER_TOPIC_CONFIGS: Final[Operation[Sequence[AlterTopicConfigs], AlteredTopicConfigs]] = Operation(
    key=ALTER_TOPIC_CONFIGS_KEY,
    name="CoordinatorAlterTopicConfigs",
    changes_state=True,
    write_request=_write_alter_topic_configs,
    read_request=_read_alter_topic_configs,
    write_answers=_write_altered,
    read_answers=_read_altered,
    failed=lambda error: AlteredTopicConfigs(error=error),
    count=len,
)
