"""Group `consume`: MB/s and processor time out at the tail, from cold WAL objects, from Parquet.

Each is compared with what the same broker took in before from a plain producer. What is read is
what an idempotent one wrote after it.
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report

PARTITIONS: Final = 12
RECORD_BYTES: Final = 1024
CONSUME_BYTES: Final = 512 << 20
RUNS: Final = 3
_GIB: Final = 1 << 30


class ConsumeRun(NamedTuple):
    """One consumer that read everything."""

    mb_per_s: float
    core_s_per_gib: float
    """Of the broker."""


def run_consume(report: Report) -> None:
    """The same records read at the tail, from cold objects, and from Parquet."""
    report.step("consume: tail, cold WAL objects, Parquet")
    with fresh_directory() as directory:
        data = directory / "data"
        broker = BenchBroker(data, {"num.partitions": PARTITIONS})
        with broker:
            # The better one: the first also warms the broker up, and a slow one would flatter us.
            runs = [_produce(broker, "before", idempotent=False) for _ in range(2)]
            plain = load.best(runs).mb_per_s
            records = _produce(broker, load.TOPIC, idempotent=True).records
            report.add("consume_produce_mb_per_s", plain, "MB/s", note="plain, best of 2")
            tail = [_consume(broker, records) for _ in range(RUNS)]
        _add(report, "tail", tail, plain, "≥ 1")
        report.add_runs(
            "consume_core_s_per_gib",
            [run.core_s_per_gib for run in tail],
            "core-s/GiB",
            bound="≤ 0.8",
            note="tail",
        )
        _add(report, "cold", _consume_afresh(broker, data, records), plain, "≥ 0.5")
        with broker:
            started = time.perf_counter()
            tier(broker.bootstrap)
            report.add("tier_wall_s", time.perf_counter() - started, "s", note="with Spark's start")
        _add(report, "parquet", _consume_afresh(broker, data, records), plain, "≥ 0.4")


def _produce(broker: BenchBroker, topic: str, *, idempotent: bool) -> load.Measured:
    return load.produce(
        broker.bootstrap,
        record_bytes=RECORD_BYTES,
        total_bytes=CONSUME_BYTES,
        partitions=PARTITIONS,
        topic=topic,
        settings={"enable.idempotence": idempotent},
    )


def tier(bootstrap: str) -> None:
    """Roll everything that is there into Parquet, with a Spark of this machine's."""
    command = [str(Path(sys.executable).parent / "diskless"), "tier", "--bootstrap", bootstrap]
    subprocess.run(
        [*command, "--once", "--all", "--master", "local[2]"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _add(
    report: Report, name: str, runs: Sequence[ConsumeRun], produced: float, bound: str
) -> None:
    mb_per_s = [run.mb_per_s for run in runs]
    report.add_runs(f"consume_{name}_mb_per_s", mb_per_s, "MB/s")
    report.add_runs(
        f"consume_{name}_core_s_per_gib", [run.core_s_per_gib for run in runs], "core-s/GiB"
    )
    report.add(
        f"consume_{name}_vs_produce",
        statistics.median(mb_per_s) / produced,
        bound=bound,
        note="median ÷ plain produce",
    )


def _consume_afresh(broker: BenchBroker, data: Path, records: int) -> Sequence[ConsumeRun]:
    """As on a new machine: each time without chunks and caches, by a broker just started."""
    runs = []
    for _ in range(RUNS):
        for name in ("wal", "cache"):
            shutil.rmtree(data / name, ignore_errors=True)
        with broker:
            runs.append(_consume(broker, records))
    return runs


def _consume(broker: BenchBroker, records: int) -> ConsumeRun:
    client = load.consumer(broker.bootstrap, PARTITIONS)
    try:
        used_s = broker.cpu_s()
        measured = load.consume(client, records, RECORD_BYTES)
        used_s = broker.cpu_s() - used_s
    finally:
        client.close()
    return ConsumeRun(measured.mb_per_s, used_s / measured.bytes * _GIB)
