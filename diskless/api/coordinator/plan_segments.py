"""PlanSegments (private API 10000, version 0): what a tiering job is to roll.

Not a Kafka API, and not listed by ApiVersions; metadata/messages/segments.py has the bytes. Asks
for CLUSTER_ACTION. Answers with the plans that are not committed yet, after planning what is due,
and with the URL at which the objects lie. An answer is cut off between plans at
`RESPONSE_BYTES_MAX`; the job asks again when it has committed what it got.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from diskless.api.access import Access
from diskless.api.errors import error_message, kafka_code
from diskless.authorization import AclOperation
from diskless.ports import ClientInfo
from diskless.server.registry import MustClose, RawHandler
from metadata.messages.segments import (
    PlanSegmentsRequest,
    PlanSegmentsResponse,
    decode_plan_request,
    encode_plan,
    encode_plan_response,
)
from metadata.operations import Coordinator, SegmentPlan
from wal.errors import DisklessError, InvalidRequest

RESPONSE_BYTES_MAX: Final = 16 << 20
"""About 200,000 extents."""


def plan_segments_handler(
    coordinator: Coordinator, object_store_url: str, access: Access
) -> RawHandler:
    """A handler for `ApiRegistry.add_raw`. `object_store_url` holds no secrets."""

    async def handle(body: bytes, client: ClientInfo) -> bytes:
        try:
            request = decode_plan_request(body)
        except InvalidRequest as error:
            raise MustClose(str(error)) from error
        refused = access.refused_cluster(client, AclOperation.CLUSTER_ACTION)
        if refused is not None:
            return encode_plan_response(_failure(refused))
        return encode_plan_response(await _answer(coordinator, object_store_url, request))

    return handle


async def _answer(
    coordinator: Coordinator, object_store_url: str, request: PlanSegmentsRequest
) -> PlanSegmentsResponse:
    if request.max_plans < 1:
        refused = InvalidRequest(f"at most {request.max_plans} plans were asked for")
        return PlanSegmentsResponse(kafka_code(refused), str(refused))
    try:
        plans = await coordinator.plan_segments(include_partial=request.include_partial)
    except DisklessError as error:
        return _failure(error)
    plans = within_limit(plans[: request.max_plans])
    return PlanSegmentsResponse(object_store_url=object_store_url, plans=plans)


def _failure(error: DisklessError) -> PlanSegmentsResponse:
    return PlanSegmentsResponse(kafka_code(error), error_message(error) or "")


def within_limit(plans: Sequence[SegmentPlan]) -> Sequence[SegmentPlan]:
    """Returns as many as fit into an answer, and one in any case: else it would never be rolled."""
    ends = list(accumulate(len(encode_plan(plan)) for plan in plans))
    fitting = sum(end <= RESPONSE_BYTES_MAX for end in ends)
    return plans[: max(fitting, 1)]
