"""Group `typed`: rolling a topic with a JSON Schema, and what its types cost those who want none.

`typed_roll_vs_parts`: the CPU time of a roll without types and of bare decoding of the same values,
which checks nothing but that they are JSON, over that of a typed roll, on one core. The ratio is
made within each run, for a machine's speed may change from one second to the next.
`typed_read_overhead`: the bytes that a broker reads to serve all records, with types over without.
"""

import json
import random
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.tiering.roll import planned, renamed
from bench.tools.broker import fresh_directory
from bench.tools.report import Report
from metadata.operations import SegmentPlan
from tiering.roll import RollSettings, roll, row_groups
from tiering.segment_verification import verify_segment
from tiering.types.columns import FIRST_ID, Columns, Side, encode_columns, follow
from tiering.types.json_schema import parse_json_schema
from tiering.types.typed_rows import TypedRows
from wal.coordinates import ObjectKey
from wal.stores.blocking_store import BlockingStore, open_blocking_store

RUNS = 9
BATCHES = 64

_PROPERTIES: dict[str, dict[str, Any]] = {
    "year": {"type": "integer"},
    "month": {"type": "integer"},
    "day": {"type": "integer"},
    "dep_delay": {"type": "number"},
    "arr_delay": {"type": "number"},
    "carrier": {"type": "string"},
    "flight": {"type": "integer"},
    "tailnum": {"type": "string"},
    "origin": {"type": "string"},
    "dest": {"type": "string"},
    "air_time": {"type": "number"},
    "distance": {"type": "number"},
    "time_hour": {"type": "string", "format": "date-time"},
    "legs": {"type": "array", "items": {"type": "string"}},
}
_SCHEMA = json.dumps({"type": "object", "properties": _PROPERTIES})
_STRUCTURE = {
    name: {"integer": "BIGINT", "number": "DOUBLE", "string": "VARCHAR", "array": ["VARCHAR"]}[
        str(part["type"])
    ]
    for name, part in _PROPERTIES.items()
} | {"time_hour": "TIMESTAMP WITH TIME ZONE"}


def run_typed(report: Report) -> None:
    report.step(f"typed: {BATCHES} batches of flights as JSON, one core")
    columns, next_id = follow((), parse_json_schema(_SCHEMA), FIRST_ID)
    side = Side(format="json", columns=columns)
    encoded = encode_columns(Columns(value=side, next_id=next_id))
    with fresh_directory() as directory:
        store = open_blocking_store(f"file://{directory / 'objects'}")
        plan, input_bytes = planned(store, _flight, BATCHES)
        values = [
            table.column("value")
            for table in row_groups(plan, store, RollSettings().row_group_bytes)
        ]
        plain_s, bare_s, typed_s = [], [], []
        for run in range(RUNS):
            started = time.process_time()
            roll(renamed(plan, run), store)
            plain_s.append(time.process_time() - started)
            started = time.process_time()
            for column in values:
                _bare(column)
            bare_s.append(time.process_time() - started)
            started = time.process_time()
            roll(renamed(plan, RUNS + run), store, typed=TypedRows(encoded, None))
            typed_s.append(time.process_time() - started)
        rates = [input_bytes / 1e6 / used_s for used_s in typed_s]
        report.add_runs("typed_roll_mb_per_s", rates, "MB/s", note="CPU s")
        runs = zip(plain_s, bare_s, typed_s, strict=True)
        ratios = [(plain + bare) / typed for plain, bare, typed in runs]
        report.add_runs("typed_roll_vs_parts", ratios, bound="≥ 0.7")
        without, with_types = (_served_bytes(store, plan, run) for run in (0, RUNS))
        report.add("typed_read_overhead", with_types / without, bound="≤ 1.02")
        sizes = [_path(directory, plan, run).stat().st_size for run in (0, RUNS)]
        report.add("typed_segment_vs_raw", sizes[1] / sizes[0], note="bytes of the segment")


def _flight(rng: random.Random, words: list[str]) -> bytes:
    flight = {
        "year": 2013,
        "month": rng.randint(1, 12),
        "day": rng.randint(1, 28),
        "dep_delay": float(rng.randint(-20, 300)),
        "arr_delay": rng.choice([None, float(rng.randint(-20, 300))]),
        "carrier": rng.choice(["UA", "AA", "B6", "DL"]),
        "flight": rng.randint(1, 9999),
        "tailnum": rng.choice(words),
        "origin": rng.choice(["EWR", "LGA", "JFK"]),
        "dest": rng.choice(words)[:3].upper(),
        "air_time": float(rng.randint(20, 700)),
        "distance": float(rng.randint(80, 5000)),
        "time_hour": f"2013-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T05:00:00Z",
        "legs": rng.choices(words, k=rng.randint(0, 3)),
    }
    return json.dumps(flight).encode()


def _bare(values: pa.ChunkedArray) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register("given", pa.table({"v": values.cast(pa.string())}))
        structure = json.dumps(_STRUCTURE)
        connection.execute(
            f"select json_transform(case when json_valid(v) then v end, '{structure}') from given"
        ).to_arrow_table()


def _served_bytes(store: BlockingStore, plan: SegmentPlan, run: int) -> int:
    """The footer, and of each row group what consumers need."""
    footer = verify_segment(store, ObjectKey(renamed(plan, run).object_key))
    return len(footer.footer_bytes) + sum(group.length_bytes for group in footer.row_groups)


def _path(directory: Path, plan: SegmentPlan, run: int) -> Path:
    return directory / "objects" / renamed(plan, run).object_key
