"""Group `puts`: how many WAL objects a second, idle, under load, and with a fixed interval.

Objects are counted where they lie, by the time at which each was written, so that counting them
costs the broker nothing.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.paced import paced_produce
from bench.tools.report import Report

FIXED_INTERVAL_MS: Final = 250
PUT_SECONDS: Final = 6.0
PARTITION_COUNTS: Final = (1, 100, 1000)
PARTITIONS: Final = 12
BUDGET_PER_S: Final = 250
"""The default of wal.puts.per.second.max on a directory."""
RATES_BYTES_PER_S: Final = (1 << 20, 20 << 20)
FULL_BYTES: Final = 256 << 20
_TICK_S: Final = 0.005
_RECORDS_PER_TICK: Final = 10
"""2,000 records a second round the partitions: with 1,000 of them, every record is a request."""


def run_puts(report: Report) -> None:
    """The budget holds under any load, nothing is put without load, partitions do not matter."""
    report.step("puts: WAL objects per second")
    _run_budget(report)
    expected = 1000 / FIXED_INTERVAL_MS
    for partitions in PARTITION_COUNTS:
        with fresh_directory() as directory:
            settings = {"num.partitions": partitions, **fixed_interval(FIXED_INTERVAL_MS)}
            with BenchBroker(directory / "data", settings) as broker:
                measured = _put_rate(broker, directory / "data", partitions)
        plural = "" if partitions == 1 else "s"
        report.add(
            f"puts_per_s_{partitions}_partition{plural}",
            measured,
            "PUT/s",
            note=f"fixed interval of {FIXED_INTERVAL_MS} ms: {expected:.0f} expected",
        )


def written_at(data: Path) -> Sequence[float]:
    """When each WAL object of a broker's directory store was written, in order."""
    objects = data / "objects" / "wal"
    return sorted(path.stat().st_mtime for path in objects.rglob("*") if path.is_file())


def most_in_a_second(times: Sequence[float]) -> int:
    """The most of the sorted `times` that lie within one second, whenever it begins."""
    most = first = 0
    for number, at in enumerate(times):
        while at - times[first] >= 1.0:
            first += 1
        most = max(most, number - first + 1)
    return most


def _run_budget(report: Report) -> None:
    with fresh_directory() as directory:
        data = directory / "data"
        with BenchBroker(data, {"num.partitions": PARTITIONS}) as broker:
            started = time.time()
            for rate in RATES_BYTES_PER_S:
                begun = time.time()
                paced_produce(
                    broker.bootstrap,
                    partitions=PARTITIONS,
                    seconds=PUT_SECONDS,
                    bytes_per_s=rate,
                    settings={"enable.idempotence": True},
                )
                count = sum(1 for at in written_at(data) if at >= begun)
                key = f"puts_per_s_at_{rate >> 20}mb"
                report.add(key, count / (time.time() - begun), "PUT/s", note="idempotent, linger 0")
            for partitions in (1, PARTITIONS):
                load.produce(
                    broker.bootstrap,
                    record_bytes=1024,
                    total_bytes=FULL_BYTES,
                    partitions=partitions,
                    settings={"enable.idempotence": True},
                )
            idle_since = time.time()
            time.sleep(PUT_SECONDS)
            times = written_at(data)
    idle = sum(1 for at in times if at > idle_since) / PUT_SECONDS
    report.add("idle_puts_per_s", idle, "PUT/s", bound="≤ 0")
    report.add(
        "puts_per_s_max",
        most_in_a_second([at for at in times if at >= started]),
        "PUT/s",
        bound=f"≤ {BUDGET_PER_S}",
        note="in any second of these loads",
    )


def _put_rate(broker: BenchBroker, data: Path, partitions: int) -> float:
    """WAL PUTs per second while every partition is written continuously."""
    with written_continuously(broker.bootstrap, partitions):
        started = time.time()
        time.sleep(PUT_SECONDS)
        ended = time.time()
    return sum(1 for at in written_at(data) if started <= at < ended) / (ended - started)


@contextmanager
def written_continuously(bootstrap: str, partitions: int) -> Iterator[None]:
    """Small records round all partitions, since two seconds when this is entered."""
    client = load.producer(bootstrap, {"linger.ms": 5})
    client.list_topics(load.TOPIC, timeout=60)
    value = load.payload(100)
    stop = threading.Event()

    def write() -> None:
        partition = 0
        while not stop.is_set():
            for _ in range(_RECORDS_PER_TICK):
                client.produce(load.TOPIC, value, partition=partition)
                partition = (partition + 1) % partitions
            client.poll(0)
            time.sleep(_TICK_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(2.0)
        yield
    finally:
        stop.set()
        writer.join()
        client.flush(30)
