"""Group `transactions`: what transactions cost.

Commits are measured with producers by hand, so that the client takes little of the machine; what a
throughput loses is measured with librdkafka. Ratios are made within one round, and their median is
reported.

What a commit costs over an append is the wait for the answer to EndTxn less that for the answer to
OffsetCommit, each with one durable append to the metadata log in it.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report
from bench.tools.s3_bed import s3_bed
from bench.tools.slow_s3 import Delays
from bench.transactions.raw_transactions import TIMEOUT_MS, RawTransactions

PRODUCERS: Final = 100
MANY_PARTITIONS: Final = 100
COMMITS: Final = 40
"""Of each producer."""
SLOW_COMMITS: Final = 15
PUT_MS: Final = 50
ALONE: Final = 200
VALUE: Final = b"v" * 100
MIB: Final = 384
ROUNDS: Final = 3
READS: Final = 4
"""By turns with each isolation level; the best of each counts."""
PARTITIONS: Final = 12
RECORD_BYTES: Final = 1024
TRANSACTION_S: Final = 1.0
CALL_S: Final = 60.0
TOPIC: Final = "transactions"

Progress = Callable[[int, int], None]


class CommitFigures(NamedTuple):
    per_s: float
    waits_ms: Sequence[float]
    """For the answers to EndTxn."""
    conflicts: int
    """Answers that said to come again."""


class AloneFigures(NamedTuple):
    """One producer, which has the broker to itself."""

    commit_ms: float
    append_ms: float
    markers_ms: float
    """A commit of a transaction over MANY_PARTITIONS partitions."""


def run_transactions(report: Report) -> None:
    """Commits on the local log and on a slow bucket, then throughput."""
    report.step(f"transactions: {PRODUCERS} producers, a partition and a record each, local log")
    with fresh_directory() as directory, BenchBroker(directory / "data", {}) as broker:
        load.create_topic(broker.bootstrap, TOPIC, MANY_PARTITIONS)
        _add_commits(report, "txn_commits_per_s", asyncio.run(measure_commits(broker.bootstrap)))
        alone = asyncio.run(measure_alone(broker.bootstrap))
    report.add("txn_commit_p50_ms", alone.commit_ms, "ms", note="one producer")
    report.add(
        "txn_commit_p50_over_append_ms",
        alone.commit_ms - alone.append_ms,
        "ms",
        bound="≤ 5",
        note=f"EndTxn less OffsetCommit ({alone.append_ms:.1f} ms)",
    )
    report.add(f"markers_{MANY_PARTITIONS}_partitions_ms", alone.markers_ms, "ms", note="p50")
    report.step(f"transactions: the same, metadata in a bucket whose PUTs take {PUT_MS} ms")
    with (
        s3_bed(Delays(put_ms=PUT_MS, first_byte_ms=0, bytes_per_s=0)) as bed,
        fresh_directory() as directory,
        bed.broker(directory / "data", "t", {"diskless.metadata.log": "object"}) as broker,
    ):
        load.create_topic(broker.bootstrap, TOPIC, MANY_PARTITIONS)
        figures = asyncio.run(measure_commits(broker.bootstrap, commits=SLOW_COMMITS))
        _add_commits(report, "txn_slow_commits_per_s", figures)
    report.step(f"transactions: 1 KiB records, {TRANSACTION_S:.0f} s each, beside idempotence")
    with report.progress("transactions") as progress:
        written, read = measure_throughput(progress=progress)
    report.add_runs(
        "txn_overhead_1mb", written, bound="≥ 0.9", note="transactional ÷ idempotent, MB/s"
    )
    report.add_runs(
        "read_committed_vs_uncommitted", read, bound="≥ 0.95", note="MB/s, the same records"
    )


def _add_commits(report: Report, key: str, figures: CommitFigures) -> None:
    report.add(
        key,
        figures.per_s,
        "/s",
        note=f"EndTxn p50 {statistics.median(figures.waits_ms):.1f} ms, "
        f"{figures.conflicts} asked again",
    )


async def measure_commits(
    bootstrap: str, *, producers: int = PRODUCERS, commits: int = COMMITS
) -> CommitFigures:
    """Each producer has a partition: it adds it, writes a record to it, commits, and so on."""
    lanes = [await RawTransactions.connect(bootstrap, f"lane-{one}") for one in range(producers)]

    async def lane(number: int, count: int) -> list[float]:
        producer = lanes[number]
        waits = []
        for _ in range(count):
            await producer.add(TOPIC, [number])
            await producer.write(TOPIC, [number], VALUE)
            waits.append(await producer.commit())
        return waits

    async def all_lanes(count: int) -> list[float]:
        found = await asyncio.gather(*(lane(number, count) for number in range(producers)))
        return [wait for waits in found for wait in waits]

    await all_lanes(2)
    started = time.perf_counter()
    waits = await all_lanes(commits)
    seconds = time.perf_counter() - started
    conflicts = sum(producer.conflicts for producer in lanes)
    for producer in lanes:
        await producer.close()
    return CommitFigures(producers * commits / seconds, waits, conflicts)


async def measure_alone(
    bootstrap: str, *, partitions: int = MANY_PARTITIONS, rounds: int = ALONE
) -> AloneFigures:
    """By turns, so that a slow moment of the machine hits all of them."""
    producer = await RawTransactions.connect(bootstrap, "alone")
    commits, appends, markers = [], [], []
    for number in range(rounds):
        await producer.add(TOPIC, [0])
        await producer.write(TOPIC, [0], VALUE)
        commits.append(await producer.commit())
        appends.append(await producer.commit_offset("alone", TOPIC, number))
        if number % 10 == 0:
            await producer.add(TOPIC, range(partitions))
            await producer.write(TOPIC, range(partitions), VALUE)
            markers.append(await producer.commit())
    await producer.close()
    return AloneFigures(
        statistics.median(commits), statistics.median(appends), statistics.median(markers)
    )


def measure_throughput(
    *,
    rounds: int = ROUNDS,
    total_bytes: int = MIB << 20,
    progress: Progress = lambda done, total: None,
) -> tuple[Sequence[float], Sequence[float]]:
    """Transactional ÷ idempotent producers, and readers of committed ÷ of all records."""
    written, read = [], []
    for number in range(rounds):
        with fresh_directory() as directory, BenchBroker(directory / "data", {}) as broker:
            bootstrap = broker.bootstrap
            for topic in (load.TOPIC, TOPIC):
                load.create_topic(bootstrap, topic, PARTITIONS)
            if number % 2:
                transactional = produce_in_transactions(bootstrap, total_bytes)
                idempotent = _produce_idempotently(bootstrap, total_bytes)
            else:
                idempotent = _produce_idempotently(bootstrap, total_bytes)
                transactional = produce_in_transactions(bootstrap, total_bytes)
            written.append(transactional.mb_per_s / idempotent.mb_per_s)
            rates: dict[str, list[float]] = defaultdict(list)
            for _ in range(READS):
                for level in ("read_uncommitted", "read_committed"):
                    rates[level].append(_consume(bootstrap, transactional.records, level))
            read.append(max(rates["read_committed"]) / max(rates["read_uncommitted"]))
        progress(number + 1, rounds)
    return written, read


def _produce_idempotently(bootstrap: str, total_bytes: int) -> load.Measured:
    return load.produce(
        bootstrap,
        record_bytes=RECORD_BYTES,
        total_bytes=total_bytes,
        partitions=PARTITIONS,
        settings={"enable.idempotence": True},
    )


def produce_in_transactions(bootstrap: str, total_bytes: int) -> load.Measured:
    """As `load.produce`, to TOPIC, each transaction for TRANSACTION_S."""
    timeout = {"message.timeout.ms": TIMEOUT_MS, "transaction.timeout.ms": TIMEOUT_MS}
    client = load.producer(bootstrap, {"transactional.id": "throughput", **timeout})
    client.init_transactions(CALL_S)
    client.begin_transaction()
    value = load.payload(RECORD_BYTES)
    client.produce(TOPIC, value, partition=0)
    client.commit_transaction(CALL_S)
    messages = [{"value": value}] * load.CHUNK_RECORDS
    calls = max(1, total_bytes // (RECORD_BYTES * load.CHUNK_RECORDS))
    started = time.perf_counter()
    client.begin_transaction()
    ends_at = time.perf_counter() + TRANSACTION_S
    for call in range(calls):
        left = messages
        while left:
            taken = client.produce_batch(TOPIC, left, partition=call % PARTITIONS)
            left = left[taken:]
            if left:
                client.poll(0.005)
        if time.perf_counter() > ends_at:
            client.commit_transaction(CALL_S)
            client.begin_transaction()
            ends_at = time.perf_counter() + TRANSACTION_S
    client.commit_transaction(CALL_S)
    seconds = time.perf_counter() - started
    records = calls * load.CHUNK_RECORDS
    return load.Measured(records, records * RECORD_BYTES, seconds)


def _consume(bootstrap: str, records: int, level: str) -> float:
    """MB/s from the beginning."""
    client = load.consumer(bootstrap, PARTITIONS, TOPIC, settings={"isolation.level": level})
    try:
        return load.consume(client, records, RECORD_BYTES).mb_per_s
    finally:
        client.close()
