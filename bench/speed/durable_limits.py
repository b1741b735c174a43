"""Group `durable_limits`: the stock client on a server that does the durable work and nothing else.

Each acknowledgement stands for a chunk file, a synced object and a synced append to a log, by an
event loop with threads, as a broker's does (bench/speed/durable_sink.py); nothing is decoded,
checked or decided. So a broker that does more has no higher rate, but for noise. A ratio of two
rates is no such limit: a broker that is slow with plain producers has a better one.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.speed.client_limits import PACED_ROWS
from bench.speed.sink import durable_sink
from bench.speed.throughput import IDEMPOTENT, MANY, PARTITIONS, PLAIN, SINGLE, topic_of
from bench.tools.broker import fresh_directory
from bench.tools.paced import settled_waits
from bench.tools.report import Report

ROUNDS: Final = 5
PACED_S: Final = 4.0
WARM_BYTES: Final = 512 << 20
"""Produced first: the chunk files that are written over are there then."""
ROWS: Final = (PLAIN, IDEMPOTENT, SINGLE, MANY)


def run_durable_limits(report: Report) -> None:
    """Every kind of producer, and the waits of an idempotent one at two rates."""
    report.step("durable limits: a server that stores, syncs, answers, and does nothing else")
    with report.progress("durable limits") as progress:
        runs = measure_durable_limits(progress=progress)
    for row in ROWS:
        report.add_runs(f"durable_limit_{row.name}_mb_per_s", runs[row.name], "MB/s")
    for key, part, whole in (
        ("idempotent_vs_plain", IDEMPOTENT, PLAIN),
        ("single_partition_vs_12", SINGLE, IDEMPOTENT),
        ("1000_partitions_vs_12", MANY, IDEMPOTENT),
    ):
        pairs = zip(runs[part.name], runs[whole.name], strict=True)
        ratios = [one / other for one, other in pairs]
        report.add_runs(f"durable_limit_{key}", ratios, note=f"{part.name} ÷ {whole.name}")
    for paced in PACED_ROWS:
        report.add_runs(f"durable_limit_ack_p50_{paced.name}_ms", runs[f"ack_{paced.name}"], "ms")


def measure_durable_limits(
    *,
    rounds: int = ROUNDS,
    warm_bytes: int = WARM_BYTES,
    scale: float = 1.0,
    paced_s: float = PACED_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, Sequence[float]]:
    """Runs by row: MB/s, and under `ack_<row>` the median wait in ms.

    `scale` multiplies what the rows write.
    """
    runs: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        with fresh_directory() as directory:
            for partitions in (PARTITIONS, 1, MANY.partitions):
                files = directory / str(partitions)
                with durable_sink(topic_of(partitions), partitions, files) as bootstrap:
                    if partitions == PARTITIONS:
                        PLAIN.run(bootstrap, warm_bytes)
                        _measure_waits(bootstrap, paced_s, runs)
                    for row in ROWS:
                        if row.partitions == partitions:
                            size = int((row.mib << 20) * scale)
                            runs[row.name].append(row.run(bootstrap, size).mb_per_s)
        progress(number + 1, rounds)
    return runs


def _measure_waits(bootstrap: str, seconds: float, runs: dict[str, list[float]]) -> None:
    for row in PACED_ROWS:
        waits = settled_waits(
            bootstrap, partitions=PARTITIONS, seconds=seconds, bytes_per_s=row.bytes_per_s
        )
        runs[f"ack_{row.name}"].append(statistics.median(waits))
