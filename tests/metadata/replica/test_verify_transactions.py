"""`diskless verify` finds transactions that nobody ends, and snapshots have those without data."""

from pathlib import Path

from sqlalchemy import Connection

from metadata.records.groups import CommittedOffset
from metadata.records.transactions import EndedPartition, TransactionalOffsetsRecord
from metadata.replica.snapshots import SnapshotStatus
from metadata.replica.verify import check_state
from metadata.replica.verify_transactions import held_transactions, unheld
from metadata.state.schema import MARKERS
from metadata.transaction_operations import TransactionState
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from tests.support.logs.snapshot_bench import (
    PrunableLog,
    following,
    keeper_of,
    opened,
    snapshots_in,
)
from tests.support.transactions.applied_transactions import BEGAN, ended, grew, of_transaction
from wal.clock import ManualClock
from wal.stores.memory_store import MemoryStore


async def problems(*states: AppliedState) -> list[str]:
    """What is wrong with the transactions of these logs together."""
    held = [await state.state.read(held_transactions) for state in states]
    return [problem for _, problem in unheld(held)]


async def test_what_is_open_has_its_transactional_id_in_this_or_in_another_log(
    tmp_path: Path,
) -> None:
    async with applied_state(tmp_path / "p") as state, applied_state(tmp_path / "t") as other:
        (partition,) = await state.topic()
        await state.apply(of_transaction(state, partition, 1))
        offset = CommittedOffset(partition, 9, START_MS, 2, "m")
        await state.apply(
            TransactionalOffsetsRecord(group_id="g", producer_id=8, number=1, offsets=[offset])
        )
        assert len(await problems(state, other)) == 2
        await other.apply(BEGAN, grew(1, partition))
        assert await problems(state, other) == ["transaction 1 of producer 8 belongs to nobody"]
        await state.apply(ended(1, is_commit=True, producer=8))
        assert not await problems(state, other)
        assert len(await problems(state)) == 1


async def test_what_is_open_is_the_last_transaction_of_its_id(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        await state.apply(BEGAN, grew(1, partition))
        await state.apply(of_transaction(state, partition, 2))
        (problem,) = await problems(state)
        assert "t is at 1 in state 1" in problem


async def test_an_aborted_range_without_its_marker_is_found(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic()
        await state.apply(of_transaction(state, partition, 1))
        await state.apply(ended(1, EndedPartition(partition, 2, 0, 3), is_commit=False))
        assert not await state.violations()

        def lose(connection: Connection) -> None:
            connection.execute(MARKERS.table.update().values(offset=1))

        await state.state.write(lose)
        problems_found = [violation.problem for violation in await state.state.read(check_state)]
        assert "producer 7 is aborted from 0 on, and no marker is at 2" in problems_found


async def test_a_snapshot_has_a_transaction_that_began_and_is_empty(tmp_path: Path) -> None:
    async with applied_state(tmp_path / "recorded") as state:
        await state.apply(BEGAN, grew(1))
        await state.topic()
        log = PrunableLog(state.batches)
    async with MemoryStore(clock=ManualClock()) as store:
        snapshots = snapshots_in(store)
        async with following(tmp_path / "taken", log) as followed:
            await followed.follow(2)
            assert await keeper_of(followed, snapshots).take_once() is not None
        (stored,) = await snapshots.stored()
        assert (await snapshots.survey(stored)).status is SnapshotStatus.USABLE
        del log.batches[0]
        async with opened(tmp_path / "new", log, snapshots) as found:
            transaction = found.image.transactions.ids["t"]
            assert (transaction.number, transaction.state) == (1, TransactionState.ONGOING)
            assert (transaction.producer_id, transaction.began_ms) == (7, START_MS + 1)
