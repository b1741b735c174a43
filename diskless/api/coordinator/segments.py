"""PlanSegments and CommitSegments (private APIs 10000 and 10001, version 0) for a tiering job.

Not Kafka APIs, and not listed by ApiVersions; metadata/messages/brokers.py has their rows. This
broker asks the leaders, whichever brokers they are, by the operations between brokers.

- PlanSegments: what the job is to roll. Answers with the plans that are not committed yet, after
  planning what is due, and with the URL at which the objects lie. An answer is cut off between
  plans at `RESPONSE_BYTES_MAX`; the job asks again when it has committed what it got.
- CommitSegments: the job offers what it rolled. Every segment is answered for itself; offering one
  again is a success that says so.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    RunningOperations,
    coordinator_api,
    passed_on,
)
from diskless.authorization import Authorizer
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.brokers import COMMIT_SEGMENTS, COMMIT_SEGMENTS_HERE, PLAN_SEGMENTS
from metadata.operations import PlannedSegments, PlanSegments, SegmentPlan
from wal.errors import DisklessError, InvalidRequest
from wal.wire.layouts import layout

RESPONSE_BYTES_MAX: Final = 16 << 20
"""About 200,000 extents."""

_PLAN: Final = layout(SegmentPlan)


def segment_apis(
    client: CoordinatorClient,
    object_store_url: str,
    running: RunningOperations,
    authorizer: Authorizer,
) -> Sequence[Api]:
    """APIs to be added to a registry. `client` reaches all leaders; the URL holds no secrets."""
    access = Access(authorizer)
    # Another broker is asked by the operation that it does not pass on.
    committing = passed_on(COMMIT_SEGMENTS_HERE, client, portion=None)
    return (
        coordinator_api(PLAN_SEGMENTS, planning(client, object_store_url), running, access),
        coordinator_api(COMMIT_SEGMENTS, committing, running, access),
    )


def planning(
    client: CoordinatorClient, object_store_url: str
) -> Call[PlanSegments, PlannedSegments | DisklessError]:
    """Plans of those whom `client` asks, as many as fit into an answer."""

    async def call(asked: PlanSegments, timeout_ms: int) -> Sequence[PlannedSegments]:
        if asked.max_plans < 1:
            raise InvalidRequest(f"at most {asked.max_plans} plans were asked for")
        plans = await client.plan_segments(asked, timeout_ms=timeout_ms)
        return [PlannedSegments(_within_limit(plans[: asked.max_plans]), object_store_url)]

    return call


def _within_limit(plans: Sequence[SegmentPlan]) -> Sequence[SegmentPlan]:
    """Returns as many as fit into an answer, and one in any case: else it would never be rolled."""
    ends = list(accumulate(len(_PLAN.write(plan)) for plan in plans))
    fitting = sum(end <= RESPONSE_BYTES_MAX for end in ends)
    return plans[: max(fitting, 1)]
