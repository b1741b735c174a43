"""The merge job without Spark: plan, merge, commit and what may go wrong between them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_broker import FakeBroker, FakeCoordinator
from rich.console import Console
from tiering_samples import (
    PARTITION,
    TOPIC_ID,
    PlainMerger,
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)

from metadata.rewrites import COMPACTION, MERGE, RewriteInput, RewritePlan
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs import rewrites
from tiering.jobs.console import print_merges
from tiering.jobs.rewrites import RewriteReport, rewrite_once
from tiering.roll import roll
from tiering.rounds import RunSettings
from wal import failpoint
from wal.coordinates import Offset, TopicIdPartition
from wal.errors import InvalidSettings, NotCoordinator, Rejected, UnknownPartition
from wal.failpoint import FailpointError
from wal.stores.file_store import BlockingFileStore

BATCH = SampleBatch([SampleRecord()] * 10)
OTHER = TopicIdPartition(TOPIC_ID, 4)
PLACE = "file:///place"


@pytest.fixture
def store(tmp_path: Path) -> BlockingFileStore:
    return file_store(tmp_path)


def planned(
    store: BlockingFileStore,
    partition: TopicIdPartition = PARTITION,
    count: int = 3,
    kind: int = MERGE,
) -> RewritePlan:
    inputs = []
    for at in range(count):
        extents = put_wal_object(
            store, f"wal/{partition.partition:02}/{at}", [[BATCH]], base_offset=10 * at
        )
        made = roll(plan_of(extents, partition=partition), store).segment
        inputs.append(
            RewriteInput(
                made.object_key,
                made.object_bytes,
                made.base_offset,
                made.last_offset,
                made.record_count,
                made.max_timestamp_ms,
            )
        )
    return RewritePlan(
        topic_name="flights",
        partition=partition,
        kind=kind,
        generation=1,
        planned_at_ms=0,
        delete_horizon_ms=0,
        producers_since_ms=0,
        target_bytes=512 << 20,
        inputs=inputs,
    )


def coordinator_with(*plans: RewritePlan) -> FakeCoordinator:
    coordinator = FakeCoordinator([])
    coordinator.rewrites = {plan.partition: plan for plan in plans}
    return coordinator


def merged(
    coordinator: FakeCoordinator, store: BlockingFileStore, pauses: list[float] | None = None
) -> RewriteReport:
    sleep = [].append if pauses is None else pauses.append
    with FakeBroker(coordinator, PLACE) as broker:
        return rewrite_once(
            CoordinatorClient(broker.bootstrap),
            MERGE,
            PlainMerger(store),
            run=RunSettings(sleep=sleep),
        )


def test_everything_due_is_merged_and_committed(store: BlockingFileStore) -> None:
    plans = [planned(store), planned(store, OTHER)]
    coordinator = coordinator_with(*plans)
    report = merged(coordinator, store)
    assert [one.segments for one in coordinator.rewritten] == [(one,) for one in report.segments]
    assert (report.input_count, report.record_count, report.failures) == (6, 60, [])
    assert report.input_bytes == sum(one.object_bytes for plan in plans for one in plan.inputs)
    assert coordinator.rewrites == {}


def test_what_failed_is_reported_and_stays_planned_and_the_others_go_on(
    store: BlockingFileStore,
) -> None:
    good, bad = planned(store), planned(store, OTHER)
    store.delete([bad.inputs[1].object_key])
    coordinator = coordinator_with(good, bad)
    report = merged(coordinator, store)
    assert len(report.segments) == 1
    (failure,) = report.failures
    assert bad.inputs[1].object_key in failure.reason
    assert str(failure).startswith("merge flights-4 at offset 0: ObjectNotFound")
    assert coordinator.rewrites == {OTHER: bad}


def test_compactions_are_not_touched_and_crowd_out_nothing(
    store: BlockingFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrites, "PLANS_PER_ROUND", 1)
    stuck = [
        replace(
            planned(store, kind=COMPACTION, count=0), partition=PARTITION._replace(partition=at)
        )
        for at in range(5, 9)
    ]
    coordinator = coordinator_with(*stuck, planned(store), planned(store, OTHER))
    assert len(merged(coordinator, store).segments) == 2
    assert list(coordinator.rewrites.values()) == stuck


def test_a_plan_with_less_than_two_inputs_is_ended(store: BlockingFileStore) -> None:
    coordinator = coordinator_with(planned(store, count=1), planned(store, OTHER, count=0))
    report = merged(coordinator, store)
    assert (report.segments, report.failures) == ([], [])
    assert [one.segments for one in coordinator.rewritten] == [(), ()]


def test_a_topic_that_is_deleted_meanwhile_is_no_failure(store: BlockingFileStore) -> None:
    coordinator = coordinator_with(planned(store), planned(store, OTHER))
    coordinator.rewrites_refused = {PARTITION: UnknownPartition("gone"), OTHER: Rejected("no")}
    report = merged(coordinator, store)
    assert report.segments == []
    assert [failure.title for failure in report.failures] == ["merge flights-4 at offset 0"]


@pytest.mark.parametrize("point", ["merge.before_commit", "merge.after_commit"])
def test_a_job_that_died_is_finished_by_the_next(store: BlockingFileStore, point: str) -> None:
    plan = planned(store)
    coordinator = coordinator_with(plan)
    failpoint.arm(f"{point}=raise")
    try:
        with pytest.raises(FailpointError):
            merged(coordinator, store)
    finally:
        failpoint.arm("")
    assert bool(coordinator.rewrites) == (point == "merge.before_commit")
    merged(coordinator, store)
    (rewrite,) = coordinator.rewritten
    (segment,) = rewrite.segments
    assert (segment.base_offset, segment.last_offset, segment.record_count) == (0, 29, 30)


def test_a_lost_answer_and_a_broker_that_is_away_cost_a_pause(store: BlockingFileStore) -> None:
    coordinator = coordinator_with(planned(store))
    coordinator.raised = [NotCoordinator("elsewhere")]
    pauses: list[float] = []
    assert len(merged(coordinator, store, pauses).segments) == 1
    assert pauses == [0.5]


def test_a_broker_without_an_object_store_is_told(store: BlockingFileStore) -> None:
    coordinator = coordinator_with(planned(store))
    with FakeBroker(coordinator, "") as broker, pytest.raises(InvalidSettings):
        rewrite_once(CoordinatorClient(broker.bootstrap), MERGE, PlainMerger(store))
    with FakeBroker(coordinator, "") as broker:
        rewrite_once(
            CoordinatorClient(broker.bootstrap),
            MERGE,
            PlainMerger(store),
            run=RunSettings(object_store_url=PLACE),
        )
    assert len(coordinator.rewritten) == 1


def test_two_inputs_with_a_hole_between_them_are_a_failure(store: BlockingFileStore) -> None:
    plan = planned(store)
    inputs: Sequence[RewriteInput] = [plan.inputs[0], plan.inputs[2]]
    coordinator = coordinator_with(replace(plan, inputs=inputs))
    (failure,) = merged(coordinator, store).failures
    assert "does not follow" in failure.reason
    assert plan.inputs[0].base_offset == Offset(0)


def test_the_report_of_nothing_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = RewriteReport()
    print_merges(Console(), nothing, 1.0)
    assert capsys.readouterr().out == ""
