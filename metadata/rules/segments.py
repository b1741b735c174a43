"""Plans segments and decides their commits.

A plan fixes offsets and object key before anybody writes a byte, and it is durable: a roll task
that is killed, repeated or run twice by Spark writes the same object, and put-if-absent makes the
copies one. Plans of a partition follow each other without gap from the first offset that was never
rolled.

What is planned ends at the last stable offset, so that it is decided which of its batches become
rows: markers and batches of aborted transactions do not. A transaction that has ended may lie in
several plans. It ends before a batch of a sink that is not settled, too
(metadata/coordinator/unsettled_batches.py).

Planning is two steps, because the rows it needs are in SQLite and deciding must not wait. `survey`
reads committed rows and proposes; `decide_plans` runs in the coordinator's turn and takes what
still fits. A proposal can only have become wrong by a deletion or by another plan, and both move
`planned_end`; appends come after it.

Rows under an outstanding plan are kept until its segment is committed even if records are deleted
past them meanwhile: a task may be reading their objects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import RolledSegment, SegmentCommit, TopicColumns
from metadata.records.records import MetadataRecord, SegmentCommittedRecord, SegmentPlannedRecord
from metadata.records.segment_identity import segment_digest, segment_key
from metadata.rules.commit import Decision
from metadata.rules.typed import has_stale_columns, schema_basis
from metadata.state.image import CommittedImage, PartitionState, PlannedSegment
from metadata.state.queries.batch_queries import BatchRow, unrolled_rows
from metadata.state.speculative import KnownFile, SpeculativeView
from wal.coordinates import Offset, TopicIdPartition
from wal.errors import DisklessError, Rejected, UnknownPartition
from wal.records.marker_batches import Marker

SEGMENT_BYTES_CONFIG: Final = "segment.bytes"
SEGMENT_MS_CONFIG: Final = "segment.ms"
TIERING_ENABLE_CONFIG: Final = "tiering.enable"

SEGMENT_ROWS_MAX: Final = 5_000
"""Rows of one segment: its commit deletes them in one transaction, which holds up other commits."""

_INT32_MAX: Final = 2**31 - 1


class Candidate(NamedTuple):
    """A partition that has something unplanned, and the rules of its topic."""

    partition: TopicIdPartition
    state: PartitionState
    segment_bytes: int
    segment_ms: int
    end_offset: int
    """Nothing is planned from here on."""
    columns: bytes = b""
    """The typed columns of its topic."""


class Proposal(NamedTuple):
    """Whole rows that should become one segment."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    columns: bytes = b""


def candidates(
    image: CommittedImage,
    settings: CoordinatorSettings,
    configs_of: Callable[[UUID], Mapping[str, str] | None],
    held_from: Mapping[TopicIdPartition, int],
    wanted: Callable[[str], bool] = lambda topic_name: True,
    columns_of: Callable[[UUID], TopicColumns] = lambda topic_id: TopicColumns(),
) -> Sequence[Candidate]:
    """Partitions with unplanned batches, from the committed image.

    Left out are topics that are not tiered, those that `configs_of` does not know (the catalogue
    has not heard of them), those that are not `wanted`, by their name, and those whose typed
    columns are not made of their configs yet. They end at the last stable offset, or where they are
    held before that.
    """
    found = []
    limits: dict[UUID, tuple[int, int, bytes] | None] = {}
    for partition, state in image.partitions.items():
        # Markers have no bytes; also where they come alone they are planned, or they would stay.
        if state.unplanned_bytes <= 0 and state.last_marker_offset < state.planned_end_offset:
            continue
        topic_id = partition.topic_id
        if topic_id not in limits:
            configs = configs_of(topic_id)
            limits[topic_id] = (
                None
                if configs is None
                or not is_tiered(configs)
                or not wanted(image.topics[topic_id].description.name)
                or has_stale_columns(configs, columns_of(topic_id))
                else (
                    _config(configs, SEGMENT_BYTES_CONFIG, settings.segment_bytes),
                    _config(configs, SEGMENT_MS_CONFIG, settings.segment_ms),
                    columns_of(topic_id).columns if schema_basis(configs) else b"",
                )
            )
        limit = limits[topic_id]
        if limit is not None:
            segment_bytes, segment_ms, columns = limit
            end = min(state.last_stable_offset, held_from.get(partition, state.last_stable_offset))
            found.append(Candidate(partition, state, segment_bytes, segment_ms, end, columns))
    return found


def is_tiered(configs: Mapping[str, str]) -> bool:
    """Whether batches of a topic that set `configs` are planned into segments."""
    return configs.get(TIERING_ENABLE_CONFIG) != "false"


def _config(configs: Mapping[str, str], name: str, default: int) -> int:
    """Values were validated when the topic was created; what was not is as if it were not set."""
    text = configs.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default


def survey(
    connection: Connection,
    partitions: Sequence[Candidate],
    *,
    now_ms: int,
    include_partial: bool,
    proposals_max: int,
) -> Sequence[Proposal]:
    """Proposes what is due, at most `proposals_max`; consecutive proposals of a partition touch.

    A proposal is closed by the row that makes it reach `segment_bytes`, or by the
    SEGMENT_ROWS_MAX-th; a marker is a row without bytes. What remains is proposed when its first
    row is older than `segment_ms`, or when `include_partial`. A row that reaches beyond the end of
    its candidate is not proposed.
    """
    proposals: list[Proposal] = []
    for partition, state, segment_bytes, segment_ms, end_offset, columns in partitions:
        left_bytes = state.unplanned_bytes
        size = rows = 0
        base: int | None = None
        last = -1
        is_due = False
        for row in unrolled_rows(connection, state, state.planned_end_offset):
            if row.last_offset >= end_offset:
                break
            if len(proposals) >= proposals_max:
                return proposals
            if base is None:
                is_due = include_partial or now_ms - _appended_ms(row) >= segment_ms
                if left_bytes < segment_bytes and not is_due:
                    # The usual case costs one row: too little yet, and too young.
                    break
                base, size, rows = row.base_offset, 0, 0
            row_bytes = 0 if isinstance(row, Marker) else row.byte_size
            size += row_bytes
            rows += 1
            left_bytes -= row_bytes
            last = row.last_offset
            if size >= segment_bytes or rows == SEGMENT_ROWS_MAX:
                proposals.append(Proposal(partition, base, last, columns))
                base = None
        # What lies behind the end is counted among the bytes that are left.
        if base is not None and is_due and len(proposals) < proposals_max:
            proposals.append(Proposal(partition, base, last, columns))
    return proposals


def _appended_ms(row: BatchRow | Marker) -> int:
    return row.timestamp_ms if isinstance(row, Marker) else row.append_time_ms


def decide_plans(
    view: SpeculativeView, proposals: Sequence[Proposal], now_ms: int, *, outstanding_max: int
) -> Decision[None]:
    """Plan what still fits; the others will be proposed again."""
    records: list[MetadataRecord] = []
    outstanding = sum(1 for _ in view.plans()) if proposals else 0
    for partition, base, last, columns in proposals:
        topic = view.topic_by_id(partition.topic_id)
        if (
            topic is None
            or outstanding + len(records) >= outstanding_max
            or view.planned_end(partition) != base
        ):
            continue
        key = segment_key(topic.name, partition, base, last)
        view.put_plan(PlannedSegment(partition, base, last, key, now_ms, columns))
        records.append(
            SegmentPlannedRecord(
                partition=partition,
                base_offset=base,
                last_offset=last,
                object_key=key,
                planned_at_ms=now_ms,
                columns=columns,
            )
        )
    return Decision(records, None)


def decide_commit_segments(
    view: SpeculativeView, segments: Sequence[RolledSegment]
) -> Decision[Sequence[SegmentCommit]]:
    """Each segment that matches its plan exactly replaces the planned batches."""
    records: list[MetadataRecord] = []
    answer: list[SegmentCommit] = []
    for segment in segments:
        known = view.file(segment.object_key)
        if known is not None:
            is_same = known.request_digest == segment_digest(segment)
            answer.append(
                SegmentCommit(is_duplicate=True)
                if is_same
                else SegmentCommit(
                    error=Rejected(f"{segment.object_key} was committed with other content")
                )
            )
            continue
        error = _refusal(view, segment)
        if error is None:
            view.delete_plan(segment.object_key)
            view.put_file(segment.object_key, KnownFile(segment_digest(segment), b""))
            records.append(
                SegmentCommittedRecord(
                    partition=segment.partition,
                    base_offset=segment.base_offset,
                    last_offset=segment.last_offset,
                    object_key=segment.object_key,
                    object_bytes=segment.object_bytes,
                    crc32c=segment.crc32c,
                    record_count=segment.record_count,
                    max_timestamp_ms=segment.max_timestamp_ms,
                )
            )
        answer.append(SegmentCommit(error=error))
    return Decision(records, answer)


def _refusal(view: SpeculativeView, segment: RolledSegment) -> DisklessError | None:
    if view.partition(segment.partition) is None:
        return UnknownPartition(f"no partition {segment.partition}")
    plan = view.plan(segment.object_key)
    if plan is None or plan[:3] != (
        segment.partition,
        Offset(segment.base_offset),
        Offset(segment.last_offset),
    ):
        return Rejected(f"{segment.object_key} is not an outstanding plan for these offsets")
    accounted = segment.record_count + segment.control_count + segment.aborted_count
    if accounted != segment.last_offset - segment.base_offset + 1:
        return Rejected(
            f"{segment.object_key} holds {segment.record_count} records, and leaves out"
            f" {segment.control_count} control and {segment.aborted_count} aborted records, for"
            f" offsets"
            f" {segment.base_offset}..{segment.last_offset}"
        )
    if (
        segment.object_bytes <= 0
        or not 0 <= segment.crc32c <= 0xFFFFFFFF
        or not 0 <= segment.record_count <= _INT32_MAX
        or min(segment.control_count, segment.aborted_count) < 0
    ):
        return Rejected(f"{segment.object_key}: {segment} is not a segment")
    return None
