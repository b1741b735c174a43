"""Writes what `build/bench.json` says into docs/performance.md, and draws docs/performance.svg.

    python -m bench.page

The page keeps its own words; what stands between the two marks of a section is written anew:
`peers` compares systems, beside the figures before chunks were sealed early; `bounds` lists every
figure that has a bound. What was not measured is a dash.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from bench.plot import Bar, Group, Panel, svg
from bench.tools.report import BOUNDS, RESULTS, Figure

PAGE: Final = Path("docs/performance.md")
PICTURE: Final = Path("docs/performance.svg")

SYSTEMS: Final[Mapping[str, str]] = {
    "diskless": "Diskless: an fsynced object and commit",
    "kafka": "Kafka: page cache",
    "kafka_synced": "Kafka: a sync per append",
    "klite": "klite: its local log",
}
"""By the name in keys; what an acknowledgement is."""

_ABSENT: Final = "–"


class Row(NamedTuple):
    """One figure of all systems: its key behind `peer_<system>_`, that of its processor time."""

    label: str
    key: str
    more_key: str = ""
    before: Mapping[str, str] = MappingProxyType({})
    """What was measured before, by system, as text."""


ROWS: Final[Sequence[Row]] = (
    Row(
        "produce 1 KiB, idempotent, MB/s (broker core-s/GiB)",
        "idempotent_mb_per_s",
        "idempotent_core_s_per_gib",
        {
            "diskless": "222 (2.2)",
            "kafka": "612 (1.7)",
            "kafka_synced": "405",
            "klite": "366 (2.0)",
        },
    ),
    Row(
        "… not idempotent",
        "plain_mb_per_s",
        "plain_core_s_per_gib",
        {
            "diskless": "467 (1.9)",
            "kafka": "681 (1.3)",
            "kafka_synced": "447",
            "klite": "465 (1.7)",
        },
    ),
    Row(
        "one partition, one idempotent producer, MB/s",
        "single_partition_mb_per_s",
        "single_partition_core_s_per_gib",
        {"diskless": "58", "kafka": "609", "kafka_synced": "328", "klite": "279"},
    ),
    Row(
        "1,000 partitions, 50 KB batches, idempotent, MB/s",
        "1000_partitions_mb_per_s",
        "1000_partitions_core_s_per_gib",
        {"diskless": "39 (9.6)", "kafka": "17", "klite": "224 (2.9)"},
    ),
    Row(
        "100-byte records, not idempotent, MB/s",
        "100b_mb_per_s",
        "100b_core_s_per_gib",
        {"diskless": "104", "kafka": "176", "klite": "120"},
    ),
    Row(
        "tail read, MB/s",
        "tail_mb_per_s",
        "tail_core_s_per_gib",
        {"diskless": "605 (1.2)", "kafka": "1,207 (0.16)", "klite": "637 (1.2)"},
    ),
    Row(
        "read after a restart, MB/s",
        "cold_mb_per_s",
        before={"diskless": "502", "kafka": "622", "klite": "620"},
    ),
    Row(
        "1 MB/s idempotent, linger 0: ack p50, ms",
        "ack_p50_1mb_ms",
        before={"diskless": "103", "kafka": "0.4", "kafka_synced": "0.7", "klite": "0.14"},
    ),
    Row(
        "… p99",
        "ack_p99_1mb_ms",
        before={"diskless": "960", "kafka": "4", "kafka_synced": "20", "klite": "0.4"},
    ),
    Row(
        "20 MB/s idempotent: ack p50, ms",
        "ack_p50_20mb_ms",
        before={"diskless": "39", "kafka": "4", "klite": "4"},
    ),
    Row(
        "… p99",
        "ack_p99_20mb_ms",
        before={"diskless": "68", "kafka": "10", "klite": "7"},
    ),
    Row(
        "disk bytes per byte",
        "disk_bytes_per_byte",
        before={"diskless": "2.03", "kafka": "1.01", "klite": "1.02"},
    ),
    Row("restart, s", "restart_s", before={"diskless": "0.6", "kafka": "4.6", "klite": "6.7"}),
    Row(
        "resident set under load, MiB",
        "rss_mib",
        before={"diskless": "90", "kafka": "611", "klite": "32"},
    ),
)

PANELS: Final[Sequence[tuple[str, slice, bool]]] = (
    ("MB/s, more is better", slice(0, 7), False),
    ("milliseconds, less is better, logarithmic", slice(7, 11), True),
)

Figures = Mapping[str, float]


def main() -> int:
    if not RESULTS.exists():
        print(f"{RESULTS} is not there: make bench, make bench BENCH=peers", file=sys.stderr)
        return 1
    figures: Figures = json.loads(RESULTS.read_text())
    bounds: Mapping[str, str] = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    page = replaced(PAGE.read_text("utf-8"), "peers", peers_table(figures))
    PAGE.write_text(replaced(page, "bounds", bounds_table(figures, bounds)), "utf-8")
    PICTURE.write_text(picture(figures), "utf-8")
    print(f"written to {PAGE} and {PICTURE}")
    return 0


def replaced(page: str, name: str, text: str) -> str:
    """`page` with `text` between the marks of `name`. Raises ValueError when they are missing."""
    begin, end = f"<!-- {name}: from build/bench.json -->\n", f"<!-- end of {name} -->"
    head, found, rest = page.partition(begin)
    _, found_too, tail = rest.partition(end)
    if not found or not found_too:
        raise ValueError(f"the page has no section {name}")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def peers_table(figures: Figures) -> str:
    """One row per figure; before and now for each system."""
    columns = [text for system in SYSTEMS for text in (f"{system}, before", "now")]
    lines = [_line(["", *columns]), _line(["---"] * (1 + len(columns)))]
    for row in ROWS:
        cells = [row.label]
        for system in SYSTEMS:
            cells += [row.before.get(system, _ABSENT), _now(figures, system, row)]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def bounds_table(figures: Figures, bounds: Mapping[str, str]) -> str:
    """Every figure with a bound, and whether it is met."""
    lines = [_line(["figure", "measured", "range", "bound", ""]), _line(["---"] * 5)]
    for key in sorted(key for key in bounds if key in figures):
        figure = Figure(key, figures[key], bound=bounds[key])
        verdict = "**missed**" if figure.verdict == "MISSED" else "met"
        low, high = figures.get(f"{key}_low"), figures.get(f"{key}_high")
        range_ = "" if low is None or high is None else f"{_text(low)} … {_text(high)}"
        lines.append(_line([f"`{key}`", _text(figures[key]), range_, bounds[key], verdict]))
    return "\n".join(lines) + "\n"


def picture(figures: Figures) -> str:
    """Throughput and acknowledgements of the systems that were measured."""
    panels = []
    for title, which, is_logarithmic in PANELS:
        groups = [Group(row.label, _bars(figures, row)) for row in ROWS[which]]
        shown = [group for group in groups if group.bars]
        panels.append(Panel(title, shown, is_logarithmic))
    return svg("The same client and loads on one machine", list(SYSTEMS.values()), panels)


def _bars(figures: Figures, row: Row) -> Sequence[Bar]:
    bars = []
    for system, text in SYSTEMS.items():
        key = f"peer_{system}_{row.key}"
        if key in figures:
            low, high = figures.get(f"{key}_low"), figures.get(f"{key}_high")
            bars.append(Bar(text, figures[key], low, high))
    return bars


def _now(figures: Figures, system: str, row: Row) -> str:
    value = figures.get(f"peer_{system}_{row.key}")
    if value is None:
        return _ABSENT
    more = figures.get(f"peer_{system}_{row.more_key}")
    return f"**{_text(value)}**" + ("" if more is None else f" ({_text(more)})")


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
