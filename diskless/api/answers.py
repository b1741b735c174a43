"""Asks for what is left of a request's rows, and puts answers and refusals together again.

A handler checks each row first; what it makes of one is what to ask for, or the error. An error of
the whole call is the answer to every row of it, so that no client waits for an answer in vain.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from diskless.loop.long_work import PORTION_TOPICS, in_portions
from wal.errors import DisklessError

_Row = TypeVar("_Row")
_Result = TypeVar("_Result")


async def each_answered(
    ask: Callable[[Sequence[_Row]], Awaitable[Sequence[_Result]]],
    rows: Sequence[_Row],
    size: int = PORTION_TOPICS,
) -> Sequence[_Result | DisklessError]:
    """Ask for `size` rows at a time; what asking raises is the answer to each of all rows."""
    if not rows:
        return ()
    try:
        return await in_portions(ask, rows, size)
    except DisklessError as error:
        return [error] * len(rows)


def with_answers(
    checked: Iterable[_Row | DisklessError], answers: Iterable[_Result]
) -> Iterator[_Result | DisklessError]:
    """What became of each row: the error that it was refused with, or the next of `answers`."""
    left = iter(answers)
    for outcome in checked:
        yield outcome if isinstance(outcome, DisklessError) else next(left)
