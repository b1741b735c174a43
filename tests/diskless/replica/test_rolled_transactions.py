"""The same records before and after rolling and merging, at both isolation levels.

Committed ones are never gone; aborted ones are, for readers of everything, once they are rolled.
Readers find the same at a leader, and by turns at a follower that is behind; to readers of
everything such a follower may show what is aborted once more.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest

from metadata.operations import READ_COMMITTED, READ_UNCOMMITTED
from tests.support.profiles import seeds
from tests.support.tiers.rolled_transactions import (
    LOG,
    MUCH,
    Rolling,
    Written,
    rolling,
    stable_end,
    written,
)


class Scenario(NamedTuple):
    """How much of the log there is, how its transactions end, and how it is rolled."""

    length: int
    outcomes: tuple[bool, ...]
    cuts: tuple[int, ...]
    """Where plans end, by entries of the log; the last one may be behind the last stable offset."""
    order: tuple[int, ...]
    """In which the plans are committed."""


def _markers(length: int) -> int:
    return sum(who.isupper() for who in LOG[:length])


def _stable_entries(length: int) -> int:
    entries = written(LOG[:length], [True] * _markers(length))
    end = stable_end(entries)
    return sum(one.last_offset < end for one in entries)


def _all() -> Iterator[Scenario]:
    for length in range(1, len(LOG) + 1):
        for outcomes in product((True, False), repeat=_markers(length)):
            for cut in range(1, _stable_entries(length) + 1):
                yield Scenario(length, outcomes, (cut,), (0,))


def _some(seed: int) -> Scenario:
    """Up to three plans in any order, of the whole log or of most of it."""
    rng = random.Random(seed)
    length = rng.choice((len(LOG), len(LOG), 11, 10, 8))
    outcomes = tuple(rng.random() < 0.5 for _ in range(_markers(length)))
    ends = range(1, _stable_entries(length) + 1)
    cuts = sorted(rng.sample(ends, min(rng.randint(1, 3), len(ends))))
    order = [*range(len(cuts))]
    rng.shuffle(order)
    return Scenario(length, outcomes, tuple(cuts), tuple(order))


async def _check(rolls: Rolling, entries: Sequence[Written], rolled_to: set[int]) -> None:
    """`rolled_to`: the entries that are in segments, by their base offsets."""
    stable = stable_end(entries)
    committed, everything, written_offsets = [], [], []
    for one in entries:
        offsets = range(one.base_offset, one.last_offset + 1)
        if one.is_marker:
            continue
        written_offsets += offsets
        if one.is_committed and one.last_offset < stable:
            committed += offsets
        if one.is_committed or one.base_offset not in rolled_to:
            everything += offsets
    end = entries[-1].last_offset + 1
    for start, max_bytes in product(range(end + 1), (1, MUCH)):
        given = await rolls.consumed(start, READ_COMMITTED, max_bytes) if start <= stable else []
        assert given == [offset for offset in committed if offset >= start]
        if start <= stable:
            assert await rolls.consumed_by_turns(start, READ_COMMITTED, max_bytes) == given
        given = await rolls.consumed(start, READ_UNCOMMITTED, max_bytes)
        assert given == [offset for offset in everything if offset >= start]
        # The follower may have what is aborted still where the leader has rolled it away.
        behind = await rolls.consumed_by_turns(start, READ_UNCOMMITTED, max_bytes)
        assert behind == sorted(set(behind))
        assert set(given) <= set(behind) <= set(written_offsets) & set(range(start, end))
    assert not await rolls.state.violations()


async def _run(rolls: Rolling, scenario: Scenario) -> None:
    entries = written(LOG[: scenario.length], scenario.outcomes)
    await rolls.write(entries)
    bounds = [0, *scenario.cuts]
    plans = [
        await rolls.plan(entries[first].base_offset, entries[end - 1].last_offset)
        for first, end in pairwise(bounds)
    ]
    rolled: set[int] = set()
    await _check(rolls, entries, rolled)
    for number in scenario.order:
        assert await rolls.asked(plans[number].base_offset) == plans[number]
        await rolls.commit(plans[number])
        rolled |= {one.base_offset for one in entries[bounds[number] : bounds[number + 1]]}
        await _check(rolls, entries, rolled)
    if len(plans) > 1:
        await rolls.merge()
        await _check(rolls, entries, rolled)


async def test_readers_see_the_same_before_and_after_rolling(tmp_path: Path) -> None:
    async with rolling(tmp_path) as rolls:
        for seed in seeds(3):
            scenario = _some(seed)
            try:
                await _run(rolls, scenario)
            except BaseException as error:
                error.add_note(f"{scenario}")
                raise


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
async def test_every_cut_of_every_log(tmp_path: Path, part: int) -> None:
    async with rolling(tmp_path) as rolls:
        for scenario in [*_all()][part::8]:
            try:
                await _run(rolls, scenario)
            except BaseException as error:
                error.add_note(f"{scenario}")
                raise
