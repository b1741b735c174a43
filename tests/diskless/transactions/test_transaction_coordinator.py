"""A coordinator of transactional ids tells how a transaction ends, whatever fails on the way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from diskless.transactions.call_lanes import BYTES_AT_ONCE
from diskless.transactions.errors import (
    NotTransactionCoordinator,
    TransactionCoordinatorUnavailable,
)
from diskless.transactions.settings import TransactionSettings
from diskless.transactions.transaction_ends import PARTITION_BYTES, parts_of, transaction_ends
from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata.operations import Leader, TopicDescription
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import (
    EndParts,
    EndTransaction,
    InitProducer,
    Transaction,
    TransactionState,
)
from tests.support.loops.until import until
from tests.support.transactions.memory_transactions import MemoryTransactions
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import (
    AppendTooLarge,
    CommitFailed,
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    DisklessError,
    InvalidRequest,
    InvalidTransactionTimeout,
    NotCoordinator,
    TransactionalIdNotFound,
    UnknownPartition,
)

NAME = "pay"
TOPIC = UUID(int=7)
HERE, THERE = TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 1)
COORDINATORS = 2
INDEX = group_coordinator(NAME, COORDINATORS)
PRODUCER = Producer(NAME, 40, 3)


class Follower:
    leader: Leader | None = Leader(5, 9, "host", 1, UUID(int=1))


@dataclass
class Setting:
    """A router at the leader of the id's metadata partition, and what other coordinators heard."""

    store: MemoryTransactions = field(default_factory=lambda: MemoryTransactions(is_alone=False))
    heard: list[tuple[int, EndParts]] = field(default_factory=list)
    answers: list[DisklessError | None] = field(default_factory=list)
    """To the next that are told, in turn; None for all others."""
    tick: asyncio.Event = field(default_factory=asyncio.Event)
    clock: ManualClock = field(default_factory=ManualClock)
    id_failure: DisklessError | None = None
    next_id: int = 1_000

    def __post_init__(self) -> None:
        topic = TopicDescription(
            topic_id=TOPIC, name="t", partition_count=2, assignments={0: INDEX, 1: 1 - INDEX}
        )
        self.router = TransactionRouter(
            [Follower()] * COORDINATORS,
            self,
            lambda: {"t": topic},
            self.told,
            settings=TransactionSettings(),
            timeout_max_ms=900_000,
            placed=lambda name: group_coordinator(name, COORDINATORS),
            clock=self.clock,
            sleep=self.sleep,
        )

    async def allocate_producer_id(self) -> int:
        if self.id_failure is not None:
            raise self.id_failure
        self.next_id += 1
        return self.next_id

    async def told(self, coordinator: int, part: EndParts) -> DisklessError | None:
        self.heard.append((coordinator, part))
        return self.answers.pop(0) if self.answers else None

    async def sleep(self, seconds: float) -> None:
        """The scan waits for `tick`, tries wait for nothing."""
        if seconds >= 10:
            await self.tick.wait()
            self.tick.clear()
        else:
            await asyncio.sleep(0)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[TransactionRouter]:
        worker = self.router.led(INDEX, self.store, lambda: 5)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.serves)
        yield self.router
        running.cancel()
        await asyncio.wait([running])

    async def open(self, router: TransactionRouter) -> None:
        self.store.known[NAME] = Transaction(1, *PRODUCER)
        assert await router.add_partitions(PRODUCER, [("t", 0), ("t", 1)]) == [None, None]


async def test_each_coordinator_is_told_its_part_and_then_it_is_completed() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        assert await router.add_group(PRODUCER, "g") is None
        assert (await router.end(PRODUCER, is_commit=True)).error is None
        assert setting.store.completed == [1]
    told = dict(setting.heard)
    assert {*told} == {0, 1}
    of_group = group_coordinator("g", COORDINATORS)
    for coordinator, partition in ((INDEX, HERE), (1 - INDEX, THERE)):
        groups = ["g"] if coordinator == of_group else ()
        assert told[coordinator] == EndParts(40, 3, 1, True, 5, [partition], groups)


@pytest.mark.parametrize("failure", [NotCoordinator("x"), CommitOutcomeUnknown("x")])
async def test_who_does_not_hear_is_told_the_same_again(failure: DisklessError) -> None:
    setting = Setting(answers=[failure, None, failure])
    async with setting.leading() as router:
        await setting.open(router)
        assert (await router.end(PRODUCER, is_commit=False)).error is None
        await until(lambda: setting.store.completed == [1])
    assert len(setting.heard) == 4
    assert {part.is_commit for _, part in setting.heard} == {False}
    assert len({repr(told) for told in setting.heard}) == 2


async def test_a_completion_that_is_not_noted_is_tried_again() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        setting.store.failures = []
        decided = asyncio.ensure_future(router.end(PRODUCER, is_commit=True))
        await until(lambda: bool(setting.heard))
        setting.store.failures = [CommitFailed("x"), CommitOutcomeUnknown("x")]
        assert (await decided).error is None
        await until(lambda: setting.store.completed == [1])
    assert not setting.store.failures


async def test_a_new_leader_goes_on_with_what_was_decided() -> None:
    setting = Setting()
    setting.store.known[NAME] = Transaction(
        1, NAME, 40, 3, number=8, state=TransactionState.PREPARE_COMMIT, partitions={THERE: 1}
    )
    async with setting.leading():
        await until(lambda: setting.store.completed == [8])
    assert setting.heard == [(1, EndParts(40, 3, 8, True, 5, [THERE], ()))]


async def test_the_producer_is_answered_though_somebody_does_not_hear() -> None:
    setting = Setting(answers=[NotCoordinator("x")] * 10_000_000)
    async with setting.leading() as router:
        await setting.open(router)
        assert (await router.end(PRODUCER, is_commit=True)).error is None
        assert setting.store.completed == []
        setting.answers.clear()
        await until(lambda: setting.store.completed == [1])


async def test_what_is_open_for_too_long_is_aborted_and_told() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        setting.store.timed_out = [NAME]
        setting.tick.set()
        await until(lambda: setting.store.completed == [1])
        assert router.statistics().ended["timed_out"] == 1
    assert {part.is_commit for _, part in setting.heard} == {False}


async def test_ids_that_nobody_uses_are_forgotten_once_an_hour() -> None:
    setting = Setting()
    async with setting.leading():
        setting.store.known[NAME] = Transaction(1, *PRODUCER)
        setting.store.idle = {NAME}
        setting.tick.set()
        await until(lambda: not setting.tick.is_set())
        assert setting.store.idle
        setting.clock.advance(3_600)
        setting.tick.set()
        await until(lambda: not setting.store.known)


@pytest.mark.parametrize("failure", [CommitFailed("x"), AppendTooLarge("x")])
async def test_a_look_that_fails_is_taken_again(failure: DisklessError) -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        setting.store.timed_out = [NAME]
        setting.store.failures = [failure]
        setting.tick.set()
        await until(lambda: not setting.store.failures)
        setting.tick.set()
        await until(lambda: setting.store.completed == [1])


async def test_a_second_producer_has_the_first_ones_transaction_aborted() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        second = Producer(NAME, -1, -1)
        refused = await router.init_producer(second, 1_000)
        assert isinstance(refused.error, ConcurrentTransactions)
        await until(lambda: setting.store.completed == [1])
        assert await router.init_producer(second, 1_000) == (40, 5, None)
    inits = [asked for asked in setting.store.asked if isinstance(asked, InitProducer)]
    assert [asked.fresh_producer_id for asked in inits] == [1_001, 1_002]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_that_is_not_allowed_is_refused(timeout_ms: int) -> None:
    setting = Setting()
    async with setting.leading() as router:
        answer = await router.init_producer(Producer(NAME, -1, -1), timeout_ms)
        assert isinstance(answer.error, InvalidTransactionTimeout)
    assert not setting.store.asked


async def test_failed_appends_are_what_producers_look_for_a_coordinator_at() -> None:
    setting = Setting(id_failure=CommitFailed("x"))
    async with setting.leading() as router:
        answer = await router.init_producer(PRODUCER, 1_000)
        assert isinstance(answer.error, TransactionCoordinatorUnavailable)
        await setting.open(router)
        setting.store.failures = [NotCoordinator("x"), CommitOutcomeUnknown("x")]
        added = await router.add_group(PRODUCER, "g")
        assert isinstance(added, NotTransactionCoordinator)
        ended = await router.end(PRODUCER, is_commit=True)
        assert isinstance(ended.error, TransactionCoordinatorUnavailable)


async def test_nothing_is_added_when_there_is_no_such_partition() -> None:
    setting = Setting()
    async with setting.leading() as router:
        first, second, third = await router.add_partitions(  # type: ignore[misc]
            PRODUCER, [("t", 0), ("t", 2), ("gone", 0)]
        )
        assert first is None
        assert isinstance(second, UnknownPartition)
        assert isinstance(third, UnknownPartition)
    assert not setting.store.known


async def test_a_broker_that_does_not_lead_sends_producers_on() -> None:
    setting = Setting()
    router = setting.router
    assert router.find(NAME) == 9
    for error in (
        (await router.init_producer(PRODUCER, 1_000)).error,
        await router.add_partitions(PRODUCER, [("t", 0)]),
        await router.add_group(PRODUCER, "g"),
        (await router.end(PRODUCER, is_commit=True)).error,
        await router.abort(NAME, 1),
        router.describe(NAME),
    ):
        assert isinstance(error, NotTransactionCoordinator)
    assert [*router.list()] == []
    async with setting.leading():
        assert isinstance(router.describe(NAME), TransactionalIdNotFound)
        await setting.open(router)
        assert router.describe(NAME) == setting.store.known[NAME]
        assert [*router.list()] == [[*setting.store.known.values()]]
        assert isinstance(router.describe(""), InvalidRequest)
    assert isinstance(router.describe(NAME), NotTransactionCoordinator)


async def test_what_another_broker_had_decided_is_told_at_once() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        await setting.store.end_transaction(EndTransaction(*PRODUCER, is_commit=True))
        await until(lambda: setting.store.completed == [1])
    assert {part.is_commit for _, part in setting.heard} == {True}


async def test_a_coordinator_that_does_not_answer_holds_up_nobody_else() -> None:
    away = asyncio.Event()

    async def call(coordinator: int, parts: Sequence[EndParts]) -> Sequence[DisklessError | None]:
        if coordinator == 1 - INDEX:
            await away.wait()
        return [None] * len(parts)

    async with transaction_ends(call) as ends:
        waiting = [ends.ask(1 - INDEX, EndParts(number, 0, 1, True, 5)) for number in range(2_000)]
        assert await ends.ask(INDEX, EndParts(1, 0, 1, True, 5)) is None
        assert not any(answer.done() for answer in waiting)
        away.set()
        assert await asyncio.gather(*waiting) == [None] * 2_000


def test_a_transaction_with_very_many_parts_is_told_in_pieces() -> None:
    at_once = BYTES_AT_ONCE // PARTITION_BYTES
    partitions = {TopicIdPartition(TOPIC, index): index % 2 for index in range(2 * at_once + 5)}
    groups = {"g" * 30_000 + str(index): 1 for index in range(20)} | {"h": 2}
    state = TransactionState.PREPARE_ABORT
    transaction = Transaction(1, NAME, 40, 3, number=8, state=state)._replace(
        partitions=partitions, groups=groups
    )
    told = [*parts_of(transaction, 5)]
    assert [coordinator for coordinator, _ in told] == sorted(c for c, _ in told)
    assert {(p.producer_id, p.number, p.is_commit) for _, p in told} == {(40, 8, False)}
    for parts, of in (("partitions", partitions), ("groups", groups)):
        heard = [(one, where) for where, part in told for one in getattr(part, parts)]
        assert dict(heard) == of
        assert len(heard) == len(of)
    assert max(len(part.partitions) for _, part in told) == at_once
    assert max(sum(map(len, part.groups)) for _, part in told) < BYTES_AT_ONCE


async def test_an_abort_by_an_administrator_is_told_as_any_other() -> None:
    setting = Setting()
    async with setting.leading() as router:
        await setting.open(router)
        assert await router.abort(NAME, 1) is None
        assert setting.store.completed == [1]
    assert {part.is_commit for _, part in setting.heard} == {False}
