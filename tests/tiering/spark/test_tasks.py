"""Plans in tasks of a Spark on this machine."""

import pytest
from pyspark.sql import functions as F

from tiering.spark.roller import SparkRoller
from tiering.spark.tasks import one_task_each


@pytest.mark.spark
@pytest.mark.parametrize("count", [1, 50])
def test_each_item_is_alone_in_a_task(spark_roller: SparkRoller, count: int) -> None:
    rows = one_task_each(spark_roller.session, range(count))
    assert rows.rdd.getNumPartitions() == count
    placed = rows.select("number", F.spark_partition_id().alias("task")).collect()
    assert sorted((row["number"], row["task"]) for row in placed) == [
        (at, at) for at in range(count)
    ]
