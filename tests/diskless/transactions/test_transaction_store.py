"""What a coordinator of transactional ids relies on, of the real store and of the one in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from diskless.transactions.transaction_coordinator import TransactionStore
from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndTransaction,
    InitProducer,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog, running_coordinator
from tests.support.transactions.memory_transactions import MemoryTransactions
from wal.coordinates import TopicIdPartition
from wal.errors import ConcurrentTransactions, DisklessError, InvalidProducerIdMapping

NAME = "pay"
ELSEWHERE = TransactionPartition(TopicIdPartition(UUID(int=7), 0), 1)
INIT = InitProducer(NAME, 60_000, 40)
ADD = AddToTransaction(NAME, 40, 0, [ELSEWHERE])


@pytest.fixture(params=["real", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TransactionStore]:
    if request.param == "memory":
        yield MemoryTransactions(is_alone=False)
        return
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        yield bench.coordinator.transactions


def known(store: TransactionStore) -> Transaction:
    found = store.transaction(NAME)
    assert found is not None
    assert [*store.transactions()] == [found]
    return found


async def test_a_transaction_goes_through_its_states(store: TransactionStore) -> None:
    assert store.transaction(NAME) is None
    assert not store.transactions()
    unknown = await store.add_to_transaction(ADD)
    assert isinstance(unknown.error, InvalidProducerIdMapping)
    assert await store.init_producer(INIT) == (40, 0, None)
    assert known(store).state == TransactionState.EMPTY
    for number, is_commit in ((1, True), (2, False)):
        assert await store.add_to_transaction(ADD) == (number, None)
        group = ADD._replace(partitions=(), groups=[TransactionGroup("g", 1)])
        assert await store.add_to_transaction(group) == (number, None)
        assert known(store).state == TransactionState.ONGOING
        ended = await store.end_transaction(EndTransaction(NAME, 40, 0, is_commit))
        assert (ended.number, ended.is_completed, ended.error) == (number, False, None)
        decided = known(store)
        assert TransactionState(decided.state).is_decided
        assert TransactionState(decided.state).is_commit is is_commit
        assert decided.partitions == {ELSEWHERE.partition: 1}
        assert decided.groups == {"g": 1}
        await store.complete(NAME, number)
        assert not known(store).is_open
        assert not known(store).partitions
        assert not known(store).groups
    assert store.ended == {"committed": 1, "aborted": 1}


async def test_who_listens_hears_of_each_decision_that_is_to_be_told(
    store: TransactionStore,
) -> None:
    heard: list[str] = []
    store.subscribe(heard.append)
    await store.init_producer(INIT)
    await store.add_to_transaction(ADD)
    assert not heard
    ended = await store.abort_transaction(AbortTransaction(NAME, 1))
    assert (ended.number, ended.is_completed, ended.error) == (1, False, None)
    assert heard == [NAME]
    assert known(store).state == TransactionState.PREPARE_ABORT
    assert store.ended == {"aborted": 1}
    for number in (1, 2):
        again = await store.abort_transaction(AbortTransaction(NAME, number))
        assert again.error is not None
    assert store.ended == {"aborted": 1}


async def test_a_second_producer_waits_until_the_abort_is_completed(
    store: TransactionStore,
) -> None:
    await store.init_producer(INIT)
    await store.add_to_transaction(ADD)
    second = InitProducer(NAME, 60_000, 41)
    refused = await store.init_producer(second)
    assert isinstance(refused.error, ConcurrentTransactions)
    assert store.ended == {"aborted": 1}
    assert isinstance((await store.add_to_transaction(ADD)).error, DisklessError)
    assert known(store).state == TransactionState.PREPARE_ABORT
    await store.complete(NAME, 1)
    answer = await store.init_producer(second)
    assert answer.error is None
    assert known(store).number == 1
    pair = (answer.producer_id, answer.producer_epoch)
    assert (known(store).producer_id, known(store).producer_epoch) == pair
    again = await store.add_to_transaction(AddToTransaction(NAME, *pair, [ELSEWHERE]))
    assert again == (2, None)
