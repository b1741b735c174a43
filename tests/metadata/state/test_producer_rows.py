"""Producer states as rows: written in bulk, found again, forgotten when silent for long."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metadata.records.control import ProducersExpiredRecord
from metadata.records.file_committed import FileCommittedRecord
from metadata.state.image import ProducerKey
from metadata.state.producer_rows import PERIOD_MS, expired_producers, load_producers
from metadata.state.producer_state import unpack_window
from metadata.state.state import STATE_FILE
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from wal.coordinates import Offset, TopicIdPartition
from wal.errors import CorruptState

FIRST_PERIOD = START_MS // PERIOD_MS
assert START_MS % PERIOD_MS == 0


@pytest.fixture
async def applied(tmp_path: Path) -> AsyncIterator[AppliedState]:
    async with applied_state(tmp_path) as state:
        yield state


def file_of(
    applied: AppliedState, partition: TopicIdPartition, producers: Sequence[int], sequence: int
) -> FileCommittedRecord:
    """One batch of one record of each producer."""
    plain = applied.file(*[(partition, 1, 10, 0) for _ in producers])
    return replace(
        plain,
        batches=[
            batch._replace(
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                last_sequence=sequence,
            )
            for batch, producer in zip(plain.batches, producers, strict=True)
        ],
    )


async def periods(applied: AppliedState) -> dict[int, tuple[int, int]]:
    """(period, last append) by producer id, counted from the start."""
    found = await applied.state.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT producer_id, append_period, last_append_ms FROM producer_states"
        ).all()
    )
    return {producer: (period - FIRST_PERIOD, last - START_MS) for producer, period, last in found}


async def expired(applied: AppliedState, before_ms: int, limit: int) -> list[int]:
    found = await applied.state.read(
        lambda connection: expired_producers(connection, START_MS + before_ms, limit)
    )
    return [key[1] for key, _ in found]


async def test_a_producer_moves_to_another_period_when_it_writes_in_one(
    applied: AppliedState,
) -> None:
    (partition,) = await applied.topic()
    await applied.apply(file_of(applied, partition, [1, 2], 0))
    applied.clock.advance(PERIOD_MS / 1000 - 0.001)
    await applied.apply(file_of(applied, partition, [1], 1))
    assert await periods(applied) == {1: (0, PERIOD_MS - 1), 2: (0, 0)}
    applied.clock.advance(0.001)
    await applied.apply(file_of(applied, partition, [1, 3], 2))
    assert await periods(applied) == {1: (1, PERIOD_MS), 2: (0, 0), 3: (1, PERIOD_MS)}
    assert await applied.violations() == []


async def test_the_longest_silent_are_found_first_and_to_the_millisecond(
    applied: AppliedState,
) -> None:
    (partition,) = await applied.topic()
    for number in range(4):
        await applied.apply(file_of(applied, partition, [9 - number], 0))
        applied.clock.advance(PERIOD_MS / 2000)
    # Two in each period, in the order of their ids within it.
    assert await expired(applied, 3 * PERIOD_MS, 10) == [8, 9, 6, 7]
    assert await expired(applied, 3 * PERIOD_MS, 3) == [8, 9, 6]
    assert await expired(applied, 0, 10) == []
    assert await expired(applied, 1, 10) == [9]
    assert await expired(applied, PERIOD_MS + 1, 10) == [8, 9, 7]
    assert await expired(applied, PERIOD_MS, 10) == [8, 9]


async def test_expiring_takes_rows_out_of_state_image_and_hash(applied: AppliedState) -> None:
    (partition,) = await applied.topic()
    await applied.apply(file_of(applied, partition, range(5), 0))
    applied.clock.advance(1)
    await applied.apply(file_of(applied, partition, [1], 1))
    await applied.apply(ProducersExpiredRecord(before_ms=START_MS + 1, limit=3))
    assert set(await periods(applied)) == {1, 4}
    assert {key[1] for key in applied.image.producers} == {1, 4}
    assert await applied.violations() == []
    await applied.apply(ProducersExpiredRecord(before_ms=START_MS + 1, limit=3))
    assert set(await periods(applied)) == {1}
    assert await applied.violations() == []


async def test_a_producer_that_was_forgotten_starts_a_new_window(applied: AppliedState) -> None:
    (partition,) = await applied.topic()
    await applied.apply(file_of(applied, partition, [5], 0))
    forget = ProducersExpiredRecord(before_ms=START_MS + 1, limit=1)
    await applied.apply(forget, file_of(applied, partition, [5], 1))
    (state,) = applied.image.producers.values()
    assert [batch.base_sequence for batch in unpack_window(state).batches] == [1]
    assert await applied.violations() == []


async def test_looking_for_the_silent_reads_an_index_and_not_the_table(
    applied: AppliedState,
) -> None:
    plans: list[str] = []

    def explain(connection: object) -> None:
        driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[attr-defined]
        statements: list[str] = []
        driver.set_trace_callback(statements.append)
        expired_producers(connection, START_MS, 5)  # type: ignore[arg-type]
        driver.set_trace_callback(None)
        (statement,) = [text for text in statements if "append_period" in text]
        plans.extend(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}"))

    await applied.state.read(explain)
    assert "USING INDEX producers_by_period (append_period<?)" in plans[0]
    assert not [plan for plan in plans if plan.startswith("SCAN")]


async def test_many_producers_are_found_by_their_keys(applied: AppliedState) -> None:
    partitions = await applied.topic(2)
    for partition in partitions:
        await applied.apply(file_of(applied, partition, range(0, 3_000, 2), 0))
    ids = [applied.partition(partition).id for partition in partitions]
    wanted: list[ProducerKey] = [(row_id, number) for row_id in ids for number in range(1_500)]
    found = await applied.state.read(lambda connection: load_producers(connection, wanted))
    assert set(found) == {key for key in wanted if key[1] % 2 == 0}
    assert all(found[key] == applied.image.producers.get(key, found[key]) for key in found)
    assert {key[1] for key in found if key in applied.image.producers} != set()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE producer_states SET checksum = checksum + 1",
        "UPDATE producer_states SET last_append_ms = last_append_ms + 1",
        "UPDATE producer_states SET append_period = append_period + 1",
        "UPDATE producer_states SET window = substr(window, 1, 27)",
        "UPDATE producer_states SET window = x'01000200' || substr(window, 5)",
    ],
)
async def test_a_damaged_row_is_not_believed(
    applied: AppliedState, tmp_path: Path, damage: str
) -> None:
    (partition,) = await applied.topic()
    await applied.apply(file_of(applied, partition, [5], 0))
    key = (applied.partition(partition).id, 5)
    database = sqlite3.connect(tmp_path / STATE_FILE)
    database.execute(damage)
    database.commit()
    database.close()
    with pytest.raises(CorruptState):
        await applied.state.read(lambda connection: load_producers(connection, [key]))


async def test_offsets_and_times_of_a_window_are_those_of_its_batches(
    applied: AppliedState,
) -> None:
    (partition,) = await applied.topic()
    for number in range(7):
        await applied.apply(file_of(applied, partition, [5], number))
        applied.clock.advance(1)
    key = (applied.partition(partition).id, 5)
    found = await applied.state.read(lambda connection: load_producers(connection, [key]))
    assert found[key] == applied.image.producers[key]
    window = unpack_window(found[key])
    assert [batch.base_offset for batch in window.batches] == [Offset(n) for n in range(2, 7)]
    assert [batch.append_time_ms - START_MS for batch in window.batches] == [
        1_000 * number for number in range(2, 7)
    ]
