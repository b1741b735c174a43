"""Finding the leader of a coordinator: who is asked what, how often, and what an answer means."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self, cast
from uuid import UUID

import pytest

from metadata import operations as ops
from metadata.clients.local_client import LocalClient
from metadata.clients.routed_client import ROUTING_TIMEOUT_S, RoutedClient
from metadata.clients.wire_client import WireClient
from metadata.messages.brokers import PLAN_SEGMENTS_HERE
from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILES_AT
from metadata.messages.coordinator import LIST_OFFSETS
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from tests.support.coordinators.coordinator_bench import batch
from wal.clock import ManualClock
from wal.coordinates import ByteOffset, ObjectKey, TopicIdPartition
from wal.errors import CommitFailed, CommitOutcomeUnknown, DisklessError, NotCoordinator, Rejected

TOPIC = UUID(int=1)


def partition(index: int) -> TopicIdPartition:
    """Partition `index` lives at coordinator `index`."""
    return TopicIdPartition(TOPIC, index)


@dataclass(eq=False)
class Broker:
    """A broker elsewhere, with a script of what it answers to commits and look-ups."""

    host: str
    script: list[DisklessError | None] = field(default_factory=list)
    """What each of the next calls ends with; None and beyond: it works."""
    asked: list[Sequence[TopicIdPartition]] = field(default_factory=list)
    found: ops.FoundBatches = field(default_factory=lambda: ops.FoundBatches(0, 100))
    on_call: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def _next(self, partitions: Sequence[TopicIdPartition]) -> DisklessError | None:
        self.asked.append(partitions)
        self.on_call()
        return self.script.pop(0) if self.script else None

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int
    ) -> Sequence[Any]:
        entries = operation.request.entries(request)
        if operation is PLAN_SEGMENTS_HERE:
            entries = []
        if operation is COMMIT_FILES_AT:
            return self._commit(entries)
        error = self._next([entry.partition for entry in entries])
        if error is not None:
            if isinstance(error, NotCoordinator) and operation is not FIND_BATCHES:
                return [operation.failed(error)] * len(entries)
            raise error
        if operation is LIST_OFFSETS:
            return [ops.ListedOffset(7)] * len(entries)
        if operation is FIND_BATCHES:
            return [self.found] * len(entries)
        return [ops.PlannedSegments([self.host])]  # type: ignore[list-item]

    def _commit(self, files: Sequence[ops.CommitFile]) -> Sequence[ops.CommittedFile]:
        self.owners = files[0].owner_ids
        error = self._next([batch.partition for file in files for batch in file.batches])
        if isinstance(error, Rejected):
            return [ops.CommittedFile(error=error), *map(self._committed, files[1:])]
        if error is not None:
            raise error
        return [*map(self._committed, files)]

    @staticmethod
    def _committed(file: ops.CommitFile) -> ops.CommittedFile:
        return ops.CommittedFile(
            [ops.BatchCommit(batch.partition.partition * 10) for batch in file.batches]
        )


class Followed:
    """Metadata partitions that this process follows, and what its replicas answer."""

    def __init__(self, leaders: Sequence[str | None]) -> None:
        self.partitions = [
            SimpleNamespace(
                index=index,
                coordinator=None,
                leader=None if host is None else self.leader(host),
                is_myself=lambda _: False,
            )
            for index, host in enumerate(leaders)
        ]
        self.found: list[ops.FoundBatches] = []

    @staticmethod
    def leader(host: str) -> ops.Leader:
        return ops.Leader(1, 1, host, 9092, UUID(int=5))

    def coordinator_of(self, asked: TopicIdPartition) -> int:
        return asked.partition

    async def call(
        self, operation: object, message: FindBatchesMessage, *, timeout_ms: int
    ) -> Sequence[ops.FoundBatches]:
        return self.found


def file_of(*indexes: int, key: str = "wal/00/K") -> ops.CommitFile:
    """A file with one batch for each of these partitions."""
    return ops.CommitFile(
        object_key=ObjectKey(key),
        file_size_bytes=1_000,
        uploader_broker_id=1,
        batches=[
            batch(partition(index), 1)._replace(byte_offset=ByteOffset(100 * at))
            for at, index in enumerate(indexes)
        ],
    )


class Cluster:
    """A routed client in the middle of followed partitions and scripted brokers."""

    def __init__(self, *leaders: str | None) -> None:
        self.clock = ManualClock()
        self.brokers = {host: Broker(host) for host in ("a", "b")}
        self.followed = Followed(leaders)
        self.client = RoutedClient(
            cast(LocalClient, self.followed),
            connect=lambda peer: cast(WireClient, self.brokers[peer.host]),
            clock=self.clock,
            rng=random.Random(3),
            sleep=self._sleep,
        )

    async def _sleep(self, delay: float) -> None:
        self.clock.advance(delay)

    def elect(self, index: int, host: str) -> None:
        self.followed.partitions[index].leader = Followed.leader(host)

    async def commit(self, *indexes: int) -> Sequence[ops.BatchCommit]:
        return await self.client.commit_file(file_of(*indexes))


async def test_every_batch_goes_to_the_leader_of_its_coordinator() -> None:
    cluster = Cluster("a", "b")
    results = await cluster.commit(1, 0, 1)
    assert [result.base_offset for result in results] == [10, 0, 10]
    assert cluster.brokers["a"].asked == [[partition(0)]]
    assert cluster.brokers["b"].asked == [[partition(1), partition(1)]]
    assert sorted(cluster.brokers["a"].owners) == [0, 1]
    assert cluster.brokers["a"].owners == cluster.brokers["b"].owners


async def test_who_does_not_lead_any_more_is_not_asked_again_once_another_does() -> None:
    cluster = Cluster("a", "b")
    cluster.brokers["a"].script = [NotCoordinator("b does")]
    cluster.brokers["a"].on_call = lambda: cluster.elect(0, "b")
    results = await cluster.commit(0, 1)
    assert [result.base_offset for result in results] == [0, 10]
    assert sorted(cluster.brokers["b"].asked) == [[partition(0)], [partition(1)]]


@pytest.mark.parametrize(
    "error", [CommitFailed("no connection"), CommitOutcomeUnknown("no answer")]
)
async def test_a_leader_that_does_not_answer_is_replaced_like_a_dead_one(
    error: DisklessError,
) -> None:
    cluster = Cluster("a", "b")
    cluster.brokers["a"].script = [error, error]
    cluster.brokers["a"].on_call = lambda: (
        cluster.elect(0, "b") if len(cluster.brokers["a"].asked) == 2 else None
    )
    results = await cluster.commit(0)
    assert results[0].base_offset == 0


async def test_when_nobody_leads_anything_the_whole_commit_may_be_tried_again() -> None:
    cluster = Cluster(None, None)
    with pytest.raises(NotCoordinator):
        await cluster.commit(0, 1)
    assert cluster.clock.monotonic() >= ROUTING_TIMEOUT_S


async def test_a_coordinator_without_leader_does_not_take_the_others_along() -> None:
    cluster = Cluster("a", None)
    results = await cluster.commit(0, 1)
    assert results[0] == ops.BatchCommit(0)
    assert isinstance(results[1].error, NotCoordinator)
    assert len(cluster.brokers["a"].asked) == 1


async def test_an_outcome_that_is_unknown_does_not_become_a_definite_one() -> None:
    """The second answer says only that the broker does not lead now."""
    cluster = Cluster("a", "b")
    refusals: list[DisklessError | None] = [NotCoordinator("not I")] * 1_000
    cluster.brokers["a"].script = [CommitOutcomeUnknown("no answer"), *refusals]
    with pytest.raises(CommitOutcomeUnknown):
        await cluster.commit(0, 1)


async def test_a_refusal_of_the_whole_object_is_raised() -> None:
    cluster = Cluster("a", "b")
    cluster.brokers["a"].script = [Rejected("other content")]
    with pytest.raises(Rejected):
        await cluster.commit(0)


async def test_files_of_one_commit_are_one_call_to_each_leader_in_their_order() -> None:
    cluster = Cluster("a", "b")
    answers = await cluster.client.commit_files(
        [file_of(0, key="wal/00/K"), file_of(1, 0, key="wal/01/L"), file_of(key="wal/02/M")]
    )
    assert [[commit.base_offset for commit in answer.batches] for answer in answers] == [
        [0],
        [10, 0],
        [],
    ]
    assert cluster.brokers["a"].asked == [[partition(0), partition(0)]]
    assert cluster.brokers["b"].asked == [[partition(1)]]


async def test_a_file_that_one_coordinator_refuses_leaves_the_others() -> None:
    """As a whole where that one has all of it, else those of its batches that it has."""
    cluster = Cluster("a", "b")
    for first in (file_of(0, key="wal/00/K"), file_of(1, 0, key="wal/00/K")):
        cluster.brokers["a"].script = [Rejected("other content")]
        refused, done = await cluster.client.commit_files([first, file_of(0, key="wal/01/L")])
        if len(first.batches) == 1:
            assert isinstance(refused.error, Rejected)
        else:
            assert refused.error is None
            assert refused.batches[0] == ops.BatchCommit(10)
            assert isinstance(refused.batches[1].error, Rejected)
        assert done == ops.CommittedFile([ops.BatchCommit(0)])


async def test_files_of_a_coordinator_without_leader_do_not_take_the_others_along() -> None:
    cluster = Cluster("a", None)
    done, left = await cluster.client.commit_files([file_of(0), file_of(1, key="wal/01/L")])
    assert done == ops.CommittedFile([ops.BatchCommit(0)])
    assert left.error is None
    assert isinstance(left.batches[0].error, NotCoordinator)


async def test_a_strict_read_asks_the_leader() -> None:
    cluster = Cluster("a", "b")
    (listed,) = await cluster.client.list_offsets([ops.ListOffsets(partition(1), -1)])
    assert listed.offset == 7
    assert cluster.brokers["b"].asked == [[partition(1)]]


async def test_a_follower_answers_what_it_knows_without_asking() -> None:
    cluster = Cluster("a")
    cluster.followed.found = [ops.FoundBatches(0, 50)]
    assert await find(cluster, 50) == ops.FoundBatches(0, 50)
    assert cluster.brokers["a"].asked == []


async def find(cluster: Cluster, offset: int) -> ops.FoundBatches:
    (found,) = await cluster.client.find_batches(
        [ops.FindBatches(partition(0), offset, 1_000)], max_bytes=1_000
    )
    return found


async def test_an_offset_that_a_follower_has_not_heard_of_is_asked_of_the_leader() -> None:
    cluster = Cluster("a")
    cluster.followed.found = [ops.FoundBatches(0, 50)]
    assert await find(cluster, 60) == cluster.brokers["a"].found


@pytest.mark.parametrize("error", [CommitFailed("gone"), NotCoordinator("not I")])
async def test_without_a_leader_a_follower_is_behind_but_never_out_of_range(
    error: DisklessError,
) -> None:
    cluster = Cluster("a")
    cluster.followed.found = [ops.FoundBatches(0, 50)]
    cluster.brokers["a"].script = [error]
    assert await find(cluster, 60) == ops.FoundBatches(0, 50)
    assert len(cluster.brokers["a"].asked) == 1, "a read does not wait for an election"


async def test_a_partition_that_a_follower_does_not_know_is_asked_of_the_leader() -> None:
    cluster = Cluster("a")
    cluster.followed.found = [ops.FoundBatches(error=NotCoordinator("not known here"))]
    assert await find(cluster, 0) == cluster.brokers["a"].found


async def test_segments_are_planned_by_every_coordinator_that_can_be_reached() -> None:
    cluster = Cluster("a", "b", "a", None)
    assert [*map(str, await cluster.client.plan_segments())] == ["a", "b"]
    cluster.brokers["a"].script = [CommitFailed("away")]
    assert [*map(str, await cluster.client.plan_segments())] == ["b"]


async def test_when_no_coordinator_plans_segments_that_is_an_error() -> None:
    cluster = Cluster("a", None)
    cluster.brokers["a"].script = [CommitFailed("away")]
    with pytest.raises(DisklessError):
        await cluster.client.plan_segments()
