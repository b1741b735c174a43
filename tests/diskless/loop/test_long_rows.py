"""When a long list is let go of, its items go a portion in each turn of the loop."""

import asyncio
import weakref
from collections.abc import Callable, Sequence

import pytest

from diskless.loop.long_rows import LET_GO_AT_ONCE, as_list, as_tuple

MakeRows = Callable[[list["Row"]], Sequence["Row"]]


class Row:
    pass


@pytest.mark.parametrize("make_rows", [as_list, as_tuple])
async def test_the_items_of_long_rows_go_in_portions(make_rows: MakeRows) -> None:
    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    made = [Row() for _ in range(3 * LET_GO_AT_ONCE)]
    alive.update(made)
    rows = make_rows(made)
    del made
    assert len(alive) == 3 * LET_GO_AT_ONCE
    del rows
    counts = []
    while alive:
        counts.append(len(alive))
        await asyncio.sleep(0)
    assert counts == [3 * LET_GO_AT_ONCE, 2 * LET_GO_AT_ONCE, LET_GO_AT_ONCE]


@pytest.mark.parametrize("make_rows", [as_list, as_tuple])
def test_without_a_loop_they_go_at_once(make_rows: MakeRows) -> None:
    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    made = [Row() for _ in range(LET_GO_AT_ONCE + 1)]
    alive.update(made)
    rows = make_rows(made)
    del made
    assert len(alive) == LET_GO_AT_ONCE + 1
    del rows
    assert not alive


async def test_an_item_that_somebody_else_holds_stays() -> None:
    rows = as_list([Row() for _ in range(LET_GO_AT_ONCE + 1)])
    kept, gone = weakref.ref(rows[0]), weakref.ref(rows[1])
    holder = rows[0]
    del rows
    # One turn for each portion.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert gone() is None
    assert kept() is holder


def test_short_rows_are_plain_and_not_copied() -> None:
    rows = [1, 2, 3]
    assert as_list(rows) is rows
    assert type(as_tuple(rows)) is tuple


def test_long_rows_are_what_they_were_made_of() -> None:
    rows = list(range(LET_GO_AT_ONCE + 1))
    assert as_list(rows) == rows
    assert as_tuple(rows) == tuple(rows)
