"""`diskless tier` without Spark: exit status, output, and passes that repeat."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
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

from metadata.operations import AbortedTransaction, PlanSegments, SegmentPlan
from tests.support.chunks.batch_builder import seal
from tests.support.tiers.compacted import LocalCompactor
from tiering.jobs import command
from tiering.jobs.command import tier
from tiering.jobs.statistics import OTHERS, TOPICS_MAX, TierStatistics
from tiering.jobs.stopping import Stop
from tiering.roll import Rolled, roll
from tiering.rounds import Done, Failed, Failure, Sizes, Written
from wal.clock import SystemClock
from wal.errors import CommitFailed, NotCoordinator, Rejected


class PlainWorker:
    """Writes in this process; fails the segments it is told to."""

    def __init__(self, directory: Path) -> None:
        store = file_store(directory)
        self.roller = PlainRoller(store)
        self.merge = PlainMerger(store)
        self.compact = LocalCompactor()
        self.fails = 0
        self.is_alive = True
        self.while_rolling: Callable[[], None] = lambda: None

    def __enter__(self) -> "PlainWorker":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
    ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
        self.while_rolling()
        failed = [Failed(plan, "CorruptObject: [bold]wal/00") for plan in plans[: self.fails]]
        return [*failed, *self.roller(plans[self.fails :], object_store_url, done)]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlainWorker:
    worker = PlainWorker(tmp_path)
    monkeypatch.setattr(
        command, "_worker_class", lambda: lambda master, remote, spark_settings, registry: worker
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


def test_what_was_aborted_is_told_of_and_left_out(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_7 = SampleBatch([SampleRecord()] * 2, producer_id=7, transaction_number=1)
    of_8 = of_7._replace(producer_id=8)
    plain = SampleBatch([SampleRecord()] * 3, producer_id=7)
    extents = put_wal_object(file_store(tmp_path), "wal/00/0", [[of_7, of_8, plain, of_7, of_7]])
    # The marker at 11 ends what producer 7 began at 0; another one begins at 12, and is committed.
    behind = put_wal_object(file_store(tmp_path), "wal/00/1", [[of_7]], base_offset=12)
    aborted = [AbortedTransaction(7, 0, 11), AbortedTransaction(8, 50, 60)]
    plan = plan_of([*extents, *behind])
    plan = replace(plan, markers=[11], aborted=aborted)
    coordinator = FakeCoordinator([plan])
    with FakeBroker(coordinator, "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap) == 0
    (segment,) = coordinator.committed.values()
    counts = (segment.record_count, segment.control_count, segment.aborted_count)
    assert counts == (7, 1, 6)
    rows = pq.read_table(tmp_path / segment.object_key, partitioning=None, columns=["offset"])
    assert rows.column("offset").to_pylist() == [2, 3, 4, 5, 6, 12, 13]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "records of aborted transactions, left out │ 6" in lines


@pytest.mark.parametrize("markers", [[], [4], [5, 6], [5, 5]])
def test_a_plan_whose_markers_do_not_fit_between_its_extents_fails(
    tmp_path: Path, markers: list[int]
) -> None:
    store = file_store(tmp_path)
    batch = SampleBatch([SampleRecord()] * 5)
    extents = [
        extent
        for at in (0, 6)
        for extent in put_wal_object(store, f"wal/00/{at}", [[batch]], base_offset=at)
    ]
    plan = replace(plan_of(extents), markers=markers)
    with pytest.raises(Rejected, match="planned extents"):
        roll(plan, store)
    assert roll(replace(plan, markers=[5]), store).segment.control_count == 1


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


class Ending(Stop):
    """Is asked after so many pauses, which take no time."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.left = passes
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.left -= 1
        if not self.left:
            self.ask()


def test_passes_follow_each_other_while_there_is_work_and_back_off_when_there_is_none(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = coordinator_with(tmp_path, 1)
    stop = Ending(7)
    statistics = TierStatistics(SystemClock())
    with FakeBroker(coordinator, "file:///place") as broker:
        status = tier(
            bootstrap=broker.bootstrap,
            once=False,
            interval_s=7.0,
            stop=stop,
            statistics=statistics,
        )
    assert status == 0
    assert stop.pauses == [1.0, 2.0, 4.0, 7.0, 7.0, 7.0, 7.0]
    assert (statistics.figures.passes, statistics.figures.problem) == ({"done": 7, "failed": 0}, "")
    assert capsys.readouterr().out.count("bytes as Parquet") == 1, "passes without work say nothing"


def test_passes_that_roll_whatever_came_keep_to_the_interval(
    worker: PlainWorker, tmp_path: Path
) -> None:
    stop = Ending(2)
    asked = PlanSegments(include_partial=True)
    with FakeBroker(coordinator_with(tmp_path, 1), "file:///place") as broker:
        tier(bootstrap=broker.bootstrap, once=False, interval_s=7.0, stop=stop, asked=asked)
    assert stop.pauses == [7.0, 7.0]


def test_passes_outlive_a_broker_that_is_away(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = coordinator_with(tmp_path, 1)
    coordinator.raised = [NotCoordinator("elsewhere")] * 6
    stop = Ending(2)
    tries: list[float] = []
    statistics = TierStatistics(SystemClock())
    with FakeBroker(coordinator, "file:///place") as broker:
        tier(
            bootstrap=broker.bootstrap,
            once=False,
            interval_s=7.0,
            sleep=tries.append,
            stop=stop,
            statistics=statistics,
        )
    assert (tries, stop.pauses) == ([0.5, 1, 2, 4, 8], [2.0, 1.0])
    assert len(coordinator.committed) == 1
    assert statistics.figures.passes == {"done": 1, "failed": 1}
    assert "this pass failed, the next one tries again" in capsys.readouterr().out


def test_what_failed_is_counted_by_topic_and_makes_the_pass_a_failed_one(
    worker: PlainWorker, tmp_path: Path
) -> None:
    worker.fails = 1
    statistics = TierStatistics(SystemClock())
    with FakeBroker(coordinator_with(tmp_path, 3), "file:///place") as broker:
        tier(bootstrap=broker.bootstrap, once=False, stop=Ending(1), statistics=statistics)
    figures = statistics.figures
    assert figures.failures == {("roll", "flights"): 1}
    assert (figures.passes["failed"], figures.problem) == (1, "1 that were due failed")
    rolled = figures.jobs["roll"]
    assert (rolled.committed, rolled.record_count) == (2, 2000)
    assert rolled.input_bytes > 0 < rolled.output_bytes


@pytest.mark.parametrize("once", [True, False])
def test_a_signal_ends_the_job_behind_the_commit_under_way(
    worker: PlainWorker, tmp_path: Path, once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = coordinator_with(tmp_path, 1)
    worker.while_rolling = lambda: signal.raise_signal(signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with FakeBroker(coordinator, "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap, once=once) == 0
    assert len(coordinator.committed) == 1
    assert coordinator.asked == ["plan", "commit"], "nothing was begun any more"
    assert "ending behind the commit under way" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    script = f"""
import signal
from tiering.jobs.stopping import Stop, signals_ask
with signals_ask(Stop(), lambda: print("asked", flush=True)):
    signal.raise_signal({number:d})
    print("goes on", flush=True)
    signal.raise_signal({number:d})
    print("too far")
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert (ended.stdout, ended.returncode) == (b"asked\ngoes on\n", -number)


def test_a_job_whose_spark_is_gone_ends_with_status_1(
    worker: PlainWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.is_alive = False
    with FakeBroker(coordinator_with(tmp_path, 0), "file:///place") as broker:
        assert tier(bootstrap=broker.bootstrap, once=False) == 1
    assert "Spark is gone" in capsys.readouterr().out


def test_topics_have_a_bounded_number_of_labels() -> None:
    statistics = TierStatistics(SystemClock())
    for number in range(TOPICS_MAX + 50):
        statistics.failed("merge", Failure(f"t{number}", "merge", "why"))
        statistics.committed("roll", [Sizes(f"t{number}", 1, 1, 1, oldest_ms=0)])
    figures = statistics.figures
    assert len(figures.failures) == TOPICS_MAX + 1
    assert figures.failures["merge", OTHERS] == 50
    assert len(figures.rolled_lag_s) == TOPICS_MAX
    assert f"t{TOPICS_MAX + 49}" in figures.rolled_lag_s


def test_with_once_a_broker_that_is_away_is_the_callers_to_tell(
    worker: PlainWorker, tmp_path: Path
) -> None:
    pauses: list[Any] = []
    with pytest.raises(CommitFailed):
        tier(bootstrap="127.0.0.1:1", sleep=pauses.append)
    assert len(pauses) == 5
