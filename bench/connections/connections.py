"""Group `connections`: what connections cost, and what many requests in flight on one are worth.

- `rss_per_connection_kib`: growth of the broker's resident set while IDLE_CONNECTIONS clients
  connect, ask for ApiVersions and stay.
- `connection_storm_p99_ratio`: a producer's p99 while STORM_RATE clients a second come and go, over
  its p99 without them; both take turns on one broker.
- `inflight_5_vs_1`: Produce requests of one batch per second on one connection with 5 in flight,
  over the same with 1. With a commit interval of 250 ms one in flight makes less than four a second
  whatever the broker does; 5 should make five times as many.
"""

import asyncio
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import psutil

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.paced import paced_produce
from bench.tools.raw_client import API_VERSIONS, RawClient, batch, check_produced, produce_body
from bench.tools.report import Report

IDLE_CONNECTIONS: Final = 5_000
OTHER_FILES: Final = 500
"""What the measuring process has open besides."""
SETTLE_S: Final = 3.0
"""The broker looks after its connections every second."""

STORM_RATE: Final = 500
STORM_SECONDS: Final = 5.0
STORM_ROUNDS: Final = 5
PRODUCED_BYTES_PER_S: Final = 256 << 10
"""Little enough that the producer does not wait for a processor when there is no storm."""

COMMIT_INTERVAL_MS: Final = 250
INFLIGHT_SECONDS: Final = 6.0
INFLIGHT_ROUNDS: Final = 2


def run_connections(report: Report) -> None:
    """Idle ones, a storm of short ones, and one with many requests in flight."""
    _run_idle(report)
    _run_storm(report)
    _run_inflight(report)


# --- idle connections


class IdleFigures(NamedTuple):
    """The broker's resident set before and after, in KiB."""

    before_kib: float
    after_kib: float
    connections: int

    @property
    def kib_each(self) -> float:
        return (self.after_kib - self.before_kib) / self.connections


def _run_idle(report: Report) -> None:
    report.step(f"connections: {IDLE_CONNECTIONS:,} that do nothing")
    figures = measure_idle(IDLE_CONNECTIONS)
    report.add(
        "rss_per_connection_kib",
        figures.kib_each,
        "KiB",
        bound="≤ 20",
        note=f"{figures.before_kib / 1024:.0f} MiB before, {figures.after_kib / 1024:.0f} after",
    )


def measure_idle(connections: int, *, settle_s: float = SETTLE_S) -> IdleFigures:
    """Open `connections` and leave them alone."""
    allow_files(connections + OTHER_FILES)
    settings = {"max.connections": connections + 100, "max.connections.per.ip": connections + 100}
    with (
        fresh_directory() as directory,
        BenchBroker(directory / "data", settings) as broker,
        ExitStack() as stack,
    ):
        process = psutil.Process(broker.pid)
        # What the first clients cost is not what each costs.
        with ExitStack() as first:
            _connect(first, broker.bootstrap, min(connections, 200))
        time.sleep(settle_s)
        before = process.memory_info().rss / 1024
        clients = _connect(stack, broker.bootstrap, connections)
        time.sleep(settle_s)
        after = process.memory_info().rss / 1024
        for client in clients:
            client.setblocking(False)
            try:
                client.recv(1)
            except BlockingIOError:
                continue
            raise ConnectionError("the broker closed an idle connection")
    return IdleFigures(before, after, connections)


def _connect(stack: ExitStack, bootstrap: str, count: int) -> Sequence[socket.socket]:
    """`count` clients that were answered once; closed with the stack."""
    host, _, port = bootstrap.rpartition(":")
    clients: list[socket.socket] = []
    while len(clients) < count:
        some = [
            stack.enter_context(socket.create_connection((host, int(port))))
            for _ in range(min(count - len(clients), 100))
        ]
        for client in some:
            client.sendall(API_VERSIONS)
        for client in some:
            if not client.recv(1 << 16):
                raise ConnectionError("the broker closed a connection")
        clients += some
    return clients


def allow_files(wanted: int) -> None:
    """Let this process open as many, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- a storm of connections


class StormFigures(NamedTuple):
    """p99 in milliseconds from produce to acknowledgement, one figure per round."""

    quiet_ms: Sequence[float]
    storm_ms: Sequence[float]
    answered: int
    """Connections."""

    @property
    def p99_ratio(self) -> float:
        """Of each storm to the quiet before it; the machine's load changes from round to round."""
        pairs = zip(self.storm_ms, self.quiet_ms, strict=True)
        return statistics.median(storm / quiet for storm, quiet in pairs)


def _run_storm(report: Report) -> None:
    report.step(f"connections: {STORM_RATE} a second come and go while a producer runs")
    figures = measure_storm(rate=STORM_RATE, seconds=STORM_SECONDS, rounds=STORM_ROUNDS)
    report.add(
        "connection_storm_p99_ratio",
        figures.p99_ratio,
        bound="≤ 2",
        note=f"median of {len(figures.storm_ms)}; "
        f"p99 {statistics.median(figures.storm_ms):.1f} ms ÷ "
        f"{statistics.median(figures.quiet_ms):.1f} ms; {figures.answered:,} connections",
    )


def measure_storm(*, rate: int, seconds: float, rounds: int) -> StormFigures:
    """A producer, without and with a storm, in turns."""
    quiet: list[float] = []
    storm: list[float] = []
    answered = 0
    with (
        fresh_directory() as directory,
        BenchBroker(directory / "data", {"num.partitions": 12}) as broker,
    ):
        _produce_p99(broker.bootstrap, min(seconds, 2.0))
        for _ in range(rounds):
            quiet.append(_produce_p99(broker.bootstrap, seconds))
            command = [sys.executable, "-m", "bench.connections.storm", broker.bootstrap, str(rate)]
            with subprocess.Popen(
                [*command, str(seconds + 1)], stdout=subprocess.PIPE, text=True
            ) as others:
                time.sleep(0.5)
                storm.append(_produce_p99(broker.bootstrap, seconds))
                said, _ = others.communicate()
            if others.returncode:
                raise RuntimeError(f"the storm ended with status {others.returncode}")
            answered += int(said)
    return StormFigures(quiet, storm, answered)


def _produce_p99(bootstrap: str, seconds: float) -> float:
    waits = paced_produce(
        bootstrap, partitions=12, seconds=seconds, bytes_per_s=PRODUCED_BYTES_PER_S
    )
    return statistics.quantiles(waits, n=100)[98]


# --- requests in flight


class InflightFigures(NamedTuple):
    """Requests answered per second, one figure per round."""

    one_per_s: Sequence[float]
    five_per_s: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.five_per_s) / statistics.median(self.one_per_s)


def _run_inflight(report: Report) -> None:
    report.step(f"connections: 5 requests in flight, commit interval {COMMIT_INTERVAL_MS} ms")
    figures = measure_inflight(seconds=INFLIGHT_SECONDS, rounds=INFLIGHT_ROUNDS)
    report.add(
        "inflight_5_vs_1",
        figures.ratio,
        bound="≥ 4.5",
        note=f"{statistics.median(figures.five_per_s):.1f} ÷ "
        f"{statistics.median(figures.one_per_s):.1f} requests/s",
    )


def measure_inflight(
    *, seconds: float, rounds: int, commit_interval_ms: int = COMMIT_INTERVAL_MS
) -> InflightFigures:
    settings = {"num.partitions": 1, **fixed_interval(commit_interval_ms)}
    with fresh_directory() as directory, BenchBroker(directory / "data", settings) as broker:
        load.producer(broker.bootstrap).list_topics(load.TOPIC, timeout=30)
        one: list[float] = []
        five: list[float] = []
        for _ in range(rounds):
            one.append(asyncio.run(_produce_rate(broker.bootstrap, 1, seconds)))
            five.append(asyncio.run(_produce_rate(broker.bootstrap, 5, seconds)))
    return InflightFigures(one, five)


async def _produce_rate(bootstrap: str, in_flight: int, seconds: float) -> float:
    """Requests answered per second by one connection that always has `in_flight` under way."""
    body = produce_body(load.TOPIC, 0, batch(load.payload(1024)))
    client = await RawClient.connect(bootstrap)
    answered = 0
    started = time.perf_counter()

    async def lane() -> None:
        nonlocal answered
        while time.perf_counter() - started < seconds:
            check_produced(await client.send(0, 7, body))
            answered += 1

    async with asyncio.TaskGroup() as lanes:
        for _ in range(in_flight):
            lanes.create_task(lane())
    elapsed = time.perf_counter() - started
    await client.close()
    return answered / elapsed
