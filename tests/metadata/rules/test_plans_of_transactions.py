"""What is planned of a partition with transactions, and what goes of their rows."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import RecordsDeletedRecord
from metadata.rules.retention import RetentionPolicy
from metadata.rules.segments import SEGMENT_BYTES_CONFIG, candidates, survey
from metadata.workers.retention import Candidate
from metadata.workers.retention import survey as survey_retention
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.tiers.rolled_transactions import Rolling, rolling, stable_end, written


@pytest.fixture
async def rolls(tmp_path: Path) -> AsyncIterator[Rolling]:
    async with rolling(tmp_path) as made:
        yield made


async def proposed(
    rolls: Rolling, *, segment_bytes: int = 1 << 20, age_ms: int = 0, include_partial: bool = False
) -> list[tuple[int, int]]:
    found = candidates(
        rolls.state.image,
        CoordinatorSettings(),
        lambda _: {SEGMENT_BYTES_CONFIG: str(segment_bytes)},
        {},
    )
    proposals = await rolls.state.state.read(
        partial(
            survey,
            partitions=[one for one in found if one.partition == rolls.partition],
            now_ms=rolls.state.clock.now_ms() + age_ms,
            include_partial=include_partial,
            proposals_max=100,
        )
    )
    return [(one.base_offset, one.last_offset) for one in proposals]


async def rows(rolls: Rolling) -> tuple[int, int, int]:
    """Markers, aborted transactions and open ones."""
    place = rolls.state.partition(rolls.partition).id
    tables = ("markers", "aborted_transactions", "open_transactions")
    of_partition = [f"{table} WHERE partition = {place}" for table in tables]
    markers, aborted, opened = [await rolls.state.count(table) for table in of_partition]
    return markers, aborted, opened


async def test_plans_end_at_the_last_stable_offset(rolls: Rolling) -> None:
    # Offsets: a 0-1, x 2-3, A 4, b 5-6, x 7-8.
    await rolls.write(written("axAbx", [True]))
    assert await proposed(rolls, include_partial=True) == [(0, 4)]
    assert await proposed(rolls, age_ms=1 << 40) == [(0, 4)]
    # What is not stable makes it neither large enough nor old enough.
    in_bytes = rolls.state.partition(rolls.partition).unplanned_bytes
    assert await proposed(rolls, segment_bytes=in_bytes) == []


async def test_a_marker_begins_a_plan_and_closes_one(rolls: Rolling) -> None:
    await rolls.write(written("abxABx", [True, False]))
    plan = await rolls.plan(0, 6)
    assert (plan.markers, [one.base_offset for one in plan.extents]) == ([6], [0, 2, 4])
    assert plan.aborted == [(ord("b"), 2, 7)], "a transaction that ends behind the plan"
    plan = await rolls.plan(7, 7)
    assert (plan.markers, plan.extents, plan.aborted) == ([7], [], [(ord("b"), 2, 7)])


async def test_markers_alone_are_planned_when_they_are_old(rolls: Rolling) -> None:
    await rolls.write(written("AB", [True, False]))
    assert await proposed(rolls) == []
    assert await proposed(rolls, age_ms=1 << 40) == [(0, 1)]
    await rolls.commit(await rolls.plan(0, 1))
    assert await proposed(rolls, include_partial=True) == []
    assert rolls.state.partition(rolls.partition).last_marker_offset == -1
    assert await rows(rolls) == (0, 0, 0)


async def test_what_ended_stays_until_all_below_its_marker_is_rolled(rolls: Rolling) -> None:
    # a 0-1, b 2-3, A 4, x 5-6, B 7.
    await rolls.write(written("abAxB", [False, False]))
    plans = [await rolls.plan(*bounds) for bounds in ((0, 1), (2, 4), (5, 7))]
    for plan in (plans[2], plans[0]):
        assert await rows(rolls) == (2, 2, 0)
        assert not await rolls.state.violations()
        await rolls.commit(plan)
    assert await rows(rolls) == (2, 2, 0)
    segment = await rolls.commit(plans[1])
    assert (segment.record_count, segment.control_count, segment.aborted_count) == (0, 1, 2)
    assert await rows(rolls) == (0, 0, 0)
    assert not await rolls.state.violations()


@pytest.mark.parametrize("planned", [(), ((0, 3),), ((0, 4),), ((0, 3), (4, 8))])
async def test_records_are_deleted_up_to_anywhere(
    rolls: Rolling, planned: Sequence[tuple[int, int]]
) -> None:
    for start in range(14) if IS_EXHAUSTIVE else (3, 4, 6, 8, 11):
        await _delete_up_to(rolls, start, planned)


async def _delete_up_to(rolls: Rolling, start: int, planned: Sequence[tuple[int, int]]) -> None:
    # a 0-1, b 2-3, A 4, x 5-6, B 7, A 8, c 9-10, x 11-12.
    entries = written("abAxBAcx", [False, True, True])
    await rolls.write(entries)
    plans = [await rolls.plan(*bounds) for bounds in planned]
    deletion = RecordsDeletedRecord(partition=rolls.partition, new_log_start_offset=start)
    await rolls.state.apply(deletion)
    state = rolls.state.partition(rolls.partition)
    assert state.last_stable_offset == max(start, stable_end(entries))
    for isolation in (ops.READ_UNCOMMITTED, ops.READ_COMMITTED):
        found = await rolls.find(start, isolation)
        if isolation == ops.READ_COMMITTED:
            told = [one.marker_offset for one in found.aborted]
            assert told == ([4] if start <= 4 else [])
    assert not await rolls.state.violations()
    for plan in plans:
        assert await rolls.asked(plan.base_offset) == plan
        await rolls.commit(plan)
    assert not await rolls.state.violations()
    waiting = await proposed(rolls, include_partial=True)
    begin = max(start, plans[-1].last_offset + 1 if plans else 0)
    holds = [one.base_offset for one in entries if one.base_offset <= begin <= one.last_offset]
    assert waiting == ([(holds[0], 8)] if begin <= 8 else [])
    assert await rows(rolls) == (
        sum(marker >= begin for marker in (4, 7, 8)),
        int(begin <= 4),
        1,
    )


async def test_retention_ends_at_the_last_stable_offset_and_counts_markers(rolls: Rolling) -> None:
    # a 0-1, A 2, B 3, b 4-5, x 6-7.
    await rolls.write(written("aABbx", [False, True]))
    policy = RetentionPolicy(retention_ms=0)
    state = rolls.state.partition(rolls.partition)
    for rows_max, start, count in ((100, 4, 3), (2, 3, 2)):
        (finding,) = await rolls.state.state.read(
            partial(
                survey_retention,
                candidates=[Candidate(rolls.partition, state.id, policy, 0)],
                now_ms=1 << 50,
                rows_max=rows_max,
            )
        )
        assert finding.expired == (start, count)
