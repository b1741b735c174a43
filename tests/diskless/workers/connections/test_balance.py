"""Which worker has the next connection, how many are used, and who gives up a connection."""

import random
from collections.abc import Sequence

import pytest

from diskless.workers.connections.balance import (
    FULL_LOOKS,
    IDLE_LOOKS,
    MANY_CONNECTIONS,
    SETTLED_S,
    SILENT_S,
    Balance,
    GivingUp,
    Load,
)
from diskless.workers.connections.heavy_connections import heaviest_to_go

FULL_CORES, UNEVEN_CORES = 0.75, 0.25
IDLE, HALF, FULL = (Load(cores, False) for cores in (0.0, FULL_CORES / 2, FULL_CORES))
SHORT = Load(0.0, True)


def balance_of(*loads: Load, active_min: int = 1) -> Balance:
    balance = Balance(active_min, FULL_CORES)
    for number, load in enumerate(loads, start=1):
        balance.began(number, 0.0)
        balance.told(number, load, 0.0)
    return balance


def look(balance: Balance, times: int, connections: dict[int, int], now: float = 0.0) -> None:
    for _ in range(times):
        balance.look(connections, now)


def test_the_one_with_the_fewest_connections_comes_first() -> None:
    balance = balance_of(IDLE, IDLE, IDLE, active_min=3)
    assert balance.order({1: 5, 2: 3, 3: 4}, 0.0) == [2, 3, 1]
    assert balance.order({}, 0.0) == [1, 2, 3]


def test_one_that_has_more_to_do_comes_later_whatever_connections_there_are() -> None:
    balance = balance_of(FULL, HALF, IDLE, active_min=3)
    assert balance.order({3: 9}, 0.0) == [3, 2, 1]
    assert balance_of(SHORT, HALF, active_min=2).order({2: 9}, 0.0) == [2, 1]


def test_little_to_do_is_left_to_one() -> None:
    balance = balance_of(IDLE, IDLE)
    assert balance.order({1: 9}, 0.0) == [1, 2]
    look(balance, 3 * IDLE_LOOKS, {1: 9})
    assert balance.active == 1


@pytest.mark.parametrize("load", [FULL, SHORT])
def test_one_more_is_used_while_all_that_are_used_are_full(load: Load) -> None:
    balance = balance_of(load, IDLE, IDLE)
    # Even before the next look.
    assert balance.order({1: 1}, 0.0) == [2, 3, 1]
    look(balance, FULL_LOOKS - 1, {1: 1})
    assert balance.active == 1
    look(balance, 1, {1: 1})
    assert balance.active == 2
    look(balance, FULL_LOOKS, {1: 1, 2: 1})
    assert balance.active == 2
    balance.told(2, load, 0.0)
    look(balance, 9, {1: 1, 2: 1})
    balance.told(3, load, 0.0)
    look(balance, 9, {1: 1, 2: 1})
    assert balance.active == 3


def test_very_many_connections_are_spread_whatever_they_do() -> None:
    balance = balance_of(IDLE, IDLE, IDLE)
    connections = {1: 0, 2: 0, 3: 0}
    for _ in range(3 * MANY_CONNECTIONS + 300):
        connections[balance.order(connections, 0.0)[0]] += 1
    assert connections == dict.fromkeys((1, 2, 3), MANY_CONNECTIONS + 100)


def test_one_that_can_be_spared_for_a_while_is_given_no_more() -> None:
    balance = balance_of(FULL, IDLE)
    look(balance, FULL_LOOKS, {1: 2})
    balance.told(1, HALF, 0.0)
    look(balance, IDLE_LOOKS - 1, {1: 1, 2: 1})
    balance.told(1, FULL, 0.0)
    look(balance, 1, {1: 1, 2: 1})
    balance.told(1, HALF, 0.0)
    look(balance, IDLE_LOOKS - 1, {1: 1, 2: 1})
    assert balance.active == 2
    look(balance, 1, {1: 1, 2: 1})
    assert balance.active == 1


def test_one_that_says_nothing_is_given_connections_last() -> None:
    balance = balance_of(IDLE, IDLE, active_min=2)
    now = SILENT_S + 1
    balance.told(2, HALF, now)
    assert balance.order({1: 0, 2: 9}, now) == [2, 1]
    balance.told(2, FULL, now)
    assert balance.look({1: 2, 2: 2}, now) is None


def test_one_that_is_gone_is_not_named_and_its_next_life_begins_with_nothing_to_do() -> None:
    balance = balance_of(FULL, HALF, active_min=2)
    balance.gone(1)
    balance.told(1, FULL, 0.0)
    assert balance.order({}, 0.0) == [2]
    balance.gone(2)
    assert balance.order({}, 0.0) == []
    assert balance.look({}, 0.0) is None
    balance.began(1, 0.0)
    assert balance.order({}, 0.0) == [1]


def test_a_full_one_gives_up_a_connection_if_another_has_less_to_do() -> None:
    balance = balance_of(FULL, IDLE, HALF, active_min=3)
    assert balance.look({1: 2}, 0.0) == GivingUp(1, FULL_CORES)
    assert balance.look({1: 2}, SETTLED_S - 0.1) is None
    for number, load in enumerate((FULL, IDLE, HALF), start=1):
        balance.told(number, load, SETTLED_S)
    assert balance.look({1: 2}, SETTLED_S) == GivingUp(1, FULL_CORES)


@pytest.mark.parametrize(
    ("loads", "connections"),
    [
        ((HALF, IDLE), 2),
        ((FULL, Load(FULL_CORES - UNEVEN_CORES / 2, False)), 2),
        ((FULL, SHORT), 2),
        ((FULL, IDLE), 1),
    ],
)
def test_nothing_is_given_up_where_it_does_not_help(
    loads: Sequence[Load], connections: int
) -> None:
    balance = balance_of(*loads, active_min=2)
    assert balance.look({1: connections, 2: 2}, 0.0) is None


@pytest.mark.parametrize("seed", range(50))
def test_moving_ends_and_leaves_nobody_full_beside_one_that_is_not(seed: int) -> None:
    """Of a load that stays, in connections of which none is large alone."""
    rng = random.Random(seed)
    workers = rng.randint(2, 5)
    balance = balance_of(*[IDLE] * workers)
    loads: dict[int, float] = {}
    places: dict[int, int] = {}
    now, given_up_at = 0.0, 0.0

    def counts() -> dict[int, int]:
        held = list(places.values())
        return {number: held.count(number) for number in range(1, workers + 1)}

    def cores(number: int) -> float:
        return sum(loads[one] for one, place in places.items() if place == number)

    for one in range(rng.randint(2, 40)):
        loads[one] = rng.uniform(0.01, UNEVEN_CORES / 2)
        places[one] = balance.order(counts(), now)[0]
    while now < given_up_at + 300:
        now += 1
        for number in range(1, workers + 1):
            balance.told(number, Load(cores(number), False), now)
        wanted = balance.look(counts(), now)
        if wanted is None:
            continue
        number, difference = wanted
        moved = {one: int(loads[one] * 1e9) for one, place in places.items() if place == number}
        chosen = heaviest_to_go(moved, cores=cores(number), difference_cores=difference)
        if chosen is not None:
            del places[chosen]
            places[chosen] = balance.order(counts(), now)[0]
            given_up_at = now
        assert now < 2_000
    used = [cores(number) for number in range(1, workers + 1)][: balance.active]
    assert max(used) < FULL_CORES or max(used) - min(used) <= 2 * UNEVEN_CORES
