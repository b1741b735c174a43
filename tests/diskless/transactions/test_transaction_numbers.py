"""Questions about transactions go to the coordinators of their ids, one call at a time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from diskless.transactions import transaction_numbers
from diskless.transactions.call_lanes import ASKED_AT_ONCE, BYTES_AT_ONCE
from diskless.transactions.transaction_numbers import TransactionNumbers
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import (
    AddToTransaction,
    JoinedTransaction,
    JoinTransaction,
    TransactionGroup,
    TransactionPartition,
)
from wal.clock import Clock, ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, StorageFailed

COORDINATORS = 3
KEPT_MS = 60_000


def placed(transactional_id: str) -> int:
    return group_coordinator(transactional_id, COORDINATORS)


@dataclass
class Coordinators:
    """Answers with the producer's epoch, when it is let."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    is_away: bool = False
    added: list[AddToTransaction] = field(default_factory=list)

    async def ask(
        self, coordinator: int, asked: Sequence[JoinTransaction]
    ) -> Sequence[JoinedTransaction]:
        self.calls.append((coordinator, len(asked)))
        await self.gate.wait()
        if self.is_away:
            raise CommitFailed("nobody leads")
        for question in asked:
            assert group_coordinator(question.transactional_id, COORDINATORS) == coordinator
        return [JoinedTransaction(question.producer_epoch) for question in asked]

    async def add(
        self, coordinator: int, asked: Sequence[AddToTransaction]
    ) -> Sequence[JoinedTransaction]:
        self.added += asked
        await self.gate.wait()
        if self.is_away:
            raise CommitFailed("nobody leads")
        return [JoinedTransaction(addition.producer_epoch) for addition in asked]


def numbers_of(coordinators: Coordinators, clock: Clock | None = None) -> TransactionNumbers:
    return TransactionNumbers(
        coordinators.ask,
        placed,
        add=coordinators.add,
        kept_ms=KEPT_MS,
        clock=clock or ManualClock(),
    )


def addition(epoch: int, *indexes: int, group_id: str = "") -> AddToTransaction:
    partitions = [
        TransactionPartition(TopicIdPartition(UUID(int=1), index), 0) for index in indexes
    ]
    groups = [TransactionGroup(group_id, 0)] if group_id else []
    return AddToTransaction("a", 40, epoch, partitions, groups)


def question(name: str, epoch: int) -> JoinTransaction:
    return JoinTransaction(name, 40, epoch)


async def test_what_is_asked_during_a_call_goes_together_in_the_next() -> None:
    coordinators = Coordinators()
    async with numbers_of(coordinators) as numbers:
        first = numbers.ask(question("a", 1))
        await asyncio.sleep(0)
        others = [numbers.ask(question("a", epoch)) for epoch in range(2, 5 + ASKED_AT_ONCE)]
        coordinators.gate.set()
        answers = await asyncio.gather(first, *others)
        assert [answer.number for answer in answers] == [*range(1, 5 + ASKED_AT_ONCE)]
    index = group_coordinator("a", COORDINATORS)
    assert coordinators.calls == [(index, 1), (index, ASKED_AT_ONCE), (index, 3)]


async def test_one_call_does_not_take_more_than_a_broker_reads() -> None:
    coordinators = Coordinators()
    coordinators.gate.set()
    wide = JoinTransaction("a", 40, 1, groups=["g" * 32_000] * 20)
    async with numbers_of(coordinators) as numbers:
        await asyncio.gather(*(numbers.ask(wide) for _ in range(4)))
    index = group_coordinator("a", COORDINATORS)
    assert 20 * 32_000 < BYTES_AT_ONCE < 40 * 32_000
    assert coordinators.calls == [(index, 1)] * 4


async def test_who_goes_away_does_not_keep_others_from_their_answers() -> None:
    coordinators = Coordinators()
    async with numbers_of(coordinators) as numbers:
        gone, stays = numbers.ask(question("a", 1)), numbers.ask(question("a", 2))
        gone.cancel()
        coordinators.gate.set()
        assert await stays == JoinedTransaction(2)
        assert await numbers.ask(question("a", 3)) == JoinedTransaction(3)


async def test_each_coordinator_is_asked_about_its_own_ids() -> None:
    coordinators = Coordinators()
    coordinators.gate.set()
    async with numbers_of(coordinators) as numbers:
        names = [f"id-{number}" for number in range(20)]
        answers = await asyncio.gather(*(numbers.ask(question(name, 7)) for name in names))
    assert {answer.number for answer in answers} == {7}
    assert len(coordinators.calls) == COORDINATORS


async def test_a_call_that_fails_is_the_error_of_its_questions_alone() -> None:
    coordinators = Coordinators(is_away=True)
    coordinators.gate.set()
    async with numbers_of(coordinators) as numbers:
        assert isinstance((await numbers.ask(question("a", 1))).error, CommitFailed)
        coordinators.is_away = False
        assert await numbers.ask(question("a", 1)) == JoinedTransaction(1)


async def test_who_still_waits_at_the_end_is_told_so() -> None:
    coordinators = Coordinators()
    async with numbers_of(coordinators) as numbers:
        asked = numbers.ask(question("a", 1))
        await asyncio.sleep(0)
        waiting = numbers.ask(question("a", 2))
    for answer in (asked, waiting, numbers.ask(question("a", 3))):
        assert isinstance((await answer).error, StorageFailed)


async def test_what_was_added_is_not_asked_about_again() -> None:
    coordinators = Coordinators()
    coordinators.gate.set()
    async with numbers_of(coordinators) as numbers:
        for added in (addition(4, 0, 1), addition(4, 1), addition(4, 0), addition(4)):
            assert (await numbers.add(added)).number == 4
        assert coordinators.added == [addition(4, 0, 1)._replace(bumps_epoch=True)]
        # What is new is asked about, and so is everything of the next transaction.
        for added in (addition(4, 2), addition(4, 0, group_id="g"), addition(5, 0)):
            assert (await numbers.add(added)).number == added.producer_epoch
        assert len(coordinators.added) == 4
        assert (await numbers.add(addition(4, 1, 2, group_id="g"))).number == 4
        assert len(coordinators.added) == 4


async def test_what_failed_is_not_kept() -> None:
    coordinators = Coordinators(is_away=True)
    coordinators.gate.set()
    async with numbers_of(coordinators) as numbers:
        for _ in range(2):
            assert isinstance((await numbers.add(addition(4, 0))).error, CommitFailed)
    assert len(coordinators.added) == 2


async def test_nothing_is_kept_for_longer_than_a_transaction_may_be_open() -> None:
    coordinators, clock = Coordinators(), ManualClock()
    coordinators.gate.set()
    async with numbers_of(coordinators, clock) as numbers:
        await numbers.add(addition(4, 0))
        clock.advance(KEPT_MS / 1000 - 1)
        await numbers.add(addition(4, 1))
        clock.advance(2)
        await numbers.add(addition(4, 0))
    assert len(coordinators.added) == 3


async def test_there_is_an_end_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_numbers, "PARTS_KEPT_MAX", 3)
    coordinators = Coordinators()
    coordinators.gate.set()
    async with numbers_of(coordinators) as numbers:
        await numbers.add(addition(4, 0, 1))
        await numbers.add(addition(5, 0, 1))
        await numbers.add(addition(5, 1))
        await numbers.add(addition(4, 1))
    assert [asked.producer_epoch for asked in coordinators.added] == [4, 5, 4]
