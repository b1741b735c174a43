"""Produces in a transaction: each batch waits for its number, and nobody else does."""

from collections.abc import Sequence

import pytest

from diskless.loop.long_work import done_at_once
from diskless.replica.replica_manager import BATCHES_AT_ONCE
from diskless.transactions.errors import (
    NotTransactionCoordinator,
    TransactionAbortable,
    TransactionNotKnown,
)
from metadata.transaction_operations import JoinTransaction
from tests.support.brokers.produced import AskedBatch
from tests.support.brokers.replica_setting import (
    NOW_MS,
    OTHER_CLIENT,
    P0,
    P1,
    P2,
    Setting,
    done,
    until,
)
from tests.support.chunks.batch_builder import Row, build_batch
from wal.coordinates import NO_TRANSACTION
from wal.errors import (
    CommitFailed,
    ConcurrentTransactions,
    DisklessError,
    InvalidProducerIdMapping,
    OutcomeUnknown,
    ProducerFenced,
    StaleProducerEpoch,
    TransactionalIdMissing,
)
from wal.records.compression import GZIP

TRANSACTIONAL = 0x10


def batch(
    setting: Setting, partition: int = 0, sequence: int = 0, *, producer_id: int = 9, bits: int = 16
) -> AskedBatch:
    numbers = {"producer_id": producer_id, "producer_epoch": 3, "base_sequence": sequence}
    data = build_batch([Row(NOW_MS)], attributes=bits, **numbers)
    return setting.batch(partition, data)


def appended(setting: Setting) -> Sequence[tuple[int, int, int]]:
    """(partition, sequence, transaction number) of what reached the write loop."""
    return [
        (one.partition.partition, one.header.base_sequence, one.transaction_number)
        for one in setting.write_loop.batches
    ]


async def test_a_request_asks_once_and_its_batches_get_the_number(setting: Setting) -> None:
    future = setting.append(*(batch(setting, index) for index in range(3)), transactional_id="id")
    assert setting.numbers.asked == [JoinTransaction("id", 9, 3, [P0, P1, P2])]
    assert appended(setting) == []
    setting.clock.advance(60)
    await setting.numbers.answer(41)
    assert appended(setting) == [(0, 0, 41), (1, 0, 41), (2, 0, 41)]
    # By that a chunk knows those that come too late for it.
    assert {one.number_asked_ms for one in setting.write_loop.batches} == {NOW_MS}
    for index in range(3):
        setting.write_loop.settle(index, done(index))
    assert [result.base_offset for result in await future] == [0, 1, 2]


async def test_what_comes_later_for_the_partition_waits_behind_and_nobody_else(
    setting: Setting,
) -> None:
    first = setting.append(batch(setting, 0, 0), transactional_id="id")
    second = setting.append(batch(setting, 0, 1), batch(setting, 1, 0), transactional_id="id")
    plain = setting.append(
        batch(setting, 0, 2, bits=0), batch(setting, 2, 0, bits=0), transactional_id="id"
    )
    beside = setting.append(setting.batch(0), client=OTHER_CLIENT)
    assert appended(setting) == [(2, 0, NO_TRANSACTION), (0, -1, NO_TRANSACTION)]
    await setting.numbers.answer(5)
    assert appended(setting)[2:] == [(0, 0, 5), (0, 1, 5), (0, 2, NO_TRANSACTION), (1, 0, 5)]
    assert len(setting.numbers.asked) == 2
    for index in range(6):
        setting.write_loop.settle(index, done(index))
    for future in (first, second, plain, beside):
        assert all(result.error is None for result in await future)
    assert setting.lanes.are_empty


async def test_a_number_that_comes_first_does_not_overtake_the_work(setting: Setting) -> None:
    setting.configure({"cleanup.policy": "compact"})
    setting.shut_door()
    numbers = {"producer_id": 9, "producer_epoch": 3, "base_sequence": 0}
    data = build_batch([Row(NOW_MS, b"key")], codec=GZIP, attributes=TRANSACTIONAL | 1, **numbers)
    future = setting.append(setting.batch(0, data), transactional_id="id")
    setting.configure({})
    behind = setting.append(batch(setting, 0, 1), transactional_id="id")
    await setting.numbers.answer(2)
    assert appended(setting) == []
    setting.open_door()
    await until(lambda: len(setting.write_loop.batches) == 2)
    assert appended(setting) == [(0, 0, 2), (0, 1, 2)]
    for index in range(2):
        setting.write_loop.settle(index, done(index))
    assert (await future)[0].error is (await behind)[0].error is None


async def test_a_partition_that_is_not_in_it_is_refused_alone(setting: Setting) -> None:
    setting.numbers.missing.add(P1)
    future = setting.append(*(batch(setting, index) for index in range(3)), transactional_id="id")
    await setting.numbers.answer(6)
    assert [asked.partitions for asked in setting.numbers.asked] == [[P0, P1, P2], [P0], [P1], [P2]]
    assert appended(setting) == [(0, 0, 6), (2, 0, 6)]
    for index in range(2):
        setting.write_loop.settle(index, done(index))
    results = await future
    assert [type(result.error) for result in results] == [
        type(None),
        TransactionAbortable,
        type(None),
    ]
    assert setting.manager.batches_rejected == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotTransactionCoordinator("not here"), TransactionNotKnown),
        (CommitFailed("nobody leads"), TransactionNotKnown),
        (OutcomeUnknown("no answer"), TransactionNotKnown),
        (ConcurrentTransactions("it is being ended"), TransactionNotKnown),
        (ProducerFenced("another has it"), StaleProducerEpoch),
        (InvalidProducerIdMapping("unknown"), InvalidProducerIdMapping),
    ],
)
async def test_a_question_without_a_number_is_the_answer_to_its_batches(
    setting: Setting, error: DisklessError, told: type[DisklessError]
) -> None:
    future = setting.append(batch(setting, 0), batch(setting, 1), transactional_id="id")
    await setting.numbers.answer(error=error)
    assert [type(result.error) for result in await future] == [told, told]
    assert appended(setting) == []
    # It holds up nothing that comes again.
    again = setting.append(batch(setting, 0), transactional_id="id")
    await setting.numbers.answer(7)
    setting.write_loop.settle(0, done(0))
    assert (await again)[0].error is None


async def test_a_batch_that_is_sent_again_waits_for_the_first_and_asks_nothing_of_it(
    setting: Setting,
) -> None:
    first = setting.append(batch(setting), transactional_id="id")
    again = setting.append(batch(setting), transactional_id="id", client=OTHER_CLIENT)
    await setting.numbers.answer(3)
    assert appended(setting) == [(0, 0, 3)]
    setting.write_loop.settle(0, done(11))
    assert (await first)[0].base_offset == (await again)[0].base_offset == 11


async def test_a_batch_of_a_transaction_needs_the_id(setting: Setting) -> None:
    (result,) = await setting.append(batch(setting))
    assert isinstance(result.error, TransactionalIdMissing)
    assert setting.numbers.asked == []


async def test_a_request_has_one_producer(setting: Setting) -> None:
    future = setting.append(
        batch(setting, 0), batch(setting, 1, producer_id=10), transactional_id="id"
    )
    await setting.numbers.answer(1)
    setting.write_loop.settle(0, done(0))
    good, bad = await future
    assert good.error is None
    assert isinstance(bad.error, InvalidProducerIdMapping)


async def test_a_large_request_asks_in_parts(setting: Setting) -> None:
    count = 3 * BATCHES_AT_ONCE
    steps = setting.appending(
        *(batch(setting, number % 3, number) for number in range(count)), transactional_id="id"
    )
    future = done_at_once(steps)
    assert len(setting.numbers.asked) == 3
    await setting.numbers.answer(8)
    await until(lambda: len(setting.write_loop.batches) == count)
    sequences = [sequence for partition, sequence, _ in appended(setting) if partition == 1]
    assert sequences == sorted(sequences)
    for number in range(count):
        setting.write_loop.settle(number, done(number))
    assert all(result.error is None for result in await future)


async def test_a_broker_that_stops_refuses_what_waits(setting: Setting) -> None:
    future = setting.append(batch(setting), transactional_id="id")
    await setting.lanes.__aexit__(None, None, None)
    assert (await future)[0].error is not None
    await setting.numbers.answer(1)
    assert appended(setting) == []
