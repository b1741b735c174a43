"""A broker that knows the private segment operations and no table, over real sockets and handlers.

The coordinator behind it is a dictionary with the coordinator's rules: plans stay until committed,
a segment is committed once, and again with equal content is a duplicate. Likewise rewrites.
"""

import asyncio
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

from diskless.api import RunningOperations, segment_apis
from diskless.authorization import AllowEverything
from diskless.server.registry import ApiRegistry
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.brokers import (
    COMMIT_REWRITES_HERE,
    PLAN_REWRITES_HERE,
    PLAN_SEGMENTS_HERE,
)
from metadata.messages.codec import Operation
from metadata.messages.tables import LIST_TABLES_HERE
from metadata.operations import (
    PlannedSegments,
    PlanSegments,
    RolledSegment,
    SegmentCommit,
    SegmentPlan,
)
from metadata.rewrites import PlannedRewrites, Rewrite, RewriteCommit, RewritePlan
from metadata.table_operations import ListedTables
from tests.support.brokers.kafka_fakes import running_broker
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError, Rejected

PLAN, COMMIT, REWRITE = "plan", "commit", " rewrite"


class Lost(Exception):
    """Ends the connection instead of an answer."""


class FakeCoordinator(CoordinatorClient):
    """Plans to give out, segments that were committed."""

    def __init__(
        self,
        plans: Iterable[SegmentPlan],
        partial: Iterable[SegmentPlan] = (),
        outstanding_max: int = 1000,
    ) -> None:
        self.plans = {plan.object_key: plan for plan in plans}
        self.partial = iter(partial)
        """Planned only when rests are asked for, each when there is room; may never end."""
        self._outstanding_max = outstanding_max
        self.committed: dict[ObjectKey, RolledSegment] = {}
        self.duplicates = 0
        self.refused: dict[ObjectKey, DisklessError] = {}
        self.raised: list[DisklessError] = []
        """Errors for the next calls, whatever they are."""

        self.rewrites: dict[TopicIdPartition, RewritePlan] = {}
        self.rewritten: list[Rewrite] = []
        self.rewrites_refused: dict[TopicIdPartition, DisklessError] = {}
        self.asked: list[str] = []
        self.answers_lost = 0
        """So many answers are not sent; the connection ends instead."""

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int = 0
    ) -> Sequence[Any]:
        if operation is LIST_TABLES_HERE:
            return [ListedTables(())]
        is_plan = operation in (PLAN_SEGMENTS_HERE, PLAN_REWRITES_HERE)
        is_rewrite = operation in (PLAN_REWRITES_HERE, COMMIT_REWRITES_HERE)
        self.asked.append((PLAN if is_plan else COMMIT) + (REWRITE if is_rewrite else ""))
        if self.raised:
            raise self.raised.pop(0)
        answers: Sequence[Any]
        if is_rewrite:
            answers = (
                [PlannedRewrites(list(self.rewrites.values()))]
                if is_plan
                else [*map(self._commit_rewrite, request)]
            )
        else:
            answers = [self._planned(request)] if is_plan else [*map(self._commit, request)]
        if self.answers_lost:
            self.answers_lost -= 1
            raise Lost
        return answers

    def _planned(self, asked: PlanSegments) -> PlannedSegments:
        if asked.include_partial:
            room = self._outstanding_max - len(self.plans)
            self.plans |= {plan.object_key: plan for plan in itertools.islice(self.partial, room)}
        return PlannedSegments(list(self.plans.values()))

    def _commit_rewrite(self, rewrite: Rewrite) -> RewriteCommit:
        if rewrite in self.rewritten:
            return RewriteCommit(is_duplicate=True)
        if error := self.rewrites_refused.get(rewrite.partition):
            self.rewrites.pop(rewrite.partition)
            return RewriteCommit(error=error)
        plan = self.rewrites.get(rewrite.partition)
        if plan is None or plan.generation != rewrite.generation:
            return RewriteCommit(error=Rejected("not under way"))
        del self.rewrites[rewrite.partition]
        self.rewritten.append(rewrite)
        return RewriteCommit()

    def _commit(self, segment: RolledSegment) -> SegmentCommit:
        if error := self.refused.get(segment.object_key):
            self.plans.pop(segment.object_key)
            return SegmentCommit(error=error)
        known = self.committed.get(segment.object_key)
        if known is not None:
            self.duplicates += known == segment
            return SegmentCommit(
                is_duplicate=known == segment,
                error=None if known == segment else Rejected("other content"),
            )
        plan = self.plans.pop(segment.object_key, None)
        if plan is None or (plan.base_offset, plan.last_offset) != (
            segment.base_offset,
            segment.last_offset,
        ):
            return SegmentCommit(error=Rejected("not planned"))
        self.committed[segment.object_key] = segment
        return SegmentCommit()


class FakeBroker:
    """Serves a coordinator on a port of its own, from a thread, inside a `with` block."""

    def __init__(self, coordinator: FakeCoordinator, object_store_url: str) -> None:
        self._coordinator = coordinator
        self._object_store_url = object_store_url
        self.bootstrap = ""
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        async with RunningOperations() as running:
            apis = segment_apis(
                self._coordinator, self._object_store_url, running, AllowEverything()
            )
            async with running_broker(apis=ApiRegistry(apis)) as broker:
                self.bootstrap = broker.bootstrap
                self._is_up.set()
                await self._stop.wait()
