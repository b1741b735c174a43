"""The whole path on real S3 servers: produce, commit, fetch, roll, read by Spark.

Uses the broker, the stock clients and the record-by-record comparison of the demo, with the bucket
in place of a directory.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pyarrow.fs
import pytest

from demo import clients, events, spark_numbers
from demo.broker_process import BrokerProcess, run_diskless
from demo.ledger import Ledger
from tests.support.clients.jvm import Jars, JvmUnavailable
from tests.support.s3_servers import S3Server, on_every_server, on_one_server
from tests.support.tiers.hadoop_aws import hadoop_aws_jars, s3a_settings, spark_conf_dir

pytestmark = pytest.mark.clients

PREFIX = "cluster-a"
PARTITIONS = 3
LOG = logging.getLogger("tests.localstack")


@pytest.fixture(scope="session")
def hadoop_aws() -> Jars:
    try:
        return hadoop_aws_jars()
    except JvmUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def broker(s3_server: S3Server, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker on the bucket; its data directory is `tmp_path / "data"`."""
    settings = {"wal.commit.interval.ms": "50"}
    url = s3_server.url(PREFIX)
    with BrokerProcess(tmp_path / "data", tmp_path, settings, object_store=url) as process:
        process.start()
        yield process
    log = tmp_path / "verify.log"
    verify: list[str | Path] = ["verify", "--data", tmp_path / "data", "--object-store", url]
    assert run_diskless(verify, log, timeout_s=300) == 0, log.read_text()


def produced(broker: BrokerProcess, topic: str, made: Iterator[events.Event]) -> Ledger:
    """Create `topic`, produce the events, and check that every one is acknowledged in order."""
    ledger = Ledger(topic, list(made), PARTITIONS)
    clients.create_topic(broker.bootstrap, topic, PARTITIONS, events.SCHEMAS[topic])
    clients.produce(
        broker.bootstrap, ledger, advance=lambda count: None, log=LOG, outstanding_max=5_000
    )
    assert ledger.delivery_problems() == []
    return ledger


def assert_reads_back(broker: BrokerProcess, ledger: Ledger) -> None:
    comparison = ledger.compare(
        clients.read_all(broker.bootstrap, ledger, advance=lambda count: None, log=LOG)
    )
    assert comparison.told == ()
    assert comparison.records == len(ledger.events)


@on_every_server
def test_acknowledged_records_are_in_the_bucket_when_the_local_chunks_are_lost(
    broker: BrokerProcess, s3_server: S3Server, tmp_path: Path
) -> None:
    flights = produced(broker, "flights", events.flight_events(events.read_flights(20_000)))
    assert_reads_back(broker, flights)
    # Killed, so that nothing can be uploaded on the way out: what is acknowledged is there already.
    broker.refresh_counters()
    broker.kill()
    assert s3_server.keys(f"{PREFIX}/wal/")
    shutil.rmtree(tmp_path / "data" / "wal")
    broker.start()
    assert_reads_back(broker, flights)
    broker.refresh_counters()
    assert broker.counters['diskless_object_store_requests_total{op="get"}'] > 0
    broker.stop()


@on_one_server
def test_a_producer_goes_on_after_the_broker_was_killed_in_the_middle(
    broker: BrokerProcess,
) -> None:
    made = list(events.weather_events(events.read_weather(6_000)))
    ledger = Ledger("weather", made, PARTITIONS)
    clients.create_topic(broker.bootstrap, "weather", PARTITIONS, events.SCHEMAS["weather"])
    kills: list[int] = []

    def kill_and_restart(unacknowledged: int) -> None:
        kills.append(unacknowledged)
        broker.kill()
        broker.start()

    clients.produce(
        broker.bootstrap,
        ledger,
        advance=lambda count: None,
        log=LOG,
        outstanding_max=1_000,
        at_half_way=kill_and_restart,
    )
    assert len(kills) == 1
    assert ledger.delivery_problems() == []
    assert_reads_back(broker, ledger)
    broker.stop()


@on_one_server
@pytest.mark.spark
def test_rolled_segments_serve_kafka_and_spark_alike(
    broker: BrokerProcess, s3_server: S3Server, hadoop_aws: Jars, tmp_path: Path
) -> None:
    flights_frame, weather_frame = events.read_flights(10_000), events.read_weather(2_000)
    flights = produced(broker, "flights", events.flight_events(flights_frame))
    weather = produced(broker, "weather", events.weather_events(weather_frame))

    log = tmp_path / "tier.log"
    roll = ["tier", "--bootstrap", broker.bootstrap, "--once", "--all", "--master", "local[2]"]
    assert run_diskless(roll, log, timeout_s=600) == 0, log.read_text()

    # Kafka, from cold caches, out of Parquet alone.
    broker.stop()
    shutil.rmtree(tmp_path / "data" / "wal")
    broker.start()
    before = broker.counters
    for ledger in (flights, weather):
        assert_reads_back(broker, ledger)
    broker.refresh_counters()
    fetched = {
        source: broker.counters[name] - before[name]
        for source in ("chunk", "object", "segment")
        for name in [f'diskless_fetch_bytes_total{{source="{source}"}}']
    }
    assert fetched["segment"] > 0
    assert (fetched["chunk"], fetched["object"]) == (0, 0)
    broker.stop()

    # pyarrow and stock Spark, from the bucket, with nothing of ours in between.
    place = f"{s3_server.bucket}/{PREFIX}/segments"
    bucket = pyarrow.fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=s3_server.endpoint,
    )
    topics = pyarrow.dataset.dataset(place, filesystem=bucket, partitioning="hive")
    assert topics.to_table(columns=["topic"]).column("topic").value_counts().to_pylist() == [
        {"values": ledger.topic, "counts": len(ledger.events)} for ledger in (flights, weather)
    ]
    settings = s3a_settings(hadoop_aws, s3_server.endpoint)
    read = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.tiers.plain_spark_numbers"),
            *(f"s3a://{place}/topic={name}" for name in ("flights", "weather")),
        ],
        env=os.environ | {"SPARK_CONF_DIR": str(spark_conf_dir(tmp_path / "spark", settings))},
        check=False,
        capture_output=True,
        text=True,
    )
    assert read.returncode == 0, read.stderr
    assert spark_numbers.parse_numbers(read.stdout) == events.reference_numbers(
        flights_frame, weather_frame
    )
