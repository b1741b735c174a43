"""`python -m bench [GROUP ...]`: run the groups, print a table, merge into build/bench.json.

Some groups have a name together: `speed` is all that measures producers and consumers,
`coordinator` all that measures the coordinator, `s3` all that needs MinIO, `all` is all but what is
not ours.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.acl import run_acl
from bench.compaction import run_compact
from bench.connections import run_connections
from bench.consuming import run_consume
from bench.coordinator import run_backlog, run_commits, run_pipelined
from bench.coordinator_starts import run_starts
from bench.failover import run_failover
from bench.fetch import run_fetch
from bench.followers import run_followers
from bench.groups import run_groups
from bench.holds import run_holds
from bench.hostile import run_hostile
from bench.hour import run_hour
from bench.latency import run_latency
from bench.logins import run_logins
from bench.memory import run_memory
from bench.peers import run_peers
from bench.purgatory import run_purgatory
from bench.puts import run_puts
from bench.report import RESULTS, Report
from bench.retention import run_retention
from bench.roll import run_roll
from bench.s3_outliers import run_s3_outliers
from bench.s3_reading import run_s3_reading
from bench.s3_writing import run_s3_writing
from bench.slopes import run_slopes
from bench.slow_store import run_slow_store
from bench.spark_source import run_spark_source
from bench.tables import run_tables
from bench.throughput import run_produce
from bench.tls import run_tls
from bench.transactions import run_transactions
from bench.typed import run_typed

ALL: Final = "all"

GROUPS: Final[Mapping[str, Callable[[Report], None]]] = {
    "produce": run_produce,
    "consume": run_consume,
    "latency": run_latency,
    "puts": run_puts,
    "slopes": run_slopes,
    "slow_store": run_slow_store,
    "hour": run_hour,
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
    "speed": ("produce", "consume", "latency", "puts", "slopes", "slow_store", "hour"),
    "s3": ("s3_writing", "s3_outliers", "s3_reading"),
    "coordinator": ("commits", "backlog", "pipelined", "retention", "starts"),
}


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
    expanded = [name for group in wanted for name in TOGETHER.get(group, [group])]
    for name in dict.fromkeys(expanded):
        groups[name](report)
        report.write()
    report.print()
    print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
