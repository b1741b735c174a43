"""Group `produce`: MB/s in, MB/s out at the tail, from cold WAL objects, from Parquet.

Produce is compared with the sink in the same run, alternating, so that a slow minute of the machine
hits both.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import load
from bench.broker import BenchBroker, ResidentMemory, fresh_directory
from bench.report import Report

PARTITIONS = 12
RECORD_BYTES = 1024
SMALL_RECORD_BYTES = 100
PRODUCE_BYTES = 1536 << 20
SMALL_BYTES = 96 << 20
CONSUME_BYTES = 512 << 20
RUNS = 4
RSS_BOUND_MIB = "≤ 300"


def run_produce(report: Report) -> None:
    """Produce against the sink, then consume at the tail, cold, and from Parquet."""
    sink_runs: list[load.Measured] = []
    broker_runs: list[load.Measured] = []
    small_runs: list[load.Measured] = []
    report.step("produce: 1 KiB records, batch.size 1 MB, 12 partitions, acks=all")
    with fresh_directory() as directory:
        sink = subprocess.Popen(
            [sys.executable, "-m", "bench.sink", str(PARTITIONS)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert sink.stdout is not None
            sink_address = f"127.0.0.1:{int(sink.stdout.readline())}"
            with BenchBroker(directory / "data", {"num.partitions": PARTITIONS}) as broker:
                with ResidentMemory(broker.pid) as memory:
                    for _ in range(RUNS):
                        for address, runs in (
                            (sink_address, sink_runs),
                            (broker.bootstrap, broker_runs),
                        ):
                            runs.append(
                                load.produce(
                                    address,
                                    record_bytes=RECORD_BYTES,
                                    total_bytes=PRODUCE_BYTES,
                                    partitions=PARTITIONS,
                                )
                            )
                for _ in range(RUNS):
                    small_runs.append(
                        load.produce(
                            broker.bootstrap,
                            record_bytes=SMALL_RECORD_BYTES,
                            total_bytes=SMALL_BYTES,
                            partitions=PARTITIONS,
                            topic="small",
                        )
                    )
        finally:
            sink.kill()
            sink.wait()
            assert sink.stdout is not None
            sink.stdout.close()
    sink_best, broker_best = load.best(sink_runs), load.best(broker_runs)
    report.add("sink_mb_per_s", sink_best.mb_per_s, "MB/s")
    report.add("produce_mb_per_s", broker_best.mb_per_s, "MB/s")
    report.add(
        "produce_vs_sink",
        broker_best.mb_per_s / sink_best.mb_per_s,
        bound="≥ 0.45",
        note="best of alternating runs",
    )
    report.add(
        "produce_100b_records_per_s",
        load.best(small_runs).records_per_s,
        "records/s",
        bound="≥ 300000",
    )
    report.add("rss_produce_mib", memory.peak_mib, "MiB", bound=RSS_BOUND_MIB)


def run_consume(report: Report) -> None:
    """The same records read at the tail, from cold objects, and from Parquet."""
    report.step("consume: tail, cold WAL objects, Parquet")
    with fresh_directory() as directory:
        data = directory / "data"
        broker = BenchBroker(data, {"num.partitions": PARTITIONS})
        with broker:
            produced = load.best(
                [
                    load.produce(
                        broker.bootstrap,
                        record_bytes=RECORD_BYTES,
                        total_bytes=CONSUME_BYTES,
                        partitions=PARTITIONS,
                    )
                    for _ in range(2)
                ]
            )
            report.add("consume_produce_mb_per_s", produced.mb_per_s, "MB/s", note="same set-up")
            tail = _best_consume(broker, produced.records)
            report.add("consume_tail_mb_per_s", tail.mb_per_s, "MB/s")
            report.add("consume_tail_vs_produce", tail.mb_per_s / produced.mb_per_s, bound="≥ 1")
        cold_runs = []
        for _ in range(3):
            _drop_local_copies(data)
            with broker:
                cold_runs.append(_consume_once(broker, produced.records))
        cold = load.best(cold_runs)
        report.add("consume_cold_mb_per_s", cold.mb_per_s, "MB/s")
        report.add("consume_cold_vs_produce", cold.mb_per_s / produced.mb_per_s, bound="≥ 0.5")
        with broker:
            started = time.perf_counter()
            subprocess.run(
                [
                    str(Path(sys.executable).parent / "diskless"),
                    "tier",
                    "--bootstrap",
                    broker.bootstrap,
                    "--once",
                    "--all",
                    "--master",
                    "local[2]",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            report.add("tier_wall_s", time.perf_counter() - started, "s", note="with Spark's start")
        parquet_runs = []
        for _ in range(3):
            _drop_local_copies(data)
            with broker:
                parquet_runs.append(_consume_once(broker, produced.records))
        parquet = load.best(parquet_runs)
        report.add("consume_parquet_mb_per_s", parquet.mb_per_s, "MB/s")
        report.add(
            "consume_parquet_vs_produce", parquet.mb_per_s / produced.mb_per_s, bound="≥ 0.4"
        )


def _best_consume(broker: BenchBroker, records: int) -> load.Measured:
    return load.best([_consume_once(broker, records) for _ in range(3)])


def _consume_once(broker: BenchBroker, records: int) -> load.Measured:
    client = load.consumer(broker.bootstrap, PARTITIONS)
    try:
        return load.consume(client, records, RECORD_BYTES)
    finally:
        client.close()


def _drop_local_copies(data: Path) -> None:
    """What a broker finds on a new machine: the metadata and the bucket, no chunks, no caches."""
    for name in ("wal", "cache"):
        shutil.rmtree(data / name, ignore_errors=True)
