"""ReadTopic, ReadExtents and ReadOffsets on a broker's listener: answers, limits, rights."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from diskless.api import RunningOperations, reader_apis
from diskless.api.coordinator import reading
from diskless.authorization import AllowEverything, Authorizer
from diskless.replica.timestamp_search import TimestampSearch
from diskless.server.registry import ApiRegistry
from metadata.clients.coordinator_client import Coordinator
from metadata.clients.wire_client import WireClient
from metadata.messages.codec import Operation
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.readers import OF_A_READER, READ_EXTENTS, READ_OFFSETS, READ_TOPIC
from metadata.operations import (
    EARLIEST_TIMESTAMP,
    FindBatches,
    FoundBatches,
    ListedOffset,
    ListOffsets,
    ReadableTopic,
    SegmentExtent,
    TopicColumns,
    TopicDescription,
)
from tests.support.brokers.kafka_fakes import DenyEverything, running_broker
from wal.clock import SystemClock
from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import OffsetOutOfRange, Rejected, UnknownPartition

TOPIC = TopicDescription(
    topic_id=UUID(int=5), name="flights", partition_count=2, configs={"retention.ms": "7"}
)
PARTITION = TopicIdPartition(TOPIC.topic_id, 0)
OTHER = TopicIdPartition(TOPIC.topic_id, 1)
SEGMENTS = 20
MAX = 2**31 - 1


class Coordinators(Coordinator):
    """Each partition has segments of ten records, and one look-up gives one of them."""

    def __init__(self) -> None:
        self.look_ups = 0

    def topics(self) -> Mapping[str, TopicDescription]:
        return {TOPIC.name: TOPIC}

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return TOPIC if topic_id == TOPIC.topic_id else None

    def topic_columns(self, topic_id: UUID) -> TopicColumns:
        return TopicColumns(3, b"configs", b"columns")

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int = 0
    ) -> Sequence[Any]:
        if operation is not FIND_BATCHES:
            return [ListedOffset(10 * partition, -1) for (_, partition), _ in request]
        self.look_ups += 1
        ((_, offset, _),) = request.requests
        if offset > 10 * SEGMENTS:
            return [FoundBatches(0, 10 * SEGMENTS, (), OffsetOutOfRange("beyond"))]
        extents = [segment(offset)] if offset < 10 * SEGMENTS else []
        return [FoundBatches(0, 10 * SEGMENTS, extents)]


def segment(offset: int) -> SegmentExtent:
    base = offset - offset % 10
    return SegmentExtent(ObjectKey(f"segments/{base}"), 9, Offset(base), Offset(base + 9), 1)


@asynccontextmanager
async def serving(
    coordinators: Coordinators, authorizer: Authorizer | None = None
) -> AsyncIterator[WireClient]:
    search: Any = TimestampSearch
    async with RunningOperations() as running:
        apis = ApiRegistry(
            reader_apis(
                coordinators, search, "s3://bucket", running, authorizer or AllowEverything()
            )
        )
        async with running_broker(apis=apis) as broker:
            address = broker.server.address
            async with WireClient(*address, clock=SystemClock(), rng=random.Random(1)) as client:
                yield client


def asked(*offsets: tuple[TopicIdPartition, int], extents_max: int = MAX) -> FindBatchesMessage:
    return FindBatchesMessage([FindBatches(*item, 0) for item in offsets], MAX, extents_max)


async def test_a_topic_is_told_with_the_place_of_its_objects_and_an_unknown_one_is_an_error() -> (
    None
):
    async with serving(Coordinators()) as client:
        known, unknown = await client.call(READ_TOPIC, ["flights", "flight"])
    assert known == ReadableTopic(
        topic_id=TOPIC.topic_id,
        partition_count=2,
        configs=TOPIC.configs,
        object_store_url="s3://bucket",
        columns=b"columns",
    )
    assert isinstance(unknown, UnknownPartition)
    assert "no topic 'flight'" in str(unknown)


async def test_extents_are_counted_and_not_weighed() -> None:
    async with serving(Coordinators()) as client:
        one, other = await client.call(READ_EXTENTS, asked((PARTITION, 15), (OTHER, 190)))
        (few,) = await client.call(READ_EXTENTS, asked((PARTITION, 0), extents_max=3))
        at_end, beyond = await client.call(READ_EXTENTS, asked((OTHER, 200), (OTHER, 201)))
    assert one.extents == [segment(10 * at) for at in range(1, SEGMENTS)]
    assert other.extents == [segment(190)]
    assert few.extents == [segment(0), segment(10), segment(20)]
    assert (few.log_start_offset, few.high_watermark) == (0, 10 * SEGMENTS)
    assert (at_end.extents, at_end.error) == ([], None)
    assert isinstance(beyond.error, OffsetOutOfRange)


@pytest.mark.parametrize("limit", ["EXTENTS_MAX", "LOOK_UPS_MAX"])
async def test_an_answer_has_limits_and_what_came_too_late_is_to_be_asked_again(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(reading, limit, 25)
    coordinators = Coordinators()
    requests = asked((PARTITION, 0), (OTHER, 0), (PARTITION, 0))
    async with serving(coordinators) as client:
        whole, part, none = await client.call(READ_EXTENTS, requests)
    assert (len(whole.extents), len(part.extents)) == (SEGMENTS, 5)
    assert none == FoundBatches(extents=[])
    assert coordinators.look_ups == 25


async def test_offsets_are_told() -> None:
    async with serving(Coordinators()) as client:
        requests = [ListOffsets(partition, EARLIEST_TIMESTAMP) for partition in (PARTITION, OTHER)]
        answers = await client.call(READ_OFFSETS, requests)
    assert [answer.offset for answer in answers] == [0, 10]


async def test_who_may_not_read_a_topic_is_told_nothing_of_it() -> None:
    requests: list[Any] = [
        ["flights"],
        asked((PARTITION, 0)),
        [ListOffsets(PARTITION, EARLIEST_TIMESTAMP)],
    ]
    async with serving(Coordinators(), DenyEverything()) as client:
        for operation, request in zip(OF_A_READER, requests, strict=True):
            with pytest.raises(Rejected, match="may not READ this topic"):
                await client.call(operation, request)
