"""The whole path on real S3 servers: produce, commit, fetch, roll, read by Spark.

Uses the broker, the stock clients and the record-by-record comparison of the demo, with the bucket
in place of a directory.
"""

import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from demo import clients, events, spark_numbers
from demo.broker_process import BrokerProcess, run_diskless
from demo.ledger import Ledger
from tests.support.s3_servers import S3Server, on_every_server, on_one_server

pytestmark = pytest.mark.clients

PREFIX = "cluster-a"
PARTITIONS = 3
LOG = logging.getLogger("tests.localstack")


def download(server: S3Server, prefix: str, directory: Path) -> None:
    """Copy the objects below `prefix` of the cluster's as files, paths kept."""
    for key in server.keys(f"{PREFIX}/{prefix}"):
        target = directory / key.removeprefix(f"{PREFIX}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        server.s3.download_file(server.bucket, key, str(target))


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
    clients.create_topic(broker.bootstrap, topic, PARTITIONS)
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
    clients.create_topic(broker.bootstrap, "weather", PARTITIONS)
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
    broker: BrokerProcess, s3_server: S3Server, tmp_path: Path
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

    # Spark and pyarrow, on files that nothing of ours has touched since.
    copy = tmp_path / "copy"
    download(s3_server, "segments/", copy)
    (flights_segments,) = (copy / "segments").glob("topic=flights/id=*")
    (weather_segments,) = (copy / "segments").glob("topic=weather/id=*")
    offsets = pyarrow.parquet.read_table(flights_segments, columns=["partition", "offset"])
    assert offsets.num_rows == len(flights.events)
    read = subprocess.run(
        [sys.executable, "-m", "demo.spark_numbers", flights_segments, weather_segments],
        check=True,
        capture_output=True,
        text=True,
    )
    assert spark_numbers.parse_numbers(read.stdout) == events.reference_numbers(
        flights_frame, weather_frame
    )
