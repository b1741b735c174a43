"""docs/reports/planted-bugs.md names files and tests that are there."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reports" / "planted-bugs.md"
PACKAGES: Final = ("diskless", "tiering", "metadata", "wal")


class PlantedBug(NamedTuple):
    """A row of the table."""

    name: str
    patched: str
    files: list[Path]
    tests: list[str]


def rows() -> Sequence[PlantedBug]:
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| bug "):
            name, _, patch, files, before, now, _ = (cell.strip() for cell in line[1:-1].split("|"))
            named = [Path(one) for one in re.findall(r"`([\w/]+\.py)[^`]*`", files)]
            # Of files in one folder only the first has its path.
            whole = [ROOT / (one if len(one.parts) > 1 else named[0].parent / one) for one in named]
            tests = re.findall(r"`(?:\w+::)?(test_\w+)(?:\[\w+\])?`", before + now)
            found.append(PlantedBug(name, re.findall(r"`(\w+\.py)`", patch)[0], whole, tests))
    return found


@pytest.mark.parametrize("bug", rows(), ids=lambda bug: bug.name)
def test_the_tests_that_notice_a_bug_are_where_the_page_says(bug: PlantedBug) -> None:
    assert any([*(ROOT / package).rglob(bug.patched)] for package in PACKAGES)
    assert bug.tests
    text = ""
    for file in bug.files:
        # A suite takes its cases from the modules beside it that are no test files.
        beside = [one for one in file.parent.glob("*.py") if not one.name.startswith("test_")]
        text += "".join(one.read_text("utf-8") for one in (file, *beside))
    assert [name for name in bug.tests if f"def {name}(" not in text] == []
