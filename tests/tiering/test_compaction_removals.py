"""What compactions removed is checked against the segments that they replaced."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from compaction_samples import inputs_of, planned, some_batches
from tiering_samples import SampleBatch, SampleRecord, file_store

from metadata.rewrites import RewriteInput, RewritePlan
from tests.support.tiers.compacted import Meddle, compacted
from tiering.compaction.removal_check import RemovalReport, check_removals
from wal.columns import Int64s
from wal.coordinates import ObjectKey
from wal.stores.blocking_store import BlockingStore


class Compactions:
    """Compactions of one partition, one after the other; what they replace stays."""

    def __init__(self, store: BlockingStore, batches: Sequence[SampleBatch]) -> None:
        self._store = store
        self.live = inputs_of(store, batches, per_segment=4)
        self.replaced: list[ObjectKey] = []
        self._generation = 0

    def run(self, *, planned_at_ms: int, meddle: Meddle = lambda offsets: offsets) -> None:
        self._generation += 1
        plan: RewritePlan = planned(
            self.live,
            generation=self._generation,
            planned_at_ms=planned_at_ms,
            delete_horizon_ms=planned_at_ms + 1_000,
            target_bytes=5_000,
        )
        for one in compacted(plan, self._store, meddle=meddle).segments:
            made = RewriteInput(
                one.object_key,
                one.object_bytes,
                one.base_offset,
                one.last_offset,
                one.record_count,
                one.max_timestamp_ms,
            )
            gone = [
                old
                for old in self.live
                if one.base_offset <= old.base_offset <= old.last_offset <= one.last_offset
            ]
            self.replaced += [old.object_key for old in gone]
            self.live = sorted(
                [made, *(old for old in self.live if old not in gone)],
                key=lambda segment: segment.base_offset,
            )

    def check(self, *, now_ms: int = 10_000, removed_bytes: int = 64 << 20) -> RemovalReport:
        live = [segment.object_key for segment in self.live]
        return check_removals(
            self._store, live, self.replaced, now_ms=now_ms, removed_bytes=removed_bytes
        )


@pytest.mark.parametrize("removed_bytes", [1, 64 << 20])
def test_right_compactions_are_found_right_again_and_again(
    tmp_path: Path, removed_bytes: int
) -> None:
    with file_store(tmp_path) as store:
        compactions = Compactions(store, some_batches(40, 1))
        removed = 0
        for at_ms in (1_000, 1_500, 3_000, 9_000):
            compactions.run(planned_at_ms=at_ms)
            report = compactions.check(removed_bytes=removed_bytes)
            assert report.violations == []
            assert report.not_compared == 0
            assert report.compared
            removed += report.removed
    assert removed


def drops_the_newest_of_its_key(offsets: Int64s) -> Int64s:
    """Of the last output; it is counted with those that had to go."""
    return np.append(offsets, 199) if len(offsets) and offsets[-1] > 180 else offsets


def test_the_newest_record_of_a_key_that_went_is_found(tmp_path: Path) -> None:
    batches = some_batches(40, 1)
    batches[-1].records[-1] = SampleRecord(b"key 1", b"newest")
    with file_store(tmp_path) as store:
        compactions = Compactions(store, batches)
        compactions.run(planned_at_ms=1_000, meddle=drops_the_newest_of_its_key)
        ((key, problem),) = compactions.check().violations
    assert key == compactions.live[-1].object_key
    assert (
        "removed 1 records that have no newer one of their key, the first at offset 199" in problem
    )


def test_a_record_without_a_key_that_went_is_found(tmp_path: Path) -> None:
    batches = some_batches(40, 1)
    batches[-1].records[-1] = SampleRecord(None, b"no key")
    with file_store(tmp_path) as store:
        compactions = Compactions(store, batches)
        compactions.run(planned_at_ms=1_000, meddle=drops_the_newest_of_its_key)
        ((_, problem),) = compactions.check().violations
    assert "the first at offset 199" in problem


def test_a_tombstone_may_go_from_its_horizon_on(tmp_path: Path) -> None:
    batches = some_batches(40, 1)
    batches[-1].records[-1] = SampleRecord(b"gone", None)
    with file_store(tmp_path) as store:
        compactions = Compactions(store, batches)
        compactions.run(planned_at_ms=1_000)
        compactions.run(planned_at_ms=2_000)
        assert compactions.check(now_ms=2_000).violations == []
        assert compactions.check(now_ms=1_999).violations


def test_what_was_deleted_meanwhile_cannot_be_compared(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        compactions = Compactions(store, some_batches(40, 1))
        compactions.run(planned_at_ms=1_000)
        before = compactions.check()
        store.delete(compactions.replaced[-1:])
        report = compactions.check()
    assert (report.compared, report.not_compared) == (before.compared - 1, 1)
    assert report.violations == []
