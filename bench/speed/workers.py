"""Group `workers`: a broker of two workers against one process, with the same load in turns.

Four stock producers, since a connection is one worker's. Each round has a broker of each kind on a
directory of its own, one after the other; a ratio is made within each round. Processor time is that
of all processes of the broker. What a worker carried is read off the lanes in the headers of the
WAL objects.

On two cores the clients need as much as the broker, so nothing here shows what more cores give: the
ratio of throughput is a figure of the machine, and the cores are noted with it.
"""

import os
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil

from bench.speed.puts import written_at
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report

ROUNDS: Final = 3
CLIENTS: Final = 4
PARTITIONS: Final = 12
MIB: Final = 384
SMALL_MIB: Final = 96
SMALL_BATCH_BYTES: Final = 16 << 10
PACED_BYTES_PER_S: Final = 50_000_000
PACED_S: Final = 8.0
RECORD_BYTES: Final = 1024
GIB: Final = 1 << 30
_TICK_S: Final = 0.02
_IDEMPOTENT: Final[Mapping[str, object]] = {"enable.idempotence": True}
_LANE: Final = struct.Struct(">58xH")
"""In the header of a WAL object; docs/formats.md."""

ONE: Final[Mapping[str, object]] = {"broker.workers": 1}
TWO: Final[Mapping[str, object]] = {"broker.workers": 2, "broker.workers.active.min": 2}
AS_NEEDED: Final[Mapping[str, object]] = {"broker.workers": 2}


def run_workers(report: Report) -> None:
    """Processor time, objects and throughput of two workers, each against one process."""
    report.step(f"workers: two and one, {CLIENTS} idempotent producers")
    runs: dict[str, list[float]] = defaultdict(list)
    with report.progress("workers") as progress:
        for done in range(ROUNDS):
            for name, value in measure_round().items():
                runs[name].append(value)
            progress(done + 1, ROUNDS)
    report.add_runs(
        "workers_2_cpu_per_gib_ratio",
        runs["cpu_ratio"],
        bound="≤ 1.1",
        note="core-s/GiB of all processes, 2 workers ÷ 1 process",
    )
    report.add_runs(
        "workers_2_least_share",
        runs["least_share"],
        bound="≥ 0.4",
        note="of the bytes, of the worker with fewer",
    )
    report.add_runs(
        "workers_2_puts_ratio",
        runs["puts_ratio"],
        bound="≤ 1.0",
        note=f"WAL objects at {PACED_BYTES_PER_S / 1e6:.0f} MB/s, workers used as needed",
    )
    report.add_runs(
        "workers_2_produce_ratio",
        runs["produce_ratio"],
        note=f"batches of {SMALL_BATCH_BYTES >> 10} KiB, {os.cpu_count()} cores for all",
    )


def measure_round(scale: float = 1.0) -> Mapping[str, float]:
    """The ratios of one round; `scale` multiplies what is written."""
    cpu_s, least_share = {}, 0.0
    mb_per_s = {}
    for name, settings in (("one", ONE), ("two", TWO)):
        with fresh_directory() as directory, _broker(directory, settings) as broker:
            data = directory / "data"
            used_s = cpu_of_all(broker.pid)
            size = int((MIB << 20) * scale)
            _produce(broker.bootstrap, size, batch_bytes=1_000_000)
            cpu_s[name] = (cpu_of_all(broker.pid) - used_s) / size * GIB
            least_share = least_share_of_two(data)
            small = int((SMALL_MIB << 20) * scale)
            mb_per_s[name] = _produce(broker.bootstrap, small, batch_bytes=SMALL_BATCH_BYTES)
    puts = {}
    for name, settings in (("one", ONE), ("two", AS_NEEDED)):
        with fresh_directory() as directory, _broker(directory, settings) as broker:
            begun = time.time()
            _produce_paced(broker.bootstrap, PACED_S * scale)
            puts[name] = sum(1 for at in written_at(directory / "data") if at >= begun)
    return {
        "cpu_ratio": cpu_s["two"] / cpu_s["one"],
        "least_share": least_share,
        "produce_ratio": mb_per_s["two"] / mb_per_s["one"],
        "puts_ratio": puts["two"] / puts["one"],
    }


def cpu_of_all(pid: int) -> float:
    """Processor time of a process and of those that it, or its children, have started."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def least_share_of_two(data: Path) -> float:
    """Which part of the bytes of all WAL objects the lane of two has that has fewer."""
    sizes: Counter[int] = Counter()
    for path in (data / "objects" / "wal").rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                (lane,) = _LANE.unpack(file.read(_LANE.size))
            sizes[lane] += path.stat().st_size
    return min(sizes.values()) / sizes.total() if len(sizes) > 1 else 0.0


def _broker(directory: Path, settings: Mapping[str, object]) -> BenchBroker:
    return BenchBroker(directory / "data", {"num.partitions": PARTITIONS, **settings})


def _produce(bootstrap: str, total_bytes: int, *, batch_bytes: int) -> float:
    """MB/s of all producers together."""
    settings = {**_IDEMPOTENT, "batch.size": batch_bytes}

    def one(_: int) -> load.Measured:
        return load.produce(
            bootstrap,
            record_bytes=RECORD_BYTES,
            total_bytes=total_bytes // CLIENTS,
            partitions=PARTITIONS,
            settings=settings,
        )

    with ThreadPoolExecutor(CLIENTS) as threads:
        return sum(measured.mb_per_s for measured in threads.map(one, range(CLIENTS)))


def _produce_paced(bootstrap: str, seconds: float) -> None:
    """PACED_BYTES_PER_S of all producers together, a piece of each every 20 ms."""
    value = load.payload(RECORD_BYTES)
    records = int(PACED_BYTES_PER_S * _TICK_S / RECORD_BYTES / CLIENTS)
    wait = threading.Event().wait

    def one(number: int) -> None:
        client = load.producer(bootstrap, {**_IDEMPOTENT, "linger.ms": 5})
        client.list_topics(load.TOPIC, timeout=30)
        started, sent = time.perf_counter(), 0
        while (passed := time.perf_counter() - started) < seconds:
            while sent * _TICK_S <= passed:
                messages = [{"value": value}] * records
                client.produce_batch(load.TOPIC, messages, partition=(number + sent) % PARTITIONS)
                sent += 1
            client.poll(0)
            wait(_TICK_S / 4)
        if client.flush(60):
            raise RuntimeError("records were not acknowledged in a minute")

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(one, range(CLIENTS)))
