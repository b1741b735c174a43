"""Group `slow_store`: producers on a bucket whose PUTs take 50 ms, and what sealing early brings.

The broker is asked with its defaults and with a fixed commit interval of 250 ms, on the local
metadata log and on the log in the bucket. Two figures each: the wait for an acknowledgement at
1 MB/s, which is to be near that of the PUTs it consists of, and the throughput of an idempotent
producer. The raw PUT is measured with the same server, in the same run.

An idempotent producer has five requests of one batch each in flight, so with twelve partitions a
record also waits for its partition's turn. The plain producer's wait is the broker's alone. Both
have the same bound. Beside the idempotent producer stands what it waits on a server whose answers
take as long as the PUTs they stand for, and nothing else takes any time (client_limits.py): no
broker on this store has it wait for less.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from bench.speed.client_limits import least_ack_p50_ms
from bench.tools import load
from bench.tools.broker import fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.paced import settled_waits
from bench.tools.report import Report
from bench.tools.s3_bed import BUCKET, S3Bed, s3_bed
from bench.tools.slow_s3 import Delays

PUT_MS: Final = 50
SLOW_PUTS: Final = Delays(put_ms=PUT_MS, first_byte_ms=0, bytes_per_s=0)
INTERVAL_MS: Final = 250
PARTITIONS: Final = 12
RAW_PUTS: Final = 40
RAW_BYTES: Final = 16 << 10
PACED_S: Final = 8.0
EARLY_BYTES: Final = 192 << 20
FIXED_BYTES: Final = 48 << 20
SLACK_MS: Final = 10.0
PUTS_PER_S: Final = 20
LARGE_BYTES: Final = 3 << 20
"""The defaults of wal.puts.per.second.max and wal.puts.large.bytes on S3."""


class LogRow(NamedTuple):
    """One place of the metadata log. `puts` may pass until an acknowledgement comes."""

    name: str
    puts: float
    times: float
    """By which an early seal is to beat the fixed interval."""
    least_puts: int
    """One behind the other, before a record is acknowledged: the object, and the log's."""


LOGS: Final = (LogRow("local", 2.0, 5.0, 1), LogRow("object", 3.5, 3.0, 2))


class SlowFigures(NamedTuple):
    """One broker on the slow bucket."""

    p50_ms: float
    p99_ms: float
    plain_p50_ms: float
    mb_per_s: float
    puts_per_s: float
    """Of WAL objects, while it took in all it could."""


def run_slow_store(report: Report) -> None:
    """Both logs, early and at the fixed interval."""
    report.step(f"slow store: PUTs of {PUT_MS} ms, idempotent, 12 partitions")
    steps = 3 * len(LOGS) + 1
    with report.progress("slow store") as progress, s3_bed(SLOW_PUTS) as bed:
        done = _counter(progress, steps)
        raw_ms = raw_put_ms(bed)
        done()
        figures: dict[str, tuple[SlowFigures, SlowFigures]] = {}
        least_p50_ms: dict[str, float] = {}
        for log in LOGS:
            early = measure(bed, log.name, f"{log.name}-early", {}, EARLY_BYTES)
            done()
            interval = fixed_interval(INTERVAL_MS)
            fixed = measure(bed, log.name, f"{log.name}-fixed", interval, FIXED_BYTES)
            done()
            figures[log.name] = early, fixed
            answer_ms = log.least_puts * raw_ms
            least_p50_ms[log.name] = least_ack_p50_ms(answer_ms, seconds=PACED_S)
            done()
    report.add("slow_raw_put_ms", raw_ms, "ms", note="median, by boto3")
    for log in LOGS:
        early, fixed = figures[log.name]
        name = f"slow_{log.name}_log"
        bound = f"≤ {log.puts * raw_ms + SLACK_MS:.1f}"
        report.add(
            f"{name}_ack_p50_ms",
            early.p50_ms,
            "ms",
            bound=bound,
            note=f"{log.puts:g} × raw put + {SLACK_MS:g} ms; fixed: {fixed.p50_ms:.0f} ms",
        )
        report.add(
            f"{name}_least_ack_p50_ms",
            least_p50_ms[log.name],
            "ms",
            note=f"the same client, answered after {log.least_puts} × raw put, no broker",
        )
        report.add(
            f"{name}_plain_ack_p50_ms",
            early.plain_p50_ms,
            "ms",
            bound=bound,
            note=f"fixed: {fixed.plain_p50_ms:.0f} ms",
        )
        report.add(f"{name}_ack_p99_ms", early.p99_ms, "ms", note=f"fixed: {fixed.p99_ms:.0f} ms")
        report.add(f"{name}_mb_per_s", early.mb_per_s, "MB/s")
        report.add(
            f"{name}_puts_per_s",
            early.puts_per_s,
            "PUT/s",
            bound=f"≤ {PUTS_PER_S + early.mb_per_s * 1e6 / LARGE_BYTES:.0f}",
            note="20 a second, and large ones",
        )
        report.add(f"{name}_fixed_mb_per_s", fixed.mb_per_s, "MB/s")
        report.add(
            f"{name}_vs_fixed",
            early.mb_per_s / fixed.mb_per_s,
            bound=f"≥ {log.times:g}",
            note=f"idempotent throughput ÷ at a fixed {INTERVAL_MS} ms",
        )


def raw_put_ms(bed: S3Bed, *, puts: int = RAW_PUTS) -> float:
    """The median of PUTs one after the other."""
    client = bed.client()
    body = load.payload(RAW_BYTES)
    waits = []
    for number in range(puts):
        started = time.perf_counter()
        client.put_object(Bucket=BUCKET, Key=f"raw/{number}", Body=body, IfNoneMatch="*")
        waits.append((time.perf_counter() - started) * 1_000)
    client.close()
    return statistics.median(waits)


def measure(
    bed: S3Bed,
    log: str,
    prefix: str,
    settings: Mapping[str, object],
    total_bytes: int,
    *,
    partitions: int = PARTITIONS,
    paced_s: float = PACED_S,
) -> SlowFigures:
    """One broker, with all its objects below `prefix`."""
    values = {"num.partitions": partitions, "diskless.metadata.log": log, **settings}
    name = "diskless_wal_objects_committed_total"
    with fresh_directory() as directory, bed.broker(directory / "data", prefix, values) as broker:
        load.create_topic(broker.bootstrap, load.TOPIC, partitions)
        address = broker.bootstrap
        plain = settled_waits(address, partitions=partitions, seconds=paced_s / 2, idempotent=False)
        waits = settled_waits(address, partitions=partitions, seconds=paced_s)
        before = broker.metrics()[name]
        produced = load.produce(
            broker.bootstrap,
            record_bytes=1024,
            total_bytes=total_bytes,
            partitions=partitions,
            settings={"enable.idempotence": True},
        )
        objects = broker.metrics()[name] - before
    quantiles = statistics.quantiles(waits, n=100)
    return SlowFigures(
        p50_ms=quantiles[49],
        p99_ms=quantiles[98],
        plain_p50_ms=statistics.median(plain),
        mb_per_s=produced.mb_per_s,
        puts_per_s=objects / produced.seconds,
    )


def _counter(progress: Callable[[int, int], None], steps: int) -> Callable[[], None]:
    """Tells `progress` of one more step each time."""
    counted = iter(range(1, steps + 1))
    return lambda: progress(next(counted), steps)
