"""Committed offsets and stored groups: durable, replayed alike, deleted in bounded steps."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, event

from metadata.log.local_log import LocalMetadataLog
from metadata.records.groups import (
    CommittedOffset,
    GroupKind,
    OffsetsCommittedRecord,
    OffsetsDeletedRecord,
)
from metadata.replica.replica import GROUPS_PER_READ
from metadata.replica.verify import check_state
from metadata.rules.groups import (
    GROUP_ID_BYTES_MAX,
    GROUP_RECORD_BYTES_MAX,
    OFFSETS_PER_RECORD_MAX,
    group_coordinator,
)
from metadata.state.queries.group_queries import (
    PARTITIONS_PER_READ,
    AgedOffset,
    ExpiryCursor,
    StoredGroup,
    aged_offsets,
    group_offsets,
    stored_groups,
)
from metadata.state.schema import COMMIT_PERIOD_MS
from metadata.state.state import STATE_FILE
from metadata.state.state_check import scan_state_hash
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from tests.support.logs.snapshot_bench import (
    PrunableLog,
    following,
    keeper_of,
    opened,
    snapshots_in,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import AppendTooLarge, CommitFailed, CorruptState, DisklessError, InvalidRequest
from wal.stores.memory_store import MemoryStore

TOPICS = [UUID(int=number) for number in (0, 1, 1 << 127)]
PLACES = [TopicIdPartition(topic, index) for topic in TOPICS for index in range(3)]
A, B, C, *_ = PLACES
PERIOD = COMMIT_PERIOD_MS


def at(place: TopicIdPartition, offset: int, commit_ms: int = 0, **more: Any) -> CommittedOffset:
    return CommittedOffset(partition=place, offset=offset, commit_ms=commit_ms, **more)


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    """Afterwards the rows are what the records make of them, and sound."""
    async with running_coordinator(tmp_path / "state", log) as running:
        yield running
        replica = running.coordinator.replica
        assert await replica.state.read(check_state) == []
        assert await replica.state.read(scan_state_hash) == replica.state_hash
    async with following(tmp_path / "again", PrunableLog(log.batches), log.end_offset) as again:
        assert again.image.state_hash == replica.state_hash


async def offsets_of(bench: CoordinatorBench, group_id: str = "g") -> Mapping[Any, int]:
    found = await bench.coordinator.replica.group_offsets(group_id)
    return {place: offset.offset for place, offset in found.items()}


async def groups_of(bench: CoordinatorBench) -> list[StoredGroup]:
    return [group async for group in bench.coordinator.replica.stored_groups()]


# --- commits -------------------------------------------------------------------------------------


async def test_what_was_committed_is_read_as_it_was(bench: CoordinatorBench) -> None:
    whole = at(A, 2**63 - 1, 7, leader_epoch=3, metadata="é\0", expire_ms=9)
    await bench.coordinator.commit_offsets("g", [whole, at(B, -1)])
    read = bench.coordinator.replica.group_offsets
    assert await read("g") == {A: whole, B: at(B, -1)}
    assert await read("g", [C, A]) == {A: whole}
    assert await read("g", []) == {}
    assert await read("h") == {}


async def test_many_offsets_are_asked_for_in_one_go(bench: CoordinatorBench) -> None:
    places = [TopicIdPartition(A.topic_id, number) for number in range(2 * PARTITIONS_PER_READ + 1)]
    await bench.coordinator.commit_offsets("g", [at(place, place.partition) for place in places])
    await bench.coordinator.commit_offsets("h", [at(place, 7) for place in places])
    found = await bench.coordinator.replica.group_offsets("g", [*places[1:], places[1], C])
    assert {place: offset.offset for place, offset in found.items()} == {
        place: place.partition for place in places[1:]
    }


async def test_the_last_commit_of_an_offset_wins(bench: CoordinatorBench) -> None:
    await bench.coordinator.commit_offsets("g", [at(A, 5), at(B, 5)])
    await bench.coordinator.commit_offsets("g", [at(A, 4), at(A, 3)])
    assert await offsets_of(bench) == {A: 3, B: 5}


async def test_groups_have_offsets_of_their_own(bench: CoordinatorBench) -> None:
    for number, group_id in enumerate(["g", "h", "", "g\0", "\U0001f600", "G"]):
        await bench.coordinator.commit_offsets(group_id, [at(A, number)])
    for number, group_id in enumerate(["g", "h", "", "g\0", "\U0001f600", "G"]):
        assert await offsets_of(bench, group_id) == {A: number}


async def test_many_commits_share_an_append_and_a_row_is_written_once(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    coordinator = bench.coordinator
    await coordinator.commit_offsets("g0", [at(A, 0)])
    log.gate.clear()
    appends = log.append_calls
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(
                coordinator.commit_offsets(f"g{number % 3}", [at(A, number), at(B, 300 + number)])
            )
        log.entered.clear()
        await log.entered.wait()
        log.gate.set()
    assert log.append_calls - appends <= 3
    for number in range(3):
        assert await offsets_of(bench, f"g{number}") == {A: 297 + number, B: 597 + number}


async def test_a_commit_whose_append_failed_is_not_there(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    await bench.coordinator.commit_offsets("g", [at(A, 1)])
    log.failures.append(CommitFailed("no"))
    with pytest.raises(CommitFailed):
        await bench.coordinator.commit_offsets("g", [at(A, 2)])
    assert await offsets_of(bench) == {A: 1}
    await bench.coordinator.commit_offsets("g", [at(A, 3)])
    assert await offsets_of(bench) == {A: 3}


async def test_a_commit_of_nothing_leaves_no_trace(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    end = log.end_offset
    await bench.coordinator.commit_offsets("g", [])
    await bench.coordinator.delete_offsets("g", [])
    assert log.end_offset == end
    assert await groups_of(bench) == []


@pytest.mark.parametrize(
    ("group_id", "offset", "error"),
    [
        ("g", at(A, 1, expire_ms=2**63), InvalidRequest),
        ("g", at(A, 1, leader_epoch=2**31), InvalidRequest),
        ("g", at(A, 1, metadata="\ud800"), InvalidRequest),
        ("\ud800", at(A, 1), InvalidRequest),
        ("x" * (GROUP_ID_BYTES_MAX + 1), at(A, 1), InvalidRequest),
        ("g", at(A, 1, metadata="x" * GROUP_RECORD_BYTES_MAX), AppendTooLarge),
    ],
    ids=["time", "epoch", "metadata", "group", "long group", "too much"],
)
async def test_what_the_log_cannot_hold_is_refused_alone(
    bench: CoordinatorBench, group_id: str, offset: CommittedOffset, error: type[DisklessError]
) -> None:
    results = await asyncio.gather(
        bench.coordinator.commit_offsets("g", [at(B, 1)]),
        bench.coordinator.commit_offsets(group_id, [offset]),
        bench.coordinator.commit_offsets("g", [at(C, 1)]),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), error, type(None)]
    assert await offsets_of(bench) == {B: 1, C: 1}


async def test_the_largest_commit_fits_the_log_on_disk(tmp_path: Path) -> None:
    log = await LocalMetadataLog.open(tmp_path / "log", rng=random.Random(1))
    count = GROUP_RECORD_BYTES_MAX // 50
    many = [at(TopicIdPartition(TOPICS[1], number), number) for number in range(count)]
    async with running_coordinator(tmp_path, log) as bench:
        await bench.coordinator.commit_offsets("g", many)
        assert len(await offsets_of(bench)) == count
        await bench.coordinator.store_group("g", GroupKind.CLASSIC, bytes(GROUP_RECORD_BYTES_MAX))
        await bench.coordinator.delete_offsets("g", [offset.partition for offset in many])
        assert await offsets_of(bench) == {}


# --- deletions -----------------------------------------------------------------------------------


async def test_deleted_offsets_are_gone_and_the_others_stay(bench: CoordinatorBench) -> None:
    await bench.coordinator.commit_offsets("g", [at(A, 1), at(B, 2)])
    await bench.coordinator.commit_offsets("h", [at(A, 3)])
    await bench.coordinator.delete_offsets("g", [A, A, C])
    await bench.coordinator.delete_offsets("nobody", [A])
    assert await offsets_of(bench) == {B: 2}
    assert await offsets_of(bench, "h") == {A: 3}


async def test_an_offset_that_was_committed_since_does_not_expire(bench: CoordinatorBench) -> None:
    await bench.coordinator.commit_offsets("g", [at(A, 1, 10), at(B, 1, 10), at(C, 1, 11)])
    await bench.coordinator.commit_offsets("g", [at(B, 2, 12)])
    await bench.coordinator.delete_offsets("g", [A, B, C], committed_until_ms=11)
    assert await offsets_of(bench) == {B: 2}


async def test_a_commit_and_a_deletion_in_one_append_happen_in_their_order(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    coordinator = bench.coordinator
    log.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        for work in (
            coordinator.commit_offsets("g", [at(A, 1), at(B, 1)]),
            coordinator.delete_offsets("g", [A, B]),
            coordinator.commit_offsets("g", [at(A, 2)]),
            coordinator.commit_offsets("h", [at(A, 2)]),
            coordinator.delete_group("h"),
            coordinator.commit_offsets("h", [at(B, 3)]),
        ):
            tasks.create_task(work)
        await log.entered.wait()
        log.gate.set()
    assert await offsets_of(bench) == {A: 2}
    assert await offsets_of(bench, "h") == {B: 3}


@pytest.mark.parametrize("until_ms", [2**63, None], ids=["time", "partition"])
async def test_a_deletion_that_the_log_cannot_hold_is_refused_alone(
    bench: CoordinatorBench, until_ms: int | None
) -> None:
    await bench.coordinator.commit_offsets("g", [at(A, 1)])
    place = A if until_ms else TopicIdPartition(TOPICS[0], 2**31)
    with pytest.raises(InvalidRequest):
        await bench.coordinator.delete_offsets("g", [place], committed_until_ms=until_ms or 0)
    assert await offsets_of(bench) == {A: 1}


async def test_many_offsets_are_several_operations(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    count = 2 * OFFSETS_PER_RECORD_MAX + 1
    places = [TopicIdPartition(TOPICS[0], number) for number in range(count)]
    await bench.coordinator.commit_offsets("g", [at(place, 1) for place in places])
    assert len(await offsets_of(bench)) == count
    await bench.coordinator.delete_offsets("g", places)
    assert await offsets_of(bench) == {}
    written = [
        len(record.offsets if isinstance(record, OffsetsCommittedRecord) else record.partitions)
        for record in log.records()
        if isinstance(record, OffsetsCommittedRecord | OffsetsDeletedRecord)
    ]
    assert written == [OFFSETS_PER_RECORD_MAX, OFFSETS_PER_RECORD_MAX, 1] * 2


async def test_a_deleted_group_is_gone_with_its_offsets(bench: CoordinatorBench) -> None:
    coordinator = bench.coordinator
    for group_id in ("g", "h"):
        await coordinator.commit_offsets(group_id, [at(A, 1), at(B, 2)])
        await coordinator.store_group(group_id, GroupKind.CONSUMER, b"state")
    await coordinator.delete_group("g")
    await coordinator.delete_group("g")
    assert await offsets_of(bench) == {}
    assert await offsets_of(bench, "h") == {A: 1, B: 2}
    assert [group.group_id for group in await groups_of(bench)] == ["h"]
    await coordinator.commit_offsets("g", [at(C, 3)])
    assert await offsets_of(bench) == {C: 3}


# --- groups --------------------------------------------------------------------------------------


async def test_a_stored_group_is_what_was_stored_last(bench: CoordinatorBench) -> None:
    coordinator, replica = bench.coordinator, bench.coordinator.replica
    await coordinator.store_group("g", GroupKind.CLASSIC, b"\0one")
    stored = await replica.stored_group("g")
    assert stored is not None
    bench.clock.advance(1)
    await coordinator.commit_offsets("g", [at(A, 1)])
    await coordinator.store_group("g", GroupKind.CONSUMER, b"")
    changed = await replica.stored_group("g")
    assert changed is not None
    assert (stored.kind, stored.state) == (GroupKind.CLASSIC, b"\0one")
    assert (changed.kind, changed.state) == (GroupKind.CONSUMER, b"")
    assert (changed.id, changed.updated_ms) == (stored.id, stored.updated_ms + 1_000)
    assert await replica.stored_group("h") is None


async def test_a_group_that_only_has_offsets_is_there_as_long_as_it_has_any(
    bench: CoordinatorBench,
) -> None:
    coordinator = bench.coordinator
    await coordinator.commit_offsets("g", [at(A, 1), at(B, 1)])
    await coordinator.commit_offsets("h", [at(A, 1)])
    await coordinator.store_group("h", GroupKind.CLASSIC, b"h")
    first, second = await groups_of(bench)
    assert (first.group_id, first.kind, first.state) == ("g", GroupKind.OFFSETS_ONLY, b"")
    assert (second.group_id, second.kind, second.state) == ("h", GroupKind.CLASSIC, b"h")
    for place in (A, B):
        assert len(await groups_of(bench)) == 2
        await coordinator.delete_offsets("g", [place])
        await coordinator.delete_offsets("h", [place])
    assert [group.group_id for group in await groups_of(bench)] == ["h"]


@pytest.mark.parametrize("kind", [-1, 0, 128])
async def test_a_group_cannot_be_stored_as_of_no_kind(bench: CoordinatorBench, kind: int) -> None:
    with pytest.raises(InvalidRequest):
        await bench.coordinator.store_group("g", kind, b"")


async def test_a_group_state_that_is_too_large_is_refused(bench: CoordinatorBench) -> None:
    with pytest.raises(AppendTooLarge):
        await bench.coordinator.store_group(
            "g", GroupKind.CLASSIC, bytes(GROUP_RECORD_BYTES_MAX + 1)
        )


async def test_all_groups_are_listed_over_many_reads(bench: CoordinatorBench) -> None:
    names = [f"g{number}" for number in range(2 * GROUPS_PER_READ + 7)]
    await asyncio.gather(
        *[bench.coordinator.store_group(name, GroupKind.CLASSIC, name.encode()) for name in names]
    )
    seen: list[str] = []
    async for group in bench.coordinator.replica.stored_groups():
        if not seen:
            await bench.coordinator.delete_group(names[-1])
            await bench.coordinator.delete_group(names[0])
        seen.append(group.group_id)
    assert seen == names[:-1]


def test_a_groups_coordinator_follows_from_its_id() -> None:
    """Pinned: another result would look for a group's offsets where they are not."""
    assert [group_coordinator("my-group", count) for count in (1, 12, 50)] == [0, 2, 6]
    assert group_coordinator("gruppe-ü", 12) == 6
    spread = {group_coordinator(f"group-{number}", 12) for number in range(200)}
    assert spread == set(range(12))


# --- expiry --------------------------------------------------------------------------------------


async def all_aged(
    bench: CoordinatorBench, before_ms: int, now_ms: int, limit: int
) -> list[AgedOffset]:
    found: list[AgedOffset] = []
    while page := await bench.coordinator.replica.aged_offsets(
        before_ms=before_ms,
        now_ms=now_ms,
        limit=limit,
        after=found[-1].cursor if found else None,
    ):
        assert len(page) <= limit
        found += page
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_offsets_that_may_expire_are_found_page_by_page(
    bench: CoordinatorBench, limit: int
) -> None:
    now_ms = 100 * PERIOD
    commits = [
        ("g", at(A, 1, 5)),
        ("h", at(A, 2, 7)),
        ("g", at(B, 3, 3 * PERIOD)),
        ("g", at(C, 4, 50 * PERIOD + 9)),
        ("h", at(B, 5, 50 * PERIOD + 10)),
        ("h", at(C, 6, 70 * PERIOD)),
        ("i", at(A, 7, 1, expire_ms=now_ms + 1)),
        ("i", at(B, 8, 99 * PERIOD, expire_ms=now_ms)),
        ("i", at(C, 9, 99 * PERIOD, expire_ms=0)),
    ]
    for group_id, offset in commits:
        await bench.coordinator.commit_offsets(group_id, [offset])
    aged = await all_aged(bench, 50 * PERIOD + 10, now_ms, limit)
    assert [(found.group_id, found.offset) for found in aged] == [
        *commits[:4],
        commits[8],
        commits[7],
    ]


async def test_an_expiry_pass_deletes_what_it_found_and_goes_on(bench: CoordinatorBench) -> None:
    for number in range(10):
        place = TopicIdPartition(TOPICS[0], number)
        await bench.coordinator.commit_offsets(f"g{number % 3}", [at(place, 1, number * PERIOD)])
    replica = bench.coordinator.replica
    cursor = None
    while page := await replica.aged_offsets(
        before_ms=5 * PERIOD, now_ms=9 * PERIOD, limit=2, after=cursor
    ):
        for found in page:
            await bench.coordinator.delete_offsets(
                found.group_id,
                [found.offset.partition],
                committed_until_ms=found.offset.commit_ms,
            )
        cursor = page[-1].cursor
    left = [place.partition for n in range(3) for place in await offsets_of(bench, f"g{n}")]
    assert sorted(left) == [5, 6, 7, 8, 9]


async def test_finding_offsets_reads_along_an_index(bench: CoordinatorBench) -> None:
    """And sorts nothing: a page costs what is in it."""
    executed: list[tuple[str, Any]] = []

    def steps(connection: Connection) -> Sequence[str]:
        @event.listens_for(connection, "before_cursor_execute")
        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            executed.append((statement, parameters))

        for is_due in (None, False, True):
            after = None if is_due is None else ExpiryCursor(is_due, 1, 2, 3, b"4")
            aged_offsets(connection, before_ms=9, now_ms=9, after=after, limit=5)
        group_offsets(connection, "g")
        stored_groups(connection, 3, 5)
        driver: Any = connection.connection.driver_connection
        return [
            row[-1]
            for statement, parameters in executed
            for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]

    plan = await bench.coordinator.replica.state.read(steps)
    assert {step.split()[0] for step in plan} == {"SEARCH"}
    assert sum("offsets_by_period" in step for step in plan) == 2
    assert sum("offsets_by_expiry" in step for step in plan) == 3


# --- durability ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_deleted", [False, True], ids=["restart", "SQLite deleted"])
async def test_offsets_and_groups_survive(tmp_path: Path, is_deleted: bool) -> None:
    before: list[Any] = []
    for attempt in range(2):
        log = await LocalMetadataLog.open(tmp_path / "log", rng=random.Random(attempt))
        async with running_coordinator(tmp_path, log) as bench:
            coordinator, replica = bench.coordinator, bench.coordinator.replica
            if not attempt:
                await coordinator.commit_offsets("g", [at(A, 1), at(B, 2, metadata="m")])
                await coordinator.store_group("g", GroupKind.CLASSIC, b"classic")
                await coordinator.commit_offsets("h", [at(A, 3)])
                await coordinator.commit_offsets("i", [at(A, 4)])
                await coordinator.delete_group("i")
            before.append(
                (
                    await replica.group_offsets("g"),
                    await replica.group_offsets("h"),
                    await replica.group_offsets("i"),
                    await groups_of(bench),
                )
            )
        if is_deleted:
            (tmp_path / STATE_FILE).unlink()
    assert before[0] == before[1]
    assert len(before[0][-1]) == 2


async def test_a_snapshot_and_the_log_behind_it_have_all_offsets_and_groups(
    tmp_path: Path,
) -> None:
    log = PrunableLog()
    async with running_coordinator(tmp_path / "leader", log) as bench:
        coordinator = bench.coordinator
        for number in range(6):
            await coordinator.commit_offsets(f"g{number % 2}", [at(PLACES[number], number)])
        await coordinator.store_group("g0", GroupKind.CONSUMER, b"before")
        middle = log.end_offset
        await coordinator.commit_offsets("g0", [at(A, 10)])
        await coordinator.store_group("g0", GroupKind.CONSUMER, b"behind")
        await coordinator.commit_offsets("g2", [at(A, 11)])
        expected = [await coordinator.replica.group_offsets(f"g{n}") for n in range(3)]
        groups = await groups_of(bench)
        state_hash = coordinator.replica.state_hash
    async with MemoryStore(clock=ManualClock()) as store:
        snapshots = snapshots_in(store)
        async with following(tmp_path / "taker", log, middle) as followed:
            assert await keeper_of(followed, snapshots).take_once() is not None
        assert await log.prune(middle) > 0
        async with opened(tmp_path / "new", log, snapshots) as started:
            assert await started.checked_hash() == state_hash
            read = started.state.read
            assert [
                await read(partial(group_offsets, group_id=f"g{n}")) for n in range(3)
            ] == expected
            assert await read(partial(stored_groups, after=-1, limit=9)) == groups


@pytest.mark.parametrize("column", ["committed_offset", "expire_ms", "metadata"])
async def test_a_damaged_offset_is_not_answered(tmp_path: Path, column: str) -> None:
    damage = f"UPDATE group_offsets SET {column} = {column} || 1"
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        replica = bench.coordinator.replica
        await bench.coordinator.commit_offsets("g", [at(A, 1)])
        await replica.state.write(lambda connection: connection.exec_driver_sql(damage))
        with pytest.raises(CorruptState):
            await replica.group_offsets("g")


async def test_a_damaged_group_is_not_answered(tmp_path: Path) -> None:
    damage = "UPDATE consumer_groups SET state = x'00'"
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        replica = bench.coordinator.replica
        await bench.coordinator.store_group("g", GroupKind.CLASSIC, b"state")
        await replica.state.write(lambda connection: connection.exec_driver_sql(damage))
        with pytest.raises(CorruptState):
            await replica.stored_group("g")
        with pytest.raises(CorruptState):
            await groups_of(bench)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM consumer_groups", "has offsets but does not exist"),
        ("DELETE FROM group_offsets", "has neither state nor offsets"),
        (
            "UPDATE group_offsets SET commit_period = 7",
            "partition 0: committed at 0 and in period 7",
        ),
    ],
)
async def test_rows_that_do_not_fit_together_are_a_violation(
    tmp_path: Path, damage: str, problem: str
) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        await bench.coordinator.commit_offsets("g", [at(A, 1)])
        state = bench.coordinator.replica.state
        await state.write(lambda connection: connection.exec_driver_sql(damage))
        assert [found.problem for found in await state.read(check_state)] == [problem]
