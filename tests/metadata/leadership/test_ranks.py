"""Who should lead which metadata partition."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.leadership.ranks import RANK_MAX, Ranks, balanced_leaders
from metadata.operations import RegisteredBroker
from tests.support.profiles import examples

IDS = st.lists(st.integers(0, 1_000), min_size=1, max_size=12, unique=True)


def registered(*ids: int, unwilling: tuple[int, ...] = ()) -> dict[int, RegisteredBroker]:
    return {
        one: RegisteredBroker(one, "h", 1, "", UUID(int=one), "", one not in unwilling)
        for one in ids
    }


@examples(0.5)
@given(st.integers(1, 20), IDS)
def test_nobody_leads_two_more_than_another(partitions: int, ids: list[int]) -> None:
    leaders = balanced_leaders(partitions, ids)
    assert sorted(leaders) == [*range(partitions)]
    counts = Counter(dict.fromkeys(ids, 0)) + Counter(leaders.values())
    led = [counts[one] for one in ids]
    assert max(led) - min(led) <= 1


@examples(0.5)
@given(st.integers(1, 20), IDS, st.randoms(use_true_random=False))
def test_the_order_in_which_brokers_came_does_not_matter(
    partitions: int, ids: list[int], rng: object
) -> None:
    shuffled = sorted(ids, key=lambda _: rng.random())  # type: ignore[attr-defined]
    assert balanced_leaders(partitions, shuffled) == balanced_leaders(partitions, ids)


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_broker_more_or_less_moves_little(count: int) -> None:
    """On average over which broker it is: some three times what must move."""
    ids = [*range(10, 10 + count)]
    before = balanced_leaders(count, ids)
    moved = 0
    for gone in ids:
        after = balanced_leaders(count, [one for one in ids if one != gone])
        moved += sum(before[partition] != after[partition] for partition in before)
    assert moved <= 3.5 * count


def test_without_brokers_nobody_should_lead() -> None:
    assert balanced_leaders(4, []) == {}
    assert Ranks(4, dict).leader(0) is None
    assert Ranks(4, dict).rank(0, 1) == 0


def test_who_may_not_lead_is_not_asked_to() -> None:
    ranks = Ranks(4, lambda: registered(1, 2, 3, unwilling=(2,)))
    assert {ranks.leader(partition) for partition in range(4)} == {1, 3}
    assert ranks.rank(0, 2) == 2, "it stands last, if at all"


def test_ranks_follow_who_is_registered() -> None:
    brokers = registered(1, 2, 3, 4)
    ranks = Ranks(4, lambda: brokers)
    before = {partition: ranks.leader(partition) for partition in range(4)}
    assert sorted(before.values()) == [1, 2, 3, 4]
    del brokers[3]
    assert 3 not in {ranks.leader(partition) for partition in range(4)}
    brokers[3] = registered(3)[3]
    assert {partition: ranks.leader(partition) for partition in range(4)} == before


def test_the_first_to_stand_is_who_should_lead_without_the_silent_one() -> None:
    ranks = Ranks(4, lambda: registered(1, 2, 3, 4))
    for partition in range(4):
        silent = ranks.leader(partition)
        first = ranks.leader(partition, without=silent)
        standing = [one for one in (1, 2, 3, 4) if one != silent]
        assert first in standing
        found = {one: ranks.rank(partition, one, without=silent) for one in standing}
        assert sorted(found.values()) == [0, 1, 2]
        assert found[first] == 0


def test_a_rank_is_never_above_the_last_one() -> None:
    ranks = Ranks(2, lambda: registered(*range(40)))
    assert {ranks.rank(0, one) for one in range(40)} == {*range(RANK_MAX + 1)}
    assert ranks.rank(0, 99) == RANK_MAX
