"""Memory for what is inflated: within the limit, in turn, nothing left behind."""

import asyncio

import pytest

from wal.inflation_budget import InflationBudget


class Holder:
    """A task that holds a reservation until it is let go."""

    def __init__(self, budget: InflationBudget, count: int) -> None:
        self.is_holding = False
        self.let_go = asyncio.Event()
        self.task = asyncio.create_task(self._hold(budget, count))

    async def _hold(self, budget: InflationBudget, count: int) -> None:
        try:
            async with budget.reserve(count):
                self.is_holding = True
                await self.let_go.wait()
        finally:
            self.is_holding = False


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def holders(budget: InflationBudget, *counts: int) -> list[Holder]:
    made = [Holder(budget, count) for count in counts]
    await turns()
    return made


def holding(made: list[Holder]) -> list[bool]:
    return [holder.is_holding for holder in made]


async def finish(made: list[Holder]) -> None:
    for holder in made:
        holder.let_go.set()
    await asyncio.gather(*(holder.task for holder in made), return_exceptions=True)


async def test_who_fits_goes_on_and_the_others_wait_in_the_order_of_asking() -> None:
    budget = InflationBudget(100)
    made = await holders(budget, 60, 50, 30)
    # 30 would fit, and does not overtake.
    assert holding(made) == [True, False, False]
    assert (budget.reserved_bytes, budget.waiting) == (60, 2)
    made[0].let_go.set()
    await turns()
    assert holding(made) == [False, True, True]
    await finish(made)
    assert (budget.reserved_bytes, budget.reserved_bytes_peak) == (0, 80)


async def test_more_than_there_is_at_all_goes_alone() -> None:
    budget = InflationBudget(100)
    made = await holders(budget, 10, 500, 10)
    assert holding(made) == [True, False, False]
    made[0].let_go.set()
    await turns()
    assert holding(made) == [False, True, False]
    made[1].let_go.set()
    await turns()
    assert holding(made) == [False, False, True]
    await finish(made)
    assert budget.reserved_bytes == 0


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_cancelled_holder_or_waiter_leaves_nothing_behind(cancelled: int) -> None:
    budget = InflationBudget(100)
    made = await holders(budget, 80, 90, 20)
    made[cancelled].task.cancel()
    await turns()
    assert holding(made) == ([False, True, False] if cancelled == 0 else [True, False, True])
    await finish(made)
    assert (budget.reserved_bytes, budget.waiting) == (0, 0)


async def test_who_is_cancelled_in_the_turn_of_the_grant_gives_it_back() -> None:
    budget = InflationBudget(100)
    made = await holders(budget, 80, 90, 95)
    made[0].let_go.set()
    await asyncio.sleep(0)  # it lets go, which grants to the second
    assert budget.reserved_bytes == 90
    made[1].task.cancel()
    await turns()
    assert holding(made) == [False, False, True]
    await finish(made)
    assert budget.reserved_bytes == 0
