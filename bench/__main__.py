"""`python -m bench [GROUP ...]`: run the groups, print a table, merge into build/bench.json.

Some groups have a name together: `speed` is all that measures producers and consumers,
`coordinator` all that measures the coordinator, `s3` all that needs MinIO, `all` is all but what is
not ours.
"""

import argparse
import gc
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from bench.cluster.failover import run_failover
from bench.cluster.followers import run_followers
from bench.connections.connections import run_connections
from bench.connections.logins import run_logins
from bench.connections.tls import run_tls
from bench.coordinator.commits import run_backlog, run_commits, run_pipelined
from bench.coordinator.retention import run_retention
from bench.coordinator.starts import run_starts
from bench.groups.groups import run_groups
from bench.limits.holds import run_holds
from bench.limits.hostile import run_hostile
from bench.limits.memory import run_memory
from bench.peers.peers import run_peers
from bench.requests.acl import run_acl
from bench.requests.fetch import run_fetch
from bench.requests.purgatory import run_purgatory
from bench.s3.outliers import run_s3_outliers
from bench.s3.reading import run_s3_reading
from bench.s3.writing import run_s3_writing
from bench.speed.client_limits import run_client_limits
from bench.speed.consuming import run_consume
from bench.speed.durable_limits import run_durable_limits
from bench.speed.hour import run_hour
from bench.speed.latency import run_latency
from bench.speed.puts import run_puts
from bench.speed.slopes import run_slopes
from bench.speed.slow_store import run_slow_store
from bench.speed.small_objects import run_small_objects
from bench.speed.throughput import run_produce
from bench.speed.workers import run_workers
from bench.tiering.compaction import run_compact
from bench.tiering.roll import run_roll
from bench.tiering.spark_source import run_spark_source
from bench.tiering.tables import run_tables
from bench.tiering.typed import run_typed
from bench.tools.machine import Sample, sample, stolen_share
from bench.tools.report import RESULTS, Report
from bench.transactions.transactions import run_transactions

ALL: Final = "all"
LOG: Final = Path("build/bench.log")
"""What the parts of brokers say that run in the bench's own process."""

GROUPS: Final[Mapping[str, Callable[[Report], None]]] = {
    "produce": run_produce,
    "consume": run_consume,
    "latency": run_latency,
    "client_limits": run_client_limits,
    "durable_limits": run_durable_limits,
    "puts": run_puts,
    "slopes": run_slopes,
    "small_objects": run_small_objects,
    "slow_store": run_slow_store,
    "hour": run_hour,
    "workers": run_workers,
    "roll": run_roll,
    "compact": run_compact,
    "spark_source": run_spark_source,
    "tables": run_tables,
    "typed": run_typed,
    "memory": run_memory,
    "commits": run_commits,
    "backlog": run_backlog,
    "pipelined": run_pipelined,
    "retention": run_retention,
    "starts": run_starts,
    "groups": run_groups,
    "transactions": run_transactions,
    "fetch": run_fetch,
    "acl": run_acl,
    "connections": run_connections,
    "tls": run_tls,
    "logins": run_logins,
    "purgatory": run_purgatory,
    "hostile": run_hostile,
    "holds": run_holds,
}

APART: Final[Mapping[str, Callable[[Report], None]]] = {
    "failover": run_failover,
    "followers": run_followers,
    "peers": run_peers,
    "s3_outliers": run_s3_outliers,
    "s3_reading": run_s3_reading,
    "s3_writing": run_s3_writing,
}
"""Groups that run when they are asked for by name: they need what is not ours."""

TOGETHER: Final[Mapping[str, Sequence[str]]] = {
    ALL: tuple(GROUPS),
    "speed": (
        "produce",
        "consume",
        "latency",
        "client_limits",
        "durable_limits",
        "puts",
        "slopes",
        "small_objects",
        "slow_store",
        "hour",
        "workers",
    ),
    "s3": ("s3_writing", "s3_outliers", "s3_reading"),
    "coordinator": ("commits", "backlog", "pipelined", "retention", "starts"),
}


def _leave_garbage_alone() -> None:
    """Have the garbage collector not look again at what is loaded, which are many modules.

    A consumer gets thousands of messages a call, and after a few thousand objects it looked at all
    there are. That took two thirds of the time, whoever the broker was: 150 MB/s instead of 450.
    """
    gc.collect()
    gc.freeze()


def _report_machine(report: Report, samples: Sequence[Sample]) -> None:
    """How fast it was, between the groups."""
    report.step("the machine, before each group and after the last")
    notes = {
        "python_ms": "the interpreter: 2,000 rows made, as JSON and back",
        "copy_ms_per_mib": "the system: written to the page cache",
        "file_ms": "the disk: 16 KiB made, written, synced",
    }
    for key, note in notes.items():
        runs = [getattr(taken, key) for taken in samples]
        report.add_runs(f"machine_{key}", runs, "ms", note=note)
    shares = [stolen_share(*pair) for pair in itertools.pairwise(samples)]
    report.add_runs(
        "machine_stolen_share",
        shares,
        note="of the processor time that was wanted, in each group; other systems had it",
    )


def main() -> int:
    groups = {**GROUPS, **APART}
    names = (*groups, *TOGETHER)
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Measure what the promises cost. Each ratio compares two things measured in "
        "the same run, because shared machines differ from minute to minute.",
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"{', '.join(names)}; default: {ALL}"
    )
    options = parser.parse_args()
    wanted = options.groups or [ALL]
    unknown = set(wanted) - set(names)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    report = Report()
    LOG.parent.mkdir(exist_ok=True)
    # Parts of a broker run in this process too, and their lines are part of what they cost.
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(LOG.open("w", encoding="utf-8"))
    )
    expanded = [name for group in wanted for name in TOGETHER.get(group, [group])]
    samples: list[Sample] = []
    for name in dict.fromkeys(expanded):
        _leave_garbage_alone()
        samples.append(sample())
        groups[name](report)
        report.write()
    samples.append(sample())
    _report_machine(report, samples)
    report.write()
    report.print()
    print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
