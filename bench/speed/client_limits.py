"""Group `client_limits`: what the stock client reaches on a server whose answers take so long.

The server is the sink, which stores nothing and works on all requests at once; only its answers
come late. So these are limits of the client and its protocol: but for what runs of one client
differ, no broker whose acknowledgement takes as long does better.

An idempotent librdkafka has five requests of one batch each under way, and with enough messages no
more than one for each partition. So its throughput is what these carry in the time of an answer,
and a record waits for a turn of its partition before it waits for its acknowledgement. A producer
that is not idempotent has no such limit.
"""

import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple

from bench.speed.latency import ACK_ROWS
from bench.speed.sink import sink
from bench.speed.throughput import IDEMPOTENT, MANY, PARTITIONS, PLAIN, SINGLE, topic_of
from bench.tools.paced import RATE_BYTES_PER_S, settled_waits
from bench.tools.report import Report

ANSWER_MS: Final = (1, 2, 4)
PACED_S: Final = 4.0
ROWS: Final = (PLAIN, IDEMPOTENT, SINGLE, MANY)
PACED_ROWS: Final = tuple(row for row in ACK_ROWS if row.name in ("1mb", "20mb"))


class Limits(NamedTuple):
    """What was reached with answers that take one time."""

    mb_per_s: Mapping[str, float]
    """By row."""
    p50_ms: Mapping[str, float]
    """Of acknowledgements at a rate, by row."""


def run_client_limits(report: Report) -> None:
    """Every kind of producer, with answers that take 1, 2 and 4 ms."""
    report.step("client limits: a server that does nothing and answers after 1, 2 or 4 ms")
    with report.progress("client limits") as progress:
        found: dict[int, Limits] = {}
        for number, answer_ms in enumerate(ANSWER_MS):
            found[answer_ms] = measure_limits(answer_ms)
            progress(number + 1, len(ANSWER_MS))
    for answer_ms, limits in found.items():
        for name, mb_per_s in limits.mb_per_s.items():
            report.add(f"client_limit_{answer_ms}ms_{name}_mb_per_s", mb_per_s, "MB/s")
        for name, p50_ms in limits.p50_ms.items():
            report.add(f"client_limit_{answer_ms}ms_ack_p50_{name}_ms", p50_ms, "ms")
    columns = [*(row.name for row in ROWS), *(f"p50 at {row.name}, ms" for row in PACED_ROWS)]
    report.table(
        "MB/s of the client, and its waits, where a server's answers take so long",
        ["answer, ms", *columns],
        [
            [
                str(answer_ms),
                *(f"{mb_per_s:,.0f}" for mb_per_s in limits.mb_per_s.values()),
                *(f"{p50_ms:.1f}" for p50_ms in limits.p50_ms.values()),
            ]
            for answer_ms, limits in found.items()
        ],
    )


def measure_limits(answer_ms: float, *, scale: float = 1.0, paced_s: float = PACED_S) -> Limits:
    """One time of answers; `scale` multiplies what the rows write."""
    mb_per_s: dict[str, float] = {}
    for row in ROWS:
        with sink(topic_of(row.partitions), row.partitions, answer_ms=answer_ms) as bootstrap:
            mb_per_s[row.name] = row.run(bootstrap, int((row.mib << 20) * scale)).mb_per_s
    p50_ms = {
        row.name: least_ack_p50_ms(answer_ms, seconds=paced_s, bytes_per_s=row.bytes_per_s)
        for row in PACED_ROWS
    }
    return Limits(mb_per_s, p50_ms)


def least_ack_p50_ms(
    answer_ms: float, *, seconds: float, bytes_per_s: float = RATE_BYTES_PER_S
) -> float:
    """An idempotent producer's median wait where acknowledgements take `answer_ms`."""
    with sink(topic_of(PARTITIONS), PARTITIONS, answer_ms=answer_ms) as bootstrap:
        waits = settled_waits(
            bootstrap, partitions=PARTITIONS, seconds=seconds, bytes_per_s=bytes_per_s
        )
    return statistics.median(waits)
