"""Group `hostile`: what three ordinary clients wait beside clients that do not read.

The broker runs with its defaults. Each kind of deaf client is measured beside a broker of its own,
after the same broker was measured without them: what a machine gives changes from minute to minute.
The clients that do not read are a process of their own, on the address that two of the three have.
"""

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from bench.limits.deaf_clients import KINDS, SLOW_READERS, Innocent, fill
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report

DEAF: Final = 64
SLOW: Final = 200
SECONDS: Final = 4.0
ALLOWED_MS: Final = 50.0
_OPERATIONS: Final = ("metadata", "produce", "fetch")
_SOURCES: Final = ("127.0.0.1", "127.0.0.1", "127.0.0.2")
_PARTITIONS: Final = 9
_OWN_PARTITION: Final = 8
_WAIT_S: Final = 60.0


class HostileFigures(NamedTuple):
    """p99 in milliseconds, by operation."""

    idle_ms: Mapping[str, float]
    beside_ms: Mapping[str, float]


def run_hostile(report: Report) -> None:
    """p99 of Metadata, Produce and Fetch, beside each kind."""
    for kind in (*KINDS, SLOW_READERS):
        count = SLOW if kind == SLOW_READERS else DEAF
        report.step(f"hostile: three clients beside {count} of kind {kind}")
        figures = measure_hostile(kind, count=count, seconds=SECONDS)
        name = kind.lower().replace(" ", "_")
        for operation in _OPERATIONS:
            idle, beside = figures.idle_ms[operation], figures.beside_ms[operation]
            report.add(
                f"hostile_{name}_{operation}_p99_ms",
                beside,
                "ms",
                bound=f"≤ {2 * idle + ALLOWED_MS:.1f}",
                note=f"alone {idle:.1f} ms",
            )


def measure_hostile(kind: str, *, count: int, seconds: float) -> HostileFigures:
    """Without them and with them, `seconds` each."""
    settings = {"num.partitions": _PARTITIONS}
    with fresh_directory() as directory, BenchBroker(directory / "data", settings) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        address = (host, int(port))
        clients = [
            Innocent(address, source, partition) for partition, source in enumerate(_SOURCES)
        ]
        clients[0].metadata()
        if kind in ("Fetch of data", SLOW_READERS):
            fill(address, _OWN_PARTITION)
        idle = _measured(clients, seconds)
        with _deaf_clients(broker.bootstrap, kind, count):
            beside = _measured(clients, seconds)
        for client in clients:
            client.close()
    return HostileFigures(idle, beside)


@contextmanager
def _deaf_clients(bootstrap: str, kind: str, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.limits.deaf_clients", bootstrap, kind, str(count)]
    with subprocess.Popen(
        [*command, str(_OWN_PARTITION)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "asked\n":
            raise RuntimeError("the clients that do not read did not come to ask")
        yield
        process.communicate(timeout=_WAIT_S)
    if process.returncode:
        raise RuntimeError(f"the clients that do not read ended with {process.returncode}")


def _measured(clients: Sequence[Innocent], seconds: float) -> Mapping[str, float]:
    """p99 of each operation over all clients, which go round side by side."""
    waits: dict[str, list[float]] = {operation: [] for operation in _OPERATIONS}
    failures: list[Exception] = []
    ends_at = time.perf_counter() + seconds

    def go_round(client: Innocent) -> None:
        value = b"v" * 100
        try:
            while time.perf_counter() < ends_at:
                for operation, call in (
                    ("metadata", client.metadata),
                    ("produce", lambda: client.produce(value)),
                    ("fetch", lambda: client.fetch(value)),
                ):
                    started = time.perf_counter()
                    call()
                    waits[operation].append((time.perf_counter() - started) * 1000)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=go_round, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {operation: statistics.quantiles(ms, n=100)[98] for operation, ms in waits.items()}
