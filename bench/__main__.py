"""`python -m bench [GROUP ...]`: run the groups, print a table, merge into build/bench.json."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.latency import run_latency, run_puts
from bench.memory import run_memory
from bench.report import Report
from bench.roll import run_roll
from bench.throughput import run_consume, run_produce

RESULTS: Final = Path("build/bench.json")
ALL: Final = "all"

GROUPS: Final[Mapping[str, Callable[[Report], None]]] = {
    "produce": run_produce,
    "consume": run_consume,
    "latency": run_latency,
    "puts": run_puts,
    "roll": run_roll,
    "memory": run_memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Measure what the promises cost. Each ratio compares two things measured in "
        "the same run, because shared machines differ from minute to minute.",
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; default: {ALL}"
    )
    options = parser.parse_args()
    wanted = options.groups or [ALL]
    unknown = set(wanted) - GROUPS.keys() - {ALL}
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    report = Report()
    for name in GROUPS if ALL in wanted else wanted:
        GROUPS[name](report)
        report.write(RESULTS)
    report.print()
    print(f"written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
