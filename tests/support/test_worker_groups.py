"""The lists by which runs are shared and shortened name files that are there."""

from pathlib import Path

from tests.support.unit_tests import LONG
from tests.support.worker_groups import LONGEST_FIRST

FILES = {path.name for path in Path(__file__).parents[1].rglob("test_*.py")}


def test_files_that_take_long_are_there() -> None:
    assert LONG <= FILES


def test_groups_that_come_first_are_kinds_or_files_that_are_there() -> None:
    assert {name for name in LONGEST_FIRST if name.endswith(".py")} <= FILES
