"""Group `latency`: how long a produce waits for its acknowledgement, and what it waits for.

Records of 1 KiB come one by one at a fixed rate, without linger. A key without a suffix is right
after a gigabyte was produced, while the disk writes it; `_idle` is after all of it has reached the
disk. Beside the acknowledgements stands the raw price of what they promise, measured on the same
disk, right after a gigabyte too: one durable object and one synced append to a log.
"""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.paced import RECORD_BYTES, paced_produce
from bench.tools.report import Report

ACK_SECONDS: Final = 8.0
RAW_SECONDS: Final = 4.0
RAW_PER_S: Final = 200
RAW_OBJECT_BYTES: Final = 8 << 10
"""A little more than 1 MB/s gives each object, when there are RAW_PER_S of them."""
COMMIT_INTERVAL_MS: Final = 10
PARTITIONS: Final = 12
GIB: Final = 1 << 30
P99_ALLOWED_MS: Final = 25.0
P99_ALLOWED_RAW: Final = 4


class AckRow(NamedTuple):
    """One paced producer. Its keys are `ack_<quantile>_<name>_ms`."""

    name: str
    bytes_per_s: int
    idempotent: bool = True
    after_bytes: int = GIB
    """Produced right before; 0: the disk is idle."""


ACK_ROWS: Final = (
    AckRow("1mb", 1 << 20),
    AckRow("1mb_plain", 1 << 20, idempotent=False),
    AckRow("1mb_idle", 1 << 20, after_bytes=0),
    AckRow("20mb", 20 << 20),
    AckRow("20mb_plain", 20 << 20, idempotent=False),
    AckRow("20mb_idle", 20 << 20, after_bytes=0),
)


def run_latency(report: Report) -> None:
    """p50 and p99 with the broker's defaults, and over the floor of a fixed interval."""
    report.step("latency: 1 KiB records at a fixed rate, linger 0, 12 partitions")
    with report.progress("latency") as progress, fresh_directory() as directory:
        waits: dict[str, Sequence[float]] = {}
        with BenchBroker(directory / "data", {"num.partitions": PARTITIONS}) as broker:
            for number, row in enumerate(ACK_ROWS):
                waits[row.name] = ack_waits(broker.bootstrap, row, seconds=ACK_SECONDS)
                progress(number + 1, len(ACK_ROWS) + 1)
            _settle(broker.bootstrap, GIB)
            raw = raw_waits(directory, seconds=RAW_SECONDS)
    raw_p99 = _quantile(raw, 99)
    report.add("raw_put_and_sync_p50_ms", _quantile(raw, 50), "ms", note="object put + log sync")
    report.add("raw_put_and_sync_p99_ms", raw_p99, "ms")
    p99_bound = max(P99_ALLOWED_MS, P99_ALLOWED_RAW * raw_p99)
    bounds = {
        "ack_p50_1mb_ms": "≤ 4",
        "ack_p99_1mb_ms": f"≤ {p99_bound:.1f}",
        "ack_p50_20mb_ms": "≤ 10",
    }
    for row in ACK_ROWS:
        for percent in (50, 99):
            key = f"ack_p{percent}_{row.name}_ms"
            value = _quantile(waits[row.name], percent)
            report.add(key, value, "ms", bound=bounds.get(key, ""))
    _run_over_floor(report)


def ack_waits(bootstrap: str, row: AckRow, *, seconds: float) -> Sequence[float]:
    """Milliseconds from each produce call of `row` to its acknowledgement."""
    _settle(bootstrap, row.after_bytes)
    return paced_produce(
        bootstrap,
        partitions=PARTITIONS,
        seconds=seconds,
        bytes_per_s=row.bytes_per_s,
        settings={"enable.idempotence": row.idempotent},
    )


def raw_waits(directory: Path, *, seconds: float) -> Sequence[float]:
    """Milliseconds of a durable object and a synced append after it, RAW_PER_S times a second."""
    objects = directory / "raw"
    objects.mkdir()
    handle = os.open(objects, os.O_RDONLY)
    waits = []
    try:
        with (directory / "raw-log").open("xb", buffering=0) as log:
            started = time.perf_counter()
            for number in range(int(seconds * RAW_PER_S)):
                begun = time.perf_counter()
                _put(objects, handle, number, RAW_OBJECT_BYTES)
                _append(log.fileno())
                waits.append((time.perf_counter() - begun) * 1_000)
                left = started + (number + 1) / RAW_PER_S - time.perf_counter()
                time.sleep(max(0.0, left))
    finally:
        os.close(handle)
    return waits


def _run_over_floor(report: Report) -> None:
    """What a commit at a fixed interval adds to the interval, one raw put and one raw sync."""
    with fresh_directory() as directory:
        put_ms, sync_ms = _medians(directory)
        settings = {"num.partitions": PARTITIONS, **fixed_interval(COMMIT_INTERVAL_MS)}
        with BenchBroker(directory / "data", settings) as broker:
            waits = paced_produce(broker.bootstrap, partitions=PARTITIONS)
    floor_ms = COMMIT_INTERVAL_MS + put_ms + sync_ms
    p50, p99 = _quantile(waits, 50), _quantile(waits, 99)
    report.add("latency_floor_ms", floor_ms, "ms", note="commit interval + raw PUT + fdatasync")
    report.add("produce_p50_ms", p50, "ms", note="fixed interval")
    report.add("produce_p99_ms", p99, "ms", note="fixed interval")
    report.add("produce_p50_over_floor_ms", p50 - floor_ms, "ms", bound="≤ 10")
    report.add("produce_p99_over_floor_ms", p99 - floor_ms, "ms")


def _medians(directory: Path) -> tuple[float, float]:
    """Milliseconds of a durable PUT of 32 KiB, and of an fdatasync of 500 bytes."""
    puts = []
    handle = os.open(directory, os.O_RDONLY)
    try:
        for number in range(50):
            started = time.perf_counter()
            _put(directory, handle, number, 32 << 10)
            puts.append(time.perf_counter() - started)
    finally:
        os.close(handle)
    syncs = []
    with (directory / "log").open("xb", buffering=0) as file:
        for _ in range(100):
            started = time.perf_counter()
            _append(file.fileno())
            syncs.append(time.perf_counter() - started)
    return statistics.median(puts) * 1_000, statistics.median(syncs) * 1_000


def _put(directory: Path, handle: int, number: int, size: int) -> None:
    """What a durable object of a directory takes: `handle` is the directory's."""
    temporary = directory / f"put-{number}.tmp"
    with temporary.open("xb", buffering=0) as file:
        file.write(os.urandom(size))
        os.fdatasync(file.fileno())
    temporary.rename(directory / f"put-{number}")
    os.fsync(handle)


def _append(log: int) -> None:
    os.write(log, b"x" * 500)
    os.fdatasync(log)


def _settle(bootstrap: str, after_bytes: int) -> None:
    """Leave the disk with `after_bytes` just written, or idle."""
    if after_bytes:
        load.produce(
            bootstrap,
            record_bytes=RECORD_BYTES,
            total_bytes=after_bytes,
            partitions=PARTITIONS,
            settings={"enable.idempotence": False},
        )
    else:
        os.sync()


def _quantile(waits: Sequence[float], percent: int) -> float:
    return statistics.quantiles(waits, n=100)[percent - 1]
