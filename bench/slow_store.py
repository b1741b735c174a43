"""Group `slow_store`: producers on a bucket whose PUTs take 50 ms, and what sealing early brings.

The broker is asked with its defaults and with a fixed commit interval of 250 ms, on the local
metadata log and on the log in the bucket. Two figures each: the wait for an acknowledgement at
1 MB/s, which is to be near that of the PUTs it consists of, and the throughput of an idempotent
producer. The raw PUT is measured with the same server, in the same run.

An idempotent producer has five requests of one batch each in flight, so with twelve partitions a
record also waits for its partition's turn. The plain producer's wait is the broker's alone. Both
have the same bound.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import boto3

from bench import load
from bench.broker import BenchBroker, fresh_directory
from bench.fixed_interval import fixed_interval
from bench.latency import paced_produce
from bench.report import Report
from bench.slow_s3 import BUCKET, CREDENTIALS, slow_s3

PUT_MS: Final = 50
INTERVAL_MS: Final = 250
PARTITIONS: Final = 12
RAW_PUTS: Final = 40
RAW_BYTES: Final = 16 << 10
PACED_S: Final = 8.0
BYTES_PER_S: Final = 1 << 20
EARLY_BYTES: Final = 192 << 20
FIXED_BYTES: Final = 48 << 20
SLACK_MS: Final = 10.0


class LogRow(NamedTuple):
    """One place of the metadata log. `puts` may pass until an acknowledgement comes."""

    name: str
    puts: float
    times: float
    """By which an early seal is to beat the fixed interval."""


LOGS: Final = (LogRow("local", 2.0, 5.0), LogRow("object", 3.5, 3.0))


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
    steps = 2 * len(LOGS) + 1
    with report.progress("slow store") as progress, _credentials(), slow_s3(PUT_MS) as endpoint:
        done = _counter(progress, steps)
        raw_ms = raw_put_ms(endpoint)
        done()
        figures: dict[str, tuple[SlowFigures, SlowFigures]] = {}
        for log in LOGS:
            early = measure(endpoint, log.name, f"{log.name}-early", {}, EARLY_BYTES)
            done()
            interval = fixed_interval(INTERVAL_MS)
            fixed = measure(endpoint, log.name, f"{log.name}-fixed", interval, FIXED_BYTES)
            done()
            figures[log.name] = early, fixed
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
            f"{name}_plain_ack_p50_ms",
            early.plain_p50_ms,
            "ms",
            bound=bound,
            note=f"fixed: {fixed.plain_p50_ms:.0f} ms",
        )
        report.add(f"{name}_ack_p99_ms", early.p99_ms, "ms", note=f"fixed: {fixed.p99_ms:.0f} ms")
        report.add(f"{name}_mb_per_s", early.mb_per_s, "MB/s")
        report.add(f"{name}_puts_per_s", early.puts_per_s, "PUT/s", bound="≤ 20")
        report.add(f"{name}_fixed_mb_per_s", fixed.mb_per_s, "MB/s")
        report.add(
            f"{name}_vs_fixed",
            early.mb_per_s / fixed.mb_per_s,
            bound=f"≥ {log.times:g}",
            note=f"idempotent throughput ÷ at a fixed {INTERVAL_MS} ms",
        )


def raw_put_ms(endpoint: str, *, puts: int = RAW_PUTS) -> float:
    """Creates the bucket. The median of PUTs one after the other."""
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    body = load.payload(RAW_BYTES)
    waits = []
    for number in range(puts):
        started = time.perf_counter()
        client.put_object(Bucket=BUCKET, Key=f"raw/{number}", Body=body, IfNoneMatch="*")
        waits.append((time.perf_counter() - started) * 1_000)
    client.close()
    return statistics.median(waits)


def measure(
    endpoint: str,
    log: str,
    prefix: str,
    settings: Mapping[str, object],
    total_bytes: int,
    *,
    paced_s: float = PACED_S,
) -> SlowFigures:
    """One broker, with all its objects below `prefix`."""
    url = f"s3://{BUCKET}/{prefix}?endpoint_url={endpoint}&region=us-east-1"
    values = {
        "num.partitions": PARTITIONS,
        "object.store.url": url,
        "diskless.metadata.log": log,
        **settings,
    }
    name = "diskless_wal_objects_committed_total"
    with fresh_directory() as directory, BenchBroker(directory / "data", values) as broker:
        load.create_topic(broker.bootstrap, load.TOPIC, PARTITIONS)
        plain = _settled_waits(broker, paced_s / 2, idempotent=False)
        waits = _settled_waits(broker, paced_s, idempotent=True)
        before = broker.metrics()[name]
        produced = load.produce(
            broker.bootstrap,
            record_bytes=1024,
            total_bytes=total_bytes,
            partitions=PARTITIONS,
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


def _settled_waits(broker: BenchBroker, seconds: float, *, idempotent: bool) -> Sequence[float]:
    """Milliseconds of acknowledgements, without those of a new connection's first quarter."""
    waits = paced_produce(
        broker.bootstrap,
        partitions=PARTITIONS,
        seconds=seconds,
        bytes_per_s=BYTES_PER_S,
        settings={"enable.idempotence": idempotent},
    )
    return waits[len(waits) // 4 :]


@contextmanager
def _credentials() -> Iterator[None]:
    """Those of the slow server, in the environment that the broker gets."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _counter(progress: Callable[[int, int], None], steps: int) -> Callable[[], None]:
    """Tells `progress` of one more step each time."""
    counted = iter(range(1, steps + 1))
    return lambda: progress(next(counted), steps)
