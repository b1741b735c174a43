"""`diskless tier` without Spark: exit status, output, and passes that repeat."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker, FakeCoordinator
from tiering_samples import (
    PlainMerger,
    PlainRoller,
    PreparedBatch,
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)

from metadata.operations import SegmentPlan
from tests.support.batch_builder import seal
from tests.support.compacted import LocalCompactor
from tiering.jobs import command
from tiering.jobs.command import tier
from tiering.jobs.rounds import Done, Failed, Written
from tiering.roll import Rolled
from wal.errors import CommitFailed, NotCoordinator


class PlainWorker:
    """Writes in this process; fails the segments it is told to."""

    def __init__(self, directory: Path) -> None:
        store = file_store(directory)
        self.roller = PlainRoller(store)
        self.merge = PlainMerger(store)
        self.compact = LocalCompactor()
        self.fails = 0

    def __enter__(self) -> "PlainWorker":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
    ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
        failed = [Failed(plan, "CorruptObject: [bold]wal/00") for plan in plans[: self.fails]]
        return [*failed, *self.roller(plans[self.fails :], object_store_url, done)]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainWorker:
    worker = PlainWorker(tmp_path)
    monkeypatch.setattr(
        command, "_worker_class", lambda: lambda master, spark_settings, registry: worker
    )
    return worker


def coordinator_with(directory: Path, count: int) -> FakeCoordinator:
    store = file_store(directory)
    batch = SampleBatch([SampleRecord()] * 1000)
    return FakeCoordinator(
        plan_of(put_wal_object(store, f"wal/00/{at}", [[batch]], base_offset=1000 * at))
        for at in range(count)
    )


def test_success_is_status_0_and_a_summary(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeBroker(coordinator_with(tmp_path, 3), "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["rolling: 3 due", "rolling: 3 committed"]
    assert "segments │ 3" in lines
    assert "records │ 3,000" in lines
    assert "failed │ 0" in lines
    assert not any("kept as sent" in line for line in lines)


def test_a_batch_that_cannot_be_decoded_is_told_of_and_is_no_failure(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = SampleBatch([SampleRecord()] * 2)
    poison = PreparedBatch([SampleRecord()] * 3, seal(b"\xff" * 50, record_count=3))
    extents = put_wal_object(file_store(tmp_path), "wal/00/0", [[good, poison, good, poison]])
    coordinator = FakeCoordinator([plan_of(extents)])
    with FakeBroker(coordinator, "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    assert len(coordinator.committed) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "records │ 10" in lines
    assert "batches not decodable, kept as sent │ 2" in lines
    assert "failed │ 0" in lines


def test_nothing_due_is_a_success_too(worker: PlainWorker) -> None:
    with FakeBroker(FakeCoordinator([]), "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    assert worker.roller.urls == []


def test_a_segment_that_failed_is_status_1_and_a_line(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.fails = 1
    coordinator = coordinator_with(tmp_path, 2)
    with FakeBroker(coordinator, "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 1
    assert len(coordinator.committed) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert failed[0].endswith(".parquet: CorruptObject: [bold]wal/00")


class Enough(Exception):
    """Ends a job that would go on for ever."""


def test_without_once_the_passes_repeat_and_outlive_a_broker_that_is_away(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = coordinator_with(tmp_path, 1)
    coordinator.raised = [NotCoordinator("elsewhere")] * 6
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if pauses.count(7.0) == 2:
            raise Enough

    with FakeBroker(coordinator, "file:///place") as broker, pytest.raises(Enough):
        tier(bootstrap=broker.bootstrap, once=False, interval_s=7.0, sleep=sleep)
    assert pauses == [0.5, 1, 2, 4, 8, 7.0, 7.0]
    assert len(coordinator.committed) == 1
    assert "this pass failed, the next one tries again" in capsys.readouterr().out


def test_with_once_a_broker_that_is_away_is_the_callers_to_tell(
    worker: PlainWorker, tmp_path: Path
) -> None:
    pauses: list[Any] = []
    with pytest.raises(CommitFailed):
        tier(bootstrap="127.0.0.1:1", sleep=pauses.append)
    assert len(pauses) == 5
