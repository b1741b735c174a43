"""Group `roll`: one segment rolled on one core, beside writing the same columns with pyarrow alone;
and segments merged into one, beside reading their columns and writing them with pyarrow alone.

Both sides write the same Arrow tables, with zstd, to the same disk. The roll also reads the WAL
object, checks and opens its batches, keeps checksums, and puts the result under its key. CPU
seconds are compared, because both run on one core and the machine may be shared. Spark's start-up
is measured on its own: it is paid once per job, not per segment.
"""

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.tools.broker import fresh_directory
from bench.tools.report import Report
from metadata.operations import SegmentPlan, WalExtent
from metadata.records.segment_identity import segment_key
from metadata.rewrites import MERGE, RewriteInput, RewritePlan
from tiering.merging.merge import merge
from tiering.roll import RollSettings, roll, row_groups
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.records.record_columns import RECORD_SCHEMA
from wal.records.record_encoding import encode_batches
from wal.stores.blocking_store import BlockingStore, open_blocking_store
from wal.stores.object_store import BytesBody

RECORD_BYTES = 1024
BATCH_RECORDS = 960
BATCHES = 128
RUNS = 3
MERGED = 16
TOPIC = "bench"


def run_roll(report: Report) -> None:
    report.step(f"roll: {BATCHES} batches of 1 MB, {RECORD_BYTES}-byte records, one core")
    with fresh_directory() as directory:
        store = open_blocking_store(f"file://{directory / 'objects'}")
        plan, input_bytes = planned(store, _value, BATCHES)
        roll_runs, writer_runs = [], []
        tables = list(row_groups(plan, store, RollSettings().row_group_bytes))
        for run in range(RUNS):
            started = time.process_time()
            roll(renamed(plan, run), store)
            roll_runs.append(time.process_time() - started)
            started = time.process_time()
            _write_alone(directory / f"alone-{run}.parquet", tables)
            writer_runs.append(time.process_time() - started)
    megabytes = input_bytes / 1e6
    report.add("roll_mb_per_s_per_core", megabytes / min(roll_runs), "MB/s", note="CPU seconds")
    report.add("pyarrow_mb_per_s_per_core", megabytes / min(writer_runs), "MB/s")
    report.add("roll_vs_pyarrow", min(writer_runs) / min(roll_runs), bound="≥ 0.6")
    _run_merge(report)
    report.add("spark_start_s", _spark_start_s(), "s", note="session up and one empty job")


def _run_merge(report: Report) -> None:
    report.step(f"merge: {MERGED} segments of {BATCHES // MERGED} MB, one core")
    merge_runs, alone_runs = [], []
    with fresh_directory() as directory:
        objects = directory / "objects"
        store = open_blocking_store(f"file://{objects}")
        plan, input_bytes = planned(store, _value, BATCHES)
        share = BATCHES // MERGED
        parts = [plan.extents[at : at + share] for at in range(0, BATCHES, share)]
        segments = [roll(_part(plan, part), store).segment for part in parts]
        inputs = [
            RewriteInput(
                one.object_key,
                one.object_bytes,
                one.base_offset,
                one.last_offset,
                one.record_count,
                one.max_timestamp_ms,
            )
            for one in segments
        ]
        paths = [objects / one.object_key for one in segments]
        for run in range(RUNS):
            started = time.process_time()
            merge(_rewrite(plan, inputs, run + 1), store)
            merge_runs.append(time.process_time() - started)
            started = time.process_time()
            _merge_alone(directory / f"merged-{run}.parquet", paths)
            alone_runs.append(time.process_time() - started)
    megabytes = input_bytes / 1e6
    note = "of batches; CPU seconds"
    report.add("merge_mb_per_s_per_core", megabytes / min(merge_runs), "MB/s", note=note)
    ratio = min(alone_runs) / min(merge_runs)
    report.add("merge_mb_per_s_vs_pyarrow", ratio, bound="≥ 0.5")


def _part(plan: SegmentPlan, extents: Sequence[WalExtent]) -> SegmentPlan:
    base, last = extents[0].base_offset, extents[-1].last_offset
    return SegmentPlan(
        partition=plan.partition,
        topic_name=plan.topic_name,
        object_key=segment_key(TOPIC, plan.partition, base, last),
        base_offset=base,
        last_offset=last,
        extents=extents,
    )


def _rewrite(plan: SegmentPlan, inputs: Sequence[RewriteInput], generation: int) -> RewritePlan:
    return RewritePlan(
        topic_name=plan.topic_name,
        partition=plan.partition,
        kind=MERGE,
        generation=generation,
        planned_at_ms=0,
        delete_horizon_ms=0,
        producers_since_ms=0,
        target_bytes=512 << 20,
        inputs=inputs,
    )


def _merge_alone(target: Path, paths: Sequence[Path]) -> None:
    schema = pq.read_schema(paths[0])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for path in paths:
            file = pq.ParquetFile(path)
            for index in range(file.num_row_groups):
                writer.write_table(file.read_row_group(index, use_threads=False))
    _sync(target)


def planned(
    store: BlockingStore, value: Callable[[random.Random, list[str]], bytes], batches: int
) -> tuple[SegmentPlan, int]:
    """A WAL object of one partition's batches, and the plan that covers all of it."""
    rng = random.Random(1)
    words = [rng.randbytes(6).hex() for _ in range(5_000)]
    partition = TopicIdPartition(uuid.UUID(int=7), 0)
    key = ObjectKey("wal/00/bench")
    bodies: list[bytes] = []
    extents: list[WalExtent] = []
    position = 0
    for number in range(batches):
        base = number * BATCH_RECORDS
        values = [value(rng, words) for _ in range(BATCH_RECORDS)]
        table = _records(base, values)
        (batch,) = encode_batches(table)
        bodies.append(bytes(batch.data))
        extents.append(
            WalExtent(
                key,
                ByteOffset(position),
                len(batch.data),
                Offset(base),
                Offset(base + BATCH_RECORDS - 1),
                0,
                1_700_000_000_000 + base,
                0,
            )
        )
        position += len(batch.data)
    store.put(key, BytesBody(*bodies))
    last = Offset(batches * BATCH_RECORDS - 1)
    plan = SegmentPlan(
        partition=partition,
        topic_name=TOPIC,
        object_key=segment_key(TOPIC, partition, 0, last),
        base_offset=Offset(0),
        last_offset=last,
        extents=extents,
    )
    return plan, position


def _records(base: int, values: list[bytes]) -> pa.Table:
    count = len(values)
    return pa.table(
        {
            "offset": range(base, base + count),
            "timestamp": range(1_700_000_000_000 + base, 1_700_000_000_000 + base + count),
            "timestamp_type": [0] * count,
            "key": [None] * count,
            "value": values,
            "headers": [[]] * count,
            "batch_base_offset": [base] * count,
            "batch_last_offset": [base + count - 1] * count,
            "producer_id": [-1] * count,
            "producer_epoch": [-1] * count,
            "base_sequence": [-1] * count,
            "leader_epoch": [0] * count,
            "attributes": [0] * count,
        },
        schema=RECORD_SCHEMA,
    )


def renamed(plan: SegmentPlan, run: int) -> SegmentPlan:
    """The same plan under a key that is not taken yet."""
    return SegmentPlan(
        partition=plan.partition,
        topic_name=plan.topic_name,
        object_key=ObjectKey(f"{plan.object_key}.{run}"),
        base_offset=plan.base_offset,
        last_offset=plan.last_offset,
        extents=plan.extents,
    )


def _value(rng: random.Random, words: list[str]) -> bytes:
    """A record of its own, as compressible as an event with names and numbers in it."""
    return " ".join(rng.choices(words, k=80)).encode()[:RECORD_BYTES].ljust(RECORD_BYTES)


def _write_alone(path: Path, tables: list[pa.Table]) -> None:
    with pq.ParquetWriter(path, tables[0].schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _spark_start_s() -> float:
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "spark.range(1).count()\n"
    )
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started
