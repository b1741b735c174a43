"""Operations about transactional ids at random, each compared with `transaction_model`.

Part of the coordinator's machine (tests/support/coordinators/coordinator_machine.py), which
crashes, loses its state and changes its leader between them.
"""

import asyncio
import itertools
import random
from collections.abc import Coroutine
from typing import Any, Final, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import rule

from metadata.coordinator.transactions import Transactions
from metadata.records.groups import CommittedOffset
from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndedTransaction,
    EndParts,
    EndTransaction,
    InitProducer,
    JoinTransaction,
    TransactionGroup,
)
from tests.support.coordinators.coordinator_worlds import World
from tests.support.transactions.transaction_model import HERE, NOBODY, Pair, TransactionModel
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

ELSEWHERE: Final = 1
GROUPS: Final = ("g", "h")
COMMITTED: Final = TopicIdPartition(UUID(int=9), 0)
TIMEOUT_MS: Final = 10 * 60_000


WHAT: Final = ("init", "add", "add", "offset", "offset", "end", "end", "tell", "tell", "abort")
WHICH: Final = ("present", "present", "present", "present", "before", "wrong")
"""Of the pairs of producer id and epoch that there are to ask with."""

_Result = TypeVar("_Result")


class TransactionRules:
    """What a machine with a world inherits."""

    world: World

    def __init__(self) -> None:
        self.transactions = TransactionModel()
        self.fresh = itertools.count(1_000_000)
        self.values = itertools.count(1)
        super().__init__()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        raise NotImplementedError

    @property
    def asked(self) -> Transactions:
        return self.world.coordinator.transactions

    def pair(self, name: str, which: str) -> Pair:
        known = self.transactions.ids.get(name)
        if known is None or which == "wrong":
            return (999, 0)
        return known.asked_with if which == "before" else known.pair

    @rule(
        name=st.sampled_from(["pay", "ship"]), seed=st.integers(0, 2**32), count=st.integers(5, 40)
    )
    def transact(self, name: str, seed: int, count: int) -> None:
        """Steps of a producer, of one before it, and of others who have a part."""
        rng = random.Random(seed)
        if name not in self.transactions.ids:
            self._init(name, "nobody")
        for _ in range(count):
            which, group = rng.choice(WHICH), rng.choice(GROUPS)
            match rng.choice(WHAT):
                case "init":
                    self._init(name, rng.choice(("nobody", which)))
                case "add":
                    home = rng.choice((HERE, HERE, ELSEWHERE))
                    self._add(name, which, group, home, rng.random() < 0.5, rng.random() < 0.2)
                case "offset":
                    self._commit_an_offset(name, which, group)
                case "end":
                    self._end(name, which, rng.random() < 0.5, rng.random() < 0.5)
                case "tell":
                    self._tell(name, rng.random() < 0.7)
                case "abort":
                    self._abort(name)

    def _init(self, name: str, which: str) -> None:
        pair = NOBODY if which == "nobody" else self.pair(name, which)
        fresh = next(self.fresh)
        answer = self.run(self.asked.init_producer(InitProducer(name, TIMEOUT_MS, fresh, *pair)))
        expected = self.transactions.init(name, pair, fresh)
        given = (answer.producer_id, answer.producer_epoch)
        assert (given if answer.error is None else type(answer.error)) == expected

    def _add(
        self, name: str, which: str, group: str, home: int, bumps: bool, is_together: bool
    ) -> None:
        """Perhaps twice at once: decided on top of each other."""
        pair = self.pair(name, which)
        asked = AddToTransaction(name, *pair, (), [TransactionGroup(group, home)], bumps)

        async def added() -> list[Any]:
            calls = [self.asked.add_to_transaction(asked) for _ in range(1 + is_together)]
            return await asyncio.gather(*calls)

        answers = self.run(added())
        for answer in answers:
            expected = self.transactions.add(name, pair, group, home, bumps=bumps)
            assert (answer.number if answer.error is None else type(answer.error)) == expected

    def _commit_an_offset(self, name: str, which: str, group: str) -> None:
        pair = self.pair(name, which)
        answer = self.asked.join(JoinTransaction(name, *pair, (), [group]))
        expected = self.transactions.join(name, pair, group)
        assert (answer.number if answer.error is None else type(answer.error)) == expected
        home = self.transactions.ids[name].groups.get(group) if answer.error is None else None
        if home == HERE:
            value = next(self.values)
            now_ms = self.world.clock.now_ms()
            offset = CommittedOffset(COMMITTED, value, now_ms)
            self.run(self.asked.commit_offsets(group, *pair, answer.number, [offset]))
            self.transactions.commit_offset(name, group, COMMITTED, (now_ms, value))

    def _end(self, name: str, which: str, is_commit: bool, bumps: bool) -> None:
        pair = self.pair(name, which)
        asked = EndTransaction(name, *pair, is_commit, bumps)
        answer = self.run(self.asked.end_transaction(asked))
        expected = self.transactions.end(name, pair, is_commit=is_commit, bumps=bumps)
        assert _told(answer) == expected

    def _tell(self, name: str, is_completed: bool) -> None:
        known = self.transactions.ids.get(name)
        if known is None or not known.is_decided:
            return
        told = [group for group, home in known.groups.items() if home == HERE]
        is_commit = known.state == "PREPARE_COMMIT"
        part = EndParts(*known.pair, known.number, is_commit, 3, (), told)
        assert self.run(self.asked.end_parts([part])) == [None]
        self.transactions.end_groups(known)
        if is_completed:
            self.run(self.asked.complete(name, known.number))
            self.transactions.complete(known)

    def _abort(self, name: str) -> None:
        known = self.transactions.ids.get(name)
        number = 0 if known is None else known.number
        answer = self.run(self.asked.abort_transaction(AbortTransaction(name, number)))
        expected = self.transactions.abort(name)
        assert _told(answer) == expected


def _told(answer: EndedTransaction) -> tuple[int, bool, Pair] | type[DisklessError]:
    if answer.error is not None:
        return type(answer.error)
    return answer.number, answer.is_completed, (answer.producer_id, answer.producer_epoch)
