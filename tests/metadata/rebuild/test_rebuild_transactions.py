"""Transactions after their metadata were lost: what ended is as it was, what was open has ended."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from metadata.rebuild.facts import BucketFacts, ObjectFacts, RebuildOptions
from metadata.rebuild.plan import RebuildPlan, plan_rebuild
from metadata.rules.commit_rows import decide_rows
from metadata.state.image import PartitionState
from metadata.state.queries.transaction_rows import aborted_within, ends_from
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import NUMBER_MAX, ClosedKey
from tests.support.coordinators.applied_state import AppliedState, applied_state
from tests.support.rebuild.rebuild_bucket import PLACE, TOPIC, Bucket
from wal.chunks.kept_notes import KeptNotes, NotedEnd, merged
from wal.clock import ManualClock
from wal.coordinates import BatchExtent
from wal.errors import InvalidTransactionState
from wal.records.marker_batches import Marker

OTHER_PARTITION = PLACE._replace(partition=1)


def end(
    offset: int, producer: int, number: int, *, is_commit: bool, coordinator_epoch: int = 3
) -> NotedEnd:
    return NotedEnd(Marker(offset, producer, 0, is_commit, coordinator_epoch, 5_000), number)


class Transactions(Bucket):
    """Objects of one batch each, some of transactions; sequences go on by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._sequences: dict[int, int] = {}

    def send(
        self,
        records: int,
        producer: int,
        number: int,
        *,
        noted: int | None = None,
        floor: int = 0,
        broker: int = 0,
    ) -> ObjectFacts:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + records
        item = self.put(
            records,
            at_s=1 + len(self.objects),
            noted=noted,
            producer=producer,
            sequence=sequence,
            floor=floor,
            broker=broker,
        )
        extents = [extent._replace(transaction_number=number) for extent in item.extents]
        return self.replace(item, extents)

    def replace(self, item: ObjectFacts, extents: Sequence[BatchExtent]) -> ObjectFacts:
        """The same object with other batches."""
        changed = ObjectFacts(
            object_key=item.object_key,
            ulid=item.ulid,
            broker_id=item.broker_id,
            object_bytes=item.object_bytes,
            stored_ms=item.stored_ms,
            extents=extents,
            notes=item.notes,
        )
        self.objects[self.objects.index(item)] = changed
        return changed

    def ended(self, *ends: NotedEnd) -> None:
        self.kept = merged([self.kept, KeptNotes(ends={PLACE: ends})])

    def plan(self, *, commits: bool = False) -> RebuildPlan:
        facts = BucketFacts(
            objects=self.objects,
            segments=self.segments,
            kept=self.kept._replace(commits=self.commits),
        )
        options = RebuildOptions(commits_open_transactions=commits)
        return plan_rebuild(facts, options, clock=ManualClock(), rng=random.Random(7))


class Read(NamedTuple):
    """What readers of the rebuilt partition are shown."""

    state: PartitionState
    ends: Sequence[NotedEnd]
    aborted: Sequence[tuple[int, int, int]]
    """Producer, first offset, marker."""


async def read(state: AppliedState, plan: RebuildPlan) -> Read:
    """Apply the plan's records, and check everything."""
    await state.apply(*plan.records)
    assert not await state.violations()
    there = state.partition(PLACE)
    ends = await state.state.read(
        lambda connection: ends_from(connection, there.id, 0, there.high_watermark, 100)
    )
    aborted = await state.state.read(
        lambda connection: aborted_within(connection, there, 0, there.high_watermark)
    )
    return Read(there, ends, [tuple(item) for item in aborted])


async def test_ends_that_are_noted_come_back_with_their_markers_and_aborted_ranges(
    tmp_path: Path,
) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    bucket.send(5, 8, 4, noted=10)
    bucket.send(3, 7, 1, noted=15)
    bucket.send(2, 7, 2, noted=19)
    ends = (
        end(18, 7, 1, is_commit=False),
        end(21, 8, 4, is_commit=True, coordinator_epoch=5),
        end(22, 7, 2, is_commit=True),
        end(23, 9, 1, is_commit=False),
    )
    bucket.ended(*ends)
    plan = bucket.plan()
    assert plan.report.is_certain
    assert not plan.report.ended
    assert not plan.new_objects
    assert plan.report.partitions[0].exact_end == 24
    async with applied_state(tmp_path) as state:
        found = await read(state, plan)
    assert found.ends == [*ends]
    assert found.aborted == [(7, 0, 18)]
    assert (found.state.high_watermark, found.state.last_stable_offset) == (24, 24)


@pytest.mark.parametrize("commits", [False, True])
async def test_what_is_open_ends_as_the_operator_says_and_is_named(
    tmp_path: Path, commits: bool
) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    bucket.put(4, at_s=2, noted=10)
    bucket.send(5, 8, 3, noted=14)
    plan = bucket.plan(commits=commits)
    ended = [tuple(item) for item in plan.report.ended]
    assert ended == [
        ("flights", 0, 7, 1, 0, 19, commits, False),
        ("flights", 0, 8, 3, 14, 20, commits, False),
    ]
    told = plan.report.lists()["transaction without noted end"]
    assert told[0].startswith(
        f"flights-0 0..18, producer 7, transaction 1: {'committed' if commits else 'aborted'}"
    )
    async with applied_state(tmp_path) as state:
        found = await read(state, plan)
    assert found.aborted == ([] if commits else [(7, 0, 19), (8, 14, 20)])
    assert found.state.last_stable_offset == found.state.high_watermark == 21
    # The next rebuild finds them ended.
    bucket.kept = merged([bucket.kept, plan.notes])
    again = bucket.plan(commits=not commits)
    assert not again.report.ended
    async with applied_state(tmp_path / "again") as state:
        assert await read(state, again) == found


async def test_how_it_ended_in_another_partition_is_how_it_ended(tmp_path: Path) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    bucket.kept = KeptNotes(ends={OTHER_PARTITION: (end(30, 7, 1, is_commit=True),)})
    plan = bucket.plan()
    (ended,) = plan.report.ended
    assert (ended.is_commit, ended.is_known, ended.marker_offset) == (True, True, 10)
    assert plan.report.is_certain
    async with applied_state(tmp_path) as state:
        assert not (await read(state, plan)).aborted


async def test_a_missing_offset_is_the_marker_that_must_have_been_there(tmp_path: Path) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    bucket.send(2, 7, 2, noted=11)
    bucket.send(3, 8, 1, noted=13)
    bucket.put(4, at_s=9, noted=18)
    bucket.ended(end(16, 7, 2, is_commit=True))
    plan = bucket.plan()
    # 10 lies between two transactions of one producer; 17 can be a marker.
    assert [(item.producer_id, item.marker_offset) for item in plan.report.ended] == [
        (7, 10),
        (8, 17),
    ]
    assert not plan.new_objects
    assert [doubt.problem for doubt in plan.report.doubts] == [
        f"how transaction 1 of producer {producer} ended is not known; it is aborted"
        for producer in (7, 8)
    ]
    assert plan.report.partitions[0].high_watermark == 22
    async with applied_state(tmp_path) as state:
        assert (await read(state, plan)).aborted == [(7, 0, 10), (8, 13, 17)]


async def test_what_is_missing_and_more_than_markers_is_a_hole_still(tmp_path: Path) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    bucket.put(4, at_s=9, noted=15)
    plan = bucket.plan()
    assert len(plan.new_objects) == 1
    assert [item.marker_offset for item in plan.report.ended] == [19]
    async with applied_state(tmp_path) as state:
        await read(state, plan)


async def test_transactions_of_a_broker_that_noted_nothing_follow_each_other(
    tmp_path: Path,
) -> None:
    bucket = Transactions()
    for number in (1, 2, 3):
        bucket.send(2, 7, number)
    bucket.send(4, 8, 6)
    plan = bucket.plan()
    assert [(item.number, item.first_offset, item.marker_offset) for item in plan.report.ended] == [
        (1, 0, 2),
        (2, 3, 5),
        (3, 6, 12),
        (6, 8, 13),
    ]
    async with applied_state(tmp_path) as state:
        assert len((await read(state, plan)).aborted) == 4


async def test_a_batch_without_note_lies_between_the_markers_of_its_producer(
    tmp_path: Path,
) -> None:
    bucket = Transactions()
    bucket.send(5, 7, 1)
    bucket.send(5, 7, 2)
    # Another one fits as well, and was there earlier.
    bucket.put(5, at_s=0.5, broker=2)
    bucket.put(3, at_s=9, noted=17, broker=1)
    bucket.ended(end(5, 7, 1, is_commit=True), end(11, 7, 2, is_commit=False))
    plan = bucket.plan()
    assert {run.base_offset: run.object_key for run in plan.report.inferred} == {
        0: bucket.objects[0].object_key,
        6: bucket.objects[1].object_key,
        12: bucket.objects[2].object_key,
    }
    assert not plan.report.ended
    async with applied_state(tmp_path) as state:
        assert (await read(state, plan)).aborted == [(7, 6, 11)]


async def test_a_batch_that_came_after_its_transaction_had_ended_is_left_out() -> None:
    bucket = Transactions()
    bucket.send(5, 7, 1, noted=0)
    bucket.put(3, at_s=9, noted=6)
    late = bucket.send(2, 7, 1)
    bucket.ended(end(5, 7, 1, is_commit=True))
    plan = bucket.plan()
    (left,) = plan.report.left_out
    assert left.object_key == late.object_key
    assert not plan.report.ended


async def test_a_chunk_that_wakes_late_after_a_rebuild_opens_nothing(tmp_path: Path) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    plan = bucket.plan()
    late = bucket.objects[0].extents[0]._replace(transaction_number=2, base_sequence=10)
    async with applied_state(tmp_path) as state:
        await state.apply(*plan.records)
        view = SpeculativeView(state.image)

        def decided(extent: BatchExtent) -> object:
            key = state.partition(PLACE).id, extent.producer_id
            view.finish_look_up({}, {key: None}, None, {ClosedKey(*key): None})
            (commit,) = decide_rows(
                view, [extent], now_ms=1, steady_ms=1, expiration_ms=1_000
            ).commits
            return commit.error

        # Of a producer from before the loss no transaction can begin, whatever its number.
        for number in (2, NUMBER_MAX):
            error = decided(late._replace(transaction_number=number))
            assert isinstance(error, InvalidTransactionState)
        # Those that are made from now on are others.
        new = late._replace(producer_id=plan.report.next_producer_id, base_sequence=0)
        assert decided(new) is None
    # Not even when the metadata are lost again before anything of them was seen.
    bucket.kept = merged([bucket.kept, plan.notes])
    assert bucket.plan().report.next_producer_id > plan.report.next_producer_id + 900_000


async def test_what_is_aborted_before_a_segment_with_its_marker_stays_aborted(
    tmp_path: Path,
) -> None:
    bucket = Transactions()
    bucket.send(10, 7, 1, noted=0)
    rolled = bucket.send(5, 7, 1, noted=10)
    bucket.ended(end(12, 7, 1, is_commit=False))
    bucket.roll(rolled, 10)
    plan = bucket.plan()
    assert not plan.report.ended
    async with applied_state(tmp_path) as state:
        await state.apply(*plan.records)
        assert not await state.violations()
        there = state.partition(PLACE)
        aborted = await state.state.read(
            lambda connection: aborted_within(connection, there, 0, 10)
        )
    assert [tuple(item) for item in aborted] == [(7, 0, 12)]
    assert there.last_stable_offset == there.high_watermark == 15


def test_ends_of_partitions_that_nobody_knows_are_nothing() -> None:
    bucket = Transactions()
    bucket.kept = KeptNotes(ends={PLACE: (end(5, 7, 1, is_commit=True),)})
    plan = bucket.plan()
    assert not plan.report.partitions
    assert TOPIC not in [record for record in plan.records if hasattr(record, "topic_id")]
