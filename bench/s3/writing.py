"""Group `s3_writing`: producers on a bucket as slow as S3 (`bench.tools.s3_bed`).

Throughput is compared with raw PUTs of the same size through the same proxy, processor time with
that of a broker on a directory, waits with a raw PUT. As many producers write as threads put raw
objects, because one idempotent producer has too little in flight for a store that far away.

A stock Java producer has batches of 16 KiB and five requests in flight, so its throughput is what
the wait for an acknowledgement makes of that: it is asked on one partition, once with the broker's
defaults and once at a fixed interval.
"""

import itertools
import re
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from bench.peers.systems import NotThere, kafka_java
from bench.speed.puts import PUT_SECONDS, written_continuously
from bench.speed.slow_store import LOGS, SLACK_MS, measure, raw_put_ms
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.report import Report
from bench.tools.s3_bed import BUCKET, S3Bed, s3_bed
from localstack.minio import HOW_TO_GET

PARTITIONS: Final = 12
OBJECT_BYTES: Final = 8 << 20
RAW_PUTS: Final = 96
RAW_THREADS: Final = 8
PRODUCERS: Final = 8
"""An idempotent one has five batches of 1 MB in flight, less than one object."""
BULK: Final = {"enable.idempotence": True, "linger.ms": 50}
"""What docs/clients.md tells librdkafka's users for bulk loads."""
CALL_RECORDS: Final = 200
"""Records that a producer gives to one partition before the next: all have a batch waiting, to the
end of the run. With 2,000 a few partitions had all of what was queued, and librdkafka's thread
polls without a pause while fewer than six have any."""
PRODUCED_BYTES: Final = 1536 << 20
"""The end of a run, when the producers have less and less in flight, is a small part of it."""
ON_EITHER_LOG_BYTES: Final = 96 << 20
REUSED: Final = {"wal.cache.max.bytes": 64 << 20}
"""Chunk files are written over from the start. What a directory of chunks takes while it grows is
page cache that the system has to find, 0.8 ms a MiB, on whatever store: it would hide the store."""
WAITS_PARTITIONS: Final = (4, PARTITIONS)
"""With fewer than an idempotent producer's five requests in flight, and with more."""
INTERVAL_MS: Final = 250
MANY_PARTITIONS: Final = 1000
JAVA_SECONDS: Final = 6
"""What a Java producer is given to send, at the throughput that is expected of it."""
JAVA_EARLY_RECORDS: Final = JAVA_SECONDS * 1_500
JAVA_FIXED_RECORDS: Final = JAVA_SECONDS * 280
_GIB: Final = 1 << 30
_JAVA_RESULT: Final = re.compile(r"\(([\d.]+) MB/sec\)")


class Produced(NamedTuple):
    """What idempotent producers of 12 partitions got through."""

    mb_per_s: float
    core_s_per_gib: float
    """Of the broker, over all runs."""


def run_s3_writing(report: Report) -> None:
    """Throughput, processor time, Java's defaults, waits, PUTs."""
    with s3_bed() as bed:
        if not bed.is_minio:
            report.step(f"s3_writing: skipped, {HOW_TO_GET}")
            return
        report.step("s3_writing: MinIO with 30 ms for a PUT and 80 MB/s for a connection")
        _run_throughput(report, bed)
        _run_java(report, bed)
        _run_waits(report, bed)
        _run_many_partitions(report, bed)


def _run_throughput(report: Report, bed: S3Bed) -> None:
    raw = raw_mb_per_s(bed)
    report.add("s3_raw_put_mb_per_s", raw, "MB/s", note=f"8 MiB by boto3, {RAW_THREADS} threads")
    started, proxy, server = time.monotonic(), bed.proxy.cpu_s(), bed.server_cpu_s()
    with (
        fresh_directory() as directory,
        bed.broker(directory / "data", "throughput", REUSED) as broker,
    ):
        on_s3 = produced(broker)
    seconds = time.monotonic() - started
    with fresh_directory() as directory, BenchBroker(directory / "data", REUSED) as broker:
        on_files = produced(broker)
    report.add(
        "s3_produce_mb_per_s", on_s3.mb_per_s, "MB/s", note=f"{PRODUCERS} idempotent producers"
    )
    report.add("s3_produce_vs_raw_put", on_s3.mb_per_s / raw, bound="≥ 0.7")
    report.add("s3_core_s_per_gib", on_s3.core_s_per_gib, "core-s/GiB")
    report.add(
        "s3_cpu_per_gib_vs_file",
        on_s3.core_s_per_gib / on_files.core_s_per_gib,
        bound="≤ 1.3",
        note=f"a directory takes {on_files.core_s_per_gib:.2f} core-s/GiB",
    )
    report.add("s3_proxy_cores", (bed.proxy.cpu_s() - proxy) / seconds, "cores", note="meanwhile")
    report.add("s3_server_cores", (bed.server_cpu_s() - server) / seconds, "cores", note="MinIO")


def raw_mb_per_s(bed: S3Bed, *, puts: int = RAW_PUTS) -> float:
    """PUTs of whole objects side by side."""
    client = bed.client(connections=RAW_THREADS)
    body = load.payload(OBJECT_BYTES)

    def put(number: int) -> None:
        client.put_object(Bucket=BUCKET, Key=f"raw-objects/{number}", Body=body)

    with ThreadPoolExecutor(RAW_THREADS) as threads:
        list(threads.map(put, range(-RAW_THREADS, 0)))  # connected
        started = time.perf_counter()
        list(threads.map(put, range(puts)))
        seconds = time.perf_counter() - started
    client.close()
    return puts * OBJECT_BYTES / seconds / 1e6


def produced(broker: BenchBroker, *, total_bytes: int = PRODUCED_BYTES) -> Produced:
    """The throughput of the better of two runs, the processor time of both."""
    load.create_topic(broker.bootstrap, load.TOPIC, PARTITIONS)

    def produce(_: int) -> load.Measured:
        return load.produce(
            broker.bootstrap,
            record_bytes=1024,
            total_bytes=total_bytes // PRODUCERS,
            partitions=PARTITIONS,
            settings={**BULK, "queue.buffering.max.kbytes": 32 << 10},
            call_records=CALL_RECORDS,
        )

    runs = []
    with ThreadPoolExecutor(PRODUCERS) as threads:
        before = broker.cpu_s()
        for _ in range(2):
            done = list(threads.map(produce, range(PRODUCERS)))
            # They run side by side, and each tells of its own time.
            runs.append(
                load.Measured(
                    sum(each.records for each in done),
                    sum(each.bytes for each in done),
                    max(each.seconds for each in done),
                )
            )
        cpu_s = broker.cpu_s() - before
    written = sum(run.bytes for run in runs)
    return Produced(load.best(runs).mb_per_s, cpu_s / written * _GIB)


def _run_java(report: Report, bed: S3Bed) -> None:
    try:
        kafka_java()
    except NotThere as missing:
        report.step(f"s3_java_default_mb_per_s: skipped, {missing}")
        return
    early = java_mb_per_s(bed, "java-early", {}, JAVA_EARLY_RECORDS)
    fixed = java_mb_per_s(bed, "java-fixed", fixed_interval(INTERVAL_MS), JAVA_FIXED_RECORDS)
    note = "one partition, batches of 16 KiB, 5 in flight"
    report.add("s3_java_default_mb_per_s", early, "MB/s", note=note)
    report.add(
        "s3_java_default_mb_per_s_vs_timer",
        early / fixed,
        bound="≥ 4",
        note=f"fixed {INTERVAL_MS} ms: {fixed:.2f} MB/s",
    )


def java_mb_per_s(bed: S3Bed, prefix: str, settings: Mapping[str, object], records: int) -> float:
    """What Kafka's own tool tells of a producer with its defaults on one partition."""
    with fresh_directory() as directory, bed.broker(directory / "data", prefix, settings) as broker:
        load.create_topic(broker.bootstrap, load.TOPIC, 1)
        command = [*kafka_java(), "org.apache.kafka.tools.ProducerPerformance"]
        command += ["--topic", load.TOPIC, "--num-records", str(records), "--record-size", "1000"]
        command += ["--throughput", "-1", "--producer-props"]
        command += [f"bootstrap.servers={broker.bootstrap}"]
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
    # The last line is the whole run; megabytes are of 2**20 bytes there.
    return float(_JAVA_RESULT.findall(finished.stdout)[-1]) * (1 << 20) / 1e6


def _run_waits(report: Report, bed: S3Bed) -> None:
    raw_ms = raw_put_ms(bed)
    report.add("s3_raw_put_ms", raw_ms, "ms", note="16 KiB, median")
    for log, partitions in itertools.product(LOGS, WAITS_PARTITIONS):
        figures = measure(
            bed,
            log.name,
            f"waits-{log.name}-{partitions}",
            {},
            ON_EITHER_LOG_BYTES,
            partitions=partitions,
        )
        name = f"s3_{log.name}_log"
        name += "" if partitions == PARTITIONS else f"_{partitions}_partitions"
        bound = f"≤ {log.puts * raw_ms + SLACK_MS:.1f}"
        report.add(
            f"{name}_ack_p50_ms",
            figures.p50_ms,
            "ms",
            bound=bound,
            note=f"1 MB/s idempotent; {log.puts:g} × raw PUT + {SLACK_MS:g} ms",
        )
        report.add(f"{name}_ack_p99_ms", figures.p99_ms, "ms")
        report.add(f"{name}_plain_ack_p50_ms", figures.plain_p50_ms, "ms", bound=bound)


def _run_many_partitions(report: Report, bed: S3Bed) -> None:
    name = "diskless_wal_objects_committed_total"
    settings = {"num.partitions": MANY_PARTITIONS, **fixed_interval(INTERVAL_MS)}
    with (
        fresh_directory() as directory,
        bed.broker(directory / "data", "many", settings) as broker,
        written_continuously(broker.bootstrap, MANY_PARTITIONS),
    ):
        started, before = time.monotonic(), broker.metrics()[name]
        time.sleep(PUT_SECONDS)
        puts = broker.metrics()[name] - before
        seconds = time.monotonic() - started
    report.add("s3_puts_per_s_1000_partitions", puts / seconds, "PUT/s", bound="≤ 4.1")
