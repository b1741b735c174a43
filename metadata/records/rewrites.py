"""Metadata records about rewrites of segments: planned, a segment replaced, ended.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_rewrites.py. metadata/rules/rewriting/rewrites.py says when they are written.

    1060 RewritePlanned    TopicId uuid, PartitionIndex int32, Generation int32, Kind int8,
                           BaseOffset int64, LastOffset int64, PlannedAt int64,
                           DeleteHorizon int64, TargetBytes int64
    1061 SegmentRewritten  TopicId uuid, PartitionIndex int32, Generation int32,
                           BaseOffset int64, LastOffset int64, ObjectKey string,
                           ObjectSize int64, Crc32c uint32, RecordCount int32,
                           RemovedCount int32, MaxTimestamp int64
    1062 RewriteEnded      TopicId uuid, PartitionIndex int32, Generation int32,
                           CleanedEndOffset int64
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wal.coordinates import ObjectKey, TopicIdPartition
from wal.wire.layouts import Int8, Int32, UInt32


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlannedRecord:
    """The segments of these offsets are to be rewritten; see `metadata.rewrites.RewritePlan`."""

    partition: TopicIdPartition
    generation: Int32
    kind: Int8
    base_offset: int
    last_offset: int
    planned_at_ms: int
    delete_horizon_ms: int
    target_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRewrittenRecord:
    """The segment replaced those of its offsets, and leaves out `removed_count` records."""

    partition: TopicIdPartition
    generation: Int32
    base_offset: int
    last_offset: int
    object_key: ObjectKey
    object_bytes: int
    crc32c: UInt32
    record_count: Int32
    removed_count: Int32
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteEndedRecord:
    """The partition's rewrite is over; what lies below `cleaned_end_offset` is compacted."""

    partition: TopicIdPartition
    generation: Int32
    cleaned_end_offset: int


RewriteRecord = RewritePlannedRecord | SegmentRewrittenRecord | RewriteEndedRecord

REWRITE_RECORDS: Final[Mapping[int, type[Any]]] = {
    1060: RewritePlannedRecord,
    1061: SegmentRewrittenRecord,
    1062: RewriteEndedRecord,
}
