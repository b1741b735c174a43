"""A part of a run: the tests of some of the files, for machines that share `make test-all`.

`PART=2/4` runs the second of four parts. A file is whole in one part, and always in the same one
of as many, whatever else there is: its path decides. So the parts together run every test once,
on one machine after the other or on four at a time.
"""

import os
import re
from typing import Final
from zlib import crc32

import pytest

_VARIABLE: Final = "PART"


def part_of(variable: str) -> tuple[int, int]:
    """Which part of how many `variable` names: 1 of 1 where it is empty. Raises UsageError."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", variable or "1/1")
    if match is None or int(match[1]) > int(match[2]):
        raise pytest.UsageError(f"{_VARIABLE}={variable}: say which of how many, as in 2/4")
    return int(match[1]), int(match[2])


def is_in(path: str, part: tuple[int, int]) -> bool:
    """Whether the file at `path`, from the top of the checkout, is in `part`."""
    number, count = part
    return crc32(path.encode()) % count == number - 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = part_of(os.environ.get(_VARIABLE, ""))
    left_out = [item for item in items if not is_in(item.nodeid.partition("::")[0], part)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
