"""Group `s3_reading`: consumers that catch up on a bucket as slow as S3 (`bench.tools.s3_bed`).

Each consumer meets a broker that has just started, without chunks and caches, and data that counts
as old. Its throughput is compared with raw GETs of 16 MiB, four at a time, through the same proxy
in the same run; what it has fetched, in bytes and in GETs, with what it was sent. Ten consumers of
one partition are compared with one. Last, the wait of records at the tail is measured without and
with a consumer of old data beside it.
"""

import multiprocessing
import shutil
import statistics
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_END

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.report import Report
from bench.tools.s3_bed import BUCKET, S3Bed, s3_bed
from localstack.minio import HOW_TO_GET

RECORD_BYTES: Final = 1024
READ_BYTES: Final = 256 << 20
PARTITIONS: Final = 12
INTERVAL_MS: Final = 250
READERS: Final = 10
START_WITHIN_S: Final = 1.0
RAW_BYTES: Final = 16 << 20
RAW_GETS: Final = 24
RAW_THREADS: Final = 4
TAIL_RECORDS_PER_S: Final = 500
TAIL_S: Final = 8.0
TAIL_TOPIC: Final = "tail"
_STAMP_BYTES: Final = 24
_SPAWN: Final = multiprocessing.get_context("spawn")
_MIB: Final = 1 << 20

SETTINGS: Final[Mapping[str, object]] = {**fixed_interval(INTERVAL_MS), "fetch.cold.after.ms": 0}
"""Objects as large as dense data makes them, and all of it old."""


class Scan(NamedTuple):
    """One or more consumers that read all of a topic."""

    mb_per_s: float
    """Of the first one."""
    gets: int
    fetched_bytes: int
    sent_bytes: int

    @property
    def bytes_ratio(self) -> float:
        return self.fetched_bytes / self.sent_bytes

    @property
    def gets_per_4_mib(self) -> float:
        return self.gets / (self.sent_bytes / (4 * _MIB))


def run_s3_reading(report: Report) -> None:
    """One partition, twelve, ten readers, the tail."""
    with s3_bed() as bed:
        if not bed.is_minio:
            report.step(f"s3_reading: skipped, {HOW_TO_GET}")
            return
        report.step("s3_reading: MinIO with 15 ms to the first byte and 80 MB/s for a connection")
        raw = raw_mb_per_s(bed)
        report.add(
            "s3_raw_get_mb_per_s", raw, "MB/s", note=f"16 MiB by boto3, {RAW_THREADS} threads"
        )
        _run_scans(report, bed, raw)
        _run_tail(report, bed)


def raw_mb_per_s(bed: S3Bed) -> float:
    """Ranged GETs side by side, the better of two runs."""
    direct = bed.client(delayed=False)
    direct.put_object(Bucket=BUCKET, Key="raw", Body=load.payload(4 * RAW_BYTES))
    direct.close()
    client = bed.client(connections=RAW_THREADS)

    def get(number: int) -> None:
        first = number % 4 * RAW_BYTES
        wanted = f"bytes={first}-{first + RAW_BYTES - 1}"
        client.get_object(Bucket=BUCKET, Key="raw", Range=wanted)["Body"].read()

    runs = []
    with ThreadPoolExecutor(RAW_THREADS) as threads:
        list(threads.map(get, range(RAW_THREADS)))  # connected
        for _ in range(2):
            started = time.perf_counter()
            list(threads.map(get, range(RAW_GETS)))
            runs.append(RAW_GETS * RAW_BYTES / (time.perf_counter() - started) / 1e6)
    client.close()
    return max(runs)


def _run_scans(report: Report, bed: S3Bed, raw: float) -> None:
    proxy, server, started = bed.proxy.cpu_s(), bed.server_cpu_s(), time.monotonic()
    with fresh_directory() as directory:
        data = directory / "one"
        broker = bed.broker(data, "one", {**SETTINGS, "num.partitions": 1})
        records = _produced(broker, 1)
        runs = [scanned(bed, broker, data, records, 1) for _ in range(2)]
        one = max(runs)
        many = scanned(bed, broker, data, records, 1, readers=READERS)
        data = directory / "twelve"
        broker = bed.broker(data, "twelve", {**SETTINGS, "num.partitions": PARTITIONS})
        records = _produced(broker, PARTITIONS)
        twelve = scanned(bed, broker, data, records, PARTITIONS)
    seconds = time.monotonic() - started
    report.add_runs("s3_cold_1_partition_mb_per_s", [run.mb_per_s for run in runs], "MB/s")
    report.add("s3_cold_1_partition_vs_raw_get", one.mb_per_s / raw, bound="≥ 0.6")
    report.add("s3_get_bytes_per_byte", one.bytes_ratio, bound="≤ 1.05", note="one partition")
    report.add("s3_gets_per_4mib", one.gets_per_4_mib, bound="≤ 1", note="one partition")
    report.add("s3_cold_12_partitions_mb_per_s", twelve.mb_per_s, "MB/s")
    report.add("s3_get_bytes_per_byte_12_partitions", twelve.bytes_ratio, bound="≤ 1.05")
    report.add("s3_gets_per_4mib_12_partitions", twelve.gets_per_4_mib)
    report.add(
        "s3_ten_readers_get_ratio",
        many.gets / one.gets,
        bound="≤ 1.1",
        note=f"GETs of {READERS} that start within a second ÷ of one",
    )
    report.add(
        "s3_reading_proxy_cores", (bed.proxy.cpu_s() - proxy) / seconds, "cores", note="meanwhile"
    )
    report.add(
        "s3_reading_server_cores", (bed.server_cpu_s() - server) / seconds, "cores", note="MinIO"
    )


def _produced(broker: BenchBroker, partitions: int, total_bytes: int = READ_BYTES) -> int:
    with broker:
        return load.produce(
            broker.bootstrap,
            record_bytes=RECORD_BYTES,
            total_bytes=total_bytes,
            partitions=partitions,
        ).records


def scanned(
    bed: S3Bed,
    broker: BenchBroker,
    data: Path,
    records: int,
    partitions: int,
    *,
    readers: int = 1,
) -> Scan:
    """All of it, by a broker that has nothing of it yet."""
    _forget(data)
    with broker:
        before = bed.proxy.passed()

        def read(number: int) -> load.Measured:
            time.sleep(number * START_WITHIN_S / readers)
            client = load.consumer(broker.bootstrap, partitions)
            try:
                return load.consume(client, records, RECORD_BYTES)
            finally:
                client.close()

        with ThreadPoolExecutor(readers) as threads:
            done = list(threads.map(read, range(readers)))
        after = bed.proxy.passed()
    return Scan(
        done[0].mb_per_s,
        after.requests.get("GET", 0) - before.requests.get("GET", 0),
        after.received_bytes - before.received_bytes,
        done[0].bytes,
    )


def _forget(data: Path) -> None:
    """What a new machine would not have."""
    for name in ("wal", "cache"):
        shutil.rmtree(data / name, ignore_errors=True)


def _run_tail(report: Report, bed: S3Bed) -> None:
    with fresh_directory() as directory:
        data = directory / "tail"
        broker = bed.broker(data, "tail", {"fetch.cold.after.ms": 0, "num.partitions": 1})
        records = _produced(broker, 1)
        _forget(data)
        with broker:
            load.create_topic(broker.bootstrap, TAIL_TOPIC, 1)
            alone = _tail_p99_ms(broker)
            # In a process of its own, as other consumers are: in this one it would hold up the
            # consumer at the tail, whatever the broker does.
            scan = _SPAWN.Process(target=_scan_again, args=(broker.bootstrap, records), daemon=True)
            scan.start()
            beside = _tail_p99_ms(broker)
            if not scan.is_alive():
                raise RuntimeError("the consumer of old data ended: nothing was beside the tail")
            scan.kill()
            scan.join()
    report.add(
        "tail_p99_ms", alone, "ms", note=f"to a consumer, {TAIL_RECORDS_PER_S} records a second"
    )
    report.add("tail_p99_beside_cold_scan", beside / alone, bound="≤ 1.5")


def _tail_p99_ms(broker: BenchBroker) -> float:
    """How long records take from their producer to a consumer at the tail."""
    waits: list[float] = []
    count = int(TAIL_S * TAIL_RECORDS_PER_S)
    producer = load.producer(broker.bootstrap, {"linger.ms": 0})
    consumer = load.consumer(broker.bootstrap, 1, TAIL_TOPIC, OFFSET_END)
    consumer.consume(1, timeout=1.0)  # connected, and where the log ends

    def receive() -> None:
        while len(waits) < count:
            for message in consumer.consume(100, timeout=30.0):
                value = message.value()
                assert value is not None
                waits.append((time.perf_counter() - float(value[:_STAMP_BYTES])) * 1_000)

    receiver = threading.Thread(target=receive)
    receiver.start()
    started = time.perf_counter()
    for number in range(count):
        value = f"{time.perf_counter():{_STAMP_BYTES}.6f}".encode().ljust(RECORD_BYTES)
        producer.produce(TAIL_TOPIC, value, partition=0)
        producer.poll(0)
        time.sleep(max(0.0, started + (number + 1) / TAIL_RECORDS_PER_S - time.perf_counter()))
    producer.flush(30)
    receiver.join()
    consumer.close()
    return statistics.quantiles(waits[count // 4 :], n=100)[98]


def _scan_again(bootstrap: str, records: int) -> None:
    while True:
        client = load.consumer(bootstrap, 1)
        load.consume(client, records, RECORD_BYTES)
        client.close()
