"""`diskless tier` without Spark: exit status, output, and passes that repeat."""

from collections.abc import Callable, Sequence
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
from tiering import command
from tiering.command import tier
from tiering.job import RollResult
from wal.errors import CommitFailed, NotCoordinator


class ManagedRoller(PlainRoller):
    """A plain roller that is entered and left as the Spark one is; fails the plans it is told."""

    fails: int = 0

    def __enter__(self) -> "ManagedRoller":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Callable[[int], None]
    ) -> Sequence[RollResult]:
        results = super().roll(plans[self.fails :], object_store_url, done)
        return [
            *(
                RollResult(plan, None, "CorruptObject: [bold]wal/00")
                for plan in plans[: self.fails]
            ),
            *results,
        ]


@pytest.fixture
def roller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedRoller:
    roller = ManagedRoller(file_store(tmp_path))
    monkeypatch.setattr(
        command,
        "_spark_classes",
        lambda: (
            lambda master, spark_settings, registry: roller,
            lambda spark: PlainMerger(spark.store),
            lambda spark: LocalCompactor(),
        ),
    )
    return roller


def coordinator_with(directory: Path, count: int) -> FakeCoordinator:
    store = file_store(directory)
    batch = SampleBatch([SampleRecord()] * 1000)
    return FakeCoordinator(
        plan_of(put_wal_object(store, f"wal/00/{at}", [[batch]], base_offset=1000 * at))
        for at in range(count)
    )


def test_success_is_status_0_and_a_summary(
    roller: ManagedRoller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeBroker(coordinator_with(tmp_path, 3), "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["3 segments are due, 3,000 records", "3 segments committed"]
    assert "segments │ 3" in lines
    assert "records │ 3,000" in lines
    assert "failed │ 0" in lines
    assert not any("kept as sent" in line for line in lines)


def test_a_batch_that_cannot_be_decoded_is_told_of_and_is_no_failure(
    roller: ManagedRoller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_nothing_due_is_a_success_too(roller: ManagedRoller) -> None:
    with FakeBroker(FakeCoordinator([]), "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    assert roller.urls == []


def test_a_segment_that_failed_is_status_1_and_a_line(
    roller: ManagedRoller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roller.fails = 1
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
    roller: ManagedRoller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    roller: ManagedRoller, tmp_path: Path
) -> None:
    pauses: list[Any] = []
    with pytest.raises(CommitFailed):
        tier(bootstrap="127.0.0.1:1", sleep=pauses.append)
    assert len(pauses) == 5
