"""Segments to be compacted, and plans for them."""

import random
from collections.abc import Sequence
from dataclasses import replace

from tiering_samples import PARTITION, SampleBatch, SampleRecord, plan_of, put_wal_object

from metadata.rewrites import COMPACTION, RewriteInput, RewritePlan
from tiering.roll import RollSettings, roll
from tiering.typed_columns import NO_TYPED_COLUMNS, TypedColumns
from wal.stores.blocking_store import BlockingStore


def some_batches(count: int, seed: int, *, keys: int = 30) -> list[SampleBatch]:
    """Of five records, every second one of a producer."""
    rng = random.Random(seed)
    return [
        SampleBatch(
            [
                SampleRecord(
                    rng.choice([None, *(b"key %d" % n for n in range(keys))]),
                    rng.choice([None, b"", rng.randbytes(50)]),
                    rng.randrange(10_000),
                    rng.choice([(), (("h", b"1"), ("h", None))]),
                )
                for _ in range(5)
            ],
            **({"producer_id": 9, "producer_epoch": 1, "base_sequence": 5 * at} if at % 2 else {}),
        )
        for at in range(count)
    ]


def inputs_of(
    store: BlockingStore,
    batches: Sequence[SampleBatch],
    *,
    per_segment: int,
    base_offset: int = 0,
    typed: TypedColumns = NO_TYPED_COLUMNS,
) -> list[RewriteInput]:
    """Batches in segments, one WAL object each."""
    found = []
    small = RollSettings(row_group_bytes=2_000)
    offset = base_offset
    for start in range(0, len(batches), per_segment):
        part = batches[start : start + per_segment]
        key = f"wal/00/01J0000000000000000000{base_offset + start:04d}"
        plan = plan_of(put_wal_object(store, key, [part], base_offset=offset))
        segment = roll(plan, store, typed=typed, settings=small).segment
        found.append(
            RewriteInput(
                segment.object_key,
                segment.object_bytes,
                segment.base_offset,
                segment.last_offset,
                segment.record_count,
                segment.max_timestamp_ms,
            )
        )
        offset = segment.last_offset + 1
    return found


def planned(inputs: Sequence[RewriteInput], **changes: int) -> RewritePlan:
    plan = RewritePlan(
        topic_name="topic",
        partition=PARTITION,
        kind=COMPACTION,
        generation=1,
        planned_at_ms=1_000_000,
        delete_horizon_ms=1_000_000,
        producers_since_ms=0,
        target_bytes=1,
        inputs=inputs,
    )
    return replace(plan, **changes)
