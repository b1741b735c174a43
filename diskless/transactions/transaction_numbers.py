"""Asks coordinators which transaction a batch or an offset belongs to, and whether it may.

Whatever is written in a transaction carries the transaction's number, which the coordinator of the
transactional id knows. Questions share calls (`call_lanes`). There are two of them:

- `ask`, for producers that have added what they write to beforehand. It is asked each time: the
  next transaction has another number, under the same producer id and epoch.
- `add`, for producers of version 2 of transactions, which leave the adding to brokers. Such a
  transaction ends with another epoch, whoever ends it; so its number is kept under producer id and
  epoch, with all that was added, and only what is new is asked about.

What is kept is forgotten after the longest time that a transaction may be open: partitions and
groups do not remember for ever that it has ended, and would take the number for that of a new one.

For the produce path and the coordinators of groups.

Failure cases: a coordinator that cannot be asked is the error of each question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from diskless.transactions.call_lanes import CallLanes
from metadata.transaction_operations import (
    AddToTransaction,
    JoinedTransaction,
    JoinTransaction,
)
from wal.clock import Clock
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

PARTS_KEPT_MAX: Final = 100_000
"""Partitions and groups of which it is kept that they were added; a hundred bytes each."""
_PARTITION_BYTES: Final = 24

Ask = Callable[[int, Sequence[JoinTransaction]], Awaitable[Sequence[JoinedTransaction]]]
"""Asks the leader of one metadata partition."""
Add = Callable[[int, Sequence[AddToTransaction]], Awaitable[Sequence[JoinedTransaction]]]
"""The same, and changes something."""

Answer = asyncio.Future[JoinedTransaction]

_Producer = tuple[str, int, int]
"""Transactional id, producer id and epoch."""


@dataclass(slots=True)
class _Kept:
    """A transaction of version 2."""

    number: int
    until_s: float
    parts: set[TopicIdPartition | str] = field(default_factory=set)


class TransactionNumbers:
    """An async context manager; leaving it answers what is left with an error."""

    def __init__(
        self, ask: Ask, placed: Callable[[str], int], *, add: Add, kept_ms: int, clock: Clock
    ) -> None:
        """`placed`: the metadata partition of a transactional id. `kept_ms`: for how long a
        transaction may be open.
        """
        self._placed = placed
        self._kept_s = kept_ms / 1000
        self._clock = clock
        self._asked = CallLanes(ask, failed=_refused, size=_size_of, name="transaction-numbers")
        self._added = CallLanes(add, failed=_refused, size=_size_of, name="transaction-additions")
        self._stack = AsyncExitStack()
        # The transactions that began first come first.
        self._kept: dict[_Producer, _Kept] = {}
        self._parts_kept = 0

    async def __aenter__(self) -> Self:
        for lanes in (self._asked, self._added):
            await self._stack.enter_async_context(lanes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def ask(self, asked: JoinTransaction) -> Answer:
        """The answer is never cancelled and never fails: an error is in it."""
        return self._asked.ask(self._placed(asked.transactional_id), asked)

    def add(self, asked: AddToTransaction) -> Answer:
        """The same; all of it belongs to the transaction then."""
        asked = asked._replace(bumps_epoch=True)
        producer = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
        kept = self._kept.get(producer)
        if (
            kept is not None
            and kept.until_s > self._clock.monotonic()
            and all(partition in kept.parts for partition, _ in asked.partitions)
            and all(group_id in kept.parts for group_id, _ in asked.groups)
        ):
            known: Answer = asyncio.get_running_loop().create_future()
            known.set_result(JoinedTransaction(kept.number))
            return known
        answer = self._added.ask(self._placed(asked.transactional_id), asked)
        answer.add_done_callback(partial(self._keep, asked))
        return answer

    def _keep(self, asked: AddToTransaction, answer: Answer) -> None:
        producer = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
        joined = answer.result()
        if joined.error is not None:
            self._forget(producer)
            return
        kept = self._kept.get(producer)
        if kept is None or kept.number != joined.number:
            self._forget(producer)
            until_s = self._clock.monotonic() + self._kept_s
            kept = self._kept[producer] = _Kept(joined.number, until_s)
        before = len(kept.parts)
        kept.parts.update(partition for partition, _ in asked.partitions)
        kept.parts.update(group_id for group_id, _ in asked.groups)
        self._parts_kept += len(kept.parts) - before
        while self._parts_kept > PARTS_KEPT_MAX:
            self._forget(next(iter(self._kept)))

    def _forget(self, producer: _Producer) -> None:
        kept = self._kept.pop(producer, None)
        if kept is not None:
            self._parts_kept -= len(kept.parts)


def _refused(error: DisklessError) -> JoinedTransaction:
    return JoinedTransaction(error=error)


def _size_of(asked: JoinTransaction | AddToTransaction) -> int:
    named = len(asked.transactional_id) + sum(map(len, asked.groups))
    return named + _PARTITION_BYTES * (1 + len(asked.partitions) + len(asked.groups))
