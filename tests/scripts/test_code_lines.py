"""scripts/code-lines: what counts as a line of code."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "scripts" / "code-lines"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("code_lines", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("\n# why\n\nx = 1  # what\n", 1),
        ('"""Of the module.\n\nMore.\n"""\n', 0),
        ('class A:\n    """Of the class."""\n\n    x: int\n    """Of the field."""\n', 2),
        ('def f():\n    """Of the function."""\n    return 1\n', 2),
        ("x = (\n    1,\n\n    # why\n    2,\n)\n", 4),
        ('x = """a\n\nb"""\n', 2),
        ("x = 1; y = 2\n", 1),
    ],
)
def test_blank_lines_comments_and_docstrings_are_no_code(
    script: ModuleType, source: str, lines: int
) -> None:
    assert script.code_lines(source) == lines


def test_a_file_that_is_no_python_is_named(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "broken.py").write_text("x = = 1\n", encoding="utf-8")
    with pytest.raises(SyntaxError) as raised:
        script.table(tmp_path)
    assert raised.value.filename == str(tmp_path / "wal" / "broken.py")


def test_the_table_has_every_package_and_sums(script: ModuleType, tmp_path: Path) -> None:
    for name, lines in (("wal", 2), ("diskless/api", 3), ("tests", 5)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("x = 1\n" * lines, encoding="utf-8")
    rows = [row.split() for row in script.table(tmp_path).splitlines() if row.strip()]
    assert rows == [
        ["files", "code", "lines"],
        ["wal", "1", "2"],
        ["metadata", "0", "0"],
        ["tiering", "0", "0"],
        ["diskless", "1", "3"],
        ["the", "product", "2", "5"],
        ["tests", "1", "5"],
        ["bench", "0", "0"],
        ["demo", "0", "0"],
        ["beside", "it", "1", "5"],
    ]


def test_the_longest_files_and_the_fullest_folders_come_first(
    script: ModuleType, tmp_path: Path
) -> None:
    for name, lines in (("wal/a", 2), ("wal/b", 3), ("diskless/api/c", 4), ("tests/d", 9)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("x = 1\n\n" * lines, encoding="utf-8")
    rows = [row.split() for row in script.largest(tmp_path, 2).splitlines()]
    assert rows == [
        ["lines", "code", "lines", "longest", "files"],
        ["8", "4", "diskless/api/c.py"],
        ["6", "3", "wal/b.py"],
        [],
        ["files", "fullest", "of", "2", "folders"],
        ["2", "wal"],
        ["1", "diskless/api"],
    ]


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )


def test_it_teaches_with_help_and_refuses_an_unknown_revision() -> None:
    told = run(["--help"])
    assert told.returncode == 0
    assert "--at REVISION" in told.stdout
    assert "docstring" in told.stdout
    refused = run(["--at", "no-such-revision"])
    assert refused.returncode != 0
    assert "no-such-revision" in refused.stderr
    assert "Traceback" not in refused.stderr
