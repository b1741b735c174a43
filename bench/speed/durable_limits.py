"""Group `durable_limits`: the stock client on a server that does the durable work and nothing else.

Each acknowledgement stands for a chunk file, a synced object and a synced append to a log, by an
event loop with threads, as a broker's does (bench/speed/durable_sink.py); nothing is decoded,
checked or decided. So a broker that does more has no higher rate, but for noise.

A broker runs by turns with that server, on the same disk in the same minute, each time when all
that was written before has reached it: `durable_share_…` is what the broker has of the server's
rate, or the server's wait of the broker's. A ratio of two of the server's rates is no limit of a
broker's ratio: a broker that is slow with plain producers has a better one. `…_at_limit` is one:
what the ratio would be if the producers above the line were as fast as with that server, and those
below it as they are with the broker.
"""

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bench.speed.client_limits import PACED_ROWS
from bench.speed.sink import durable_sink
from bench.speed.throughput import (
    IDEMPOTENT,
    MANY,
    PARTITIONS,
    PLAIN,
    SINGLE,
    broker_of_rows,
    topic_of,
)
from bench.tools.broker import fresh_directory
from bench.tools.paced import settled_waits
from bench.tools.report import Report

ROUNDS: Final = 5
PACED_S: Final = 4.0
WARM_BYTES: Final = 1 << 30
"""Produced first: the chunk files that are written over are there then."""
ROWS: Final = (PLAIN, IDEMPOTENT, SINGLE, MANY)
RATIOS: Final = (
    ("idempotent_vs_plain", IDEMPOTENT, PLAIN),
    ("single_partition_vs_12", SINGLE, IDEMPOTENT),
    ("1000_partitions_vs_12", MANY, IDEMPOTENT),
)


class DurableRuns(NamedTuple):
    """Runs by row: MB/s, and under `ack_<row>` the median wait in ms."""

    server: Mapping[str, list[float]]
    broker: Mapping[str, list[float]]


def run_durable_limits(report: Report) -> None:
    """Every kind of producer, and the waits of an idempotent one at two rates."""
    report.step("durable limits: a server that stores, syncs, answers, and a broker by turns")
    with report.progress("durable limits") as progress:
        server, broker = measure_durable_limits(progress=progress)
    for row in ROWS:
        report.add_runs(f"durable_limit_{row.name}_mb_per_s", server[row.name], "MB/s")
        shares = _ratios(broker[row.name], server[row.name])
        report.add_runs(f"durable_share_{row.name}", shares, note="broker ÷ that")
    for key, part, whole in RATIOS:
        ratios = _ratios(server[part.name], server[whole.name])
        report.add_runs(f"durable_limit_{key}", ratios, note=f"{part.name} ÷ {whole.name}")
        ratios = _ratios(server[part.name], broker[whole.name])
        note = f"{part.name} there ÷ {whole.name} of the broker"
        report.add_runs(f"{key}_at_limit", ratios, note=note)
    for paced in PACED_ROWS:
        waits = server[f"ack_{paced.name}"]
        report.add_runs(f"durable_limit_ack_p50_{paced.name}_ms", waits, "ms")
        shares = _ratios(waits, broker[f"ack_{paced.name}"])
        report.add_runs(f"durable_share_ack_p50_{paced.name}", shares, note="that ÷ the broker's")


def measure_durable_limits(
    *,
    rounds: int = ROUNDS,
    warm_bytes: int = WARM_BYTES,
    scale: float = 1.0,
    paced_s: float = PACED_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DurableRuns:
    """`scale` multiplies what the rows write."""
    runs = DurableRuns(defaultdict(list), defaultdict(list))
    for number in range(rounds):
        with fresh_directory() as directory, broker_of_rows(directory) as broker:
            for partitions in (PARTITIONS, 1, MANY.partitions):
                files = directory / str(partitions)
                with durable_sink(topic_of(partitions), partitions, files) as bootstrap:
                    both = [(bootstrap, runs.server), (broker.bootstrap, runs.broker)]
                    if number % 2:
                        both.reverse()
                    if partitions == PARTITIONS:
                        for address, _ in both:
                            PLAIN.run(address, warm_bytes)
                        for address, found in both:
                            os.sync()
                            _measure_waits(address, paced_s, found)
                    for row in ROWS:
                        if row.partitions == partitions:
                            size = int((row.mib << 20) * scale)
                            for address, found in both:
                                os.sync()
                                found[row.name].append(row.run(address, size).mb_per_s)
        progress(number + 1, rounds)
    return runs


def _measure_waits(bootstrap: str, seconds: float, found: Mapping[str, list[float]]) -> None:
    for row in PACED_ROWS:
        waits = settled_waits(
            bootstrap, partitions=PARTITIONS, seconds=seconds, bytes_per_s=row.bytes_per_s
        )
        found[f"ack_{row.name}"].append(statistics.median(waits))


def _ratios(parts: Sequence[float], wholes: Sequence[float]) -> Sequence[float]:
    return [one / other for one, other in zip(parts, wholes, strict=True)]
