"""Parts of a run have every file once between them."""

from pathlib import Path

import pytest

from tests.support.part_of_a_run import is_in, part_of

TESTS = Path(__file__).parents[2]
FILES = [path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")]


@pytest.mark.parametrize("count", [1, 4, 7])
def test_each_file_is_in_one_part(count: int) -> None:
    parts = [part_of(f"{number}/{count}") for number in range(1, count + 1)]
    assert all(sum(is_in(file, part) for part in parts) == 1 for file in FILES)
    assert all(any(is_in(file, part) for file in FILES) for part in parts)


def test_who_names_no_part_runs_all() -> None:
    assert part_of("") == (1, 1)


@pytest.mark.parametrize("variable", ["2", "0/4", "5/4", "1/0", "a/b", "1/4/2"])
def test_a_part_that_there_is_not_is_refused(variable: str) -> None:
    with pytest.raises(pytest.UsageError, match="which of how many"):
        part_of(variable)
