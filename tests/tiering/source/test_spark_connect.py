"""`format("diskless")` over Spark Connect.

From a server on which nothing of this project is installed, and from one where it is. Only the
latter has streams: Spark plans these without the files that a session has sent.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.live_broker import LiveBroker
from tests.support.tiers.flights import PARTITIONS, produce_flights
from tests.support.tiers.rolled import roll_everything
from tests.support.tiers.spark_cluster import python_without_us

REPOSITORY = Path(__file__).resolve().parents[3]

READ = """
import sys

# Not by PYTHONPATH, which the server would inherit.
sys.path.insert(0, sys.argv[3])
from pyspark.sql import SparkSession
from tiering.source import register

spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
register(spark)
register(spark)
options = dict(bootstrap=sys.argv[1], topic="flights", startingOffsets="earliest")
table = spark.read.format("diskless").options(**options).load()
print(type(spark).__module__, *table.selectExpr(
    "count(*)", "count(distinct partition, offset)", "sum(length(value))"
).first())
if sys.argv[4] == "installed":
    query = (
        spark.readStream.format("diskless").options(**options).load()
        .writeStream.format("parquet").option("path", sys.argv[2] + "/out")
        .option("checkpointLocation", sys.argv[2] + "/checkpoint")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print("streamed", spark.read.parquet(sys.argv[2] + "/out").count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.parametrize("server", ["sent", "installed"])
def test_a_topic_is_read_and_streamed_over_spark_connect(tmp_path: Path, server: str) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": str(PARTITIONS)}) as broker:
        produce_flights(broker, 0, 300)
        roll_everything(broker)
        produce_flights(broker, 300, 100)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if server == "sent":
            environment["PYSPARK_PYTHON"] = str(python_without_us(tmp_path / "python"))
        else:
            environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
        read = subprocess.run(
            [sys.executable, "-c", READ, broker.bootstrap, str(tmp_path), str(REPOSITORY), server],
            cwd=tmp_path,
            env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
            capture_output=True,
            text=True,
        )
    assert read.returncode == 0, read.stdout + read.stderr
    values = sum(len(b"value of %d" % number) for number in range(400) if number % 7)
    assert f"pyspark.sql.connect.session 400 400 {values}" in read.stdout
    assert ("streamed 400" in read.stdout) == (server == "installed")
