"""PlanSegments and CommitSegments on a broker's listener: limits, and whom the broker asks."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from diskless.api import RunningOperations, segment_apis
from diskless.api.coordinator import segments
from diskless.authorization import AllowEverything, Authorizer
from diskless.server.registry import ApiRegistry
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.wire_client import WireClient
from metadata.messages.brokers import (
    COMMIT_SEGMENTS,
    COMMIT_SEGMENTS_HERE,
    PLAN_SEGMENTS,
    PLAN_SEGMENTS_HERE,
)
from metadata.messages.codec import Operation
from metadata.operations import (
    PlannedSegments,
    PlanSegments,
    RolledSegment,
    SegmentCommit,
    SegmentPlan,
    WalExtent,
)
from tests.support.brokers.kafka_fakes import DenyEverything, running_broker
from wal.clock import SystemClock
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import (
    ClusterAuthorizationFailed,
    CommitOutcomeUnknown,
    DisklessError,
    InvalidRequest,
    NotCoordinator,
    UnknownTopicId,
)
from wal.wire.layouts import layout

PARTITION = TopicIdPartition(UUID(int=5), 1)
EXTENT = WalExtent(ObjectKey("wal/00/x"), ByteOffset(9), 100, Offset(0), Offset(9), -1, 5, 0, 200)
PLANS = tuple(
    SegmentPlan(
        partition=PARTITION,
        topic_name="flights",
        object_key=ObjectKey(f"segments/{number:03d}"),
        base_offset=Offset(0),
        last_offset=Offset(9),
        extents=(EXTENT,),
    )
    for number in range(3)
)
ROLLED = [
    RolledSegment(
        partition=PARTITION,
        object_key=plan.object_key,
        base_offset=Offset(0),
        last_offset=Offset(9),
        object_bytes=1,
        crc32c=2,
        record_count=10,
        max_timestamp_ms=3,
    )
    for plan in PLANS
]
COMMITS = [SegmentCommit(), SegmentCommit(True), SegmentCommit(error=UnknownTopicId("deleted"))]


class Coordinators(CoordinatorClient):
    """Gives `PLANS`, answers three segments in three ways, or raises `error`."""

    def __init__(self, error: DisklessError | None = None) -> None:
        self.error = error
        self.asked: list[tuple[Operation[Any, Any], Any]] = []

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int = 0
    ) -> Sequence[Any]:
        self.asked.append((operation, request))
        if self.error:
            raise self.error
        return COMMITS if operation is COMMIT_SEGMENTS_HERE else [PlannedSegments(PLANS)]


@asynccontextmanager
async def serving(
    coordinators: Coordinators, authorizer: Authorizer | None = None
) -> AsyncIterator[WireClient]:
    async with RunningOperations() as running:
        allowed = authorizer or AllowEverything()
        apis = ApiRegistry(segment_apis(coordinators, "s3://bucket/prefix", running, allowed))
        async with running_broker(apis=apis) as broker:
            address = broker.server.address
            async with WireClient(*address, clock=SystemClock(), rng=random.Random(1)) as client:
                yield client


async def planned(client: WireClient, max_plans: int = 100) -> PlannedSegments:
    (answer,) = await client.call(PLAN_SEGMENTS, PlanSegments(True, max_plans))
    assert isinstance(answer, PlannedSegments)
    return answer


async def test_plans_come_with_the_place_of_their_objects() -> None:
    coordinators = Coordinators()
    async with serving(coordinators) as client:
        assert await planned(client, 2) == PlannedSegments(PLANS[:2], "s3://bucket/prefix")
    ((operation, asked),) = coordinators.asked
    assert operation is PLAN_SEGMENTS_HERE, "a broker would pass the other one on"
    assert asked.include_partial


@pytest.mark.parametrize(("room", "given"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
async def test_an_answer_ends_between_plans_and_holds_at_least_one(
    monkeypatch: pytest.MonkeyPatch, room: int, given: int
) -> None:
    plan_bytes = len(layout(SegmentPlan).write(PLANS[0]))
    monkeypatch.setattr(segments, "RESPONSE_BYTES_MAX", room * plan_bytes)
    async with serving(Coordinators()) as client:
        assert len((await planned(client)).plans) == given


@pytest.mark.parametrize("error", [NotCoordinator("gone"), CommitOutcomeUnknown("disk")])
async def test_what_the_coordinators_raise_is_the_answer(error: DisklessError) -> None:
    async with serving(Coordinators(error)) as client:
        for operation, asked in ((PLAN_SEGMENTS, PlanSegments(False)), (COMMIT_SEGMENTS, ROLLED)):
            with pytest.raises(DisklessError, match=str(error)):
                await client.call(operation, asked)


async def test_asking_for_no_plans_is_refused() -> None:
    coordinators = Coordinators()
    async with serving(coordinators) as client:
        with pytest.raises(InvalidRequest, match="at most 0 plans"):
            await planned(client, 0)
    assert coordinators.asked == []


async def test_every_segment_is_answered_for_itself() -> None:
    coordinators = Coordinators()
    async with serving(coordinators) as client:
        answers = await client.call(COMMIT_SEGMENTS, ROLLED)
    assert [answer.is_duplicate for answer in answers] == [False, True, False]
    assert [type(answer.error) for answer in answers] == [type(None), type(None), UnknownTopicId]
    ((operation, asked),) = coordinators.asked
    assert (operation, list(asked)) == (COMMIT_SEGMENTS_HERE, ROLLED)


async def test_who_may_not_act_on_the_cluster_neither_plans_nor_commits() -> None:
    coordinators = Coordinators()
    async with serving(coordinators, DenyEverything()) as client:
        for operation, asked in ((PLAN_SEGMENTS, PlanSegments(True)), (COMMIT_SEGMENTS, ROLLED)):
            with pytest.raises(ClusterAuthorizationFailed, match="may not ALTER"):
                await client.call(operation, asked)
    assert coordinators.asked == []
