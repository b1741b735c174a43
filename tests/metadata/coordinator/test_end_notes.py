"""How transactions ended is noted in the bucket: each end once a term, and by every new leader."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from metadata.coordinator import end_notes
from metadata.coordinator.end_notes import EndNotes
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.transactions import EndedPartition, TransactionEndedRecord
from metadata.workers.notes_sweep import NotesSweep
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from wal.chunks.kept_notes import NOTES_PREFIX, KeptNotes, decode_kept_notes, merged
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.failpoint import FailpointError, arm
from wal.stores.memory_store import MemoryStore


class Scene:
    """A coordinator's state, with transactions that have no data, and the bucket."""

    def __init__(self, state: AppliedState) -> None:
        self.state = state
        self.clock = ManualClock(START_MS)
        self.rng = random.Random(1)
        self.store = MemoryStore(clock=self.clock)

    def leader(self) -> EndNotes:
        return EndNotes(cast(Any, self.state), self.store, clock=self.clock, rng=self.rng)

    async def end(self, partition: TopicIdPartition, number: int) -> None:
        offset = self.state.partition(partition).high_watermark
        await self.state.apply(
            TransactionEndedRecord(
                producer_id=7,
                producer_epoch=1,
                number=number,
                is_commit=number % 2 == 0,
                coordinator_epoch=3,
                ended_ms=START_MS,
                partitions=[EndedPartition(partition, offset, -1, offset + 1)],
                group_id=None,
            )
        )

    async def noted(self) -> tuple[int, KeptNotes]:
        """The number of notes objects, and what they say."""
        keys = [stat.key async for stat in self.store.list(NOTES_PREFIX)]
        notes = [decode_kept_notes(await self.store.get(key), key) for key in keys]
        return len(keys), merged(notes)


def numbers(notes: KeptNotes, partition: TopicIdPartition) -> Sequence[int]:
    return [end.number for end in notes.ends.get(partition, ())]


async def test_each_end_is_noted_once_and_again_by_the_next_leader(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        scene = Scene(state)
        first, second = await state.topic(partitions=2)
        leader = scene.leader()
        assert await leader.note_once() == 0
        for number in (1, 2):
            await scene.end(first, number)
        await scene.end(second, 5)
        assert await leader.note_once() == 1
        assert await leader.note_once() == 0
        count, notes = await scene.noted()
        assert (count, numbers(notes, first), numbers(notes, second)) == (1, [1, 2], [5])
        end = notes.ends[first][1]
        assert end.marker == (1, 7, 1, True, 3, START_MS)
        await scene.end(first, 3)
        assert await leader.note_once() == 1
        assert numbers((await scene.noted())[1], first) == [1, 2, 3]
        assert await scene.leader().note_once() == 1
        count, again = await scene.noted()
        assert (count, again.ends) == (3, (await scene.noted())[1].ends)


@pytest.mark.parametrize("point", ["transaction.before_note", "transaction.after_note"])
async def test_ends_over_whose_note_a_leader_dies_are_noted_by_the_next_one(
    tmp_path: Path, point: str
) -> None:
    async with applied_state(tmp_path) as state:
        scene = Scene(state)
        (partition,) = await state.topic()
        for number in (1, 2):
            await scene.end(partition, number)
        arm(f"{point}=raise")
        try:
            with pytest.raises(FailpointError):
                await scene.leader().note_once()
        finally:
            arm("")
        count, _ = await scene.noted()
        assert count == (point == "transaction.after_note")
        assert await scene.leader().note_once() == 1
        assert numbers((await scene.noted())[1], partition) == [1, 2]


async def test_many_ends_take_several_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_notes, "ENDS_MAX", 3)
    async with applied_state(tmp_path) as state:
        scene = Scene(state)
        partitions = await state.topic(partitions=2)
        for number in range(1, 5):
            for partition in partitions:
                await scene.end(partition, number)
        assert await scene.leader().note_once() == 3
        _, notes = await scene.noted()
        assert all(numbers(notes, partition) == [1, 2, 3, 4] for partition in partitions)


async def test_a_sweep_drops_what_is_rolled_or_deleted(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        scene = Scene(state)
        first, second = await state.topic(partitions=2)
        for number in (1, 2, 3):
            await scene.end(first, number)
        await scene.end(second, 4)
        await scene.leader().note_once()
        rolled = {first: 2}
        sweep = NotesSweep(
            scene.store,
            topics=lambda _: None,
            log_began_ms=lambda: 0,
            steady_ms=scene.clock.now_ms,
            rolled_end=rolled.get,
            settings=CoordinatorSettings(),
            rng=scene.rng,
        )
        await sweep.sweep_once(everything=True)
        _, notes = await scene.noted()
        assert (numbers(notes, first), numbers(notes, second)) == ([3], [])
        rolled[first] = 3
        await sweep.sweep_once(everything=True)
        assert await scene.noted() == (0, KeptNotes())
