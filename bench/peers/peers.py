"""Group `peers`: the same client and the same loads against what people would run instead.

Each round starts each system on a directory of its own, one after the other, so that a slow minute
of the machine does not hit one of them alone. All figures are medians of the rounds, with their
ranges; ratios are made within a round. What an acknowledgement promises differs and stands in the
table. A system that cannot be had is left out, with the reason.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.peers.systems import SYSTEMS, NotThere, System
from bench.speed.throughput import GIB, IDEMPOTENT, MANY, PARTITIONS, Row, topic_of
from bench.tools import load
from bench.tools.broker import ResidentMemory, fresh_directory
from bench.tools.paced import paced_produce
from bench.tools.report import Report

ROUNDS: Final = 3
ROWS: Final = (
    IDEMPOTENT,
    Row("plain", False, 512),
    Row("single_partition", True, 160, partitions=1),
    MANY,
    Row("100b", False, 64, record_bytes=100),
)
READ: Final = Row("read", True, 384)
WARM_UP_MIB: Final = 512
"""Of the first two rows each, before anything is measured: Java compiles what is busy."""
PACED: Final = (("1mb", 1 << 20), ("20mb", 20 << 20))
PACED_S: Final = 5.0

FIGURES: Final[Mapping[str, str]] = {
    **{f"{row.name}_mb_per_s": f"produce {row.name}, MB/s" for row in ROWS},
    **{f"{row.name}_core_s_per_gib": f"… core-s/GiB, {row.name}" for row in ROWS},
    "tail_mb_per_s": "tail read, MB/s",
    "tail_core_s_per_gib": "… core-s/GiB, tail",
    "cold_mb_per_s": "read after a restart, nothing cached, MB/s",
    **{
        f"ack_p{percent}_{name}_ms": f"ack p{percent} at {name[:-2]} MB/s, idempotent, ms"
        for name, _ in PACED
        for percent in (50, 99)
    },
    "disk_bytes_per_byte": "disk bytes per byte",
    "restart_s": "restart, s",
    "rss_mib": "resident set under load, MiB",
}
"""What each system is measured by, and how the table says it."""

RATIOS: Final = (
    ("produce_vs_kafka", "kafka", "idempotent", "≥ 0.7"),
    ("produce_vs_kafka_synced", "kafka_synced", "idempotent", "≥ 1.0"),
    ("produce_plain_vs_kafka_synced", "kafka_synced", "plain", "≥ 1.0"),
    ("produce_single_partition_vs_kafka_synced", "kafka_synced", "single_partition", "≥ 0.75"),
    ("produce_vs_klite", "klite", "idempotent", "≥ 1.0"),
    ("produce_plain_vs_klite", "klite", "plain", "≥ 1.0"),
)

Runs = Mapping[str, Sequence[float]]


def run_peers(report: Report) -> None:
    """Every figure of every system that is there, and ours over theirs."""
    report.step("peers: the same client and loads, interleaved")
    there: list[type[System]] = []
    for system in SYSTEMS:
        try:
            system.install()
        except NotThere as missing:
            report.step(f"peers: {system.name} is skipped: {missing}")
        else:
            there.append(system)
    with report.progress("peers") as progress:
        runs = measure_peers(there, progress=progress)
    for system in there:
        for figure in FIGURES:
            report.add_runs(f"peer_{system.name}_{figure}", runs[system.name][figure])
    for key, name, row, bound in RATIOS:
        if name in runs:
            ours, theirs = (runs[each][f"{row}_mb_per_s"] for each in ("diskless", name))
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            report.add_runs(key, ratios, bound=bound, note=f"{row}, ack: {_ack_of(there, name)}")
    _tabulate(report, there, runs)


def measure_peers(
    systems: Sequence[type[System]],
    *,
    rounds: int = ROUNDS,
    scale: float = 1.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, Runs]:
    """By system and figure, one value for each round. `scale` multiplies bytes and seconds."""
    runs: dict[str, dict[str, list[float]]] = {system.name: defaultdict(list) for system in systems}
    done = 0
    for _ in range(rounds):
        for system in systems:
            with fresh_directory() as directory, system(directory) as peer:
                for figure, value in _measure(peer, scale).items():
                    runs[system.name][figure].append(value)
            done += 1
            progress(done, rounds * len(systems))
    return runs


def _measure(peer: System, scale: float) -> Mapping[str, float]:
    """All figures of one system, once."""
    found: dict[str, float] = {}
    peer.start()
    for partitions in sorted({row.partitions for row in ROWS}):
        load.create_topic(peer.bootstrap, topic_of(partitions), partitions)
    load.create_topic(peer.bootstrap, READ.name, PARTITIONS)
    warm_up_bytes = int((WARM_UP_MIB << 20) * scale)
    written = sum(row.run(peer.bootstrap, warm_up_bytes).bytes for row in ROWS[:2])
    with ResidentMemory(peer.pid) as memory:
        for row in ROWS:
            used_s = peer.cpu_s()
            measured = row.run(peer.bootstrap, int((row.mib << 20) * scale))
            found[f"{row.name}_mb_per_s"] = measured.mb_per_s
            found[f"{row.name}_core_s_per_gib"] = (peer.cpu_s() - used_s) / measured.bytes * GIB
            written += measured.bytes
        produced = load.produce(
            peer.bootstrap,
            record_bytes=READ.record_bytes,
            total_bytes=int((READ.mib << 20) * scale),
            partitions=PARTITIONS,
            topic=READ.name,
            settings={"enable.idempotence": True},
        )
        written += produced.bytes
        used_s = peer.cpu_s()
        read = _read(peer, produced.records)
        found["tail_mb_per_s"] = read.mb_per_s
        found["tail_core_s_per_gib"] = (peer.cpu_s() - used_s) / read.bytes * GIB
    found["rss_mib"] = memory.peak_mib
    found["disk_bytes_per_byte"] = peer.disk_bytes() / written
    for name, rate in PACED:
        waits = paced_produce(
            peer.bootstrap,
            partitions=PARTITIONS,
            seconds=PACED_S * scale,
            bytes_per_s=rate,
            settings={"enable.idempotence": True},
        )
        quantiles = statistics.quantiles(waits, n=100)
        found[f"ack_p50_{name}_ms"], found[f"ack_p99_{name}_ms"] = quantiles[49], quantiles[98]
    peer.stop()
    peer.drop_caches()
    started = time.perf_counter()
    peer.start()
    found["restart_s"] = time.perf_counter() - started
    found["cold_mb_per_s"] = _read(peer, produced.records).mb_per_s
    peer.stop()
    return found


def _read(peer: System, records: int) -> load.Measured:
    client = load.consumer(peer.bootstrap, PARTITIONS, topic=READ.name)
    try:
        return load.consume(client, records, READ.record_bytes)
    finally:
        client.close()


def _ack_of(systems: Sequence[type[System]], name: str) -> str:
    return next(system.ack for system in systems if system.name == name)


def _tabulate(report: Report, systems: Sequence[type[System]], runs: Mapping[str, Runs]) -> None:
    rows = [("what an acknowledgement is", *(system.ack for system in systems))]
    for figure, text in FIGURES.items():
        values = (runs[system.name][figure] for system in systems)
        cells = (f"{statistics.median(v):,.3g} ({min(v):,.3g} … {max(v):,.3g})" for v in values)
        rows.append((text, *cells))
    report.table("median (range)", ("", *(system.name for system in systems)), rows)
