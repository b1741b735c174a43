"""PlanSegments and CommitSegments: limits, errors as codes, and requests that do not parse."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from diskless.api.access import Access
from diskless.api.coordinator import segments
from diskless.api.coordinator.segments import commit_segments_handler, plan_segments_handler
from diskless.api.errors import kafka_code
from diskless.authorization import AllowEverything
from diskless.ports import ClientInfo
from diskless.server.registry import MustClose
from metadata.messages.segments import (
    PlanSegmentsRequest,
    PlanSegmentsResponse,
    decode_commit_response,
    decode_plan_response,
    encode_commit_request,
    encode_plan,
    encode_plan_request,
)
from metadata.operations import RolledSegment, SegmentCommit, SegmentPlan, WalExtent
from tests.support.kafka_fakes import DenyEverything
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import CommitOutcomeUnknown, DisklessError, NotCoordinator, UnknownTopicId

ACCESS = Access(AllowEverything())
CLIENT = ClientInfo(1, "tier", "127.0.0.1")
PARTITION = TopicIdPartition(UUID(int=5), 1)
EXTENT = WalExtent(ObjectKey("wal/00/x"), ByteOffset(9), 100, Offset(0), Offset(9), -1, 5, 0, 200)


def plan(number: int) -> SegmentPlan:
    return SegmentPlan(
        partition=PARTITION,
        topic_name="flights",
        object_key=ObjectKey(f"segments/{number:03d}"),
        base_offset=Offset(0),
        last_offset=Offset(9),
        extents=(EXTENT,),
    )


def rolled(number: int) -> RolledSegment:
    return RolledSegment(
        partition=PARTITION,
        object_key=ObjectKey(f"segments/{number:03d}"),
        base_offset=Offset(0),
        last_offset=Offset(9),
        object_bytes=1,
        crc32c=2,
        record_count=10,
        max_timestamp_ms=3,
    )


class Coordinator:
    """Gives `plans`, answers three segments in three ways, or raises `error`."""

    def __init__(self, plans: int = 0, error: DisklessError | None = None) -> None:
        self.plans = tuple(plan(number) for number in range(plans))
        self.error = error
        self.asked: list[bool] = []

    async def plan_segments(self, *, include_partial: bool = False) -> Sequence[SegmentPlan]:
        self.asked.append(include_partial)
        if self.error:
            raise self.error
        return self.plans

    async def commit_segments(self, segments: Sequence[RolledSegment]) -> Sequence[SegmentCommit]:
        if self.error:
            raise self.error
        assert segments == (rolled(0), rolled(1), rolled(2))
        return [
            SegmentCommit(),
            SegmentCommit(is_duplicate=True),
            SegmentCommit(error=UnknownTopicId("deleted")),
        ]


async def ask(coordinator: Coordinator, request: PlanSegmentsRequest) -> PlanSegmentsResponse:
    handler = plan_segments_handler(coordinator, "s3://bucket/prefix", ACCESS)
    return decode_plan_response(await handler(encode_plan_request(request), CLIENT))


async def test_plans_come_with_the_place_of_their_objects() -> None:
    coordinator = Coordinator(plans=3)
    response = await ask(coordinator, PlanSegmentsRequest(True, 2))
    assert response == PlanSegmentsResponse(0, "", "s3://bucket/prefix", coordinator.plans[:2])
    assert coordinator.asked == [True]


@pytest.mark.parametrize(("room", "given"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
async def test_an_answer_ends_between_plans_and_holds_at_least_one(
    monkeypatch: pytest.MonkeyPatch, room: int, given: int
) -> None:
    monkeypatch.setattr(segments, "RESPONSE_BYTES_MAX", room * len(encode_plan(plan(0))))
    response = await ask(Coordinator(plans=3), PlanSegmentsRequest(False, 100))
    assert len(response.plans) == given


async def test_nothing_due_is_an_empty_answer() -> None:
    assert (await ask(Coordinator(), PlanSegmentsRequest(False, 1))).plans == ()


async def test_what_a_coordinator_raises_is_a_code_without_plans() -> None:
    error = NotCoordinator("gone")
    response = await ask(Coordinator(error=error), PlanSegmentsRequest(False, 1))
    assert response == PlanSegmentsResponse(kafka_code(error), "gone", "", ())


async def test_asking_for_no_plans_is_refused() -> None:
    coordinator = Coordinator(plans=1)
    assert (await ask(coordinator, PlanSegmentsRequest(False, 0))).error_code == 42
    assert coordinator.asked == []


async def test_every_segment_is_answered_for_itself() -> None:
    handler = commit_segments_handler(Coordinator(), ACCESS)
    body = encode_commit_request([rolled(0), rolled(1), rolled(2)])
    response = decode_commit_response(await handler(body, CLIENT))
    assert response.error_code == 0
    assert response.results == ((0, "", False), (0, "", True), (100, "deleted", False))


async def test_a_commit_of_unknown_outcome_says_that_it_may_be_repeated() -> None:
    handler = commit_segments_handler(Coordinator(error=CommitOutcomeUnknown("disk")), ACCESS)
    response = decode_commit_response(await handler(encode_commit_request([rolled(0)]), CLIENT))
    assert (response.error_code, response.results) == (7, ())


async def test_who_may_not_act_on_the_cluster_neither_plans_nor_commits() -> None:
    coordinator, access = Coordinator(plans=1), Access(DenyEverything())
    plan_handler = plan_segments_handler(coordinator, "s3://bucket", access)
    body = encode_plan_request(PlanSegmentsRequest(True, 1))
    planned = decode_plan_response(await plan_handler(body, CLIENT))
    assert (planned.error_code, planned.object_store_url, planned.plans) == (31, "", ())
    assert coordinator.asked == []
    commit_handler = commit_segments_handler(Coordinator(error=DisklessError("asked")), access)
    committed = decode_commit_response(
        await commit_handler(encode_commit_request([rolled(0)]), CLIENT)
    )
    assert (committed.error_code, committed.results) == (31, ())


@pytest.mark.parametrize("body", [b"", b"\xff" * 20, b"\x05garbage"])
async def test_a_request_that_does_not_parse_closes_the_connection(body: bytes) -> None:
    coordinator = Coordinator()
    for handler in (
        plan_segments_handler(coordinator, "", ACCESS),
        commit_segments_handler(coordinator, ACCESS),
    ):
        with pytest.raises(MustClose):
            await handler(body, CLIENT)
