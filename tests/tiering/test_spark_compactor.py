"""Compaction on Spark comes to what it comes to without, whatever chooses the tasks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from compaction_samples import inputs_of, planned, some_batches
from tiering_samples import PARTITION, file_store

from metadata.rewrites import RewritePlan
from tests.support.tiers.compacted import compacted
from tiering.compaction.spark_compactor import SparkCompactor
from tiering.rounds import Failed, Written
from tiering.spark.roller import SparkRoller
from wal.coordinates import TopicIdPartition
from wal.failpoint import ENVIRONMENT_VARIABLE

pytestmark = pytest.mark.spark


def plans_in(directory: Path, count: int = 2) -> list[RewritePlan]:
    """For one partition each; every time the same segments."""
    plans = []
    with file_store(directory) as store:
        inputs = inputs_of(store, some_batches(40, 1), per_segment=7)
        for number in range(count):
            partition = TopicIdPartition(PARTITION.topic_id, number)
            part = inputs[number:]
            plans.append(replace(planned(part, target_bytes=4_000), partition=partition))
    return plans


@pytest.mark.parametrize("hash_bits", [4, 64])
def test_the_hash_of_a_key_decides_nothing(
    spark_roller: SparkRoller, tmp_path: Path, hash_bits: int
) -> None:
    plans = plans_in(tmp_path / "spark")
    compactor = SparkCompactor(spark_roller, hash_bits=hash_bits)
    results = compactor.compact(plans, (tmp_path / "spark").as_uri(), ignore)
    copies = plans_in(tmp_path / "plain")
    with file_store(tmp_path / "plain") as store:
        expected = [compacted(plan, store) for plan in copies]
    written = [result for result in results if isinstance(result, Written)]
    assert [result.made for result in written] == expected
    assert all(one.segments for one in expected)
    assert all(0 < result.work.key_bytes < result.work.get_bytes for result in written)


def test_an_input_that_cannot_be_read_fails_its_plan_alone(
    spark_roller: SparkRoller, tmp_path: Path
) -> None:
    good, bad = plans_in(tmp_path)
    (tmp_path / bad.inputs[0].object_key).unlink()
    good = replace(good, inputs=good.inputs[2:])
    bad = replace(bad, inputs=bad.inputs[:3])
    failed, written = SparkCompactor(spark_roller).compact([bad, good], tmp_path.as_uri(), ignore)
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("ObjectNotFound")
    assert isinstance(written, Written)
    assert written.made.segments


@pytest.mark.parametrize("step", ["compact.before_put", "compact.after_put"])
def test_a_task_that_is_killed_is_started_again(
    spark_roller: SparkRoller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, f"{step}=kill")
    plans = plans_in(tmp_path, 1)
    (result,) = SparkCompactor(spark_roller).compact(plans, tmp_path.as_uri(), ignore)
    assert isinstance(result, Written)
    written = _keys(tmp_path)
    assert {one.object_key for one in result.made.segments} == {
        key for key in written if key.endswith("-1.parquet")
    }


def ignore(done: int) -> None:
    pass


def _keys(directory: Path) -> Sequence[str]:
    return [str(path.relative_to(directory)) for path in directory.rglob("*.parquet")]
