"""The recipes of CONTRIBUTING.md: each diff applies to the packages, and its test passes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
RECIPES: Final = sorted((ROOT / "docs" / "recipes").glob("*.diff"))
COPIED: Final = ("diskless", "metadata", "tiering", "wal", "tests/support", "pyproject.toml")


def test_every_recipe_is_told() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert re.findall(r"\(docs/recipes/([a-z-]+\.diff)\)", page) == [
        "operation.diff",
        "kafka-api.diff",
        "record-type.diff",
    ]
    assert {path.name for path in RECIPES} == {
        "operation.diff",
        "kafka-api.diff",
        "record-type.diff",
    }


@pytest.fixture(scope="module")
def cooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with all recipes applied, one after the other: they do not need each other."""
    copy = tmp_path_factory.mktemp("recipes")
    for name in COPIED:
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, copy / name)
        else:
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for recipe in RECIPES:
        subprocess.run(
            ["git", "apply", "-C1", "--whitespace=error", str(recipe)],
            cwd=copy,
            env=os.environ | {"GIT_CEILING_DIRECTORIES": str(copy.parent)},
            check=True,
        )
    return copy


def test_the_tests_of_the_recipes_pass(cooked: Path) -> None:
    tests = [
        name
        for recipe in RECIPES
        for name in re.findall(r"^\+\+\+ b/(tests/.*)$", recipe.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(tests) == len(RECIPES)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=cooked,
        env=os.environ | {"PYTHONPATH": str(cooked), "PYTEST_ADDOPTS": ""},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout
