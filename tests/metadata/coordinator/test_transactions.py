"""What a coordinator decides about transactions is what the log and the state then say."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.coordinator import transactions
from metadata.records.groups import CommittedOffset
from metadata.records.transactions import (
    TransactionCompletedRecord,
    TransactionDecidedRecord,
    TransactionEndedRecord,
)
from metadata.transaction_operations import (
    EPOCH_MAX,
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    InitializedProducer,
    InitProducer,
    JoinedTransaction,
    JoinTransaction,
    ListTransactions,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import (
    ConcurrentTransactions,
    DisklessError,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    StaleProducerEpoch,
)

NAME = "pay"
HERE, THERE = 0, 1
TIMEOUT_MS = 60_000


class TransactionBench:
    """A transactional id, whose producer the bench is, at a coordinator of its own."""

    def __init__(self, bench: CoordinatorBench) -> None:
        self.bench = bench
        self.coordinator = bench.coordinator
        self.asked = bench.coordinator.transactions
        self.replica = bench.coordinator.replica
        self.fresh = 1_000
        self.pair = (-1, -1)
        self.sequences: dict[tuple[TopicIdPartition, int, int], int] = {}

    @property
    def known(self) -> Transaction:
        known = self.asked.transaction(NAME)
        assert known is not None
        return known

    @property
    def state(self) -> TransactionState:
        return TransactionState(self.known.state)

    async def init(self, pair: tuple[int, int] = (-1, -1)) -> InitializedProducer:
        self.fresh += 1
        asked = InitProducer(NAME, TIMEOUT_MS, self.fresh, *pair)
        answer = await self.asked.init_producer(asked)
        if answer.error is None:
            self.pair = (answer.producer_id, answer.producer_epoch)
        return answer

    async def add(
        self,
        *partitions: TopicIdPartition,
        at: int = HERE,
        groups: tuple[str, ...] = (),
        pair: tuple[int, int] | None = None,
        bumps: bool = False,
    ) -> JoinedTransaction:
        return await self.asked.add_to_transaction(
            AddToTransaction(
                NAME,
                *(pair or self.pair),
                partitions=[TransactionPartition(partition, at) for partition in partitions],
                groups=[TransactionGroup(group, at) for group in groups],
                bumps_epoch=bumps,
            )
        )

    async def end(
        self,
        *,
        is_commit: bool = True,
        pair: tuple[int, int] | None = None,
        bumps: bool = False,
        fresh: int = -1,
    ) -> EndedTransaction:
        asked = EndTransaction(NAME, *(pair or self.pair), is_commit, bumps, fresh)
        return await self.asked.end_transaction(asked)

    async def write(
        self, partition: TopicIdPartition, number: int, pair: tuple[int, int] | None = None
    ) -> type[DisklessError] | None:
        """One record of the transaction; the error that refused it."""
        producer, epoch = pair or self.pair
        key = (partition, producer, epoch)
        sequence = self.sequences.get(key, 0)
        sent = batch(partition, 1, producer=producer, epoch=epoch, sequence=sequence)
        (answer,) = await self.bench.commit(sent._replace(transaction_number=number))
        if answer.error is not None:
            return type(answer.error)
        self.sequences[key] = sequence + 1
        return None

    async def tell(self, *partitions: TopicIdPartition, groups: tuple[str, ...] = ()) -> None:
        known = self.known
        parts = EndParts(
            known.producer_id,
            known.producer_epoch,
            known.number,
            TransactionState(known.state).is_commit,
            7,
            partitions,
            groups,
        )
        assert await self.asked.end_parts([parts]) == [None]

    def stable(self, partition: TopicIdPartition) -> tuple[int | None, int | None]:
        return self.replica.last_stable_offset(partition), self.replica.high_watermark(partition)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[TransactionBench]:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        yield TransactionBench(bench)


def kind(answer: InitializedProducer | JoinedTransaction | EndedTransaction) -> object:
    return None if answer.error is None else type(answer.error)


@pytest.mark.parametrize("is_commit", [False, True])
async def test_where_all_of_it_lives_here_one_append_ends_it(
    at: TransactionBench, is_commit: bool
) -> None:
    topic = await at.bench.topic(partitions=2)
    first, second = (TopicIdPartition(topic.topic_id, index) for index in range(2))
    assert await at.init() == (1_001, 0, None)
    assert await at.add(first, second, groups=("g",)) == (1, None)
    assert await at.add(first) == (1, None)
    assert await at.write(first, 1) is None
    offset = CommittedOffset(first, 9, 1_000, 2, "m")
    await at.asked.commit_offsets("g", *at.pair, 1, [offset])
    assert at.stable(first) == (0, 1)
    assert await at.replica.pending_partitions("g") == {first}
    assert [opened.number for opened in at.replica.open_transactions(first)] == [1]
    told: list[set[str]] = []
    at.replica.subscribe_offsets(lambda groups: told.append({*groups}))

    log = at.bench.log
    assert isinstance(log, MemoryMetadataLog)
    before = len(log.batches)
    assert await at.end(is_commit=is_commit) == (1, True, None, *at.pair)
    assert len(log.batches) == before + 1
    assert [type(record) for record in log.records()[-3:]] == [
        TransactionDecidedRecord,
        TransactionEndedRecord,
        TransactionCompletedRecord,
    ]
    assert (at.stable(first), at.stable(second)) == ((2, 2), (1, 1))
    assert not at.replica.open_transactions(first)
    assert await at.replica.group_offsets("g") == ({first: offset} if is_commit else {})
    assert told == ([{"g"}] if is_commit else [])
    assert not await at.replica.pending_partitions("g")
    assert await at.end(is_commit=is_commit) == (1, True, None, *at.pair)
    assert kind(await at.end(is_commit=not is_commit)) is InvalidTransactionState
    assert len(log.batches) == before + 1


async def test_a_transaction_may_commit_offsets_of_several_groups_that_nobody_knows(
    at: TransactionBench,
) -> None:
    partition = await at.bench.partition()
    groups = ("g", "h", "i")
    await at.init()
    await at.add(partition, groups=groups)
    for group in groups:
        offset = CommittedOffset(partition, 9, 1_000)
        await at.asked.commit_offsets(group, *at.pair, 1, [offset])
    assert await at.end() == (1, True, None, *at.pair)
    for group in groups:
        assert await at.replica.group_offsets(group) == {partition: offset}
    assert at.stable(partition) == (1, 1)


async def test_what_comes_late_opens_nothing(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition, groups=("g",))
    await at.end()
    assert await at.write(partition, 1) is InvalidTransactionState
    with pytest.raises(InvalidTransactionState):
        await at.asked.commit_offsets("g", *at.pair, 1, [CommittedOffset(partition, 1, 2)])
    with pytest.raises(InvalidTransactionState):
        await at.asked.commit_offsets("g", *at.pair, -1, [CommittedOffset(partition, 1, 2)])
    old = at.pair
    await at.add(partition, groups=("g",))
    await at.init()
    assert await at.write(partition, 2, old) is StaleProducerEpoch
    with pytest.raises(StaleProducerEpoch):
        await at.asked.commit_offsets("g", *old, 2, [CommittedOffset(partition, 1, 2)])
    assert at.stable(partition) == (2, 2)


async def test_others_are_told_between_the_decision_and_its_completion(
    at: TransactionBench,
) -> None:
    partition = await at.bench.partition()
    heard: list[str] = []
    at.asked.subscribe(heard.append)
    await at.init()
    await at.add(partition)
    await at.add(TopicIdPartition(partition.topic_id, 1), at=THERE)
    await at.write(partition, 1)
    assert await at.end() == (1, False, None, *at.pair)
    assert heard == [NAME]
    assert at.stable(partition) == (0, 1)
    assert kind(await at.end()) is ConcurrentTransactions
    assert kind(await at.end(is_commit=False)) is InvalidTransactionState
    assert kind(await at.add(partition)) is ConcurrentTransactions
    assert kind(await at.init()) is ConcurrentTransactions
    assert kind(at.asked.join(JoinTransaction(NAME, *at.pair, [partition]))) is (
        ConcurrentTransactions
    )
    for _ in range(2):
        await at.tell(partition, TopicIdPartition(partition.topic_id, 1), groups=("g",))
        assert at.stable(partition) == (2, 2)
    await at.asked.complete(NAME, 1)
    await at.asked.complete(NAME, 1)
    assert at.state is TransactionState.COMPLETE_COMMIT
    assert not at.known.partitions
    assert await at.end() == (1, True, None, *at.pair)
    assert await at.add(partition) == (2, None)


async def test_an_end_is_refused_where_another_one_is_open(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition)
    await at.write(partition, 1)
    other = EndParts(*at.pair, 2, True, 1, [partition])
    (error,) = await at.asked.end_parts([other])
    assert isinstance(error, InvalidTransactionState)
    assert at.stable(partition) == (0, 1)


async def test_only_who_belongs_to_it_joins(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    joining = JoinTransaction(NAME, 1_001, 0, [partition], ["g"])
    assert kind(at.asked.join(joining)) is InvalidProducerIdMapping
    await at.init()
    assert kind(at.asked.join(joining)) is InvalidTransactionState
    await at.add(partition)
    assert kind(at.asked.join(joining)) is InvalidTransactionState
    await at.add(groups=("g",))
    assert at.asked.join(joining) == (1, None)
    assert kind(at.asked.join(joining._replace(producer_epoch=1))) is ProducerFenced
    assert kind(at.asked.join(joining._replace(producer_id=3))) is InvalidProducerIdMapping


async def test_a_second_producer_fences_the_first_one(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    zombie = at.pair
    await at.add(partition)
    await at.write(partition, 1)
    assert await at.init() == (1_001, 2, None)
    assert at.stable(partition) == (2, 2)
    for answer in (
        await at.add(partition, pair=zombie),
        await at.end(pair=zombie),
        await at.end(pair=zombie, is_commit=False),
        await at.init(zombie),
        at.asked.join(JoinTransaction(NAME, *zombie, [partition])),
    ):
        assert kind(answer) is ProducerFenced
    assert await at.write(partition, 1, zombie) is StaleProducerEpoch
    for wrong in ((1_001, 7), (5, 0), (1_001, 1)):
        assert kind(await at.init(wrong)) is ProducerFenced
    for half in ((1_001, -1), (-1, 3), (-2, -2)):
        assert kind(await at.init(half)) is InvalidRequest


async def test_a_second_producer_waits_until_others_have_heard(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition, at=THERE)
    assert kind(await at.init()) is ConcurrentTransactions
    assert at.state is TransactionState.PREPARE_ABORT
    assert kind(await at.init()) is ConcurrentTransactions
    assert at.known.producer_epoch == 1
    await at.asked.complete(NAME, 1)
    assert await at.init() == (1_001, 2, None)


async def test_a_producer_that_goes_on_gets_the_same_answer_again(at: TransactionBench) -> None:
    await at.init()
    first = at.pair
    for _ in range(3):
        assert await at.init(first) == (1_001, 1, None)
    partition = await at.bench.partition()
    await at.add(partition)
    # It comes late: what is open now is the same producer's.
    assert kind(await at.init(first)) is ProducerFenced
    assert at.state is TransactionState.ONGOING
    second = at.pair
    for _ in range(3):
        assert await at.init(second) == (1_001, 2, None)
    assert at.state is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("is_own", [False, True])
async def test_where_no_epoch_is_left_there_is_a_fresh_producer(
    at: TransactionBench, is_own: bool
) -> None:
    await at.init()
    await raise_epoch(at, EPOCH_MAX)
    partition = await at.bench.partition()
    last = at.pair
    assert last == (1_001, EPOCH_MAX)
    await at.add(partition)
    await at.write(partition, 1)
    asks = last if is_own else (-1, -1)
    answer = await at.init(asks)
    assert answer == (at.fresh, 0, None)
    assert at.stable(partition) == (2, 2)
    assert await at.write(partition, 1, last) is StaleProducerEpoch
    again = await at.init(last)
    assert again == (answer if is_own else (-1, -1, again.error))
    assert await at.add(partition) == (2, None)


async def test_nobody_is_given_the_epoch_that_only_fences(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await raise_epoch(at, EPOCH_MAX)
    last = at.pair
    await at.add(partition, at=THERE)
    assert kind(await at.init(last)) is ConcurrentTransactions
    fresh = at.fresh
    await at.asked.complete(NAME, 1)
    # It has not heard of its abort, and asks for one.
    assert await at.end(pair=last, is_commit=False) == (1, True, None, fresh, 0)
    assert await at.init(last) == (fresh, 0, None)
    assert await at.add(partition, pair=(fresh, 0)) == (2, None)


async def raise_epoch(at: TransactionBench, epoch: int) -> None:
    """By the image: as many starts would take a while."""
    ids = at.replica.image.transactions.ids
    ids[NAME] = ids[NAME]._replace(producer_epoch=epoch)
    at.pair = (at.pair[0], epoch)


# -- version 2 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [False, True])
async def test_version_2_goes_on_with_the_next_epoch(at: TransactionBench, is_commit: bool) -> None:
    partition = await at.bench.partition()
    await at.init()
    first = at.pair
    await at.add(partition, bumps=True)
    await at.write(partition, 1)
    for _ in range(2):
        ended = await at.end(is_commit=is_commit, bumps=True)
        assert ended == (1, True, None, 1_001, 1)
        assert kind(await at.end(is_commit=not is_commit, bumps=True)) is InvalidTransactionState
    assert await at.write(partition, 1) is StaleProducerEpoch
    assert kind(await at.add(partition, pair=first)) is ProducerFenced
    assert await at.add(partition, pair=(1_001, 1), bumps=True) == (2, None)
    assert kind(await at.end(pair=first, is_commit=is_commit, bumps=True)) is ProducerFenced
    assert at.state is TransactionState.ONGOING


async def test_version_2_may_abort_nothing_and_commit_nothing_not(at: TransactionBench) -> None:
    await at.init()
    assert kind(await at.end(bumps=True)) is InvalidTransactionState
    for _ in range(2):
        assert await at.end(is_commit=False, bumps=True) == (1, True, None, 1_001, 1)
    after = (1_001, 1)
    assert kind(await at.end(pair=after, bumps=True)) is InvalidTransactionState
    assert await at.end(pair=after, is_commit=False, bumps=True) == (2, True, None, 1_001, 2)


async def test_version_2_has_a_fresh_producer_at_the_last_epoch(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await raise_epoch(at, EPOCH_MAX)
    await at.add(partition, at=THERE, bumps=True)
    assert kind(await at.end(bumps=True)) is InvalidRequest
    assert await at.end(bumps=True, fresh=77) == (1, False, None, 77, 0)
    assert (at.known.producer_id, at.known.producer_epoch) == (1_001, EPOCH_MAX + 1)
    assert kind(await at.end(bumps=True, fresh=78)) is ConcurrentTransactions
    assert kind(await at.add(partition, pair=(77, 0))) is ConcurrentTransactions
    await at.asked.complete(NAME, 1)
    assert await at.end(bumps=True, fresh=79) == (1, True, None, 77, 0)
    assert await at.add(partition, pair=(77, 0), bumps=True) == (2, None)


async def test_what_is_kept_under_an_epoch_ends_with_it_whoever_ends_it(
    at: TransactionBench,
) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition)
    await at.add(partition, bumps=True)
    assert at.known.bumps_epoch
    assert await at.end() == (1, True, None, 1_001, 1)
    assert await at.add(partition, pair=(1_001, 1)) == (2, None)
    assert not at.known.bumps_epoch


# -- time ------------------------------------------------------------------------------------------


async def test_what_is_open_for_too_long_is_aborted(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition)
    await at.write(partition, 1)
    at.bench.clock.advance(TIMEOUT_MS / 1000 - 1)
    await at.add(groups=("g",))
    assert await at.asked.abort_timed_out(10) == []
    at.bench.clock.advance(2)
    (aborted,) = await at.asked.abort_timed_out(10)
    assert aborted.state == TransactionState.COMPLETE_ABORT
    assert at.stable(partition) == (2, 2)
    assert kind(await at.end()) is ProducerFenced
    assert kind(await at.init(at.pair)) is ProducerFenced
    assert await at.asked.abort_timed_out(10) == []


async def test_a_new_leader_gives_what_is_open_ten_seconds_and_goes_by_the_log(
    tmp_path: Path,
) -> None:
    log, clock = MemoryMetadataLog(), ManualClock()
    async with running_coordinator(tmp_path, log, clock=clock) as bench:
        at = TransactionBench(bench)
        await at.init()
        await at.add(await bench.partition())
    clock.advance(TIMEOUT_MS / 1000)
    async with running_coordinator(tmp_path, log, clock=clock) as bench:
        assert await bench.coordinator.transactions.abort_timed_out(10) == []
        clock.advance(10)
        (aborted,) = await bench.coordinator.transactions.abort_timed_out(10)
        assert aborted.state == TransactionState.COMPLETE_ABORT


async def test_what_begins_under_a_new_leader_has_its_own_time_alone(at: TransactionBench) -> None:
    at.bench.clock.advance(0.001)
    await at.asked.init_producer(InitProducer("short", 1_000, 7))
    added = await at.asked.add_to_transaction(
        AddToTransaction("short", 7, 0, [TransactionPartition(await at.bench.partition(), HERE)])
    )
    assert added.error is None
    at.bench.clock.advance(1)
    (aborted,) = await at.asked.abort_timed_out(10)
    assert aborted.transactional_id == "short"


async def test_a_wall_clock_that_jumps_ends_nothing_and_keeps_nothing_open(
    at: TransactionBench,
) -> None:
    await at.init()
    await at.add(await at.bench.partition())
    at.bench.clock.step_wall(86_400)
    assert await at.asked.abort_timed_out(10) == []
    at.bench.clock.step_wall(-2 * 86_400)
    at.bench.clock.advance(TIMEOUT_MS / 1000 - 1)
    assert await at.asked.abort_timed_out(10) == []
    at.bench.clock.advance(1)
    (aborted,) = await at.asked.abort_timed_out(10)
    assert aborted.state == TransactionState.COMPLETE_ABORT


async def test_an_abort_is_of_one_transaction(at: TransactionBench) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition)
    for number in (0, 2):
        answer = await at.asked.abort_transaction(AbortTransaction(NAME, number))
        assert kind(answer) is InvalidTransactionState
    for _ in range(2):
        ended = await at.asked.abort_transaction(AbortTransaction(NAME, 1))
        assert ended == (1, True, None, 1_001, 1)
    assert kind(await at.asked.abort_transaction(AbortTransaction("?", 1))) is (
        InvalidTransactionState
    )


async def test_ids_are_listed_in_order_page_by_page(
    at: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_LOOKED_AT_ONCE", 2)
    for name in "debac":
        await at.asked.init_producer(InitProducer(name, TIMEOUT_MS, 5))
    pages = [
        await at.asked.listed(ListTransactions(after=after, limit=2)) for after in ("", "b", "d")
    ]
    assert ["".join(one.transactional_id for one in page.transactions) for page in pages] == [
        "ab",
        "cd",
        "e",
    ]


async def test_ids_that_nobody_uses_are_forgotten_unless_something_is_open(
    at: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await at.bench.partition()
    await at.init()
    await at.add(partition, at=THERE)
    for name in ("a", "b"):
        await at.asked.init_producer(InitProducer(name, TIMEOUT_MS, 5))
    at.bench.clock.advance(8 * 24 * 3_600)
    monkeypatch.setattr(transactions, "_EXPIRED_AT_ONCE", 1)
    assert await at.asked.expire_ids() == 2
    assert [known.transactional_id for known in at.asked.transactions()] == [NAME]
    await at.end()
    at.bench.clock.advance(8 * 24 * 3_600)
    assert await at.asked.expire_ids() == 0
    await at.asked.complete(NAME, 1)
    at.bench.clock.advance(8 * 24 * 3_600)
    assert await at.asked.expire_ids() == 1
    assert kind(await at.add(partition)) is InvalidProducerIdMapping
    assert await at.init(at.pair) == (at.fresh, 0, None)


async def test_a_topic_that_is_gone_has_ended(at: TransactionBench) -> None:
    gone = await at.bench.partition("gone")
    stays = await at.bench.partition("stays")
    await at.init()
    await at.add(gone, stays)
    await at.write(gone, 1)
    await at.write(stays, 1)
    await at.coordinator.delete_topics([gone.topic_id])
    assert await at.end() == (1, True, None, *at.pair)
    assert at.stable(stays) == (2, 2)
    await at.add(gone)
    assert await at.end() == (2, True, None, *at.pair)
