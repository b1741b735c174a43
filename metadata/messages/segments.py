"""The private operations by which a tiering job talks to the coordinator, as bytes.

A tiering job is not a broker and may run on another machine, so it speaks Kafka's framing to any
broker (tiering/coordinator_client.py), under two API keys far above Kafka's. ApiVersions does not
list them. Headers are the non-flexible ones (request v1, response v0); the bodies below are encoded
as wal/wire/fields.py describes, and each structure ends in a tag section, so that a field can
be added without a new version. A decoder skips tags it does not know.

    10000 PlanSegments v0
      request    IncludePartial int8 (0, 1), MaxPlans int32
      response   ErrorCode int16, ErrorMessage string, ObjectStoreUrl string, Plans []
                   Plan, as below
    10001 CommitSegments v0
      request    Segments []
                   TopicId uuid, Partition int32, ObjectKey string, BaseOffset int64,
                   LastOffset int64, ObjectBytes int64, Crc32c uint32, RecordCount int64,
                   MaxTimestamp int64
      response   ErrorCode int16, ErrorMessage string, Results []   (in the order of the request)
                   ErrorCode int16, ErrorMessage string, IsDuplicate int8

    Plan   TopicName string, TopicId uuid, Partition int32, ObjectKey string, BaseOffset int64,
           LastOffset int64, Extents []
             ObjectKey string, ByteOffset int64, Length int64, BaseOffset int64, LastOffset int64,
             LogAppendTime int64, MaxTimestamp int64, TimestampType int8, ObjectBytes int64

A plan is also what a Spark task receives. `ObjectStoreUrl` holds no secrets; a job's tasks have
their own credentials.

Failure cases: decoding raises nothing but InvalidRequest, and allocates nothing for a count that
the bytes cannot hold.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from metadata.messages.codec import reading
from metadata.operations import RolledSegment, SegmentPlan, WalExtent
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.wire.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    uvarint,
)

PLAN_SEGMENTS_KEY: Final = 10_000
COMMIT_SEGMENTS_KEY: Final = 10_001
VERSION: Final = 0

PLAN_BYTES_MIN: Final = 40
_EXTENT_BYTES_MIN: Final = 59
SEGMENT_BYTES_MIN: Final = 66
_RESULT_BYTES_MIN: Final = 5


class PlanSegmentsRequest(NamedTuple):
    include_partial: bool
    """Plan the rest of every partition too, however small."""
    max_plans: int
    """The answer holds no more; the broker may give fewer still, but one if there is one."""


class PlanSegmentsResponse(NamedTuple):
    error_code: int = 0
    """Kafka's code; 0 is success."""
    error_message: str = ""
    object_store_url: str = ""
    plans: Sequence[SegmentPlan] = ()


class CommitSegmentsResult(NamedTuple):
    """The answer for one segment."""

    error_code: int = 0
    error_message: str = ""
    is_duplicate: bool = False


class CommitSegmentsResponse(NamedTuple):
    """`error_code` concerns the whole request; then `results` is empty."""

    error_code: int = 0
    error_message: str = ""
    results: Sequence[CommitSegmentsResult] = ()


def encode_plan_request(request: PlanSegmentsRequest) -> bytes:
    return b"".join((INT8.pack(request.include_partial), INT32.pack(request.max_plans), NO_TAGS))


def decode_plan_request(body: bytes) -> PlanSegmentsRequest:
    """Raises: InvalidRequest."""
    with _reading(body, "PlanSegments request") as reader:
        request = PlanSegmentsRequest(_boolean(reader), reader.int32())
        reader.skip_tags()
    return request


def encode_plan_response(response: PlanSegmentsResponse) -> bytes:
    parts = [
        INT16.pack(response.error_code),
        compact_string(response.error_message),
        compact_string(response.object_store_url),
        uvarint(len(response.plans) + 1),
    ]
    parts += map(encode_plan, response.plans)
    parts.append(NO_TAGS)
    return b"".join(parts)


def decode_plan_response(body: bytes) -> PlanSegmentsResponse:
    """Raises: InvalidRequest."""
    with _reading(body, "PlanSegments response") as reader:
        error_code, error_message = reader.int16(), reader.compact_string()
        url = reader.compact_string()
        plans = [read_plan(reader) for _ in range(reader.array_count(PLAN_BYTES_MIN))]
        reader.skip_tags()
    return PlanSegmentsResponse(error_code, error_message, url, plans)


def encode_commit_request(segments: Sequence[RolledSegment]) -> bytes:
    parts = [uvarint(len(segments) + 1)]
    parts += map(encode_segment, segments)
    parts.append(NO_TAGS)
    return b"".join(parts)


def decode_commit_request(body: bytes) -> Sequence[RolledSegment]:
    """Raises: InvalidRequest."""
    with _reading(body, "CommitSegments request") as reader:
        segments = [read_segment(reader) for _ in range(reader.array_count(SEGMENT_BYTES_MIN))]
        reader.skip_tags()
    return segments


def encode_commit_response(response: CommitSegmentsResponse) -> bytes:
    parts = [
        INT16.pack(response.error_code),
        compact_string(response.error_message),
        uvarint(len(response.results) + 1),
    ]
    for result in response.results:
        parts += (
            INT16.pack(result.error_code),
            compact_string(result.error_message),
            INT8.pack(result.is_duplicate),
            NO_TAGS,
        )
    parts.append(NO_TAGS)
    return b"".join(parts)


def decode_commit_response(body: bytes) -> CommitSegmentsResponse:
    """Raises: InvalidRequest."""
    with _reading(body, "CommitSegments response") as reader:
        error_code, error_message = reader.int16(), reader.compact_string()
        results = []
        for _ in range(reader.array_count(_RESULT_BYTES_MIN)):
            results.append(
                CommitSegmentsResult(reader.int16(), reader.compact_string(), _boolean(reader))
            )
            reader.skip_tags()
        reader.skip_tags()
    return CommitSegmentsResponse(error_code, error_message, results)


def encode_segment(segment: RolledSegment) -> bytes:
    return b"".join(
        (
            segment.partition.topic_id.bytes,
            INT32.pack(segment.partition.partition),
            compact_string(segment.object_key),
            INT64.pack(segment.base_offset),
            INT64.pack(segment.last_offset),
            INT64.pack(segment.object_bytes),
            segment.crc32c.to_bytes(4, "big"),
            INT64.pack(segment.record_count),
            INT64.pack(segment.max_timestamp_ms),
            NO_TAGS,
        )
    )


def encode_plan(plan: SegmentPlan) -> bytes:
    parts = [
        compact_string(plan.topic_name),
        plan.partition.topic_id.bytes,
        INT32.pack(plan.partition.partition),
        compact_string(plan.object_key),
        INT64.pack(plan.base_offset),
        INT64.pack(plan.last_offset),
        uvarint(len(plan.extents) + 1),
    ]
    for extent in plan.extents:
        parts += (
            compact_string(extent.object_key),
            INT64.pack(extent.byte_offset),
            INT64.pack(extent.length_bytes),
            INT64.pack(extent.base_offset),
            INT64.pack(extent.last_offset),
            INT64.pack(extent.log_append_time_ms),
            INT64.pack(extent.max_timestamp_ms),
            INT8.pack(extent.timestamp_type),
            INT64.pack(extent.object_bytes),
            NO_TAGS,
        )
    parts.append(NO_TAGS)
    return b"".join(parts)


def decode_plan(data: bytes) -> SegmentPlan:
    """Raises: InvalidRequest."""
    with _reading(data, "segment plan") as reader:
        return read_plan(reader)


@contextmanager
def _reading(body: bytes, what: str) -> Iterator[FieldReader]:
    reader = FieldReader(body, what)
    with reading(reader):
        yield reader


def _boolean(reader: FieldReader) -> bool:
    return reader.int8() != 0


def read_plan(reader: FieldReader) -> SegmentPlan:
    """Raises CorruptLog, as the reader does."""
    topic_name = reader.compact_string()
    partition = TopicIdPartition(reader.uuid(), reader.int32())
    object_key = ObjectKey(reader.compact_string())
    base_offset, last_offset = Offset(reader.int64()), Offset(reader.int64())
    extents = [_extent(reader) for _ in range(reader.array_count(_EXTENT_BYTES_MIN))]
    reader.skip_tags()
    return SegmentPlan(
        partition=partition,
        topic_name=topic_name,
        object_key=object_key,
        base_offset=base_offset,
        last_offset=last_offset,
        extents=extents,
    )


def _extent(reader: FieldReader) -> WalExtent:
    extent = WalExtent(
        object_key=ObjectKey(reader.compact_string()),
        byte_offset=ByteOffset(reader.int64()),
        length_bytes=reader.int64(),
        base_offset=Offset(reader.int64()),
        last_offset=Offset(reader.int64()),
        log_append_time_ms=reader.int64(),
        max_timestamp_ms=reader.int64(),
        timestamp_type=reader.int8(),
        object_bytes=reader.int64(),
    )
    reader.skip_tags()
    return extent


def read_segment(reader: FieldReader) -> RolledSegment:
    """Raises CorruptLog, as the reader does."""
    segment = RolledSegment(
        partition=TopicIdPartition(reader.uuid(), reader.int32()),
        object_key=ObjectKey(reader.compact_string()),
        base_offset=Offset(reader.int64()),
        last_offset=Offset(reader.int64()),
        object_bytes=reader.int64(),
        crc32c=reader.uint32(),
        record_count=reader.int64(),
        max_timestamp_ms=reader.int64(),
    )
    reader.skip_tags()
    return segment
