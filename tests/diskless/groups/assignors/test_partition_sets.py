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
    select,
    union,
)

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
    assert flat(select(first, lambda _, partition: partition > 1)) == {p for p in a if p[1] > 1}
    assert (flat(first), flat(second)) == (a, b)
