"""The groups of producers and consumers measure what they say, on little."""

import sqlite3
from pathlib import Path

import pytest

from bench.speed import client_limits, durable_limits
from bench.speed.client_limits import measure_limits
from bench.speed.durable_limits import measure_durable_limits
from bench.speed.latency import ACK_ROWS, ack_waits, raw_waits
from bench.speed.object_floor import BATCH_BYTES, BATCHES, ObjectFloor
from bench.speed.object_steps import steps_ms
from bench.speed.puts import most_in_a_second, written_at
from bench.speed.sink import durable_sink
from bench.speed.slopes import Point, measure_batches, measure_objects, slope
from bench.speed.small_objects import large_steps_s_per_gib
from bench.speed.throughput import ROWS, SINK_ROWS, measure_produce
from bench.speed.workers import measure_round
from bench.tools.broker import BenchBroker
from bench.tools.machine import sample, stolen_share
from bench.tools.report import Report

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the bench find its packages, and its directories are the test's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


def test_every_producer_on_a_busy_and_an_idle_disk() -> None:
    runs, resident_mib = measure_produce(rounds=1, busy_bytes=1 << 20, scale=0.004)
    names = {f"{row.name}{disk}" for row in ROWS for disk in ("", "_idle")}
    figures = {f"{name}_{unit}" for name in names for unit in ("mb_per_s", "core_s_per_gib")}
    assert set(runs) == {*SINK_ROWS, *figures}
    assert all(len(each) == 1 for each in (*runs.values(), resident_mib))
    assert all(runs[key][0] > 0 for key in runs if key.endswith("mb_per_s"))


def test_the_steps_of_small_and_large_objects_by_one_thread(tmp_path: Path) -> None:
    small = steps_ms(tmp_path, objects=2, partitions=2, batch_bytes=1 << 10, warm_up=1)
    large = large_steps_s_per_gib(1)
    assert set(small) == set(large)
    assert all(taken > 0 for taken in (*small.values(), *large.values()))


def test_the_machine_is_measured_by_work_that_never_changes() -> None:
    first = sample()
    assert min(first[:3]) > 0
    then = first._replace(wanted_s=first.wanted_s + 2.0, stolen_s=first.stolen_s + 0.5)
    assert stolen_share(first, then) == pytest.approx(0.25)
    assert stolen_share(first, first) == 0


def test_a_client_waits_for_answers_that_come_late() -> None:
    limits = measure_limits(20, scale=0.02, paced_s=0.4)
    assert set(limits.mb_per_s) == {row.name for row in client_limits.ROWS}
    assert all(mb_per_s > 0 for mb_per_s in limits.mb_per_s.values())
    assert all(p50_ms >= 20 for p50_ms in limits.p50_ms.values())


def test_a_server_that_does_the_durable_work_alone_and_a_broker_by_turns() -> None:
    both = measure_durable_limits(rounds=1, warm_bytes=1 << 20, scale=0.02, paced_s=0.4)
    rows = {row.name for row in durable_limits.ROWS}
    for runs in both:
        assert set(runs) == rows | {f"ack_{row.name}" for row in client_limits.PACED_ROWS}
        assert all(each[0] > 0 for each in runs.values())


def test_what_a_durable_sink_acknowledged_is_in_its_objects_and_its_log(tmp_path: Path) -> None:
    with durable_sink("bench-1", 1, tmp_path) as bootstrap:
        measured = durable_limits.SINGLE.run(bootstrap, 8 << 20)
        objects = [path.stat().st_size for path in (tmp_path / "objects").iterdir()]
        assert sum(objects) > measured.bytes
        assert 0 < len(objects) <= (tmp_path / "log").stat().st_size / 100
        assert not list((tmp_path / "drafts").iterdir())


def test_acknowledgements_at_a_rate_and_their_raw_price(tmp_path: Path) -> None:
    with BenchBroker(tmp_path / "broker" / "data", {"num.partitions": 12}) as broker:
        for row in ACK_ROWS[:2]:
            waits = ack_waits(broker.bootstrap, row._replace(after_bytes=1 << 20), seconds=0.3)
            assert len(waits) >= 300
    assert len(raw_waits(tmp_path, seconds=0.1)) == 20


@pytest.mark.exhaustive
def test_two_workers_and_one_process_with_the_same_load() -> None:
    found = measure_round(scale=0.05)
    assert set(found) == {"cpu_ratio", "least_share", "produce_ratio", "puts_ratio"}
    assert all(value > 0 for value in found.values())


def test_objects_are_counted_where_they_lie(tmp_path: Path) -> None:
    points = measure_objects(intervals_ms=(20, 250), seconds=1.0)
    few, many = sorted(point.number for point in points)
    assert 1 <= few < many
    assert all(point.cpu_s > 0 for point in points)
    assert not written_at(tmp_path / "nothing")


@pytest.mark.parametrize("idempotent", [False, True])
def test_batches_of_equal_requests(idempotent: bool) -> None:
    (points,) = measure_batches(idempotent=idempotent, counts=(1, 300), requests=2, rounds=1)
    assert [point.number for point in points] == [2, 600]


def test_a_slope_leaves_out_what_is_there_without_any() -> None:
    assert slope([Point(1, 5.002), Point(10, 5.02), Point(100, 5.2)]) == pytest.approx(0.002)


def test_a_second_begins_anywhere() -> None:
    assert most_in_a_second([]) == 0
    assert most_in_a_second([0.0, 0.9, 1.0, 1.5, 1.8]) == 4


def test_several_runs_are_a_median_with_a_range(tmp_path: Path) -> None:
    report = Report()
    report.add_runs("produce", [3.0, 1.0, 2.0], "MB/s", bound="≥ 2")
    assert report.as_mapping() == {"produce": 2.0, "produce_low": 1.0, "produce_high": 3.0}
    assert report.figures[0].verdict == "met"


def test_the_floor_of_an_object_writes_each_of_its_parts(tmp_path: Path) -> None:
    with ObjectFloor(tmp_path) as floor:
        assert floor.run(2) > 0
    objects = [(tmp_path / "objects" / str(number)).stat().st_size for number in range(2)]
    assert min(objects) > BATCHES * BATCH_BYTES
    assert (tmp_path / "log").stat().st_size > 0
    with sqlite3.connect(tmp_path / "state.db") as state:
        counts = [
            state.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("files", "batches", "partitions", "producer_states")
        ]
    state.close()
    assert counts == [2, 2 * BATCHES, BATCHES, BATCHES]
