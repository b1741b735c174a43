"""Group `produce`: MB/s and processor time of each kind of producer, on a busy and an idle disk.

Each round has a broker and a directory of its own. It measures all rows twice: once with the disk
idle, after all that was written has reached it, and once right after a gigabyte was produced. A key
without a suffix is the busy disk's, which is what a broker under load has; `_idle` is the other.
The sink is measured in every round too, so that a slow minute of the machine hits both; it is what
the client can do, whoever the broker is.

A ratio is made within each round, and its median is reported.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.speed.sink import sink
from bench.tools import load
from bench.tools.broker import BenchBroker, ResidentMemory, fresh_directory
from bench.tools.report import Report

ROUNDS: Final = 5
PARTITIONS: Final = 12
MANY_PARTITIONS: Final = 1_000
MANY_BATCH_BYTES: Final = 50_000
SMALL_RECORD_BYTES: Final = 100
GIB: Final = 1 << 30
BUSY: Final = ""
IDLE: Final = "_idle"

Progress = Callable[[int, int], None]
Runs = Mapping[str, Sequence[float]]


class Row(NamedTuple):
    """One kind of producer. Its figures are `produce_<name>_…`."""

    name: str
    idempotent: bool
    mib: int
    partitions: int = PARTITIONS
    record_bytes: int = 1024
    batch_bytes: int = 1_000_000
    call_records: int = load.CHUNK_RECORDS

    def run(self, bootstrap: str, total_bytes: int) -> load.Measured:
        return load.produce(
            bootstrap,
            record_bytes=self.record_bytes,
            total_bytes=total_bytes,
            partitions=self.partitions,
            topic=topic_of(self.partitions),
            settings={"enable.idempotence": self.idempotent, "batch.size": self.batch_bytes},
            call_records=self.call_records,
        )


PLAIN: Final = Row("plain", False, 640)
IDEMPOTENT: Final = Row("idempotent", True, 448)
SINGLE: Final = Row("single_partition", True, 160, partitions=1)
MANY: Final = Row(
    "1000_partitions",
    True,
    64,
    MANY_PARTITIONS,
    batch_bytes=MANY_BATCH_BYTES,
    call_records=MANY_BATCH_BYTES // 1024,
)
"""A batch for each partition in turn, so that all of them are written."""
ROWS: Final = (
    PLAIN,
    IDEMPOTENT,
    Row("single_partition_plain", False, 192, partitions=1),
    SINGLE,
    MANY._replace(name="1000_partitions_plain", idempotent=False, mib=128),
    MANY,
    Row("100b_plain", False, 64, record_bytes=SMALL_RECORD_BYTES),
    Row("100b", True, 64, record_bytes=SMALL_RECORD_BYTES),
)
"""Idempotent where the name does not say. librdkafka then has five requests of a batch each in
flight, and no more than one for each partition."""
SINK_ROWS: Final = {
    "sink_mb_per_s": PLAIN,
    "sink_idempotent_mb_per_s": IDEMPOTENT,
    "sink_1000_partitions_mb_per_s": MANY,
}


def run_produce(report: Report) -> None:
    """Every row against the sink, and each against what it is to keep up with."""
    report.step("produce: 1 KiB records unless said, acks=all, on a busy disk and an idle one")
    with report.progress("produce") as progress:
        runs, resident_mib = measure_produce(progress=progress)
    for key in SINK_ROWS:
        report.add_runs(key, runs[key], "MB/s", note="no broker behind it")
    for disk in (BUSY, IDLE):
        for row in ROWS:
            report.add_runs(
                f"produce_{row.name}{disk}_mb_per_s", runs[f"{row.name}{disk}_mb_per_s"], "MB/s"
            )
            report.add_runs(
                f"produce_{row.name}{disk}_core_s_per_gib",
                runs[f"{row.name}{disk}_core_s_per_gib"],
                "core-s/GiB",
            )
        for key, part, whole, bound in (
            ("produce_vs_sink", "plain", "sink", "≥ 0.45"),
            ("produce_idempotent_vs_plain", "idempotent", "plain", "≥ 0.85"),
            ("produce_single_partition_vs_12", "single_partition", "idempotent", "≥ 0.6"),
            ("produce_1000_partitions_vs_12", "1000_partitions", "idempotent", "≥ 0.5"),
        ):
            parts = runs[f"{part}{disk}_mb_per_s"]
            wholes = runs[f"{whole}{'' if whole == 'sink' else disk}_mb_per_s"]
            ratios = [one / other for one, other in zip(parts, wholes, strict=True)]
            report.add_runs(f"{key}{disk}", ratios, bound=bound, note=f"{part} ÷ {whole}")
    report.add_runs(
        "produce_core_s_per_gib",
        runs["idempotent_core_s_per_gib"],
        "core-s/GiB",
        bound="≤ 1.6",
        note="idempotent, 12 partitions",
    )
    report.add_runs("produce_mb_per_s", runs["plain_mb_per_s"], "MB/s", note="plain")
    small = [mb_per_s * 1e6 / SMALL_RECORD_BYTES for mb_per_s in runs["100b_plain_mb_per_s"]]
    report.add_runs("produce_100b_records_per_s", small, "records/s", bound="≥ 300000")
    report.add_runs("rss_produce_mib", resident_mib, "MiB", bound="≤ 300")


def measure_produce(
    *,
    rounds: int = ROUNDS,
    rows: Sequence[Row] = ROWS,
    busy_bytes: int = GIB,
    scale: float = 1.0,
    progress: Progress = lambda done, total: None,
) -> tuple[Runs, Sequence[float]]:
    """The figures of each round by key, and the largest resident set of each round's broker.

    Keys are `<row><disk>_mb_per_s` and `<row><disk>_core_s_per_gib`, and those of `SINK_ROWS`.
    `scale` multiplies what the rows write.
    """
    runs: dict[str, list[float]] = defaultdict(list)
    resident_mib: list[float] = []
    steps = rounds * (2 * len(rows) + len(SINK_ROWS))
    done = 0
    with (
        sink(topic_of(PARTITIONS), PARTITIONS) as few,
        sink(topic_of(MANY_PARTITIONS), MANY_PARTITIONS) as many,
    ):
        for _ in range(rounds):
            with fresh_directory() as directory, broker_of_rows(directory) as broker:
                with ResidentMemory(broker.pid) as memory:
                    PLAIN.run(broker.bootstrap, int(busy_bytes))
                    for disk in (BUSY, IDLE):
                        for row in rows:
                            if disk == IDLE:
                                os.sync()
                            size = int((row.mib << 20) * scale)
                            used_s = broker.cpu_s()
                            measured = row.run(broker.bootstrap, size)
                            used_s = broker.cpu_s() - used_s
                            name = f"{row.name}{disk}"
                            runs[f"{name}_mb_per_s"].append(measured.mb_per_s)
                            runs[f"{name}_core_s_per_gib"].append(used_s / measured.bytes * GIB)
                            done += 1
                            progress(done, steps)
                resident_mib.append(memory.peak_mib)
            for key, row in SINK_ROWS.items():
                size = int((row.mib << 20) * scale)
                address = few if row.partitions == PARTITIONS else many
                runs[key].append(row.run(address, size).mb_per_s)
                done += 1
                progress(done, steps)
    return runs, resident_mib


def topic_of(partitions: int) -> str:
    """Topics of different numbers of partitions are different ones."""
    return load.TOPIC if partitions == PARTITIONS else f"{load.TOPIC}-{partitions}"


@contextmanager
def broker_of_rows(directory: Path) -> Iterator[BenchBroker]:
    """A broker with the topics of all rows."""
    with BenchBroker(directory / "data", {"num.partitions": PARTITIONS}) as broker:
        for partitions in sorted({row.partitions for row in ROWS}):
            load.create_topic(broker.bootstrap, topic_of(partitions), partitions)
        yield broker
