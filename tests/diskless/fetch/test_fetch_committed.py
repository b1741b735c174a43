"""Fetch with isolation level 1: up to the last stable offset, and what is aborted of just that."""

import pytest

from metadata.operations import READ_COMMITTED, AbortedTransaction
from tests.support.brokers.replica_setting import P0, Setting, at


@pytest.fixture
async def setting() -> Setting:
    return Setting()


async def test_a_reader_of_committed_records_ends_at_the_last_stable_offset(
    setting: Setting,
) -> None:
    for _ in range(5):
        setting.commit(P0)
    setting.coordinator.first_open[P0] = 3
    (committed,) = await setting.fetch(at(0), isolation=READ_COMMITTED)
    assert committed.records == [b"wal/0/0", b"wal/0/1", b"wal/0/2"]
    assert (committed.high_watermark, committed.last_stable_offset) == (5, 3)
    (everything,) = await setting.fetch(at(0))
    assert len(everything.records) == 5
    assert everything.last_stable_offset == 3
    assert setting.coordinator.isolations == [READ_COMMITTED, 0]


@pytest.mark.parametrize("offset", [3, 4, 5])
async def test_it_waits_behind_the_last_stable_offset_without_a_second_look(
    setting: Setting, offset: int
) -> None:
    for _ in range(5):
        setting.commit(P0)
    setting.coordinator.first_open[P0] = 3
    await setting.fetch(at(0), isolation=READ_COMMITTED)
    looked = setting.coordinator.looked
    task = setting.fetch(at(0, offset), isolation=READ_COMMITTED)
    await setting.until_parked()
    assert setting.coordinator.looked == looked
    # The marker that ends the transaction.
    del setting.coordinator.first_open[P0]
    setting.commit(P0)
    (result,) = await task
    assert len(result.records) == 6 - offset
    assert result.last_stable_offset == 6


async def test_bytes_above_the_last_stable_offset_do_not_end_the_wait(setting: Setting) -> None:
    for _ in range(5):
        setting.commit(P0, 100)
    setting.coordinator.first_open[P0] = 2
    task = setting.fetch(at(0), isolation=READ_COMMITTED, min_bytes=201)
    await setting.until_parked()
    (everything,) = await setting.fetch(at(0), min_bytes=201)
    assert len(everything.records) == 5
    setting.coordinator.first_open[P0] = 3
    setting.commit(P0)
    (result,) = await task
    assert len(result.records) == 3


async def test_what_is_told_to_be_aborted_began_within_what_was_read(setting: Setting) -> None:
    for _ in range(5):
        setting.commit(P0)
    aborted = [
        AbortedTransaction(8, 1, 2),
        AbortedTransaction(9, 0, 4),
        AbortedTransaction(7, 3, 9),
    ]
    setting.coordinator.aborted = aborted
    setting.coordinator.first_open[P0] = 3
    (result,) = await setting.fetch(at(0), isolation=READ_COMMITTED)
    assert result.aborted == [aborted[1], aborted[0]]
