"""Transactions over several metadata logs: whoever dies, what was decided comes to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from diskless.transactions.transaction_router import Producer
from metadata.messages.shapes import Addressed
from metadata.messages.transactions import (
    ABORT_TRANSACTION,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
)
from metadata.records.groups import CommittedOffset
from metadata.transaction_operations import (
    AbortTransaction,
    ListTransactions,
    Transaction,
    TransactionState,
)
from tests.support.transactions.transaction_cluster import TIMEOUT_MS, TransactionCluster
from wal.errors import InvalidTransactionState, ProducerFenced, TransactionalIdNotFound

Opened = Callable[..., AbstractAsyncContextManager[TransactionCluster]]

TOPIC, GROUP = "t", "readers"


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def cluster(*, logs: int, brokers: int = 1) -> AsyncIterator[TransactionCluster]:
        async with TransactionCluster(tmp_path, coordinators=logs, brokers=brokers) as cluster:
            await cluster.topic(TOPIC, logs)
            yield cluster

    return cluster


def named(cluster: TransactionCluster, index: int, *, skip: int = 0) -> str:
    """A transactional id that belongs to this metadata partition."""
    names = (f"pay-{number}" for number in range(1_000))
    return [*islice((name for name in names if cluster.index_of(name) == index), skip + 1)][-1]


async def everywhere(cluster: TransactionCluster, producer: Producer, *, sequence: int = 0) -> int:
    """A transaction with records in every log, and offsets of a group; its number."""
    partitions = range(cluster.coordinators)
    number = await cluster.add(producer, TOPIC, partitions, [GROUP])
    for index in partitions:
        answer = await cluster.write(producer, TOPIC, index, sequence=sequence)
        assert answer.error is None, answer
    offset = CommittedOffset(cluster.partition(TOPIC, 0), 40 + number, -1, 0, "")
    await cluster.keep_offset(producer, GROUP, offset)
    return number


async def is_over(cluster: TransactionCluster, name: str, *, is_commit: bool) -> None:
    done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    await cluster.until(lambda: cluster.transaction(name).state == done, "it is completed")


async def has_ended(cluster: TransactionCluster, name: str, *, is_commit: bool) -> None:
    """It is completed, and each log says the same."""
    await is_over(cluster, name, is_commit=is_commit)
    number = cluster.transaction(name).number
    for index in range(cluster.coordinators):
        state = cluster.state(TOPIC, index)
        assert state.last_stable_offset == state.high_watermark
        assert state.last_marker_offset == state.high_watermark - 1
    coordinator = cluster.coordinator(cluster.index_of(GROUP))
    place = cluster.partition(TOPIC, 0)
    offsets = await coordinator.replica.group_offsets(GROUP, [place])
    assert (place in offsets and offsets[place].offset == 40 + number) is is_commit


@pytest.mark.parametrize("logs", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
async def test_one_broker_ends_a_transaction_in_all_its_logs(opened: Opened, logs: int) -> None:
    async with opened(logs=logs) as cluster:
        producer = await cluster.producer("pay")
        for number, is_commit in enumerate((True, False), 1):
            before = [cluster.state(TOPIC, index).high_watermark for index in range(logs)]
            assert await everywhere(cluster, producer, sequence=3 * number - 3) == number
            for index in range(logs):
                assert cluster.state(TOPIC, index).last_stable_offset == before[index]
            assert await cluster.ending(producer, is_commit=is_commit) is None
            await has_ended(cluster, "pay", is_commit=is_commit)
        late = await cluster.write(producer, TOPIC, 0, sequence=6)
        assert isinstance(late.error, InvalidTransactionState)


@pytest.mark.parametrize(
    "place", ["tell", pytest.param("told", marks=pytest.mark.exhaustive), "complete"]
)
async def test_the_next_leader_ends_what_was_decided(opened: Opened, place: str) -> None:
    async with opened(logs=3, brokers=3) as cluster:
        names = [named(cluster, 1), named(cluster, 1, skip=1)]
        leader = cluster.leader_of(names[0])
        ends = dict(zip(names, [True, False], strict=True))
        producers = {name: await cluster.producer(name) for name in names}
        numbers = {name: await everywhere(cluster, producers[name]) for name in names}
        leader.gate.at = place
        for name, is_commit in ends.items():
            # The producer need not wait for those who have a part in it.
            assert await cluster.ending(producers[name], is_commit=is_commit) is None
        await leader.gate.held()
        await cluster.kill(leader)
        for name, is_commit in ends.items():
            await is_over(cluster, name, is_commit=is_commit)
        for index in range(3):
            state = cluster.state(TOPIC, index)
            assert state.last_stable_offset == state.high_watermark == 8
        for name, is_commit in ends.items():
            assert await cluster.ending(producers[name], is_commit=is_commit) is None
            other = await cluster.ending(producers[name], is_commit=not is_commit)
            assert isinstance(other, InvalidTransactionState)
            assert await everywhere(cluster, producers[name], sequence=3) == numbers[name] + 1


@pytest.mark.parametrize("place", ["hear", pytest.param("heard", marks=pytest.mark.exhaustive)])
async def test_the_next_leader_of_a_partition_hears_of_the_end(opened: Opened, place: str) -> None:
    async with opened(logs=3, brokers=3) as cluster:
        name = named(cluster, 0)
        producer = await cluster.producer(name)
        await everywhere(cluster, producer)
        leader, other = cluster.leader_of(name), cluster.leading(2)
        assert other is not None
        other.gate.at = place
        ending = cluster.ending(producer, is_commit=True)
        await other.gate.held()
        await cluster.kill(other)
        assert await ending is None
        assert cluster.leader_of(name) is leader
        await has_ended(cluster, name, is_commit=True)


async def test_a_partition_that_nobody_leads_holds_up_no_other_transaction(opened: Opened) -> None:
    async with opened(logs=2, brokers=2) as cluster:
        stuck, free = named(cluster, 0), named(cluster, 0, skip=1)
        first, second = await cluster.producer(stuck), await cluster.producer(free)
        places = range(2)
        away = next(
            i for i in places if cluster.any.local.coordinator_of(cluster.partition(TOPIC, i)) == 1
        )
        await cluster.add(first, TOPIC, [away])
        assert (await cluster.write(first, TOPIC, away)).error is None
        await cluster.add(second, TOPIC, [1 - away])
        assert (await cluster.write(second, TOPIC, 1 - away)).error is None
        broker = cluster.leading(1)
        assert broker is not None
        await broker.stop(dies=True)
        assert await cluster.ending(first, is_commit=True) is None
        assert cluster.transaction(stuck).state == TransactionState.PREPARE_COMMIT
        assert await cluster.ending(second, is_commit=True) is None
        assert cluster.transaction(free).state == TransactionState.COMPLETE_COMMIT
        await cluster.elect()
        await cluster.until(
            lambda: cluster.transaction(stuck).state == TransactionState.COMPLETE_COMMIT,
            "it ends when somebody leads again",
        )


async def test_what_is_open_for_too_long_is_aborted_whoever_leads(opened: Opened) -> None:
    async with opened(logs=2, brokers=2) as cluster:
        name = named(cluster, 1)
        producer = await cluster.producer(name)
        await everywhere(cluster, producer)
        await cluster.kill(cluster.leader_of(name))
        assert cluster.transaction(name).state == TransactionState.ONGOING
        cluster.clock.advance(TIMEOUT_MS / 1000 + 1)
        await has_ended(cluster, name, is_commit=False)
        assert cluster.leader_of(name).transactions.statistics().ended["timed_out"] == 1
        fenced = await cluster.ending(producer, is_commit=True)
        assert isinstance(fenced, ProducerFenced)
        assert await everywhere(cluster, await cluster.producer(name), sequence=0) == 2


async def test_any_broker_describes_lists_and_aborts(opened: Opened) -> None:
    async with opened(logs=3, brokers=3) as cluster:
        names = [named(cluster, index) for index in range(3)]
        producers = [await cluster.producer(name) for name in names]
        number = await everywhere(cluster, producers[1])
        for broker in cluster.alive:
            (listed,) = await broker.client.call(LIST_TRANSACTIONS_HERE, ListTransactions())
            assert not isinstance(listed, Exception)
            assert [one.transactional_id for one in listed.transactions] == sorted(names)
            found, missing = await broker.client.call(
                DESCRIBE_TRANSACTIONS, Addressed(1, [names[1], "nobody"])
            )
            assert isinstance(found, Transaction)
            assert found.state == TransactionState.ONGOING
            assert len(found.partitions) == 3
            assert [*found.groups] == [GROUP]
            assert isinstance(missing, TransactionalIdNotFound)
        other = next(one for one in cluster.alive if one is not cluster.leader_of(names[1]))
        (ended,) = await other.client.call(
            ABORT_TRANSACTION, Addressed(1, [AbortTransaction(names[1], number)])
        )
        assert ended.error is None
        await has_ended(cluster, names[1], is_commit=False)
