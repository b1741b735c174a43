"""Compaction without Spark: plan, compact in this process, commit, through a broker's socket."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from metadata.rewrites import COMPACTION, PlanRewrites, Rewrite, RewritePlan
from tests.support.brokers.live_broker import LiveBroker
from tiering.compaction.key_columns import key_rows
from tiering.compaction.losses import Loss, losses_of, offsets_in
from tiering.compaction.outputs import outputs_of
from tiering.compaction.rewriting import rewrite, task_of
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rewrites import RewriteReport, rewrite_once
from tiering.rounds import Done, Written
from wal.columns import Int64s
from wal.stores.blocking_store import BlockingStore, open_blocking_store

Meddle = Callable[[Int64s], Int64s]
"""What becomes of the offsets that an output loses: a planted bug."""


def compacted(
    plan: RewritePlan,
    store: BlockingStore,
    *,
    meddle: Meddle = lambda offsets: offsets,
    hash_bits: int = 0,
) -> Rewrite:
    """The outcome of one plan, whose outputs are in the store.

    Keys are looked at in 2 ** `hash_bits` parts, as tasks of Spark do.
    """
    tables = [
        rows
        for number, segment in enumerate(plan.inputs)
        for rows in key_rows(
            segment, store, plan_number=0, number=number, planned_at_ms=plan.planned_at_ms
        )
    ]
    losses = [row for part in _parts(tables, hash_bits) for row in losses_of(part).to_pylist()]
    numbers: dict[int, Loss] = {}
    for row in losses:
        before = numbers.get(row["segment"], Loss())
        numbers[row["segment"]] = Loss(
            before.removed + row["removed"], before.marked + row["marked"]
        )
    segments = []
    for output in outputs_of(plan, numbers):
        here = [row for row in losses if output.first <= row["segment"] <= output.last]
        offsets = offsets_in([row["offsets"] for row in here])
        segments.append(rewrite(task_of(plan, output), meddle(offsets), store))
    return Rewrite(partition=plan.partition, generation=plan.generation, segments=segments)


def _parts(tables: Sequence[pa.Table], hash_bits: int) -> Iterator[pa.Table]:
    """All rows of some keys together."""
    if not tables:
        return
    rows = pa.concat_tables(tables)
    hashes = [crc32(key) & (1 << hash_bits) - 1 for key in rows.column("key").to_pylist()]
    for number in sorted(set(hashes)):
        yield rows.filter(pc.equal(pa.array(hashes), number))


class LocalCompactor:
    """Compacts in this process."""

    def __init__(self, meddle: Meddle = lambda offsets: offsets) -> None:
        self._meddle = meddle

    def __call__(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: Done
    ) -> Sequence[Written[RewritePlan, Rewrite]]:
        with open_blocking_store(object_store_url, sync=False) as store:
            return [Written(plan, compacted(plan, store, meddle=self._meddle)) for plan in plans]


LOCAL_COMPACTOR: Final = LocalCompactor()


def compact_everything(
    broker: LiveBroker, compactor: LocalCompactor = LOCAL_COMPACTOR, *topics: str
) -> RewriteReport:
    """Compact all that is due, or of these topics; fails when something fails."""
    asked = PlanRewrites(topics=topics)
    report = rewrite_once(CoordinatorClient(broker.bootstrap), COMPACTION, compactor, asked=asked)
    assert not report.failures, report.failures
    return report
