"""The job on a Spark cluster: executors on which nothing of this project is installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fake_broker import FakeBroker, FakeCoordinator
from tiering_samples import SampleBatch, SampleRecord, plan_of, put_wal_object

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import SHORT_RUN
from tests.support.s3_servers import S3Server, on_one_server
from tests.support.tiers.flights import PARTITIONS, produce_flights
from tests.support.tiers.hadoop_aws import spark_conf_dir
from tests.support.tiers.rolled import roll_everything
from tests.support.tiers.spark_cluster import SparkCluster, local_cluster, spark_cluster, spark_home
from wal.stores.blocking_store import open_blocking_store

REPOSITORY = Path(__file__).resolve().parent.parent.parent
NOT_OPTIMISED = {
    "spark.executor.extraJavaOptions": " ".join(
        option for option in SHORT_RUN if option != "-XX:+UseSerialGC"
    )
}
"""For JVMs that live for seconds. Another collector would leave executors too little memory."""
BATCHES = [SampleBatch([SampleRecord(value=b"%d" % at)] * 50) for at in range(4)]


@on_one_server
@pytest.mark.spark
@pytest.mark.parametrize(
    "launcher",
    ["spark-submit", pytest.param("spark-defaults", marks=pytest.mark.exhaustive)],
)
def test_segments_are_rolled_from_the_bucket_by_executors_that_have_only_what_they_are_sent(
    s3_server: S3Server, tmp_path: Path, launcher: str
) -> None:
    url = s3_server.url("cluster-1")
    with open_blocking_store(url) as store:
        plans = [
            plan_of(put_wal_object(store, f"wal/00/{at}", [BATCHES], base_offset=200 * at))
            for at in range(3)
        ]
    coordinator = FakeCoordinator(plans)
    with spark_cluster(tmp_path) as cluster, FakeBroker(coordinator, url) as broker:
        arguments = [
            *("--bootstrap", broker.bootstrap, "--once", "--conf", "spark.executor.cores=1"),
            *("--conf", "spark.driver.host=127.0.0.1"),
        ]
        defaults = {
            "spark.pyspark.python": str(cluster.python),
            "spark.pyspark.driver.python": sys.executable,
            "spark.executor.memory": "500m",
            "spark.executor.cores": "2",
            **NOT_OPTIMISED,
        }
        if launcher == "spark-submit":
            # What it is told counts more than the file, and --conf of the command more than both.
            command = [
                *(spark_home() / "bin" / "spark-submit", "--master", cluster.master),
                *("--conf", "spark.executor.memory=460m", REPOSITORY / "deploy" / "tier.py"),
            ]
            defaults["spark.master"], memory_mib = "local[1]", 460
        else:
            command = [sys.executable, "-m", "diskless.cli.cli", "tier"]
            defaults["spark.master"], memory_mib = cluster.master, 500
        environment = {
            "SPARK_CONF_DIR": str(spark_conf_dir(tmp_path / "conf", defaults)),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        tier = subprocess.run(
            [*command, *arguments],
            cwd=REPOSITORY,
            env=os.environ | environment,
            check=False,
            capture_output=True,
            text=True,
        )
        logs = [path.read_text() for path in cluster.work.glob("app-*/*/stderr")]
    assert tier.returncode == 0, tier.stdout + tier.stderr
    assert sorted(coordinator.committed) == sorted(plan.object_key for plan in plans)
    assert logs, "the master was another one"
    for log in logs:
        assert f'"-Xmx{memory_mib}M"' in log
        assert '"--cores" "1"' in log
    told = [" ".join(line.split()) for line in tier.stdout.splitlines()]
    assert "GETs │ 3" in told
    assert "bytes read ÷ rolled │ 1.00" in told


READ = """
import sys

# Not by PYTHONPATH, which executors of this machine would inherit.
sys.path.insert(0, sys.argv[3])
from pyspark.sql import SparkSession
from tiering.source import register

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
register(spark)
options = dict(bootstrap=sys.argv[1], topic="flights", startingOffsets="earliest")
table = spark.read.format("diskless").options(**options).load()
print("rows", *table.selectExpr("count(*)", "count(distinct partition, offset)").first())
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
@pytest.mark.parametrize(("cluster_in", "executors"), [(spark_cluster, 1), (local_cluster, 2)])
def test_a_topic_is_read_by_executors_that_have_only_what_they_are_sent(
    tmp_path: Path,
    cluster_in: Callable[[Path], AbstractContextManager[SparkCluster]],
    executors: int,
) -> None:
    script = tmp_path / "read.py"
    script.write_text(READ)
    with (
        cluster_in(tmp_path) as cluster,
        LiveBroker(tmp_path / "data", {"num.partitions": str(PARTITIONS)}) as broker,
    ):
        produce_flights(broker, 0, 300)
        roll_everything(broker)
        produce_flights(broker, 300, 100)
        defaults = {
            "spark.master": cluster.master,
            "spark.pyspark.python": str(cluster.python),
            "spark.pyspark.driver.python": sys.executable,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "500m",
            **NOT_OPTIMISED,
        }
        environment = {
            "SPARK_CONF_DIR": str(spark_conf_dir(tmp_path / "conf", defaults)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(cluster.home),
        }
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        read = subprocess.run(
            [sys.executable, script, broker.bootstrap, str(tmp_path), REPOSITORY],
            env=inherited | environment,
            check=False,
            capture_output=True,
            text=True,
        )
        started = {path.parent.name for path in cluster.work.glob("app-*/*/stderr")}
    assert read.returncode == 0, read.stdout + read.stderr
    assert "rows 400 400" in read.stdout
    assert "streamed 400" in read.stdout
    assert len(started) == executors, "the master was another one"
