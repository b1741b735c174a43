"""Group `spark_source`: reading a topic in Spark, beside stock Spark reading its segments.

Both sides answer `count(*), sum(length(value)), max(offset)` on the same rolled topic with the same
two columns, in one session, by turns, after a run each that does not count. Then a stream waits at
the tail of an idle topic: how long Spark takes for a micro-batch of one record.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report
from metadata.operations import PlanSegments
from tiering.coordinator_client import CoordinatorClient
from tiering.roll import roll
from tiering.source import register
from wal.stores.blocking_store import open_blocking_store

TOTAL_BYTES: Final = 1 << 30
RECORD_BYTES: Final = 1024
PARTITIONS: Final = 4
VALUES: Final = 20_000
"""Different ones: more than a row group has, so that none of them compresses to nothing."""
RUNS: Final = 3
TAIL_RECORDS: Final = 12
QUERY: Final = ("count(*)", "sum(length(value))", "max(offset)")


def run_spark_source(report: Report) -> None:
    records = TOTAL_BYTES // RECORD_BYTES
    report.step(f"spark_source: {records:,} records of {RECORD_BYTES} bytes, rolled; local[2]")
    with fresh_directory() as directory:
        objects = directory / "data" / "objects"
        with BenchBroker(directory / "data", {}) as broker:
            _produce(broker.bootstrap, records)
            _roll(broker.bootstrap)
            spark = _session()
            try:
                register(spark)
                options = {"bootstrap": broker.bootstrap, "topic": load.TOPIC}
                source = spark.read.format("diskless").options(**options, columns="offset,value")
                ours, theirs = _compare(
                    source.load, lambda: spark.read.parquet(str(objects / "segments"))
                )
                batches = _tail(spark, options)
            finally:
                spark.stop()
    megabytes = TOTAL_BYTES / 1e6
    report.add_runs("spark_source_mb_per_s", [megabytes / s for s in ours], "MB/s")
    report.add_runs("spark_parquet_mb_per_s", [megabytes / s for s in theirs], "MB/s")
    ratios = [their_s / our_s for our_s, their_s in zip(ours, theirs, strict=True)]
    report.add_runs("spark_source_vs_parquet", ratios, bound="≥ 0.6")
    report.add(
        "spark_stream_batch_s",
        statistics.median(batches),
        "s",
        bound="≤ 1.0",
        note="a micro-batch of one record at the tail",
    )


def _produce(bootstrap: str, records: int) -> None:
    rng = random.Random(1)
    words = [rng.randbytes(6).hex() for _ in range(5_000)]
    values = [
        " ".join(rng.choices(words, k=80)).encode()[:RECORD_BYTES].ljust(RECORD_BYTES)
        for _ in range(VALUES)
    ]
    load.create_topic(bootstrap, load.TOPIC, PARTITIONS)
    producer = load.producer(bootstrap)
    chunk = load.CHUNK_RECORDS
    for number in range(0, records, chunk):
        partition = number // chunk % PARTITIONS
        messages = [{"value": values[at % VALUES]} for at in range(number, number + chunk)]
        while True:
            taken = producer.produce_batch(load.TOPIC, messages, partition=partition)
            if taken == len(messages):
                break
            messages = messages[taken:]
            producer.poll(0.005)
    assert producer.flush(120) == 0


def _roll(bootstrap: str) -> None:
    client = CoordinatorClient(bootstrap)
    while (planned := client.plan_segments(PlanSegments(include_partial=True))).plans:
        with open_blocking_store(planned.object_store_url) as store:
            segments = [roll(plan, store).segment for plan in planned.plans]
        errors = [commit.error for commit in client.commit_segments(segments)]
        assert not any(errors), errors


def _session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _compare(
    ours: Callable[[], DataFrame], theirs: Callable[[], DataFrame]
) -> tuple[list[float], list[float]]:
    """Seconds of each run of both; the first of each is not counted."""
    taken: tuple[list[float], list[float]] = ([], [])
    answers = set()
    for _ in range(RUNS + 1):
        for seconds, frame in zip(taken, (ours, theirs), strict=True):
            started = time.perf_counter()
            answers.add(tuple(frame().selectExpr(*QUERY).first() or ()))
            seconds.append(time.perf_counter() - started)
    assert len(answers) == 1, answers
    return taken[0][1:], taken[1][1:]


def _tail(spark: SparkSession, options: dict[str, str]) -> list[float]:
    """Seconds of each micro-batch; the first ones, which start Python workers, are not counted."""
    query = (
        spark.readStream.format("diskless")
        .options(**options, columns="offset,value")
        .load()
        .writeStream.format("noop")
        .start()
    )
    try:
        producer = load.producer(options["bootstrap"], {"linger.ms": 0})
        query.processAllAvailable()
        for number in range(TAIL_RECORDS):
            producer.produce(load.TOPIC, b"%d" % number, partition=0)
            assert producer.flush(30) == 0
            query.processAllAvailable()
        batches = [
            progress["durationMs"]["triggerExecution"] / 1000
            for progress in query.recentProgress
            if progress["numInputRows"]
        ]
    finally:
        query.stop()
    return batches[2:]
