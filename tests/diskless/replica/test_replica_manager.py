"""Produces at the replica manager, over a write loop that does what a test says."""

import asyncio
from uuid import UUID

import pytest

from diskless.loop.long_work import done_at_once
from diskless.produce.delayed_produce import REPEATS_MAX
from diskless.replica.replica_manager import BATCHES_AT_ONCE, COLUMNS_AT_ONCE, append_failed
from metadata.operations import BatchCommit, TopicDescription
from tests.support.brokers.produced import AskedBatch
from tests.support.brokers.replica_setting import (
    NOW_MS,
    OTHER_CLIENT,
    P0,
    P1,
    P2,
    SOON_S,
    TOPIC,
    Setting,
    done,
    until,
)
from tests.support.chunks.batch_builder import Row, build_batch
from wal.columns import FEW_MAX
from wal.errors import (
    CorruptBatch,
    DisklessError,
    InvalidRecord,
    KeysMissing,
    OutcomeUnknown,
    Overloaded,
    RecordTooLarge,
    StorageFailed,
    UnknownPartition,
    UnknownTopicId,
)
from wal.records.compression import GZIP, ZSTD

# Produce


async def test_a_produce_is_answered_when_its_last_batch_has_its_outcome(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1), setting.batch(2))
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2]
    setting.write_loop.settle(2, done(7))
    setting.write_loop.settle(0, BatchCommit(error=StorageFailed("disk")))
    assert not future.done()
    setting.write_loop.settle(1, done(9))
    results = await future
    assert [result.base_offset for result in results] == [-1, 9, 7]
    assert isinstance(results[0].error, StorageFailed)
    assert results[1].log_append_time_ms == -1  # the topic has CreateTime
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 0)


async def test_the_append_time_is_told_where_the_topic_has_it(setting: Setting) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    setting.coordinator.by_name["u"] = TopicDescription(
        topic_id=UUID(int=2), name="u", partition_count=1, configs=configs
    )
    future = setting.append(setting.batch(topic="u"))
    setting.write_loop.settle(0, done(0))
    assert (await future)[0].log_append_time_ms == 5


async def test_batches_are_queued_before_append_returns_and_in_order(setting: Setting) -> None:
    futures = [setting.append(setting.batch(number % 3)) for number in range(6)]
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2] * 2
    for number, future in enumerate(futures):
        setting.write_loop.settle(number, done(number))
        assert (await future)[0].base_offset == number
    request_ids = [batch.request_id for batch in setting.write_loop.batches]
    assert len(set(request_ids)) == 6


async def test_past_its_timeout_the_outcome_of_a_batch_is_unknown(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1), timeout_ms=20)
    setting.write_loop.settle(1, done(4))
    async with asyncio.timeout(SOON_S):
        results = await future
    assert isinstance(results[0].error, OutcomeUnknown)
    assert (results[1].error, results[1].base_offset) == (None, 4)
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 1)
    # The commit comes after all: too late for the answer, and no harm.
    setting.write_loop.settle(0, done(3))
    assert results == await future


def idempotent(
    setting: Setting, sequence: int = 0, *, records: int = 1, epoch: int = 0, at_ms: int = NOW_MS
) -> AskedBatch:
    numbers = {"producer_id": 9, "producer_epoch": epoch, "base_sequence": sequence}
    return setting.batch(0, build_batch([Row(at_ms)] * records, **numbers))


async def test_a_batch_that_is_sent_again_waits_for_the_first(setting: Setting) -> None:
    first = setting.append(idempotent(setting), timeout_ms=20)
    async with asyncio.timeout(SOON_S):
        assert isinstance((await first)[0].error, OutcomeUnknown)
    again = setting.append(idempotent(setting), setting.batch(1), client=OTHER_CLIENT)
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1]
    setting.write_loop.settle(1, done(4))
    setting.write_loop.settle(0, done(7))
    assert [result.base_offset for result in await again] == [7, 4]
    assert setting.manager.batches_repeated == 1


async def test_many_batches_that_are_sent_again_wait_for_the_first_of_each(
    setting: Setting,
) -> None:
    """The second request has three batches that the first has not."""
    count = 5 * FEW_MAX
    first = setting.append(*(idempotent(setting, number) for number in range(count)))
    asked = [*range(count), *range(count + 100, count + 103)]
    again = setting.append(*(idempotent(setting, number) for number in asked))
    assert [batch.header.base_sequence for batch in setting.write_loop.batches] == [
        *range(count),
        *asked[-3:],
    ]
    assert setting.manager.batches_repeated == count
    for index in range(count + 3):
        setting.write_loop.settle(index, done(index))
    assert [result.base_offset for result in await first] == [*range(count)]
    assert [result.base_offset for result in await again] == [*range(count + 3)]


async def test_a_batch_that_has_its_outcome_is_appended_when_it_is_sent_again(
    setting: Setting,
) -> None:
    for number in range(2):
        future = setting.append(idempotent(setting))
        setting.write_loop.settle(number, done(7))
        assert (await future)[0].base_offset == 7
    assert len(setting.write_loop.batches) == 2


async def test_what_failed_the_first_does_not_refuse_the_second(setting: Setting) -> None:
    first, again = (setting.append(idempotent(setting)) for _ in range(2))
    setting.write_loop.settle(0, BatchCommit(error=StorageFailed("disk")))
    assert isinstance((await first)[0].error, StorageFailed)
    assert isinstance((await again)[0].error, OutcomeUnknown)
    third = setting.append(idempotent(setting))
    setting.write_loop.settle(1, done(7))
    assert (await third)[0].error is None


async def test_a_batch_that_the_disk_refused_is_not_waited_for(setting: Setting) -> None:
    setting.write_loop.error = Overloaded("full")
    assert isinstance((await setting.append(idempotent(setting)))[0].error, Overloaded)
    setting.write_loop.error = None
    setting.append(idempotent(setting))
    setting.write_loop.settle(0, done(7))
    assert len(setting.write_loop.batches) == 1


async def test_only_the_same_batch_is_taken_for_the_same(setting: Setting) -> None:
    others = [
        idempotent(setting),
        idempotent(setting, 1),
        idempotent(setting, records=2),
        idempotent(setting, epoch=1),
        idempotent(setting, at_ms=NOW_MS - 1),
        setting.batch(0),
        setting.batch(0),
    ]
    for batch in others:
        setting.append(batch)
    assert len(setting.write_loop.batches) == len(others)
    for number in range(len(others)):
        setting.write_loop.settle(number, done(number))


async def test_more_than_a_few_requests_do_not_wait_for_one_batch(setting: Setting) -> None:
    futures = [setting.append(idempotent(setting)) for _ in range(REPEATS_MAX + 2)]
    assert len(setting.write_loop.batches) == 2
    for number in range(2):
        setting.write_loop.settle(number, done(7))
    assert {(await future)[0].base_offset for future in futures} == {7}


async def test_a_request_that_nobody_waits_for_makes_room_for_another(setting: Setting) -> None:
    for _ in range(REPEATS_MAX + 2):
        future = setting.append(idempotent(setting))
        future.cancel()
    assert len(setting.write_loop.batches) == 1
    setting.write_loop.settle(0, done(7))


async def test_a_client_that_went_away_takes_no_batch_back(setting: Setting) -> None:
    future = setting.append(setting.batch(0))
    future.cancel()
    setting.write_loop.settle(0, done(0))
    assert setting.manager.produce_purgatory.statistics().watched == 0


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (AskedBatch("t", 0, None), InvalidRecord),
        (AskedBatch("nobody", 0, None), UnknownPartition),
        (AskedBatch("t", 3, None), UnknownPartition),
        (AskedBatch("t", -1, None), UnknownPartition),
        (AskedBatch(UUID(int=9), 0, None), UnknownTopicId),
    ],
)
async def test_a_refused_batch_is_answered_at_once_when_it_is_alone(
    setting: Setting, batch: AskedBatch, error: type[DisklessError]
) -> None:
    future = setting.append(batch)
    assert future.done()
    assert isinstance((await future)[0].error, error)
    assert setting.write_loop.calls == []


async def test_a_refused_batch_waits_for_the_good_ones_beside_it(setting: Setting) -> None:
    broken = build_batch([Row(NOW_MS)])[:-1] + b"?"
    future = setting.append(setting.batch(0), setting.batch(1, broken), setting.batch(2))
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P2]
    setting.write_loop.settle(0, done(0))
    setting.write_loop.settle(1, done(0))
    results = await future
    assert [type(result.error) for result in results] == [type(None), CorruptBatch, type(None)]
    assert setting.manager.batches_rejected == 1


async def test_a_full_queue_is_the_outcome_of_every_batch(setting: Setting) -> None:
    setting.write_loop.error = Overloaded("full")
    future = setting.append(setting.batch(0), setting.batch(1))
    assert future.done()
    assert [type(result.error) for result in await future] == [Overloaded, Overloaded]
    assert setting.manager.produce_purgatory.statistics() == (0, 1, 0), "nothing waits any more"


async def test_each_batch_is_judged_by_its_own_topic(setting: Setting) -> None:
    small = TopicDescription(
        topic_id=UUID(int=2), name="u", partition_count=9, configs={"max.message.bytes": "70"}
    )
    setting.coordinator.by_name["u"] = small
    asked = [("t", 0), ("u", 1), ("t", 1), ("nobody", 0), ("t", 7), ("nobody", 1), ("t", 2)]
    future = setting.append(*(setting.batch(partition, topic=topic) for topic, partition in asked))
    by_id = setting.append(
        AskedBatch(small.topic_id, 2, build_batch([Row(NOW_MS)])),
        AskedBatch(TOPIC.topic_id, 0, build_batch([Row(NOW_MS)])),
    )
    assert [batch.partition for batch in setting.write_loop.batches] == [P0, P1, P2, P0]
    for index in range(4):
        setting.write_loop.settle(index, done(index))
    assert [
        (type(result.error), result.base_offset) for result in [*await future, *await by_id]
    ] == [
        (type(None), 0),
        (RecordTooLarge, -1),
        (type(None), 1),
        (UnknownPartition, -1),
        (UnknownPartition, -1),
        (UnknownPartition, -1),
        (type(None), 2),
        (RecordTooLarge, -1),
        (type(None), 3),
    ]


async def test_what_the_disk_refused_is_the_outcome_of_every_batch(setting: Setting) -> None:
    future = setting.append(setting.batch(0), setting.batch(1))
    append_failed(setting.write_loop.pending, StorageFailed("full"))
    assert [type(result.error) for result in await future] == [StorageFailed, StorageFailed]


async def test_a_changed_topic_configuration_counts_from_the_next_batch(setting: Setting) -> None:
    small = TopicDescription(
        topic_id=TOPIC.topic_id, name="t", partition_count=3, configs={"max.message.bytes": "10"}
    )
    setting.append(setting.batch(0))
    setting.coordinator.by_name["t"] = small
    refused = setting.append(setting.batch(0))
    assert (await refused)[0].error is not None
    setting.write_loop.settle(0, done(0))


async def test_closing_answers_the_produces_that_still_wait(setting: Setting) -> None:
    future = setting.append(setting.batch(0))
    setting.manager.close()
    assert isinstance((await future)[0].error, OutcomeUnknown)
    setting.write_loop.settle(0, done(0))


async def test_a_request_of_very_many_batches_is_appended_in_steps(setting: Setting) -> None:
    count = 5 * COLUMNS_AT_ONCE
    steps = setting.appending(*(setting.batch(number % 3) for number in range(count)))
    for number in range(1, 5):
        next(steps)
        assert [len(call) for call in setting.write_loop.calls] == [COLUMNS_AT_ONCE] * number
    beside = setting.append(setting.batch(1), client=OTHER_CLIENT)
    # Outcomes may come before it is all handed on.
    setting.write_loop.settle(0, done(0))
    future = done_at_once(steps)
    for number, batch in enumerate(setting.write_loop.batches):
        if number:
            batch.token.batches_done([done(number)], [batch.place])
    assert [result.base_offset for result in await future] == [
        number if number < 4 * COLUMNS_AT_ONCE else number + 1 for number in range(count)
    ]
    assert (await beside)[0].base_offset == 4 * COLUMNS_AT_ONCE


async def test_batches_that_are_looked_at_one_by_one_are_fewer_at_once(setting: Setting) -> None:
    compressed = build_batch([Row(NOW_MS) for _ in range(20)], codec=GZIP)
    count = 2 * BATCHES_AT_ONCE
    steps = setting.appending(*(setting.batch(0, compressed) for _ in range(count)))
    next(steps)
    assert len(setting.write_loop.batches) == BATCHES_AT_ONCE
    done_at_once(steps)
    assert len(setting.write_loop.batches) == count


async def test_a_large_request_that_is_given_up_keeps_nothing(setting: Setting) -> None:
    steps = setting.appending(*(setting.batch() for _ in range(2 * COLUMNS_AT_ONCE)))
    next(steps)
    steps.close()
    assert len(setting.write_loop.batches) == COLUMNS_AT_ONCE


@pytest.mark.parametrize("wrong", [0, 30, 99])
async def test_one_wrong_batch_of_many_is_refused_alone(setting: Setting, wrong: int) -> None:
    good = build_batch([Row(NOW_MS)], producer_id=4, producer_epoch=0, base_sequence=0)
    rotten = bytearray(good)
    rotten[-1] ^= 1
    batches = [setting.batch(0, bytes(rotten) if at == wrong else good) for at in range(100)]
    batches[50] = setting.batch(7, good)
    future = setting.append(*batches)
    assert len(setting.write_loop.batches) == 98
    for index in range(98):
        setting.write_loop.settle(index, done(index))
    errors = {at: type(each.error) for at, each in enumerate(await future) if each.error}
    assert errors == {wrong: CorruptBatch, 50: UnknownPartition}


async def test_refusals_of_a_large_request_are_its_answer_too(setting: Setting) -> None:
    count = 3 * BATCHES_AT_ONCE
    results = await setting.append(*(setting.batch(7) for _ in range(count)))
    assert [type(result.error) for result in results] == [UnknownPartition] * count
    assert all(result.error.__traceback__ is None for result in results if result.error)


async def test_a_batch_that_has_to_be_opened_holds_up_its_partition_alone(
    setting: Setting,
) -> None:
    setting.configure({"cleanup.policy": "compact"})
    setting.shut_door()
    keyed = build_batch([Row(NOW_MS, b"key")], codec=GZIP)
    opened = setting.append(setting.batch(0, keyed))
    setting.configure({})
    behind = setting.append(setting.batch(0), setting.batch(1))
    beside = setting.append(setting.batch(0), client=OTHER_CLIENT)
    assert [batch.partition for batch in setting.write_loop.batches] == [P1, P0]
    setting.open_door()
    await until(lambda: len(setting.write_loop.batches) == 4)
    for number in range(4):
        setting.write_loop.settle(number, done(number))
    assert [result.base_offset for result in await behind] == [3, 0]
    assert (await beside)[0].base_offset == 1
    assert (await opened)[0].base_offset == 2


async def test_a_batch_that_is_opened_and_refused_is_its_answer(setting: Setting) -> None:
    setting.configure({"cleanup.policy": "compact", "compression.type": "zstd"})
    keyed = build_batch([Row(NOW_MS, b"key")], codec=GZIP)
    keyless = build_batch([Row(NOW_MS, b"key"), Row(NOW_MS)], codec=GZIP)
    future = setting.append(setting.batch(0, keyless), setting.batch(1, keyed))
    await until(lambda: len(setting.write_loop.batches) == 1)
    assert setting.write_loop.batches[0].header.codec == ZSTD
    setting.write_loop.settle(0, done(0))
    refused, stored = await future
    assert isinstance(refused.error, KeysMissing)
    assert refused.error.positions == [1]
    assert stored.base_offset == 0
