"""Sets of partitions by topic behave as sets of (topic, partition)."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.assignors.partition_sets import (
    difference,
    each,
    intersection,
    is_subset,
    overlaps,
    union,
)
from diskless.groups.consumer.roster import Roster
from diskless.groups.consumer_state import ConsumerMember

some = st.dictionaries(
    st.integers(1, 3).map(lambda number: UUID(int=number)),
    st.frozensets(st.integers(0, 4), min_size=1, max_size=4),
    max_size=3,
)


def flat(partitions: TopicPartitions) -> set[tuple[UUID, int]]:
    assert all(partitions.values()), "a topic without partitions"
    listed = list(each(partitions))
    assert len(listed) == len(set(listed))
    return set(listed)


@given(some, some)
def test_they_are_sets(first: TopicPartitions, second: TopicPartitions) -> None:
    a, b = flat(first), flat(second)
    assert flat(union(first, second)) == a | b
    assert flat(intersection(first, second)) == a & b
    assert flat(difference(first, second)) == a - b
    assert is_subset(first, second) == (a <= b)
    assert overlaps(first, second) == bool(a & b)
    assert (flat(first), flat(second)) == (a, b)


@given(some, some, st.booleans())
def test_a_roster_knows_what_of_a_set_nobody_else_holds(
    wanted: TopicPartitions, held: TopicPartitions, is_own: bool
) -> None:
    roster = Roster()
    holder = "me" if is_own else "other"
    roster.put(ConsumerMember(member_id=holder, rebalance_timeout_ms=1, assigned=held))
    free = flat(roster.free("me", wanted))
    assert free == (flat(wanted) if is_own else flat(wanted) - flat(held))
    roster.remove(holder)
    assert flat(roster.free("me", wanted)) == flat(wanted)
