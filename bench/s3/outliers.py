"""Group `s3_outliers`: what a second put is worth where some puts of a bucket take far too long.

The store is the one of `s3_writing`, but one put in a hundred takes ten times as long. A producer
writes 1 MB/s; its acknowledgements wait for the outlier and for the commits behind it. Once
outliers are waited for, once they are put a second time (`wal.upload.second.percent`).
"""

import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple

from bench.tools import load
from bench.tools.broker import fresh_directory
from bench.tools.paced import paced_produce
from bench.tools.report import Report
from bench.tools.s3_bed import S3Bed, s3_bed
from bench.tools.slow_s3 import Delays
from localstack.minio import HOW_TO_GET

PARTITIONS: Final = 4
BYTES_PER_S: Final = 1_000_000
SETTLING_S: Final = 6.0
"""In which the broker learns how long its puts take."""
SECONDS: Final = 24.0
OUTLIERS: Final = Delays(outlier_share=0.01, outlier_ms=300)
PERCENT: Final = 2


class Waits(NamedTuple):
    """Acknowledgements of one broker, and the requests that it made for them."""

    p50_ms: float
    p99_ms: float
    puts: float
    second_puts: float


def run_s3_outliers(report: Report) -> None:
    """Both brokers, one after the other."""
    with s3_bed(OUTLIERS) as bed:
        if not bed.is_minio:
            report.step(f"s3_outliers: skipped, {HOW_TO_GET}")
            return
        report.step("s3_outliers: 30 ms for a PUT, 300 ms for one in a hundred")
        waited = measure(bed, "waited", {"wal.upload.second.percent": 0})
        twice = measure(bed, "twice", {"wal.upload.second.percent": PERCENT})
    note = f"1 MB/s idempotent, local log, {PARTITIONS} partitions"
    report.add("s3_outlier_ack_p50_ms", twice.p50_ms, "ms", note=note)
    report.add("s3_outlier_ack_p99_ms", twice.p99_ms, "ms", note=note)
    report.add(
        "s3_second_put_p99_ratio",
        twice.p99_ms / waited.p99_ms,
        bound="≤ 0.67",
        note=f"without second puts {waited.p99_ms:.0f} ms",
    )
    report.add(
        "s3_second_puts_share",
        twice.second_puts / twice.puts,
        bound="≤ 0.02",
        note=f"of {twice.puts:.0f} puts",
    )


def measure(
    bed: S3Bed,
    prefix: str,
    settings: Mapping[str, object],
    *,
    settling_s: float = SETTLING_S,
    paced_s: float = SECONDS,
) -> Waits:
    """One broker, once it knows its store."""
    values = {"num.partitions": PARTITIONS, **settings}
    with fresh_directory() as directory, bed.broker(directory / "data", prefix, values) as broker:
        load.create_topic(broker.bootstrap, load.TOPIC, PARTITIONS)
        for seconds in (settling_s, paced_s):
            waits = paced_produce(
                broker.bootstrap,
                partitions=PARTITIONS,
                seconds=seconds,
                bytes_per_s=BYTES_PER_S,
                settings={"enable.idempotence": True},
            )
        metrics = broker.metrics()
    quantiles = statistics.quantiles(waits, n=100)
    return Waits(
        p50_ms=quantiles[49],
        p99_ms=quantiles[98],
        puts=metrics["diskless_wal_objects_committed_total"],
        second_puts=metrics["diskless_second_puts_total"],
    )
