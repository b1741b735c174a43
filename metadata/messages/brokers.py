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

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from metadata.messages.codec import (
    ERROR,
    ERRORS,
    TOPIC_ID,
    MessageReader,
    Operation,
    Steps,
    error_fields,
    read_answers,
    read_entries,
    write_answers,
    write_entries,
)
from metadata.messages.segments import PLAN, SEGMENT
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
from wal.wire.fields import (
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    NO_UUID,
    UUID_BYTES,
    FieldReader,
    compact_string,
    uvarint,
)
from wal.wire.layouts import Field, Layout, closed, layout, mapping

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


_Message = TypeVar("_Message")


def _error_of(error: DisklessError) -> DisklessError | None:
    return error


def _write_errors(errors: Sequence[DisklessError | None], parts: list[bytes]) -> Steps[None]:
    return write_answers(ERRORS, errors, parts)


def _read_errors(reader: MessageReader) -> Sequence[DisklessError | None]:
    return read_answers(ERRORS, reader)


def _write_addressed(
    of: Layout[Any], message: tuple[int, Sequence[Any]], parts: list[bytes]
) -> Mapping[int, bytes]:
    """A request to one coordinator: its id, and what it is about."""
    coordinator, entries = message
    parts.append(INT32.pack(coordinator))
    return write_entries(of, entries, parts)


def _read_addressed(
    of: Layout[Any], make: Callable[[int, Sequence[Any]], _Message], reader: MessageReader
) -> Steps[tuple[_Message, int]]:
    coordinator = reader.int32()
    entries, timeout_ms = yield from read_entries(of, reader)
    return make(coordinator, entries), timeout_ms


# --- 10002 CreateTopics ---------------------------------------------------------------------------


_CONFIGS: Final = mapping(str, str)
_NEW_TOPIC: Final = layout(CreateTopic, "topic_id", "name", "partition_count", "configs")


def _write_created(
    topics: Sequence[CreateTopic],
    answers: Sequence[TopicDescription | DisklessError],
    parts: list[bytes],
) -> Steps[None]:
    parts.append(uvarint(len(answers) + 1))
    for answer in answers:
        yield
        if isinstance(answer, DisklessError):
            parts += (error_fields(answer), _NO_TOPIC)
            continue
        parts += (
            error_fields(None),
            answer.topic_id.bytes,
            compact_string(answer.name),
            INT32.pack(answer.partition_count),
            _CONFIGS.write(answer.configs),
            uvarint(len(answer.assignments) + 1),
        )
        for partition, coordinator in sorted(answer.assignments.items()):
            parts += (INT32.pack(partition), INT32.pack(coordinator), NO_TAGS)
            yield
        parts.append(NO_TAGS)


_NO_TOPIC: Final = b"".join(
    (NO_UUID.bytes, compact_string(""), INT32.pack(-1), uvarint(1), uvarint(1), NO_TAGS)
)


def _read_created(
    reader: MessageReader, topics: Sequence[CreateTopic]
) -> Sequence[TopicDescription | DisklessError]:
    answers: list[TopicDescription | DisklessError] = []
    for _ in reader.entries(UUID_BYTES + 11):
        error = reader.error()
        topic_id, name, partition_count = reader.uuid(), reader.compact_string(), reader.int32()
        configs = _CONFIGS.read(reader)
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
        write_request=partial(write_entries, _NEW_TOPIC),
        read_request=partial(read_entries, _NEW_TOPIC),
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
    """Files that one coordinator never commits from now on, unless it already has."""

    coordinator: int
    keys: Sequence[ObjectKey]


_KEY: Final = closed(Field(compact_string, FieldReader.compact_string))
_TOMBSTONE: Final = layout(Tombstone, "error", "is_known", error=ERROR)

TOMBSTONE_FILES: Final[Operation[TombstoneFilesMessage, Tombstone]] = Operation(
    key=TOMBSTONE_FILES_KEY,
    name="CoordinatorTombstoneFiles",
    changes_state=True,
    write_request=partial(_write_addressed, _KEY),
    read_request=partial(_read_addressed, _KEY, TombstoneFilesMessage),
    write_answers=lambda asked, answers, parts: write_answers(_TOMBSTONE, answers, parts),
    read_answers=lambda reader, asked: read_answers(_TOMBSTONE, reader),
    failed=lambda error: Tombstone(error=error),
    count=lambda message: len(message.keys),
)


class HandOverFilesMessage(NamedTuple):
    """Files whose fate one coordinator decides from now on."""

    coordinator: int
    files: Sequence[HandedFile]


_HANDED: Final = layout(HandedFile)

HAND_OVER_FILES: Final[Operation[HandOverFilesMessage, DisklessError | None]] = Operation(
    key=HAND_OVER_FILES_KEY,
    name="CoordinatorHandOverFiles",
    changes_state=True,
    write_request=partial(_write_addressed, _HANDED),
    read_request=partial(_read_addressed, _HANDED, HandOverFilesMessage),
    write_answers=lambda message, errors, parts: _write_errors(errors, parts),
    read_answers=lambda reader, message: _read_errors(reader),
    failed=_error_of,
    count=lambda message: len(message.files),
)


# --- 10006 CreatePartitionsAt, 10007 DeleteTopicsAt -----------------------------------------------


class CreatePartitionsAtMessage(NamedTuple):
    """Partitions that one coordinator is given."""

    coordinator: int
    topics: Sequence[CreatePartitionsAt]


_PARTITIONS: Final = layout(CreatePartitionsAt)

CREATE_PARTITIONS_AT: Final[Operation[CreatePartitionsAtMessage, DisklessError | None]] = Operation(
    key=CREATE_PARTITIONS_AT_KEY,
    name="CoordinatorCreatePartitionsAt",
    changes_state=True,
    write_request=partial(_write_addressed, _PARTITIONS),
    read_request=partial(_read_addressed, _PARTITIONS, CreatePartitionsAtMessage),
    write_answers=lambda message, errors, parts: _write_errors(errors, parts),
    read_answers=lambda reader, message: _read_errors(reader),
    failed=_error_of,
    count=lambda message: len(message.topics),
)


class DeleteTopicsAtMessage(NamedTuple):
    """Topics whose partitions one coordinator forgets."""

    coordinator: int
    topic_ids: Sequence[UUID]


DELETE_TOPICS_AT: Final[Operation[DeleteTopicsAtMessage, DisklessError | None]] = Operation(
    key=DELETE_TOPICS_AT_KEY,
    name="CoordinatorDeleteTopicsAt",
    changes_state=True,
    write_request=partial(_write_addressed, TOPIC_ID),
    read_request=partial(_read_addressed, TOPIC_ID, DeleteTopicsAtMessage),
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
        parts.append(error_fields(None))
        write_entries(PLAN, plans, parts)


def _read_plans(
    reader: MessageReader, include_partial: bool
) -> Sequence[Sequence[SegmentPlan] | DisklessError]:
    error = reader.error()
    # The batches of the plans are as many as they are; it is a broker that answers.
    reader.entries_left = sys.maxsize
    plans = read_answers(PLAN, reader)
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


_SEGMENT_COMMIT: Final = layout(SegmentCommit, "error", "is_duplicate", error=ERROR)

COMMIT_SEGMENTS_HERE: Final[Operation[Sequence[RolledSegment], SegmentCommit]] = Operation(
    key=COMMIT_SEGMENTS_HERE_KEY,
    name="CoordinatorCommitSegmentsHere",
    changes_state=True,
    write_request=partial(write_entries, SEGMENT),
    read_request=partial(read_entries, SEGMENT),
    write_answers=lambda asked, answers, parts: write_answers(_SEGMENT_COMMIT, answers, parts),
    read_answers=lambda reader, asked: read_answers(_SEGMENT_COMMIT, reader),
    failed=lambda error: SegmentCommit(error=error),
    count=len,
)


# --- 10011 AlterTopicConfigs ----------------------------------------------------------------------


_ALTERATION: Final = layout(AlterTopicConfigs)
_ALTERED: Final = layout(AlteredTopicConfigs, "error", "is_altered", "configs", error=ERROR)

ALTER_TOPIC_CONFIGS: Final[Operation[Sequence[AlterTopicConfigs], AlteredTopicConfigs]] = Operation(
    key=ALTER_TOPIC_CONFIGS_KEY,
    name="CoordinatorAlterTopicConfigs",
    changes_state=True,
    write_request=partial(write_entries, _ALTERATION),
    read_request=partial(read_entries, _ALTERATION),
    write_answers=lambda asked, answers, parts: write_answers(_ALTERED, answers, parts),
    read_answers=lambda reader, asked: read_answers(_ALTERED, reader),
    failed=lambda error: AlteredTopicConfigs(error=error),
    count=len,
)
