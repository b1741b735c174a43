"""What a tiering job asks a broker: private APIs 10000, 10001, 10020, 10021, 10025, 10040 to 10042.

Not Kafka APIs, and not listed by ApiVersions; metadata/messages/brokers.py and tables.py beside it
have their rows. This broker asks the leaders, whichever brokers they are, by the operations between
brokers. Each asks for ALTER on the cluster: a job is no broker, and CLUSTER_ACTION would let it
commit WAL objects, too.

- PlanSegments: what the job is to roll. Answers with the plans that are not committed yet, after
  planning what is due, and with the URL at which the objects lie. An answer is cut off between
  plans at `RESPONSE_BYTES_MAX`; the job asks again when it has committed what it got.
- CommitSegments: the job offers what it rolled. Every segment is answered for itself; offering one
  again is a success that says so.
- PlanRewrites and CommitRewrites: the same for segments that are to be merged or compacted.
- ListTables, ListSegments, CommitTables: what a table is made of (metadata/table_operations.py).
- SetTopicColumns: the job has made typed columns of a topic's schema.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    RunningOperations,
    coordinator_api,
    passed_on,
)
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, Authorizer
from diskless.ports import ClientInfo
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages import brokers, tables
from metadata.messages.codec import Operation
from metadata.operations import PlannedSegments, PlanSegments, SegmentPlan
from metadata.rewrites import PlannedRewrites, PlanRewrites, RewritePlan
from metadata.table_operations import ListedTables, ListTables
from wal.errors import DisklessError, InvalidRequest
from wal.wire.layouts import Layout, layout

RESPONSE_BYTES_MAX: Final = 16 << 20
"""About 200,000 extents."""

_PLAN: Final = layout(SegmentPlan)
_REWRITE: Final = layout(RewritePlan)

_Plan = TypeVar("_Plan")


def segment_apis(
    client: CoordinatorClient,
    object_store_url: str,
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry. `client` reaches all leaders; the URL holds no secrets."""
    access = Access(authorizer, audit)
    # Another broker is asked by the operation that it does not pass on.
    committing = passed_on(brokers.COMMIT_SEGMENTS_HERE, client, portion=None)
    rewriting = passed_on(brokers.COMMIT_REWRITES_HERE, client, portion=None)
    operations: Sequence[tuple[Operation[Any, Any], Call[Any, Any]]] = (
        (brokers.PLAN_SEGMENTS, planning(client, object_store_url)),
        (brokers.COMMIT_SEGMENTS, committing),
        (brokers.PLAN_REWRITES, planning_rewrites(client, object_store_url)),
        (brokers.COMMIT_REWRITES, rewriting),
        (tables.LIST_TABLES, _listing(client, object_store_url)),
        (tables.LIST_SEGMENTS, passed_on(tables.LIST_SEGMENTS_HERE, client)),
        (tables.COMMIT_TABLES, passed_on(tables.COMMIT_TABLES_HERE, client)),
        (brokers.OFFER_TOPIC_COLUMNS, passed_on(brokers.SET_TOPIC_COLUMNS, client)),
    )

    def refusal(of: ClientInfo, _: Any) -> DisklessError | None:
        return access.refused_cluster(of, AclOperation.ALTER)

    return [
        coordinator_api(operation, call, running, access, refusal=refusal)
        for operation, call in operations
    ]


def planning(
    client: CoordinatorClient, object_store_url: str
) -> Call[PlanSegments, PlannedSegments | DisklessError]:
    """Plans of those whom `client` asks, as many as fit into an answer."""

    async def call(asked: PlanSegments, timeout_ms: int) -> Sequence[PlannedSegments]:
        if asked.max_plans < 1:
            raise InvalidRequest(f"at most {asked.max_plans} plans were asked for")
        (planned,) = await client.call(brokers.PLAN_SEGMENTS_HERE, asked, timeout_ms=timeout_ms)
        if isinstance(planned, DisklessError):
            raise planned
        plans = _within_limit(planned.plans[: asked.max_plans], _PLAN)
        return [PlannedSegments(plans, object_store_url, planned.schemas)]

    return call


def planning_rewrites(
    client: CoordinatorClient, object_store_url: str
) -> Call[PlanRewrites, PlannedRewrites | DisklessError]:
    """The same for rewrites."""

    async def call(asked: PlanRewrites, timeout_ms: int) -> Sequence[PlannedRewrites]:
        if asked.max_plans < 1:
            raise InvalidRequest(f"at most {asked.max_plans} plans were asked for")
        plans = await client.plan_rewrites(asked, timeout_ms=timeout_ms)
        plans = _within_limit(plans[: asked.max_plans], _REWRITE)
        return [PlannedRewrites(plans, object_store_url)]

    return call


def _listing(
    client: CoordinatorClient, object_store_url: str
) -> Call[ListTables, ListedTables | DisklessError]:
    """The tables that the catalogue knows, and where their objects lie."""

    async def call(asked: ListTables, timeout_ms: int) -> Sequence[ListedTables | DisklessError]:
        (listed,) = await client.call(tables.LIST_TABLES_HERE, asked, timeout_ms=timeout_ms)
        if isinstance(listed, DisklessError):
            return [listed]
        return [listed._replace(object_store_url=object_store_url)]

    return call


def _within_limit(plans: Sequence[_Plan], of: Layout[_Plan]) -> Sequence[_Plan]:
    """Returns as many as fit into an answer, and one in any case: else it would never be done."""
    ends = list(accumulate(len(of.write(plan)) for plan in plans))
    fitting = sum(end <= RESPONSE_BYTES_MAX for end in ends)
    return plans[: max(fitting, 1)]
