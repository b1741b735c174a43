"""Long work in turns: nobody waits for more of it than one slice, and its order is kept."""

import asyncio
from collections.abc import Sequence

import pytest

from diskless.loop.long_work import (
    PORTION_ROWS,
    LongWork,
    Steps,
    Unfinished,
    batched,
    collected,
    done_at_once,
    each,
    gathered,
    in_order,
    in_portions,
    mapped,
    started_in_portions,
)
from wal.clock import ManualClock

SLICE_S = 0.002


class World:
    """Work of which every step takes a millisecond of a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.long_work = LongWork(self.clock.monotonic, slice_s=SLICE_S)
        self.done: list[str] = []

    def work(self, name: str, count: int) -> Steps[str]:
        for number in range(count):
            self.clock.advance(0.001)
            self.done.append(f"{name}{number}")
            yield
        return name


@pytest.fixture
def world() -> World:
    return World()


def test_what_fits_into_its_slice_is_done_at_once(world: World) -> None:
    assert world.long_work.begin(world.work("a", 1)) == "a"


async def test_long_work_gives_the_loop_a_turn_after_each_slice(world: World) -> None:
    async def others() -> None:
        while True:
            world.done.append("others")
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    assert await world.long_work.run(world.work("a", 6)) == "a"
    running.cancel()
    slices = "".join("." if one == "others" else "a" for one in world.done).strip(".")
    assert all(0 < len(piece) <= 2 for piece in slices.split(".") if piece)
    assert slices.count("a") == 6


async def test_pieces_of_work_take_turns_one_in_each_turn_of_the_loop(world: World) -> None:
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_passes())
    names = "abcdefgh"
    results = await asyncio.gather(*(world.long_work.run(world.work(name, 20)) for name in names))
    counting.cancel()
    assert "".join(results) == names
    # Ten slices each, of which only the first ones may fall together.
    assert passes >= len(names) * 9
    last_of_first, first_of_last = world.done.index("a19"), world.done.index("h2")
    assert first_of_last < last_of_first


async def test_the_error_of_work_is_raised_to_who_waits_for_it(world: World) -> None:
    def broken() -> Steps[None]:
        yield from world.work("a", 3)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await world.long_work.run(broken())


async def test_who_is_cancelled_closes_the_work_and_holds_nobody_up(world: World) -> None:
    closed: list[str] = []

    def watched() -> Steps[None]:
        try:
            yield from world.work("a", 1_000)
        finally:
            closed.append("a")

    started = world.long_work.begin(watched())
    assert isinstance(started, Unfinished)
    waiting = asyncio.create_task(world.long_work.finish(started))
    other = asyncio.create_task(world.long_work.run(world.work("b", 10)))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await other == "b"
    assert waiting.cancelled()
    assert closed == ["a"]


def test_helpers_are_what_they_say_in_steps(world: World) -> None:
    assert world.long_work.begin(mapped(str, [1, 2])) == ["1", "2"]
    assert world.long_work.begin(collected(iter("ab"))) == ["a", "b"]
    assert [*batched([1, 2, 3], 2)] == [[1, 2], [3]]


async def test_gathered_has_a_few_under_way_at_a_time_and_keeps_the_order() -> None:
    running = most = 0

    async def ask(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return -number

    assert await gathered(ask, range(100)) == [-number for number in range(100)]
    assert 1 < most < 100


async def test_calls_in_portions_have_the_results_of_one_call() -> None:
    sizes: list[int] = []

    async def negated(rows: Sequence[int]) -> Sequence[int]:
        sizes.append(len(rows))
        return [-row for row in rows]

    rows = range(PORTION_ROWS * 2 + 1)
    assert await in_portions(negated, rows) == [-row for row in rows]
    assert sizes == [PORTION_ROWS, PORTION_ROWS, 1]
    assert await each(lambda row: -row, rows) == [-row for row in rows]


async def test_what_is_started_in_portions_has_begun_in_order_when_its_steps_are_done() -> None:
    begun: list[int] = []
    may_end = asyncio.Event()

    async def write(rows: Sequence[int]) -> Sequence[int]:
        begun.extend(rows)
        await may_end.wait()
        return rows

    long_work = LongWork(ManualClock().monotonic)
    rows = range(PORTION_ROWS * 3)
    answers = await long_work.run(started_in_portions(write, rows))
    assert begun == [*rows]
    may_end.set()
    assert await answers == [*rows]


@pytest.mark.parametrize("count", [0, 3, 2_000, 2_001, 9_000])
def test_many_names_are_sorted_in_steps(count: int) -> None:
    names = [f"name-{number * 7_919 % 10_007}" for number in range(count)]
    assert done_at_once(in_order(names)) == sorted(names)
    assert (sum(1 for _ in in_order(names)) > 0) == (count > 2_000)
