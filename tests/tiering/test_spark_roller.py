"""The job on a local Spark: tasks that are killed, drivers that are killed, and stock readers."""

import datetime
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker, FakeCoordinator
from pyspark.errors import PySparkException
from tiering_samples import (
    PARTITION,
    ZSTD,
    PreparedBatch,
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)

from metadata.operations import SegmentPlan
from metadata.rewrites import MERGE, RewriteInput, RewritePlan
from tests.support.chunks.batch_builder import seal
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import roll_once
from tiering.roll import Rolled, roll
from tiering.rounds import Done, Failed, Work, Written
from tiering.segment_columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from tiering.spark.drivers import require_java
from tiering.spark.roller import SparkRoller
from tiering.spark.task_python import package_zip
from tiering.spark.tasks import in_halves
from wal.errors import InvalidSettings
from wal.failpoint import ENVIRONMENT_VARIABLE
from wal.stores.blocking_store import BlockingStore
from wal.stores.object_store import BytesBody

RECORDS = [
    SampleRecord(b"k", b"v", 1_700_000_000_123, [("trace", b"1"), ("trace", None)]),
    SampleRecord(None, b"", TIMESTAMP_MS_MAX),
    SampleRecord(b"", None, TIMESTAMP_MS_MIN),
    SampleRecord(b"\xff", b"x" * 2000, 2**63 - 1),
]
Outcome = Written[SegmentPlan, Rolled] | Failed[SegmentPlan]
BATCH = SampleBatch(RECORDS, codec=ZSTD, producer_id=7, producer_epoch=1, base_sequence=9)


def plans_for(directory: Path, count: int) -> list[SegmentPlan]:
    with file_store(directory) as store:
        return [
            plan_of(put_wal_object(store, f"wal/00/{at}", [[BATCH]], base_offset=4 * at))
            for at in range(count)
        ]


def rolled_without_spark(plans: Sequence[SegmentPlan], directory: Path) -> Sequence[Outcome]:
    """What a roll of equal batches in another directory gives."""
    copies = plans_for(directory, len(plans))
    with file_store(directory) as store:
        return [Written(plan, roll(copy, store)) for plan, copy in zip(plans, copies, strict=True)]


def without_work(results: Sequence[Outcome]) -> Sequence[Outcome]:
    """What two rolls of the same plan have in common."""
    return [
        result._replace(work=Work()) if isinstance(result, Written) else result
        for result in results
    ]


def written_files(directory: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.rglob("*.parquet")
    }


def ignore(done: int) -> None:
    pass


@pytest.mark.spark
def test_tasks_return_exactly_what_they_wrote(spark_roller: SparkRoller, tmp_path: Path) -> None:
    plans = plans_for(tmp_path / "store", 3)
    coordinator = FakeCoordinator(plans)
    with FakeBroker(coordinator, (tmp_path / "store").as_uri()) as broker:
        report = roll_once(CoordinatorClient(broker.bootstrap), spark_roller.roll)
    expected = rolled_without_spark(plans, tmp_path / "other")
    assert report.segments == [one.made.segment for one in expected if isinstance(one, Written)]
    assert (report.work.gets, report.work.get_bytes) == (3, report.input_bytes), "each byte once"
    assert list(coordinator.committed.values()) == report.segments


@pytest.mark.spark
@pytest.mark.parametrize("point", ["roll.before_put", "roll.after_put"])
def test_a_killed_task_is_repeated_and_comes_to_the_same_result(
    spark_roller: SparkRoller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plans = plans_for(tmp_path / "store", 2)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"{point}=kill")
    results = spark_roller.roll(plans, (tmp_path / "store").as_uri(), ignore)
    assert without_work(results) == rolled_without_spark(plans, tmp_path / "other")
    names = {path.name for path in (tmp_path / "store" / "segments").rglob("*.parquet")}
    assert names == {Path(plan.object_key).name for plan in plans}


@pytest.mark.spark
def test_two_jobs_at_once_agree_on_every_segment(spark_roller: SparkRoller, tmp_path: Path) -> None:
    plans = plans_for(tmp_path, 2)
    with ThreadPoolExecutor(2) as jobs:
        first, second = (
            jobs.submit(spark_roller.roll, plans, tmp_path.as_uri(), ignore) for _ in range(2)
        )
    assert without_work(first.result()) == without_work(second.result())
    assert all(isinstance(result, Written) for result in first.result())


@pytest.mark.spark
def test_what_a_roll_raises_is_told_of_its_plan_alone(
    spark_roller: SparkRoller, tmp_path: Path
) -> None:
    plans = plans_for(tmp_path, 2)
    key = plans[0].extents[0].object_key
    with file_store(tmp_path) as store:
        store.delete([key])
        store.put(key, BytesBody(bytes(1000)))
    damaged, whole = spark_roller.roll(plans, tmp_path.as_uri(), ignore)
    assert isinstance(damaged, Failed)
    assert damaged.reason.startswith("CorruptObject: wal/00/0: batch at byte 20")
    assert isinstance(whole, Written)


@pytest.mark.spark
@pytest.mark.crash
def test_a_driver_killed_before_its_commit_leaves_nothing_but_work_done(
    spark_roller: SparkRoller, tmp_path: Path
) -> None:
    plans = plans_for(tmp_path, 2)
    coordinator = FakeCoordinator(plans)
    with FakeBroker(coordinator, tmp_path.as_uri()) as broker:
        killed = subprocess.run(
            [
                sys.executable,
                "-c",
                f"from tiering.jobs.command import tier; tier(bootstrap={broker.bootstrap!r})",
            ],
            env=os.environ | {ENVIRONMENT_VARIABLE: "roll.before_commit=kill"},
            check=False,
            capture_output=True,
            timeout=600,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        assert not coordinator.committed
        written = written_files(tmp_path)
        assert len(written) == 2
        report = roll_once(CoordinatorClient(broker.bootstrap), spark_roller.roll)
    assert len(report.segments) == len(coordinator.committed) == 2
    # Found, not written again; and no others beside them.
    assert written_files(tmp_path) == written


@pytest.mark.spark
def test_a_batch_that_cannot_be_decoded_is_counted_and_kept(
    spark_roller: SparkRoller, tmp_path: Path
) -> None:
    data = seal(b"\xff" * 50, record_count=3)
    batches: list[SampleBatch | PreparedBatch] = [
        BATCH,
        PreparedBatch([SampleRecord()] * 3, data),
        BATCH,
    ]
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, "wal/00/0", [batches]))
    (result,) = spark_roller.roll([plan], tmp_path.as_uri(), ignore)
    assert isinstance(result, Written)
    assert result.made.raw_batch_count == 1
    frame = spark_roller.session.read.parquet(str(tmp_path / "segments"))
    rows = frame.orderBy("offset").collect()
    assert [row.raw_batch for row in rows] == [None] * 4 + [data] + [None] * 6
    assert [row.offset for row in rows if row.batch_base_offset == 4] == [4, 5, 6]


@pytest.mark.spark
def test_stock_spark_reads_segments_with_their_types(
    spark_roller: SparkRoller, tmp_path: Path
) -> None:
    plans = plans_for(tmp_path, 2)
    spark_roller.roll(plans, tmp_path.as_uri(), ignore)
    frame = spark_roller.session.read.parquet(str(tmp_path / "segments"))
    assert frame.dtypes == [
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestamp_raw", "bigint"),
        ("timestamp_type", "tinyint"),
        ("tombstone", "boolean"),
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "array<struct<key:string,value:binary>>"),
        ("batch_base_offset", "bigint"),
        ("batch_last_offset", "bigint"),
        ("producer_id", "bigint"),
        ("producer_epoch", "smallint"),
        ("base_sequence", "int"),
        ("leader_epoch", "int"),
        ("attributes", "smallint"),
        ("delete_horizon", "bigint"),
        ("raw_batch", "binary"),
        ("topic", "string"),
        ("id", "string"),
        ("partition", "int"),
    ]
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(8))
    assert [(row.key, row.value) for row in rows[:4]] == [(r.key, r.value) for r in RECORDS]
    assert [tuple(header) for header in rows[0].headers] == [("trace", b"1"), ("trace", None)]
    assert rows[0].timestamp.timestamp() == 1_700_000_000.123
    assert rows[1].timestamp.year == datetime.MAXYEAR
    assert rows[2].timestamp.year == datetime.MINYEAR
    assert (rows[3].timestamp, rows[3].timestamp_raw) == (None, 2**63 - 1)
    assert {(row.partition, row.producer_id, row.base_sequence) for row in rows} == {(3, 7, 9)}
    assert {(row.topic, row.id) for row in rows} == {("flights", str(PARTITION.topic_id))}
    assert frame.where("offset >= 6").count() == 2


class PoisonedRoller(SparkRoller):
    """A Spark on which each job with one certain plan dies."""

    def __init__(self, poison: SegmentPlan) -> None:
        super().__init__()
        self._poison = poison
        self.jobs: list[int] = []

    def _together(
        self,
        work: Callable[[Any, BlockingStore], Any],
        object_store_url: str,
        plans: Sequence[Any],
        done: Done,
    ) -> Sequence[Any]:
        self.jobs.append(len(plans))
        if self._poison in plans:
            raise PySparkException("Job aborted\n\tat org.apache.spark\nMemoryError: too much")
        done(len(plans))
        return [Written(plan, "rolled") for plan in plans]


@pytest.mark.parametrize("poisoned", range(7))
def test_a_plan_that_kills_every_task_is_found_by_halves(tmp_path: Path, poisoned: int) -> None:
    plans = plans_for(tmp_path, 7)
    told: list[int] = []
    roller = PoisonedRoller(plans[poisoned])
    results = roller.roll(plans, "file:///nowhere", told.append)
    assert [result.plan for result in results] == plans
    failed = Failed(plans[poisoned], "its Spark task died: MemoryError: too much")
    assert [result for result in results if isinstance(result, Failed)] == [failed]
    assert max(told) <= 7
    assert len(roller.jobs) <= 7


def test_plans_of_a_spark_that_is_gone_fail_together(tmp_path: Path) -> None:
    attempts: list[int] = []

    def attempt(plans: Sequence[SegmentPlan], done: Done) -> Sequence[Outcome]:
        attempts.append(len(plans))
        raise ConnectionRefusedError("nobody listens")

    plans = plans_for(tmp_path, 4)
    results = in_halves(attempt, plans, ignore, lambda: False)
    assert results == [Failed(plan, "its Spark task died: nobody listens") for plan in plans]
    assert attempts == [4], "a Spark that is gone is asked again"


def test_a_task_can_import_what_it_needs_from_the_zip_alone(tmp_path: Path) -> None:
    archive = package_zip(tmp_path)
    assert "tiering/roll.py" in zipfile.ZipFile(archive).namelist()
    script = (
        "import sys; sys.path = [p for p in sys.path if p.endswith(('python3.11', 'dynload',"
        " 'site-packages', '.zip'))]; sys.meta_path = [f for f in sys.meta_path if 'editable' not"
        f" in repr(f)]; sys.path.insert(0, {str(archive)!r}); import tiering.spark.roller, wal;"
        " print(tiering.spark.roller.__file__, wal.__file__)"
    )
    imported = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert imported.stdout.count(str(archive)) == 2


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ('openjdk version "11.0.2" 2019', "Java 11 was found"),
        ('java version "1.8.0_392"', "Java 8 was found"),
        ("nothing of the kind", "none was found"),
    ],
)
def test_an_old_java_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, complaint: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidSettings, match=f"Java 17 or newer, {complaint}.*openjdk-17"):
        require_java()


def test_a_missing_java_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidSettings, match="none was found"):
        require_java()


@pytest.mark.spark
def test_merges_run_as_tasks_and_a_killed_one_is_repeated(
    spark_roller: SparkRoller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with file_store(tmp_path) as store:
        rolled = [roll(plan, store).segment for plan in plans_for(tmp_path, 3)]
    inputs = [
        RewriteInput(
            one.object_key,
            one.object_bytes,
            one.base_offset,
            one.last_offset,
            one.record_count,
            one.max_timestamp_ms,
        )
        for one in rolled
    ]
    good = RewritePlan(
        topic_name="flights",
        partition=PARTITION,
        kind=MERGE,
        generation=1,
        planned_at_ms=0,
        delete_horizon_ms=0,
        producers_since_ms=0,
        target_bytes=1 << 20,
        inputs=inputs,
    )
    bad = replace(good, generation=2, inputs=[inputs[0], inputs[2]])
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "merge.after_put=kill")
    merged, failed = spark_roller.merge([good, bad], tmp_path.as_uri(), ignore)
    assert isinstance(merged, Written)
    (segment,) = merged.made.segments
    assert segment.record_count == sum(one.record_count for one in rolled)
    assert isinstance(failed, Failed)
    assert "does not follow" in failed.reason
