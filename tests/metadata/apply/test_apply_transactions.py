"""Records about transactions become rows, and image and rows stay the same thing."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from metadata.records.groups import CommittedOffset
from metadata.records.records import (
    RecordsDeletedRecord,
    TopicDeletedRecord,
)
from metadata.records.transactions import (
    ClosedTransactionsExpiredRecord,
    EndedPartition,
    TransactionalIdsExpiredRecord,
    TransactionalOffsetsRecord,
    TransactionCompletedRecord,
)
from metadata.state.queries.group_queries import group_offsets
from metadata.state.queries.transaction_queries import load_closed, pending_partitions
from metadata.transaction_operations import (
    ClosedKey,
    ClosedTransaction,
    TransactionState,
)
from tests.support.coordinators.applied_state import START_MS, applied_state
from tests.support.transactions.applied_transactions import (
    BEGAN,
    assert_sound,
    decided,
    ended,
    grew,
    of_transaction,
)
from wal.columns import FEW_MAX
from wal.errors import CorruptState


@pytest.mark.parametrize("as_leader", [False, True])
@pytest.mark.parametrize("count", [1, FEW_MAX + 1])
async def test_a_transaction_begins_with_its_first_batch_and_ends_with_a_marker(
    tmp_path: Path, as_leader: bool, count: int
) -> None:
    async with applied_state(tmp_path, as_leader=as_leader) as state:
        (partition,) = await state.topic()
        await state.apply(state.file((partition, 5, 10, START_MS)))
        await state.apply(of_transaction(state, partition, 1, count=count))
        await state.apply(of_transaction(state, partition, 4, producer=8))
        there = state.partition(partition)
        end = 5 + 2 * count + 2
        assert (there.last_stable_offset, there.high_watermark) == (5, end)
        await assert_sound(state)

        await state.apply(ended(1, EndedPartition(partition, end, 5, end - 2), is_commit=False))
        there = state.partition(partition)
        assert (there.last_stable_offset, there.high_watermark) == (end - 2, end + 1)
        assert there.last_marker_offset == end
        assert await state.count("aborted_transactions") == 1
        await assert_sound(state)

        last = EndedPartition(partition, end + 1, end - 2, end + 2)
        await state.apply(ended(4, last, is_commit=True, producer=8))
        assert state.partition(partition).last_stable_offset == end + 2
        assert await state.count("aborted_transactions") == 1
        assert await state.count("markers") == 2
        assert not state.image.transactions.has_open
        key = ClosedKey(there.id, 7)
        closed = await state.state.read(partial(load_closed, keys=[key]))
        assert closed == {key: ClosedTransaction(1, 1)}
        assert state.image.transactions.closed[key] == closed[key]
        await assert_sound(state)


@pytest.mark.parametrize("is_commit", [False, True])
async def test_offsets_wait_for_the_end(tmp_path: Path, is_commit: bool) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        offset = CommittedOffset(partition, 9, START_MS, 2, "m")
        for committed in (offset._replace(offset=8), offset):
            await state.apply(
                TransactionalOffsetsRecord(
                    group_id="g", producer_id=7, number=1, offsets=[committed]
                )
            )
        assert await state.state.read(partial(pending_partitions, group_id="g")) == {partition}
        assert not await state.state.read(partial(group_offsets, group_id="g"))
        await state.apply(ended(1, is_commit=is_commit))
        assert not await state.state.read(partial(pending_partitions, group_id="g"))
        found = await state.state.read(partial(group_offsets, group_id="g"))
        assert found == ({partition: offset} if is_commit else {})
        await assert_sound(state)


async def test_a_transactional_id_goes_through_its_states(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        first, second = await state.topic(2)
        await state.apply(BEGAN)
        await state.apply(grew(1, first))
        await state.apply(replace(grew(1, second), groups=[]))
        known = state.image.transactions.ids["t"]
        assert (known.partitions, known.groups) == ({first: 0, second: 0}, {"g": 0})
        assert known.began_ms == START_MS + 1
        await assert_sound(state)
        await state.apply(decided(1, is_commit=True))
        with pytest.raises(CorruptState, match="it is"):
            await state.apply(decided(1, is_commit=False))
        with pytest.raises(CorruptState, match="grew"):
            await state.apply(grew(2, first))
        await state.apply(TransactionCompletedRecord(transactional_id="t", number=1, at_ms=1))
        known = state.image.transactions.ids["t"]
        assert known.state == TransactionState.COMPLETE_COMMIT
        assert not known.partitions
        assert await state.count("transaction_parts") == 0
        await state.apply(grew(2, first))
        with pytest.raises(CorruptState, match="expired"):
            await state.apply(TransactionalIdsExpiredRecord(transactional_ids=["t"]))
        await state.apply(
            decided(2, is_commit=False),
            TransactionCompletedRecord(transactional_id="t", number=2, at_ms=1),
            TransactionalIdsExpiredRecord(transactional_ids=["t"]),
        )
        assert not state.image.transactions.ids
        await assert_sound(state)


async def test_a_record_that_does_not_fit_what_is_open_is_corrupt(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        await state.apply(of_transaction(state, partition, 1))
        for wrong in (
            EndedPartition(partition, 2, -1, 3),
            EndedPartition(partition, 3, 0, 4),
            EndedPartition(partition, 2, 0, 2),
        ):
            with pytest.raises(CorruptState, match="EndedPartition"):
                await state.apply(ended(1, wrong, is_commit=True))
        with pytest.raises(CorruptState, match="begins while"):
            await state.apply(of_transaction(state, partition, 2))
        await assert_sound(state)


async def test_what_is_open_survives_a_deletion_of_its_records_but_not_of_its_topic(
    tmp_path: Path,
) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        await state.apply(of_transaction(state, partition, 1))
        await state.apply(state.file((partition, 3, 10, START_MS)))
        await state.apply(
            ended(3, EndedPartition(partition, 5, -1, 0), is_commit=False, producer=9)
        )
        deletion = RecordsDeletedRecord(partition=partition, new_log_start_offset=4)
        await state.apply(deletion)
        assert state.partition(partition).last_stable_offset == 4
        await assert_sound(state)
        await state.apply(TopicDeletedRecord(topic_id=partition.topic_id))
        assert not state.image.transactions.has_open
        for table in ("open_transactions", "markers", "aborted_transactions"):
            assert await state.count(table) == 0
        assert await state.count("closed_transactions") == 1
        await assert_sound(state)


async def test_closed_numbers_are_forgotten_the_oldest_first(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        for place, producer in enumerate((5, 6, 7)):
            record = ended(1, is_commit=True, producer=producer)
            await state.apply(replace(record, ended_ms=START_MS + place))
        expired = ClosedTransactionsExpiredRecord(before_ms=START_MS + 2, limit=1)
        await state.apply(expired)
        assert [key.producer_id for key in state.image.transactions.closed] == [6, 7]
        await state.apply(expired, expired)
        assert [key.producer_id for key in state.image.transactions.closed] == [7]
        await assert_sound(state)


async def test_what_is_open_under_a_number_that_was_closed_is_a_violation(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        await state.apply(ended(3, EndedPartition(partition, 0, -1, 1), is_commit=True))
        await assert_sound(state)
        offset = CommittedOffset(partition, 9, START_MS)
        await state.apply(
            of_transaction(state, partition, 3),
            TransactionalOffsetsRecord(group_id="g", producer_id=7, number=2, offsets=[offset]),
        )
        found = [violation.problem for violation in await state.violations()]
        assert found == [
            "producer 7 has transaction 3 open, and 3 was closed",
            "offsets of producer 7 wait for transaction 2, and 3 was closed",
        ]
