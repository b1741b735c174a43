"""Assignments are complete, exclusive, balanced, sticky and the same every time."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.groups.assignors.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    MemberSubscription,
    TopicPartitions,
)
from diskless.groups.assignors.fair_shares import Kind, fair_shares, filled
from diskless.groups.assignors.uniform_assignor import UniformAssignor
from diskless.loop.long_work import done_at_once

A, B, C, D = (UUID(int=number) for number in (1, 2, 3, 4))
TOPICS = (A, B, C, D)
NAMES = {A: "a", B: "b", C: "c", D: "d"}

Assignment = Mapping[str, TopicPartitions]


def member(*topics: UUID, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(instance_id, None, frozenset(topics))


def assign(
    name: str,
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    current: Assignment | None = None,
) -> dict[str, dict[UUID, frozenset[int]]]:
    return done_at_once(ASSIGNORS[name].assign(members, partitions, current or {}, NAMES))


def owners(assignment: Assignment) -> dict[tuple[UUID, int], str]:
    """Who has each partition; fails when two have one."""
    found: dict[tuple[UUID, int], str] = {}
    for member_id, topics in assignment.items():
        for topic_id, mine in topics.items():
            assert mine, "a topic without partitions"
            for partition in mine:
                assert (topic_id, partition) not in found
                found[topic_id, partition] = member_id
    return found


def sizes(assignment: Assignment) -> dict[str, int]:
    return {member_id: sum(map(len, topics.values())) for member_id, topics in assignment.items()}


def moved(before: Assignment, after: Assignment) -> int:
    """Partitions that somebody has before and somebody else after."""
    then, now = owners(before), owners(after)
    return sum(1 for one, owner in then.items() if one in now and now[one] != owner)


def check(
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    assignment: Assignment,
) -> None:
    """Complete, exclusive, and only what was subscribed to."""
    assert assignment.keys() == members.keys()
    wanted = {topic_id for one in members.values() for topic_id in one.topics}
    assert owners(assignment).keys() == {
        (topic_id, partition)
        for topic_id in wanted
        for partition in range(partitions.get(topic_id, 0))
    }
    for member_id, topics in assignment.items():
        assert topics.keys() <= members[member_id].topics


PARTITIONS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
MEMBER_IDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        MemberSubscription,
        st.none(),
        st.none(),
        st.frozensets(st.sampled_from(TOPICS)),
    ),
    max_size=6,
)
ANY_CURRENT = st.dictionaries(
    st.sampled_from("abcdefghxyz"),
    st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 12)), max_size=4),
)
NAMES_OF_ASSIGNORS = pytest.mark.parametrize("name", ["uniform", "range"])


def test_there_are_two_assignors_and_one_is_the_default():
    assert {name: one.name for name, one in ASSIGNORS.items()} == {
        "uniform": "uniform",
        "range": "range",
    }
    assert DEFAULT_ASSIGNOR == "uniform"


@NAMES_OF_ASSIGNORS
@given(members=SUBSCRIPTIONS, partitions=PARTITIONS, current=ANY_CURRENT)
def test_every_partition_has_one_owner_whatever_was_before(name, members, partitions, current):
    check(members, partitions, assign(name, members, partitions, current))


@NAMES_OF_ASSIGNORS
@given(
    members=SUBSCRIPTIONS, partitions=PARTITIONS, current=ANY_CURRENT, seed=st.integers(0, 1 << 30)
)
def test_the_order_of_the_arguments_does_not_matter(name, members, partitions, current, seed):
    expected = assign(name, members, partitions, current)
    rng = random.Random(seed)

    def shuffled(mapping):
        return dict(rng.sample(list(mapping.items()), len(mapping)))

    found = assign(
        name,
        shuffled(members),
        shuffled(partitions),
        {member_id: shuffled(topics) for member_id, topics in shuffled(current).items()},
    )
    assert found == expected


@NAMES_OF_ASSIGNORS
@given(members=SUBSCRIPTIONS, partitions=PARTITIONS, current=ANY_CURRENT)
def test_an_assignment_that_fits_stays(name, members, partitions, current):
    once = assign(name, members, partitions, current)
    assert assign(name, members, partitions, once) == once


# --- uniform


def least_moves(before: Sequence[int], partitions: int) -> int:
    """Partitions that those with `before` must give to have equal shares of them all."""
    least, surplus = divmod(partitions, len(before))
    kept = sum(min(size, least) for size in before)
    return sum(before) - kept - min(surplus, sum(1 for size in before if size > least))


@given(
    member_ids=MEMBER_IDS,
    partitions=PARTITIONS,
    others=MEMBER_IDS,
    more=PARTITIONS,
)
def test_equal_subscriptions_get_equal_shares_and_move_no_more_than_they_must(
    member_ids, partitions, others, more
):
    before = assign("uniform", {one: member(*TOPICS) for one in member_ids}, partitions)
    assert max(sizes(before).values()) - min(sizes(before).values()) <= 1
    members = {one: member(*TOPICS) for one in others}
    grown = {
        topic_id: max(partitions.get(topic_id, 0), more.get(topic_id, 0)) for topic_id in TOPICS
    }
    after = assign("uniform", members, grown, before)
    check(members, grown, after)
    assert max(sizes(after).values()) - min(sizes(after).values()) <= 1
    stay = {one: topics for one, topics in before.items() if one in members}
    all_sizes = [sizes(before).get(one, 0) for one in members]
    assert moved(stay, after) == least_moves(all_sizes, sum(grown.values()))


@given(member_ids=MEMBER_IDS, partitions=PARTITIONS)
def test_a_member_that_joins_takes_its_share_and_one_that_leaves_gives_only_its_own(
    member_ids, partitions
):
    members = {one: member(*TOPICS) for one in member_ids}
    before = assign("uniform", members, partitions)
    grown = members | {"new": member(*TOPICS)}
    joined = assign("uniform", grown, partitions, before)
    assert moved(before, joined) == sizes(joined)["new"] == sum(partitions.values()) // len(grown)
    left = assign("uniform", members, partitions, joined)
    stayed = {one: topics for one, topics in joined.items() if one != "new"}
    assert moved(stayed, left) == 0


def all_shares(
    kinds: Sequence[Kind], members: int
) -> list[tuple[tuple[dict[int, int], ...], list[int]]]:
    """Every way to share out all partitions."""

    def ways(readers: int, partitions: int) -> list[tuple[int, ...]]:
        if readers == 1:
            return [(partitions,)]
        return [
            (first, *rest)
            for first in range(partitions + 1)
            for rest in ways(readers - 1, partitions - first)
        ]

    found = []
    for choice in itertools.product(*(ways(len(one.readers), one.partitions) for one in kinds)):
        shares: list[dict[int, int]] = [{} for _ in range(members)]
        for kind, counts in enumerate(choice):
            for reader, count in zip(kinds[kind].readers, counts, strict=True):
                shares[reader][kind] = count
        found.append((tuple(shares), sorted(sum(one.values()) for one in shares)))
    return found


def kept(owned: Sequence[dict[int, int]], shares: Sequence[dict[int, int]]) -> int:
    return sum(
        min(count, share.get(kind, 0))
        for mine, share in zip(owned, shares, strict=True)
        for kind, count in mine.items()
    )


@st.composite
def shared_kinds(draw):
    members = draw(st.integers(1, 4))
    numbers = range(members)
    readers = draw(
        st.lists(
            st.sets(st.sampled_from(numbers), min_size=1).map(sorted),
            min_size=1,
            max_size=3,
            unique_by=tuple,
        )
    )
    owned: list[dict[int, int]] = [{} for _ in numbers]
    kinds = []
    for kind, who in enumerate(readers):
        partitions = draw(st.integers(1, 4))
        kinds.append(Kind(who, partitions))
        holders = draw(st.lists(st.sampled_from(who), max_size=partitions))
        for holder, count in Counter(holders).items():
            owned[holder][kind] = count
    return kinds, owned


@given(shared_kinds())
def test_different_subscriptions_get_the_evenest_shares_with_the_fewest_moves(question):
    kinds, owned = question
    shares = done_at_once(fair_shares(kinds, owned))
    unevenness = sum(sum(one.values()) ** 2 for one in shares)
    possible = all_shares(kinds, len(owned))
    best = min(sum(size * size for size in found) for _, found in possible)
    assert unevenness == best
    assert kept(owned, shares) == max(
        kept(owned, one) for one, found in possible if sum(size * size for size in found) == best
    )


@given(shared_kinds(), st.integers(0, 20))
def test_a_search_that_is_cut_off_still_gives_everything_away(question, steps):
    kinds, owned = question
    shares = done_at_once(fair_shares(kinds, owned, search_steps_max=steps))
    for kind, (readers, partitions) in enumerate(kinds):
        assert sum(shares[reader].get(kind, 0) for reader in readers) == partitions
    for number, share in enumerate(shares):
        assert all(count >= 0 for count in share.values())
        assert all(number in kinds[kind].readers for kind, count in share.items() if count)


def test_a_topic_is_spread_over_the_members():
    members = {f"m-{number}": member(*TOPICS) for number in range(4)}
    assignment = assign("uniform", members, dict.fromkeys(TOPICS, 8))
    for topics in assignment.values():
        assert [len(topics[topic_id]) for topic_id in TOPICS] == [2, 2, 2, 2]


def test_shares_even_out_over_members_in_between():
    # Nobody reads both a and c, so what a has too much of reaches c's reader only through b's.
    members = {"x": member(A, B), "y": member(B, C), "z": member(C)}
    assignment = assign("uniform", members, {A: 1, B: 4, C: 4})
    assert sizes(assignment) == {"x": 3, "y": 3, "z": 3}


# --- range


def test_the_first_members_get_one_more_of_every_topic():
    members = {"m-2": member(A, B), "m-1": member(A, B), "m-3": member(A, B)}
    assert assign("range", members, {A: 4, B: 2}) == {
        "m-1": {A: frozenset({0, 1}), B: frozenset({0})},
        "m-2": {A: frozenset({2}), B: frozenset({1})},
        "m-3": {A: frozenset({3})},
    }


def test_members_are_in_the_order_of_their_instances_and_then_of_their_ids():
    members = {
        "m-1": member(A, instance_id="z"),
        "m-2": member(A),
        "m-3": member(A, instance_id="y"),
    }
    assert assign("range", members, {A: 3}) == {
        "m-3": {A: frozenset({0})},
        "m-1": {A: frozenset({1})},
        "m-2": {A: frozenset({2})},
    }


def test_only_those_who_want_a_topic_share_it():
    members = {"m-1": member(A), "m-2": member(A, B)}
    assert assign("range", members, {A: 2, B: 2}) == {
        "m-1": {A: frozenset({0})},
        "m-2": {A: frozenset({1}), B: frozenset({0, 1})},
    }


@given(
    lives=st.lists(st.tuples(MEMBER_IDS, st.integers(1, 9)), min_size=1, max_size=5),
    late=st.integers(0, 4),
)
def test_alike_topics_stay_together_through_every_rebalance(lives, late):
    current: Assignment = {}
    for step, (member_ids, count) in enumerate(lives):
        topics = {A: count, B: count} if step >= late else {A: count}
        members = {one: member(A, B) for one in member_ids}
        current = assign("range", members, topics, current)
        check(members, topics, current)
        for mine in current.values():
            assert late > step or mine.get(A) == mine.get(B)
            assert len(mine.get(A, ())) in (count // len(members), -(-count // len(members)))


@given(member_ids=MEMBER_IDS, count=st.integers(0, 20))
def test_range_keeps_what_members_have_when_one_joins_or_leaves(member_ids, count):
    members = {one: member(A) for one in member_ids}
    before = assign("range", members, {A: count})
    grown = members | {"new": member(A)}
    joined = assign("range", grown, {A: count}, before)
    assert moved(before, joined) == sizes(joined)["new"]
    left = assign("range", members, {A: count}, joined)
    stayed = {one: topics for one, topics in joined.items() if one != "new"}
    assert moved(stayed, left) == 0


# --- what is not there


@NAMES_OF_ASSIGNORS
def test_nobody_and_nothing_are_assigned_nothing(name):
    assert assign(name, {}, {A: 3}) == {}
    assert assign(name, {"m": member()}, {A: 3}) == {"m": {}}
    assert assign(name, {"m": member(A, B)}, {A: 0}) == {"m": {}}


def test_two_who_say_they_have_the_same_do_not_both_keep_it():
    members = {"m-1": member(A), "m-2": member(A)}
    current = {"m-1": {A: frozenset({0, 1})}, "m-2": {A: frozenset({0, 1})}}
    assignment = done_at_once(UniformAssignor().assign(members, {A: 2}, current, NAMES))
    check(members, {A: 2}, assignment)
    assert sizes(assignment) == {"m-1": 1, "m-2": 1}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 40), st.data())
def test_many_partitions_go_to_whom_they_would_go_to_one_by_one(
    loads: list[int], count: int, data: st.DataObject
) -> None:
    everybody = st.sampled_from(range(len(loads)))
    readers = sorted(data.draw(st.sets(everybody, min_size=1)))
    after = [*loads]
    for _ in range(count):
        after[min(readers, key=lambda member: (after[member], member))] += 1
    given_out = dict(filled(loads, readers, count))
    assert [load + given_out.get(member, 0) for member, load in enumerate(loads)] == after
