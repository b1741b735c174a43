"""Offsets that wait for the end of a transaction go with what is deleted meanwhile."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from metadata.records.groups import (
    WHENEVER_COMMITTED,
    CommittedOffset,
    GroupDeletedRecord,
    OffsetsDeletedRecord,
)
from metadata.records.transactions import TransactionalOffsetsRecord, TransactionEndedRecord
from metadata.state.queries.group_queries import group_offsets
from metadata.state.queries.transaction_queries import pending_partitions
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from tests.support.transactions.applied_transactions import assert_sound
from wal.coordinates import TopicIdPartition


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[AppliedState]:
    """Two groups with two offsets of each of two producers, from two times."""
    async with applied_state(tmp_path) as state:
        first, second = await state.topic(partitions=2)
        for group_id in ("g", "h"):
            for producer_id in (7, 8):
                offsets = [
                    CommittedOffset(first, 9, START_MS, 0, "m"),
                    CommittedOffset(second, 9, START_MS + 5, 0, "m"),
                ]
                await state.apply(
                    TransactionalOffsetsRecord(
                        group_id=group_id, producer_id=producer_id, number=1, offsets=offsets
                    )
                )
        yield state
        await assert_sound(state)


async def pending(state: AppliedState, group_id: str) -> set[int]:
    found = await state.state.read(partial(pending_partitions, group_id=group_id))
    return {partition.partition for partition in found}


async def committed(state: AppliedState, group_id: str) -> set[int]:
    """What is committed when the producer 7 has."""
    await state.apply(
        TransactionEndedRecord(
            producer_id=7,
            producer_epoch=0,
            number=1,
            is_commit=True,
            coordinator_epoch=0,
            ended_ms=START_MS + 9,
            partitions=[],
            group_id=group_id,
        )
    )
    found = await state.state.read(partial(group_offsets, group_id=group_id))
    return {partition.partition for partition in found}


async def test_a_group_that_is_deleted_gets_nothing_afterwards(state: AppliedState) -> None:
    await state.apply(GroupDeletedRecord(group_id="g"))
    assert await pending(state, "g") == set()
    assert await committed(state, "g") == set()
    assert await pending(state, "h") == {0, 1}
    assert await committed(state, "h") == {0, 1}


def deleted(state: AppliedState, *indexes: int, until_ms: int) -> OffsetsDeletedRecord:
    (topic_id,) = state.image.topics
    partitions = [TopicIdPartition(topic_id, index) for index in indexes]
    return OffsetsDeletedRecord(group_id="g", partitions=partitions, committed_until_ms=until_ms)


async def test_an_offset_that_is_deleted_does_not_come_back(state: AppliedState) -> None:
    await state.apply(deleted(state, 0, until_ms=WHENEVER_COMMITTED))
    assert await pending(state, "g") == {1}
    assert await committed(state, "g") == {1}
    assert await committed(state, "h") == {0, 1}


async def test_what_came_later_than_what_was_deleted_stays(state: AppliedState) -> None:
    await state.apply(deleted(state, 0, 1, until_ms=START_MS))
    assert await pending(state, "g") == {1}
