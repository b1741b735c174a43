"""Answers as columns are the answers one by one, however they are taken apart and put together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.batch_commits import BatchCommits
from metadata.operations import BatchCommit
from wal.errors import UnknownPartition


def columns(count: int, refused: set[int]) -> BatchCommits:
    is_appended = np.array([place not in refused for place in range(count)], np.bool_)
    numbers = np.where(is_appended, np.arange(count), -1)
    return BatchCommits(
        base_offset=numbers,
        log_append_time_ms=np.where(is_appended, 1000 + numbers, -1),
        log_start_offset=np.where(is_appended, 0, -1),
        is_duplicate=is_appended & (numbers % 3 == 1),
        errors={place: UnknownPartition(str(place)) for place in sorted(refused)},
    )


answers = st.integers(1, 30).flatmap(
    lambda count: st.builds(
        columns, st.just(count), st.sets(st.integers(0, count - 1), max_size=count)
    )
)


@given(commits=answers, draw=st.data())
def test_columns_are_the_list_of_them(commits: BatchCommits, draw: st.DataObject) -> None:
    listed = [*commits]
    assert [place for place, one in enumerate(listed) if one.error] == [*commits.errors]
    start = draw.draw(st.integers(0, len(listed)))
    end = draw.draw(st.integers(start, len(listed)))
    assert [*commits.between(start, end)] == listed[start:end]
    order = draw.draw(st.permutations(range(len(listed))))
    assert [*commits.take(np.array(order))] == [listed[place] for place in order]
    parts = [commits.between(0, start), commits.between(start, len(listed))]
    assert [*BatchCommits.joined(parts)] == listed


@pytest.mark.parametrize("refused", [set(), {1}])
def test_append_times_are_left_out(refused: set[int]) -> None:
    told = [*columns(3, refused).without_append_times(np.array([True, False, False]))]
    assert told[0] == BatchCommit(0, -1, 0)
    assert told[2] == BatchCommit(2, 1002, 0)
