"""PlanSegments and CommitSegments (private APIs 10000 and 10001, version 0) for a tiering job.

Not Kafka APIs, and not listed by ApiVersions; metadata/messages/segments.py has the bytes. Both ask
for CLUSTER_ACTION. What concerns a whole request, such as another coordinator, is one code.

- PlanSegments: what the job is to roll. Answers with the plans that are not committed yet, after
  planning what is due, and with the URL at which the objects lie. An answer is cut off between
  plans at `RESPONSE_BYTES_MAX`; the job asks again when it has committed what it got.
- CommitSegments: the job offers what it rolled. Every segment is answered for itself; offering one
  again is a success that says so.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Final, TypeVar

from diskless.api.access import Access
from diskless.api.errors import error_message, kafka_code
from diskless.authorization import AclOperation
from diskless.ports import ClientInfo
from diskless.server.registry import MustClose, RawHandler
from metadata.messages import segments as messages
from metadata.messages.segments import (
    CommitSegmentsResponse,
    CommitSegmentsResult,
    PlanSegmentsRequest,
    PlanSegmentsResponse,
)
from metadata.operations import Coordinator, RolledSegment, SegmentPlan
from wal.errors import DisklessError, InvalidRequest

RESPONSE_BYTES_MAX: Final = 16 << 20
"""About 200,000 extents."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def plan_segments_handler(
    coordinator: Coordinator, object_store_url: str, access: Access
) -> RawHandler:
    """A handler for `ApiRegistry.add_raw`. `object_store_url` holds no secrets."""

    async def planned(request: PlanSegmentsRequest) -> PlanSegmentsResponse:
        if request.max_plans < 1:
            raise InvalidRequest(f"at most {request.max_plans} plans were asked for")
        plans = await coordinator.plan_segments(include_partial=request.include_partial)
        plans = within_limit(plans[: request.max_plans])
        return PlanSegmentsResponse(object_store_url=object_store_url, plans=plans)

    return _handler(
        access,
        messages.decode_plan_request,
        planned,
        PlanSegmentsResponse,
        messages.encode_plan_response,
    )


def commit_segments_handler(coordinator: Coordinator, access: Access) -> RawHandler:
    """A handler for `ApiRegistry.add_raw`."""

    async def committed(segments: Sequence[RolledSegment]) -> CommitSegmentsResponse:
        return CommitSegmentsResponse(
            results=[
                CommitSegmentsResult(*_code_of(commit.error), commit.is_duplicate)
                for commit in await coordinator.commit_segments(segments)
            ]
        )

    return _handler(
        access,
        messages.decode_commit_request,
        committed,
        CommitSegmentsResponse,
        messages.encode_commit_response,
    )


def _handler(
    access: Access,
    decode: Callable[[bytes], _Asked],
    answer: Callable[[_Asked], Awaitable[_Answer]],
    failure: Callable[[int, str], _Answer],
    encode: Callable[[_Answer], bytes],
) -> RawHandler:
    async def handle(body: bytes, client: ClientInfo) -> bytes:
        try:
            asked = decode(body)
        except InvalidRequest as error:
            raise MustClose(str(error)) from error
        try:
            refused = access.refused_cluster(client, AclOperation.CLUSTER_ACTION)
            if refused is not None:
                raise refused
            return encode(await answer(asked))
        except DisklessError as error:
            return encode(failure(*_code_of(error)))

    return handle


def _code_of(error: DisklessError | None) -> tuple[int, str]:
    return kafka_code(error), error_message(error) or ""


def within_limit(plans: Sequence[SegmentPlan]) -> Sequence[SegmentPlan]:
    """Returns as many as fit into an answer, and one in any case: else it would never be rolled."""
    ends = list(accumulate(len(messages.encode_plan(plan)) for plan in plans))
    fitting = sum(end <= RESPONSE_BYTES_MAX for end in ends)
    return plans[: max(fitting, 1)]
