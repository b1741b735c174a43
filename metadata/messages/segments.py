"""The private operations by which a tiering job talks to the coordinator, as bytes.

A tiering job is not a broker and may run on another machine, so it speaks Kafka's framing to any
broker (tiering/coordinator_client.py), under two API keys far above Kafka's. ApiVersions does not
list them. Headers are the non-flexible ones (request v1, response v0); the bodies below are encoded
as wal/wire/fields.py describes, and each structure ends in a tag section, so that a
field can be added without a new version. A decoder skips tags it does not know.

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

from collections.abc import Sequence
from typing import Final, NamedTuple

from metadata.operations import RolledSegment, SegmentPlan
from wal.errors import InvalidRequest
from wal.wire.layouts import Int16, Int32, layout

PLAN_SEGMENTS_KEY: Final = 10_000
COMMIT_SEGMENTS_KEY: Final = 10_001
VERSION: Final = 0


class PlanSegmentsRequest(NamedTuple):
    include_partial: bool
    """Plan the rest of every partition too, however small."""
    max_plans: Int32
    """The answer holds no more; the broker may give fewer still, but one if there is one."""


class PlanSegmentsResponse(NamedTuple):
    error_code: Int16 = 0
    """Kafka's code; 0 is success."""
    error_message: str = ""
    object_store_url: str = ""
    plans: Sequence[SegmentPlan] = ()


class CommitSegmentsResult(NamedTuple):
    """The answer for one segment."""

    error_code: Int16 = 0
    error_message: str = ""
    is_duplicate: bool = False


class CommitSegmentsResponse(NamedTuple):
    """`error_code` concerns the whole request; then `results` is empty."""

    error_code: Int16 = 0
    error_message: str = ""
    results: Sequence[CommitSegmentsResult] = ()


class _Segments(NamedTuple):
    """A CommitSegments request."""

    segments: Sequence[RolledSegment]


PLAN: Final = layout(SegmentPlan)
SEGMENT: Final = layout(RolledSegment)
_PLAN_REQUEST: Final = layout(PlanSegmentsRequest)
_PLAN_RESPONSE: Final = layout(PlanSegmentsResponse)
_COMMIT_REQUEST: Final = layout(_Segments)
_COMMIT_RESPONSE: Final = layout(CommitSegmentsResponse)

encode_plan: Final = PLAN.write
encode_plan_request: Final = _PLAN_REQUEST.write
encode_plan_response: Final = _PLAN_RESPONSE.write
encode_commit_response: Final = _COMMIT_RESPONSE.write


def decode_plan_request(body: bytes) -> PlanSegmentsRequest:
    """Raises: InvalidRequest."""
    return _PLAN_REQUEST.decode(body, "PlanSegments request", InvalidRequest)


def decode_plan_response(body: bytes) -> PlanSegmentsResponse:
    """Raises: InvalidRequest."""
    return _PLAN_RESPONSE.decode(body, "PlanSegments response", InvalidRequest)


def encode_commit_request(segments: Sequence[RolledSegment]) -> bytes:
    return _COMMIT_REQUEST.write(_Segments(segments))


def decode_commit_request(body: bytes) -> Sequence[RolledSegment]:
    """Raises: InvalidRequest."""
    return _COMMIT_REQUEST.decode(body, "CommitSegments request", InvalidRequest).segments


def decode_commit_response(body: bytes) -> CommitSegmentsResponse:
    """Raises: InvalidRequest."""
    return _COMMIT_RESPONSE.decode(body, "CommitSegments response", InvalidRequest)
