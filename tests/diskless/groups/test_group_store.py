"""What a group coordinator relies on: the same of the metadata log as of the store in memory."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from diskless.groups.group_store import CoordinatorGroupStore, GroupStore
from metadata.records.groups import WHENEVER_COMMITTED, CommittedOffset, GroupKind
from tests.support.coordinators.standalone_coordinator import standalone_coordinator
from tests.support.groups.memory_group_store import MemoryGroupStore
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition

T0 = TopicIdPartition(UUID(int=1), 0)
T1 = TopicIdPartition(UUID(int=1), 1)
U0 = TopicIdPartition(UUID(int=2), 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "metadata log"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[GroupStore]:
    if request.param == "memory":
        yield MemoryGroupStore(clock)
        return
    async with (
        standalone_coordinator(tmp_path, clock=clock, rng=random.Random(1)) as coordinator,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(coordinator.run())
        yield CoordinatorGroupStore(coordinator)
        await coordinator.stop()


def offset(
    partition: TopicIdPartition, value: int, clock: ManualClock, expire_ms: int = -1
) -> CommittedOffset:
    return CommittedOffset(partition, value, clock.now_ms(), 0, "m", expire_ms)


async def stored(store: GroupStore) -> dict[str, tuple[int, bytes]]:
    return {group.group_id: (group.kind, group.state) async for group in store.stored_groups()}


async def test_offsets_are_read_as_they_were_committed(
    store: GroupStore, clock: ManualClock
) -> None:
    offsets = [offset(T0, 1, clock), offset(T1, 2, clock), offset(U0, 3, clock, 9)]
    await store.commit_offsets("g", offsets)
    assert await store.group_offsets("g", None) == {one.partition: one for one in offsets}
    assert [*(await store.group_offsets("g", [T1])).values()] == [offsets[1]]
    assert await store.group_offsets("g", []) == {}
    assert await store.group_offsets("other", None) == {}


async def test_the_last_commit_wins_however_they_overlap(
    store: GroupStore, clock: ManualClock
) -> None:
    commits = [store.commit_offsets("g", [offset(T0, value, clock)]) for value in range(50)]
    await asyncio.gather(*commits)
    assert (await store.group_offsets("g", None))[T0].offset == 49


async def test_groups_are_read_as_they_were_stored(store: GroupStore, clock: ManualClock) -> None:
    await store.store_group("g", GroupKind.CLASSIC, b"one")
    await store.store_group("g", GroupKind.CLASSIC, b"two")
    await store.commit_offsets("offsets", [offset(T0, 1, clock)])
    assert await stored(store) == {
        "g": (GroupKind.CLASSIC, b"two"),
        "offsets": (GroupKind.OFFSETS_ONLY, b""),
    }
    (updated_ms,) = [g.updated_ms async for g in store.stored_groups() if g.group_id == "g"]
    assert updated_ms == clock.now_ms()


async def test_a_group_goes_with_its_offsets(store: GroupStore, clock: ManualClock) -> None:
    await store.store_group("g", GroupKind.CLASSIC, b"one")
    await store.commit_offsets("g", [offset(T0, 1, clock)])
    await store.delete_group("g")
    await store.delete_group("never there")
    assert await stored(store) == {}
    assert await store.group_offsets("g", None) == {}


async def test_deleting_offsets_spares_what_was_committed_meanwhile(
    store: GroupStore, clock: ManualClock
) -> None:
    await store.commit_offsets("g", [offset(T0, 1, clock), offset(T1, 1, clock)])
    read_ms = clock.now_ms()
    clock.advance(1)
    await store.commit_offsets("g", [offset(T1, 2, clock)])
    await store.delete_offsets("g", [T0, T1, U0], committed_until_ms=read_ms)
    assert [one.offset for one in (await store.group_offsets("g", None)).values()] == [2]
    await store.delete_offsets("g", [T1], committed_until_ms=WHENEVER_COMMITTED)
    assert await stored(store) == {}


async def test_aged_offsets_are_found_page_by_page(store: GroupStore, clock: ManualClock) -> None:
    for number in range(5):
        await store.commit_offsets(f"g{number}", [offset(T0, number, clock)])
    await store.commit_offsets("due", [offset(T0, 10, clock, clock.now_ms() + 5)])
    clock.advance(3_600)
    await store.commit_offsets("fresh", [offset(T0, 11, clock)])
    await store.commit_offsets("later", [offset(T0, 12, clock, clock.now_ms() + 5)])
    found, after = [], None
    while page := await store.aged_offsets(
        before_ms=clock.now_ms(), now_ms=clock.now_ms(), limit=2, after=after
    ):
        assert len(page) <= 2
        found += [one.group_id for one in page]
        after = page[-1].cursor
    assert sorted(found) == ["due", "g0", "g1", "g2", "g3", "g4"]


async def test_leadership_is_confirmed(store: GroupStore) -> None:
    await store.confirm_leadership()
    assert store.certainly_leads()
