"""Group `compact`: segments of a compacted topic, half of whose records go, on one core.

What a Spark job does, without Spark: keys and offsets of all segments are read and compared, and
segments that lose records are written anew. What is read for the keys is held against what the
columns `offset`, `tombstone` and `key` take in the files.
"""

import random
import time
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

from bench.tools.broker import fresh_directory
from bench.tools.report import Report
from metadata.operations import SegmentPlan, WalExtent
from metadata.records.segment_identity import segment_key
from metadata.rewrites import COMPACTION, RewriteInput, RewritePlan
from tiering.compaction.key_columns import key_rows
from tiering.compaction.losses import Loss, losses_of, offsets_in
from tiering.compaction.outputs import outputs_of
from tiering.compaction.rewriting import rewrite, task_of
from tiering.roll import roll
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.records.record_columns import RECORD_SCHEMA
from wal.records.record_encoding import encode_batches
from wal.stores.blocking_store import BlockingStore, MeteredStore, open_blocking_store
from wal.stores.object_store import BytesBody

TOPIC = "bench"
PARTITION = TopicIdPartition(uuid.UUID(int=7), 0)
SEGMENTS = 4
BATCHES = 16
BATCH_RECORDS = 960
RECORD_BYTES = 1024
KEYS = SEGMENTS * BATCHES * BATCH_RECORDS // 2
DECIDING = ("offset", "tombstone", "key")


def run_compact(report: Report) -> None:
    report.step(f"compact: {SEGMENTS} segments of {BATCHES} MB, {KEYS:,} keys, one core")
    with fresh_directory() as directory:
        url = f"file://{directory / 'objects'}"
        with MeteredStore(open_blocking_store(url)) as store:
            rng = random.Random(3)
            made = [_segment(store, rng, number) for number in range(SEGMENTS)]
            inputs = [segment for segment, _ in made]
            plan = RewritePlan(
                topic_name=TOPIC,
                partition=PARTITION,
                kind=COMPACTION,
                generation=1,
                planned_at_ms=0,
                delete_horizon_ms=0,
                producers_since_ms=0,
                target_bytes=128 << 20,
                inputs=inputs,
            )
            before = store.get_bytes
            started = time.process_time()
            rows = pa.concat_tables(
                table
                for number, segment in enumerate(inputs)
                for table in key_rows(segment, store, plan_number=0, number=number, planned_at_ms=0)
            )
            losses = losses_of(rows).to_pylist()
            key_seconds = time.process_time() - started
            key_bytes = store.get_bytes - before
            found = {row["segment"]: Loss(row["removed"], row["marked"]) for row in losses}
            for output in outputs_of(plan, found):
                here = [row for row in losses if output.first <= row["segment"] <= output.last]
                rewrite(task_of(plan, output), offsets_in([row["offsets"] for row in here]), store)
            seconds = time.process_time() - started
        paths = [directory / "objects" / one.object_key for one in inputs]
        least = sum(_column_bytes(pq.read_metadata(path)) for path in paths)
    megabytes = sum(size for _, size in made) / 1e6
    note = "of batches; CPU seconds"
    report.add("compact_mb_per_s", megabytes / seconds, "MB/s", note=note)
    report.add("compact_keys_mb_per_s", megabytes / key_seconds, "MB/s", note=note)
    report.add("compact_key_bytes_read_vs_columns", key_bytes / least, bound="≤ 1.3")


def _segment(store: BlockingStore, rng: random.Random, number: int) -> tuple[RewriteInput, int]:
    """A segment, and the bytes of its batches."""
    first = number * BATCHES * BATCH_RECORDS
    key = ObjectKey(f"wal/00/bench-{number}")
    bodies: list[bytes] = []
    extents: list[WalExtent] = []
    position = 0
    for base in range(first, first + BATCHES * BATCH_RECORDS, BATCH_RECORDS):
        (batch,) = encode_batches(_records(rng, base))
        bodies.append(bytes(batch.data))
        last = Offset(base + BATCH_RECORDS - 1)
        extents.append(
            WalExtent(
                key, ByteOffset(position), len(batch.data), Offset(base), last, 0, 1_000 + base, 0
            )
        )
        position += len(batch.data)
    store.put(key, BytesBody(*bodies))
    end = extents[-1].last_offset
    plan = SegmentPlan(
        partition=PARTITION,
        topic_name=TOPIC,
        object_key=segment_key(TOPIC, PARTITION, first, end),
        base_offset=Offset(first),
        last_offset=end,
        extents=extents,
    )
    made = roll(plan, store).segment
    found = RewriteInput(
        made.object_key,
        made.object_bytes,
        made.base_offset,
        made.last_offset,
        made.record_count,
        made.max_timestamp_ms,
    )
    return found, position


def _records(rng: random.Random, base: int) -> pa.Table:
    count = BATCH_RECORDS
    return pa.table(
        {
            "offset": range(base, base + count),
            "timestamp": range(1_700_000_000_000 + base, 1_700_000_000_000 + base + count),
            "timestamp_type": [0] * count,
            "key": [b"aircraft %08d" % rng.randrange(KEYS) for _ in range(count)],
            "value": [rng.randbytes(RECORD_BYTES // 2).hex().encode() for _ in range(count)],
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


def _column_bytes(metadata: pq.FileMetaData) -> int:
    """What the columns that decide take in a file."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(
        column.total_compressed_size for column in columns if column.path_in_schema in DECIDING
    )
