"""Long rows: lists and tuples whose items are freed a portion in each turn of the loop.

Letting go of a list of a hundred thousand objects is one call of the interpreter, which takes some
25 ms. Who holds such a list last is rarely known: a request stays in the closures of its handler, a
result in a frame or a future. So the container itself sees to it. When nobody holds it any more, it
hands its items to the event loop, which drops LET_GO_AT_ONCE of them in each turn. Short ones are
plain lists and tuples and cost nothing more. Where no loop runs, everything is dropped at once.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final, TypeVar

_Item = TypeVar("_Item")

LET_GO_AT_ONCE: Final = 2_000
"""Rows; half a millisecond."""


class _LongList(list[_Item]):
    __slots__ = ()

    def __del__(self) -> None:
        _hand_over(self)


class _LongTuple(tuple[_Item, ...]):
    __slots__ = ()

    def __del__(self) -> None:
        _hand_over(self)


def as_list(rows: list[_Item]) -> list[_Item]:
    """`rows`, or a copy that takes its time to go."""
    return rows if len(rows) <= LET_GO_AT_ONCE else _LongList(rows)


def as_tuple(rows: list[_Item]) -> tuple[_Item, ...]:
    """As a tuple, which takes its time to go if it is long."""
    return tuple(rows) if len(rows) <= LET_GO_AT_ONCE else _LongTuple(rows)


def _hand_over(rows: Iterable[Any]) -> None:
    loop = asyncio._get_running_loop()
    if loop is not None:
        loop.call_soon(_let_go, loop, [*rows])


def _let_go(loop: asyncio.AbstractEventLoop, rows: list[Any]) -> None:
    del rows[-LET_GO_AT_ONCE:]
    if rows:
        loop.call_soon(_let_go, loop, rows)
