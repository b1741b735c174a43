"""The tours: the text of a package or folder names every module in it, and none that is not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("diskless", "tiering", "metadata", "wal", "bench", "tests/support")
APIS: Final = ROOT / "diskless" / "api"
"""One API a file, named like it: a tour would repeat the listing."""


def folders() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("__init__.py")):
            if path.parent != APIS and APIS not in path.parent.parents:
                yield path.parent


def tour(folder: Path) -> str:
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


@pytest.mark.parametrize("folder", [*folders()], ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_tour_names_what_is_there(folder: Path) -> None:
    told = set(re.findall(r"`([a-z_0-9]+)/?`", tour(folder)))
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    inner = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules | inner <= told
    words = {word for word in told if not (ROOT / word).is_dir()}
    assert words <= modules | inner | {"match"}  # the statement


def test_each_folder_of_apis_says_which_they_are() -> None:
    for path in APIS.rglob("__init__.py"):
        assert tour(path.parent), path
