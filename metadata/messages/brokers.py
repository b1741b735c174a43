"""Operations that KIP-1164 leaves out, as bytes: API keys 10000 to 10025.

    between brokers
    10002 CreateTopics          10005 HandOverFiles          10008 RegisterBroker
    10003 AllocateProducerIds   10006 CreatePartitionsAt     10009 PlanSegmentsHere
    10004 TombstoneFiles        10007 DeleteTopicsAt         10010 CommitSegmentsHere
                                                             10011 AlterTopicConfigs
                                                             10012 AlterClientQuotas
                                                             10014 CreateAcls
                                                             10015 DeleteAcls
                                                             10016 AlterScramCredentials
    10013 CommitFilesAt (metadata/messages/commit_file.py)
    10022 PlanRewritesHere      10023 CommitRewritesHere     10024 SetTopicColumns

    of a tiering job
    10000 PlanSegments          10001 CommitSegments
    10020 PlanRewrites          10021 CommitRewrites         10025 SetTopicColumns

Laid out like the KIP's own (metadata/messages/codec.py); docs/coordinator-api.md has the fields.
Answers repeat nothing of the request and come in its order. Operations that are addressed to one
coordinator begin with its id, which is its metadata partition.

CreateTopics exists beside the KIP's CreatePartitions because a topic's configs are part of its
creation, and because the coordinator chooses the id of a topic that has none (a zero TopicId).

PlanSegments and CommitSegments have the bytes of PlanSegmentsHere and CommitSegmentsHere under
keys of their own, and so have PlanRewrites and CommitRewrites. A tiering job may ask any broker,
and that one asks the others. A broker that is asked by a broker answers for the coordinators it
leads itself.
"""

import sys
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final
from uuid import UUID

from metadata import operations as ops
from metadata import rewrites as rw
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from metadata.messages.codec import (
    Address,
    Answer,
    AnswerShape,
    MessageReader,
    Operation,
    error_fields,
)
from metadata.messages.commit_file import COMMIT_FILES_AT
from metadata.messages.shapes import (
    ERROR,
    ERRORS,
    OBJECT_KEY,
    TOPIC_ID,
    Addressed,
    addressed,
    alone,
    in_order,
    listed,
    or_error,
    single,
)
from metadata.records.control import decode_quota_entity, encode_quota_entity
from metadata.scram.credentials import ScramCredential
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, UnknownTopicId
from wal.wire.fields import (
    FLOAT64,
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    NO_UUID,
    FieldReader,
    compact_string,
    uvarint,
)
from wal.wire.layouts import Field, Int32, closed, fields_of, layout, mapping


async def _one(answer: Awaitable[Answer]) -> Sequence[Answer]:
    return [await answer]


# -- topics, quotas, users, access control ---------------------------------------------------------

_NO_TOPIC: Final = b"".join(
    (NO_UUID.bytes, compact_string(""), INT32.pack(-1), uvarint(1), uvarint(1), NO_TAGS)
)
TOPIC: Final = layout(
    ops.TopicDescription,
    partition_count=Field(INT32.pack, FieldReader.int32, INT32.size),
    assignments=mapping(Int32, Int32),
)
_CREATED: Final = or_error(TOPIC, _NO_TOPIC)

CREATE_TOPICS: Final[Operation[Sequence[ops.CreateTopic], ops.TopicDescription | DisklessError]] = (
    Operation(
        key=10_002,
        name="CoordinatorCreateTopics",
        address=Address.CATALOGUE,
        request=listed(layout(ops.CreateTopic, "topic_id", "name", "partition_count", "configs")),
        answers=in_order(_CREATED),
    )
)

ALTER_TOPIC_CONFIGS: Final[Operation[Sequence[ops.AlterTopicConfigs], ops.AlteredTopicConfigs]] = (
    Operation(
        key=10_011,
        name="CoordinatorAlterTopicConfigs",
        address=Address.CATALOGUE,
        request=listed(layout(ops.AlterTopicConfigs)),
        answers=in_order(
            layout(ops.AlteredTopicConfigs, "error", "is_altered", "configs", error=ERROR)
        ),
        at=lambda coordinator, requests: coordinator.catalogue.alter_topic_configs(requests),
        failed=lambda error: ops.AlteredTopicConfigs(error=error),
    )
)


def _read_quota(reader: FieldReader) -> float | None:
    is_removed, value = reader.int8(), reader.float64()
    return None if is_removed else value


_QUOTA: Final = Field(
    lambda value: INT8.pack(value is None) + FLOAT64.pack(value or 0.0),
    _read_quota,
    INT8.size + FLOAT64.size,
)

ALTER_CLIENT_QUOTAS: Final[Operation[Sequence[ops.AlterClientQuotas], DisklessError | None]] = (
    Operation(
        key=10_012,
        name="CoordinatorAlterClientQuotas",
        address=Address.CATALOGUE,
        request=listed(
            layout(
                ops.AlterClientQuotas,
                entity=Field(encode_quota_entity, decode_quota_entity),
                changes=mapping(str, Annotated[Any, _QUOTA]),
            )
        ),
        answers=in_order(ERRORS),
        at=lambda coordinator, requests: coordinator.catalogue.alter_client_quotas(requests),
    )
)

CREATE_ACLS: Final[Operation[Sequence[AclBinding], DisklessError | None]] = Operation(
    key=10_014,
    name="CoordinatorCreateAcls",
    address=Address.CATALOGUE,
    request=listed(layout(AclBinding)),
    answers=in_order(ERRORS),
    at=lambda coordinator, rules: coordinator.catalogue.create_acls(rules),
)

DELETE_ACLS: Final[Operation[Sequence[AclFilter], DeletedAcls | DisklessError]] = Operation(
    key=10_015,
    name="CoordinatorDeleteAcls",
    address=Address.CATALOGUE,
    request=listed(layout(AclFilter)),
    answers=in_order(or_error(layout(DeletedAcls), layout(DeletedAcls).write(DeletedAcls()))),
    at=lambda coordinator, filters: coordinator.catalogue.delete_acls(filters),
    is_repeated=False,
)

_CREDENTIAL: Final = fields_of(ScramCredential)
_NO_CREDENTIAL: Final = ScramCredential(iterations=0, salt=b"", stored_key=b"", server_key=b"")


def _write_credential(credential: ScramCredential | None) -> bytes:
    return INT8.pack(credential is None) + _CREDENTIAL.write(credential or _NO_CREDENTIAL)


def _read_credential(reader: FieldReader) -> ScramCredential | None:
    is_removed, credential = reader.int8(), _CREDENTIAL.read(reader)
    return None if is_removed else credential


ALTER_SCRAM_CREDENTIALS: Final[
    Operation[Sequence[ops.AlterScramCredential], DisklessError | None]
] = Operation(
    key=10_016,
    name="CoordinatorAlterScramCredentials",
    address=Address.CATALOGUE,
    request=listed(
        layout(ops.AlterScramCredential, credential=Field(_write_credential, _read_credential))
    ),
    answers=in_order(ERRORS),
    at=lambda coordinator, requests: coordinator.catalogue.alter_scram_credentials(requests),
)

CREATE_PARTITIONS_AT: Final[Operation[Addressed[ops.CreatePartitionsAt], DisklessError | None]] = (
    Operation(
        key=10_006,
        name="CoordinatorCreatePartitionsAt",
        address=Address.NAMED,
        request=addressed(layout(ops.CreatePartitionsAt)),
        answers=in_order(ERRORS),
        at=lambda coordinator, asked: coordinator.create_partitions_at(asked.entries),
    )
)


async def _delete_topics_at(
    coordinator: Any, asked: Addressed[UUID]
) -> Sequence[DisklessError | None]:
    """Deleting what is not there succeeds."""
    errors = await coordinator.delete_topics(asked.entries)
    return [None if isinstance(error, UnknownTopicId) else error for error in errors]


DELETE_TOPICS_AT: Final[Operation[Addressed[UUID], DisklessError | None]] = Operation(
    key=10_007,
    name="CoordinatorDeleteTopicsAt",
    address=Address.NAMED,
    request=addressed(closed(TOPIC_ID)),
    answers=in_order(ERRORS),
    at=_delete_topics_at,
)

# -- producers, brokers ----------------------------------------------------------------------------


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
    key=10_003,
    name="CoordinatorAllocateProducerIds",
    address=Address.CATALOGUE,
    request=single(Field(lambda _: b"", lambda _: None, 0)),
    answers=AnswerShape(_write_block, _read_block),
    at=lambda coordinator, _: _one(coordinator.allocate_producer_ids()),
)

REGISTER_BROKER: Final[Operation[ops.RegisteredBroker, DisklessError | None]] = Operation(
    key=10_008,
    name="CoordinatorRegisterBroker",
    address=Address.CATALOGUE,
    request=single(fields_of(ops.RegisteredBroker)),
    answers=alone(ERROR),
    at=lambda coordinator, broker: _one(coordinator.register_broker(broker)),
    is_repeated=False,
)

# -- files -----------------------------------------------------------------------------------------

TOMBSTONE_FILES: Final[Operation[Addressed[ObjectKey], ops.Tombstone]] = Operation(
    key=10_004,
    name="CoordinatorTombstoneFiles",
    address=Address.NAMED,
    request=addressed(closed(OBJECT_KEY)),
    answers=in_order(layout(ops.Tombstone, "error", "is_known", error=ERROR)),
    at=lambda coordinator, asked: coordinator.tombstone_files(asked.entries),
    failed=lambda error: ops.Tombstone(error=error),
    is_repeated=False,
)

HAND_OVER_FILES: Final[Operation[Addressed[ops.HandedFile], DisklessError | None]] = Operation(
    key=10_005,
    name="CoordinatorHandOverFiles",
    address=Address.NAMED,
    request=addressed(layout(ops.HandedFile)),
    answers=in_order(ERRORS),
    at=lambda coordinator, asked: coordinator.hand_over_files(asked.entries),
    is_repeated=False,
)

# -- segments --------------------------------------------------------------------------------------

_PLANNED: Final = fields_of(ops.PlannedSegments)


def _read_planned(reader: MessageReader) -> ops.PlannedSegments:
    # The batches of the plans are as many as they are; it is a broker that answers.
    reader.entries_left = sys.maxsize
    planned: ops.PlannedSegments = _PLANNED.read(reader)
    return planned


async def _plan_segments(
    coordinator: Any, asked: ops.PlanSegments
) -> Sequence[ops.PlannedSegments]:
    plans = () if asked.schemas_only else await coordinator.plan_segments(asked)
    return [ops.PlannedSegments(plans, "", coordinator.topic_schemas(asked))]


def _all_planned(
    asked: ops.PlanSegments, answers: Sequence[Sequence[ops.PlannedSegments | DisklessError]]
) -> Sequence[ops.PlannedSegments | DisklessError]:
    found = [planned for (planned,) in answers if not isinstance(planned, DisklessError)]
    if not found:
        return answers[0]
    # Several coordinators may have partitions of one topic.
    schemas = {schemas.topic_id: schemas for planned in found for schemas in planned.schemas}
    plans = [plan for planned in found for plan in planned.plans]
    return [ops.PlannedSegments(plans, "", list(schemas.values()))]


PLAN_SEGMENTS_HERE: Final[Operation[ops.PlanSegments, ops.PlannedSegments | DisklessError]] = (
    Operation(
        key=10_009,
        name="CoordinatorPlanSegmentsHere",
        address=Address.LED,
        request=single(fields_of(ops.PlanSegments)),
        answers=alone(
            or_error(Field(_PLANNED.write, _read_planned), _PLANNED.write(ops.PlannedSegments(())))
        ),
        at=_plan_segments,
        merged=_all_planned,
    )
)

COMMIT_SEGMENTS_HERE: Final[Operation[Sequence[ops.RolledSegment], ops.SegmentCommit]] = Operation(
    key=10_010,
    name="CoordinatorCommitSegmentsHere",
    address=Address.BY_PARTITION,
    request=listed(layout(ops.RolledSegment)),
    answers=in_order(layout(ops.SegmentCommit, "error", "is_duplicate", error=ERROR)),
    at=lambda coordinator, segments: coordinator.commit_segments(segments),
    failed=lambda error: ops.SegmentCommit(error=error),
)

SET_TOPIC_COLUMNS: Final[Operation[Sequence[ops.SetTopicColumns], DisklessError | None]] = (
    Operation(
        key=10_024,
        name="CoordinatorSetTopicColumnsHere",
        address=Address.CATALOGUE,
        request=listed(layout(ops.SetTopicColumns)),
        answers=in_order(ERRORS),
        at=lambda coordinator, requests: coordinator.catalogue.set_topic_columns(requests),
    )
)

PLAN_SEGMENTS: Final = replace(
    PLAN_SEGMENTS_HERE, key=10_000, name="PlanSegments", changes_state=False
)
"""A plan is the same when it is asked for again."""
COMMIT_SEGMENTS: Final = replace(COMMIT_SEGMENTS_HERE, key=10_001, name="CommitSegments")
OFFER_TOPIC_COLUMNS: Final = replace(SET_TOPIC_COLUMNS, key=10_025, name="SetTopicColumns")

# -- rewrites of segments --------------------------------------------------------------------------

_REWRITES: Final = fields_of(rw.PlannedRewrites)


def _read_rewrites(reader: MessageReader) -> rw.PlannedRewrites:
    # The segments of the plans are as many as they are; it is a broker that answers.
    reader.entries_left = sys.maxsize
    planned: rw.PlannedRewrites = _REWRITES.read(reader)
    return planned


async def _plan_rewrites(coordinator: Any, asked: rw.PlanRewrites) -> Sequence[rw.PlannedRewrites]:
    return [rw.PlannedRewrites(await coordinator.plan_rewrites(asked))]


def _all_rewrites(
    asked: rw.PlanRewrites, answers: Sequence[Sequence[rw.PlannedRewrites | DisklessError]]
) -> Sequence[rw.PlannedRewrites | DisklessError]:
    found = [planned for (planned,) in answers if not isinstance(planned, DisklessError)]
    if not found:
        return answers[0]
    return [rw.PlannedRewrites([plan for planned in found for plan in planned.plans])]


PLAN_REWRITES_HERE: Final[Operation[rw.PlanRewrites, rw.PlannedRewrites | DisklessError]] = (
    Operation(
        key=10_022,
        name="CoordinatorPlanRewritesHere",
        address=Address.LED,
        request=single(fields_of(rw.PlanRewrites)),
        answers=alone(
            or_error(
                Field(_REWRITES.write, _read_rewrites), _REWRITES.write(rw.PlannedRewrites(()))
            )
        ),
        at=_plan_rewrites,
        merged=_all_rewrites,
    )
)

COMMIT_REWRITES_HERE: Final[Operation[Sequence[rw.Rewrite], rw.RewriteCommit]] = Operation(
    key=10_023,
    name="CoordinatorCommitRewritesHere",
    address=Address.BY_PARTITION,
    request=listed(layout(rw.Rewrite)),
    answers=in_order(layout(rw.RewriteCommit, "error", "is_duplicate", error=ERROR)),
    at=lambda coordinator, rewrites: coordinator.commit_rewrites(rewrites),
    failed=lambda error: rw.RewriteCommit(error=error),
)

PLAN_REWRITES: Final = replace(
    PLAN_REWRITES_HERE, key=10_020, name="PlanRewrites", changes_state=False
)
COMMIT_REWRITES: Final = replace(COMMIT_REWRITES_HERE, key=10_021, name="CommitRewrites")

OF_A_TIERING_JOB: Final[Sequence[Operation[Any, Any]]] = (
    PLAN_SEGMENTS,
    COMMIT_SEGMENTS,
    PLAN_REWRITES,
    COMMIT_REWRITES,
    OFFER_TOPIC_COLUMNS,
)
BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (
    COMMIT_FILES_AT,
    CREATE_TOPICS,
    ALLOCATE_PRODUCER_IDS,
    TOMBSTONE_FILES,
    HAND_OVER_FILES,
    CREATE_PARTITIONS_AT,
    DELETE_TOPICS_AT,
    REGISTER_BROKER,
    PLAN_SEGMENTS_HERE,
    COMMIT_SEGMENTS_HERE,
    SET_TOPIC_COLUMNS,
    CREATE_ACLS,
    DELETE_ACLS,
    ALTER_TOPIC_CONFIGS,
    ALTER_CLIENT_QUOTAS,
    ALTER_SCRAM_CREDENTIALS,
    PLAN_REWRITES_HERE,
    COMMIT_REWRITES_HERE,
)
