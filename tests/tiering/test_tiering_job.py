"""The job without Spark: plan, roll, commit and what may go wrong between them."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_broker import COMMIT, PLAN, FakeBroker, FakeCoordinator
from tiering_samples import (
    TOPIC_ID,
    PlainRoller,
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)

from metadata.operations import PlanSegments, SegmentPlan
from tiering.coordinator_client import ATTEMPTS_MAX, CoordinatorClient, parse_bootstrap
from tiering.jobs.rolls import RollReport, roll_once
from tiering.roll import Rolled
from tiering.rounds import Done, Failed, RunSettings, Written
from wal import failpoint
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, InvalidSettings, NotCoordinator, Rejected, UnknownTopicId
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import BytesBody

EVERYTHING = PlanSegments(include_partial=True)
BATCH = SampleBatch([SampleRecord()] * 10)


@pytest.fixture
def store(tmp_path: Path) -> BlockingFileStore:
    return file_store(tmp_path)


def plans_for(store: BlockingFileStore, count: int) -> list[SegmentPlan]:
    return [
        plan_of(put_wal_object(store, f"wal/00/{at}", [[BATCH]], base_offset=10 * at))
        for at in range(count)
    ]


def roll_plainly(broker: FakeBroker, roller: PlainRoller, **more: Any) -> RollReport:
    return roll_once(CoordinatorClient(broker.bootstrap), roller, **more)


def no_sleep(seconds: float) -> None:
    pass


def test_everything_due_is_rolled_and_committed_in_one_call(store: BlockingFileStore) -> None:
    coordinator = FakeCoordinator(plans_for(store, 5))
    roller = PlainRoller(store)
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_plainly(broker, roller)
    assert list(coordinator.committed.values()) == report.segments
    assert (len(report.segments), report.record_count, report.failures) == (5, 50, [])
    assert report.input_bytes == 5 * len(BATCH.encoded())
    assert (coordinator.asked, roller.urls) == ([PLAN, COMMIT, PLAN], ["file:///place"])


def test_partial_segments_are_asked_for_once(store: BlockingFileStore) -> None:
    plans = plans_for(store, 3)
    coordinator = FakeCoordinator(plans[:1], partial=plans[1:])
    with FakeBroker(coordinator, "file:///place") as broker:
        assert len(roll_plainly(broker, PlainRoller(store)).segments) == 1
        report = roll_once(
            CoordinatorClient(broker.bootstrap), PlainRoller(store), asked=EVERYTHING
        )
        assert len(report.segments) == 2
        # Plan, commit, plan that finds nothing more; twice.
        assert coordinator.asked == [PLAN, COMMIT, PLAN] * 2


def partition_plan(store: BlockingFileStore, number: int, base: int = 0) -> SegmentPlan:
    key = f"wal/{number:02x}/{base}"
    partition = TopicIdPartition(TOPIC_ID, number)
    return plan_of(put_wal_object(store, key, [[BATCH]], base_offset=base), partition=partition)


def test_the_rests_of_more_partitions_than_are_planned_at_a_time_are_all_rolled(
    store: BlockingFileStore,
) -> None:
    rests = [partition_plan(store, number) for number in range(7)]
    rests.insert(4, partition_plan(store, 3, base=10))
    coordinator = FakeCoordinator([], partial=rests, outstanding_max=3)
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_once(
            CoordinatorClient(broker.bootstrap), PlainRoller(store), asked=EVERYTHING
        )
    assert len(report.segments) == 8


def test_producers_that_go_on_do_not_keep_the_job_going(store: BlockingFileStore) -> None:
    endless = (
        partition_plan(store, number, base=10 * batch)
        for batch in itertools.count()
        for number in range(2)
    )
    coordinator = FakeCoordinator([], partial=endless, outstanding_max=2)
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_once(
            CoordinatorClient(broker.bootstrap), PlainRoller(store), asked=EVERYTHING
        )
    assert len(report.segments) == 4


def test_a_plan_that_cannot_be_rolled_fails_alone(store: BlockingFileStore) -> None:
    plans = plans_for(store, 3)
    store.delete([plans[1].extents[0].object_key])
    store.put(plans[1].extents[0].object_key, BytesBody(bytes(300)))
    coordinator = FakeCoordinator(plans)
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_plainly(broker, PlainRoller(store))
    assert [failure.title for failure in report.failures] == [plans[1].object_key]
    assert "CorruptObject: wal/00/1" in report.failures[0].reason
    assert set(coordinator.committed) == {plans[0].object_key, plans[2].object_key}


@pytest.mark.crash
@pytest.mark.parametrize("point", ["roll.before_commit", "roll.after_commit"])
def test_a_driver_killed_around_its_commit_is_finished_by_the_next(
    store: BlockingFileStore, tmp_path: Path, point: str
) -> None:
    coordinator = FakeCoordinator(plans_for(store, 2))
    with FakeBroker(coordinator, "file:///place") as broker:
        script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from tiering_samples import PlainRoller, Path, file_store
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import roll_once
from wal import failpoint
failpoint.arm_from_environment()
roll_once(CoordinatorClient({broker.bootstrap!r}), PlainRoller(file_store(Path({str(tmp_path)!r}))))
"""
        killed = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {failpoint.ENVIRONMENT_VARIABLE: f"{point}=kill"},
            check=False,
            capture_output=True,
            timeout=240,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        assert len(coordinator.committed) == (2 if point == "roll.after_commit" else 0)
        roll_plainly(broker, PlainRoller(store))
    assert len(coordinator.committed) == 2
    assert not coordinator.plans
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_a_lost_answer_to_a_commit_is_asked_for_again(store: BlockingFileStore) -> None:
    coordinator = FakeCoordinator(plans_for(store, 2))

    class Losing(PlainRoller):
        def __call__(
            self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
        ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
            coordinator.answers_lost = 2
            return super().__call__(plans, object_store_url, done)

    pauses: list[float] = []
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_plainly(broker, Losing(store), run=RunSettings(sleep=pauses.append))
    assert len(report.segments) == 2
    assert coordinator.asked == [PLAN, COMMIT, COMMIT, COMMIT, PLAN]
    assert coordinator.duplicates == 4
    assert pauses == [0.5, 1.0]


def test_a_coordinator_that_moves_is_waited_for(store: BlockingFileStore) -> None:
    coordinator = FakeCoordinator(plans_for(store, 1))
    coordinator.raised = [NotCoordinator("elsewhere"), CommitFailed("disk")]
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_plainly(broker, PlainRoller(store), run=RunSettings(sleep=no_sleep))
    assert len(report.segments) == 1


def test_a_refusal_is_not_repeated(store: BlockingFileStore) -> None:
    coordinator = FakeCoordinator(plans_for(store, 1))
    coordinator.raised = [Rejected("never")]
    with (
        FakeBroker(coordinator, "file:///place") as broker,
        pytest.raises(Rejected, match="never"),
    ):
        roll_plainly(broker, PlainRoller(store), run=RunSettings(sleep=no_sleep))
    assert coordinator.asked == [PLAN]


def test_segments_of_a_deleted_topic_are_no_failure(store: BlockingFileStore) -> None:
    plans = plans_for(store, 2)
    coordinator = FakeCoordinator(plans)
    coordinator.refused = {plans[0].object_key: UnknownTopicId("deleted")}
    with FakeBroker(coordinator, "file:///place") as broker:
        report = roll_plainly(broker, PlainRoller(store))
    assert ([one.object_key for one in report.withdrawn], report.failures) == (
        [plans[0].object_key],
        [],
    )
    assert [segment.object_key for segment in report.segments] == [plans[1].object_key]


def test_an_overriding_url_wins(store: BlockingFileStore) -> None:
    roller = PlainRoller(store)
    with FakeBroker(FakeCoordinator(plans_for(store, 1)), "") as broker:
        with pytest.raises(InvalidSettings, match="names no object store"):
            roll_plainly(broker, roller)
        roll_plainly(broker, roller, run=RunSettings(object_store_url="s3://elsewhere/"))
    assert roller.urls == ["s3://elsewhere/"]


def test_no_broker_is_said_after_a_bounded_number_of_attempts(store: BlockingFileStore) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    pauses: list[float] = []
    with pytest.raises(CommitFailed, match=address):
        roll_once(
            CoordinatorClient(address), PlainRoller(store), run=RunSettings(sleep=pauses.append)
        )
    assert len(pauses) == ATTEMPTS_MAX - 1


@pytest.mark.parametrize("bootstrap", ["", "host", "host:", ":9092", "host:x", "host:0", "a:1,b"])
def test_a_bad_bootstrap_address_is_named(bootstrap: str) -> None:
    with pytest.raises(InvalidSettings, match="must be host:port"):
        parse_bootstrap(bootstrap)


def test_bootstrap_addresses_are_tried_in_order(store: BlockingFileStore) -> None:
    assert parse_bootstrap("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    with FakeBroker(FakeCoordinator([]), "file:///place") as broker:
        report = roll_once(CoordinatorClient(f"{dead},{broker.bootstrap}"), PlainRoller(store))
    assert report.segments == []
