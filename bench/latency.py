"""Group `latency`: what a produce waits beyond what it must, and PUTs per second.

The floor of a produce is the commit interval plus one raw PUT plus one raw fdatasync of this disk,
measured in the same run on the same directory.
"""

import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench import load
from bench.broker import BenchBroker, fresh_directory
from bench.report import Report

RECORD_BYTES = 1024
RATE_BYTES_PER_S = 1 << 20
SECONDS = 15.0
COMMIT_INTERVAL_MS = 10
PUT_INTERVAL_MS = 250
PUT_SECONDS = 6.0
PARTITION_COUNTS = (1, 100, 1000)
TICK_S = 0.005
RECORDS_PER_TICK = 10
"""2,000 records a second round the partitions: with 1,000 of them, every record is a request."""


def run_latency(report: Report) -> None:
    """p50 and p99 of acknowledged produce at 1 MB/s, minus the floor."""
    report.step("latency: 1 MB/s of 1 KiB records, linger 0")
    with fresh_directory() as directory:
        put_ms, fsync_ms = _floor(directory)
        settings = {"wal.commit.interval.ms": COMMIT_INTERVAL_MS, "num.partitions": 12}
        with BenchBroker(directory / "data", settings) as broker:
            waits = paced_produce(broker.bootstrap, partitions=12)
    floor_ms = COMMIT_INTERVAL_MS + put_ms + fsync_ms
    quantiles = statistics.quantiles(waits, n=100)
    report.add("latency_floor_ms", floor_ms, "ms", note="commit interval + raw PUT + fdatasync")
    report.add("produce_p50_ms", quantiles[49], "ms")
    report.add("produce_p99_ms", quantiles[98], "ms")
    report.add("produce_p50_over_floor_ms", quantiles[49] - floor_ms, "ms", bound="≤ 10")
    report.add("produce_p99_over_floor_ms", quantiles[98] - floor_ms, "ms")


def run_puts(report: Report) -> None:
    """PUTs per second depend on the commit interval, not on the number of partitions."""
    expected = 1000 / PUT_INTERVAL_MS
    report.step(f"puts: commit interval {PUT_INTERVAL_MS} ms, {expected:.0f} PUT/s expected")
    for partitions in PARTITION_COUNTS:
        with fresh_directory() as directory:
            settings = {
                "wal.commit.interval.ms": PUT_INTERVAL_MS,
                "num.partitions": partitions,
            }
            with BenchBroker(directory / "data", settings) as broker:
                measured = _put_rate(broker, partitions)
        plural = "" if partitions == 1 else "s"
        report.add(f"puts_per_s_{partitions}_partition{plural}", measured, "PUT/s")


def _floor(directory: Path) -> tuple[float, float]:
    """(ms of a durable PUT of 32 KiB, ms of an fdatasync of 500 bytes), medians."""
    puts = []
    for number in range(50):
        body = os.urandom(32 << 10)
        started = time.perf_counter()
        temporary = directory / f"put-{number}.tmp"
        with temporary.open("xb", buffering=0) as file:
            file.write(body)
            os.fdatasync(file.fileno())
        temporary.rename(directory / f"put-{number}")
        handle = os.open(directory, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        puts.append(time.perf_counter() - started)
    syncs = []
    with (directory / "log").open("xb", buffering=0) as file:
        for _ in range(100):
            file.write(b"x" * 500)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            syncs.append(time.perf_counter() - started)
    return statistics.median(puts) * 1000, statistics.median(syncs) * 1000


def paced_produce(
    bootstrap: str,
    *,
    partitions: int,
    seconds: float = SECONDS,
    bytes_per_s: float = RATE_BYTES_PER_S,
) -> Sequence[float]:
    """Milliseconds from each produce call to its acknowledgement."""
    client = load.producer(bootstrap, {"linger.ms": 0})
    client.list_topics(load.TOPIC, timeout=30)
    value = load.payload(RECORD_BYTES)
    waits: list[float] = []
    interval = RECORD_BYTES / bytes_per_s
    started = time.perf_counter()
    sent = 0
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            client.poll(0.1)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        while (now := time.perf_counter()) - started < seconds:
            while sent * interval <= now - started:

                def delivered(error: object, _: object, at: float = time.perf_counter()) -> None:
                    if error is None:
                        waits.append((time.perf_counter() - at) * 1000)

                client.produce(
                    load.TOPIC, value, partition=sent % partitions, on_delivery=delivered
                )
                sent += 1
            time.sleep(0.001)
        client.flush(30)
    finally:
        stop.set()
        poller.join()
    if len(waits) < sent:
        raise RuntimeError(f"{sent - len(waits)} of {sent} records were not acknowledged")
    return waits


def _put_rate(broker: BenchBroker, partitions: int) -> float:
    """WAL PUTs per second while every partition is written continuously."""
    client = load.producer(broker.bootstrap, {"linger.ms": 5})
    client.list_topics(load.TOPIC, timeout=60)
    value = load.payload(100)
    stop = threading.Event()

    def write() -> None:
        partition = 0
        while not stop.is_set():
            for _ in range(RECORDS_PER_TICK):
                client.produce(load.TOPIC, value, partition=partition)
                partition = (partition + 1) % partitions
            client.poll(0)
            time.sleep(TICK_S)

    writer = threading.Thread(target=write)
    writer.start()
    name = 'diskless_object_store_requests_total{op="put"}'
    try:
        time.sleep(2.0)
        before, started = broker.metrics()[name], time.perf_counter()
        time.sleep(PUT_SECONDS)
        after, ended = broker.metrics()[name], time.perf_counter()
    finally:
        stop.set()
        writer.join()
        client.flush(30)
    return (after - before) / (ended - started)
