"""Rules of the house that no tool checks: what loads what, how large files and folders get."""

import ast
import functools
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("diskless", "tiering", "metadata", "wal")

FILES_OF_A_FOLDER_MAX: Final = 16
FILES_OF_LARGE_FOLDERS: Final[Mapping[str, int]] = {}
"""Folders with more files than that, and how many they may have, in steps of 5. Limits only come
down."""

LINES_MAX: Final = 500
LINES_OF_LONG_FILES: Final[Mapping[str, int]] = {}
"""Files that are longer than LINES_MAX, and how long they may be, in steps of 50. Limits only come
down: a file that got shorter gets a lower one, or none."""


LINES_OF_TESTS_MAX: Final = 600
LINES_OF_LONG_TESTS: Final[Mapping[str, int]] = {}
"""As LINES_OF_LONG_FILES, of the tests and what supports them."""


def modules(packages: Sequence[str] = PACKAGES) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Not as the module is imported: every worker of a run does that."""
    return {name_of(path): ast.parse(path.read_text("utf-8")) for path in modules()}


def imported_at_start(body: list[ast.stmt]) -> Iterator[str]:
    """Everything that an import of the module imports: not what its functions do when they run."""
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in trees() else module
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case _:
                inner_statements = [
                    node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)
                ]
                yield from imported_at_start(inner_statements)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {other for other in imported_at_start(tree.body) if other in trees()}
        for name, tree in trees().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_import_each_other_in_a_circle(package: str) -> None:
    """Nor a folder and a module beside it; what functions import when they run counts too."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for name, tree in trees().items():
        for other in imported_anywhere(tree):
            shared = common_folder(name, other)
            if shared.split(".")[0] == package and shared not in (name, other):
                here, there = (child_of(shared, module) for module in (name, other))
                graphs.setdefault(shared, {}).setdefault(here, set()).add(there)
    assert graphs
    for graph in graphs.values():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("package", ["wal", "metadata", "diskless"])
def test_the_tour_of_a_package_goes_from_the_ground_up(package: str) -> None:
    """As it says: each of its folders imports only those above it in the list."""
    tour = ast.get_docstring(trees()[package]) or ""
    assert "each importing only those above" in " ".join(tour.split())
    listed = "\n".join(line for line in tour.splitlines() if line.startswith("- "))
    order = [name for name in re.findall(r"`(\w+)`", listed) if (ROOT / package / name).is_dir()]
    place = {f"{package}.{name}": position for position, name in enumerate(order)}
    upwards = {
        (here, there)
        for name, tree in trees().items()
        for other in imported_anywhere(tree)
        if common_folder(name, other) == package
        and (here := child_of(package, name)) in place
        and (there := child_of(package, other)) in place
        and place[here] < place[there]
    }
    assert not upwards


def imported_anywhere(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name for name in imported_at_start([node]) if name in trees())


def common_folder(first: str, second: str) -> str:
    """The innermost package that both modules are in, or are; empty: none."""
    pairs = zip(first.split("."), second.split("."), strict=False)
    return ".".join(here for here, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def child_of(folder: str, module: str) -> str:
    return ".".join(module.split(".")[: folder.count(".") + 2])


def test_types_are_imported_like_everything_else() -> None:
    hidden = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING")
        or (isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING")
    ]
    assert not hidden, "a type whose import is hidden is a circle, or in the wrong module"


@pytest.mark.parametrize(
    ("start", "heavy"),
    [
        (
            "from diskless.cli.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            "rich pyspark pyarrow pandas numpy sqlalchemy structlog asyncio kafka botocore",
        ),
        (
            "import diskless.cli.serve",
            "diskless.cli.tables rich.progress pyspark pyarrow pandas kafka botocore aiobotocore",
        ),
        (
            "import diskless.broker, diskless.topics.topic_configs, tiering.raw_batches",
            "pyspark pyiceberg duckdb polars pandas",
        ),
    ],
    ids=["help", "broker", "parts of a broker"],
)
def test_a_start_loads_nothing_that_it_does_not_need(start: str, heavy: str) -> None:
    script = f"import sys\n{start}\nprint(sorted(set({heavy.split()}) & sys.modules.keys()))"
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert child.stdout.splitlines()[-1] == "[]"


def test_folders_stay_small() -> None:
    folders = {path.parent for path in modules((*PACKAGES, "bench", "demo", "tests/support"))}
    files = {
        str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in sorted(folders)
    }
    assert not {
        folder: count
        for folder, count in files.items()
        if count > FILES_OF_LARGE_FOLDERS.get(folder, FILES_OF_A_FOLDER_MAX)
    }
    lower = {
        folder: limit
        for folder, limit in FILES_OF_LARGE_FOLDERS.items()
        if files[folder] <= limit - 5
    }
    assert not lower, "these folders got smaller: lower their limits, or take them out of the table"


@pytest.mark.parametrize(
    ("packages", "lines_max", "longer"),
    [
        (PACKAGES, LINES_MAX, LINES_OF_LONG_FILES),
        (("bench", "demo", "tests"), LINES_OF_TESTS_MAX, LINES_OF_LONG_TESTS),
    ],
    ids=["product", "beside it"],
)
def test_files_do_not_grow_long(
    packages: Sequence[str], lines_max: int, longer: Mapping[str, int]
) -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for path in modules(packages)
    }
    too_long = {path: count for path, count in lines.items() if count > longer.get(path, lines_max)}
    assert not too_long
    lower = {
        path: limit
        for path, limit in longer.items()
        if lines.get(path, 0) <= max(limit - 100, lines_max)
    }
    assert not lower, "these files got shorter: lower their limits, or take them out of the table"


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by these, and ends where two have the same one."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


SUPPORT: Final = re.compile(
    r"^\s*from tests\.support\.?([a-z0-9_.]*) import (\w+|\()|-m\W+tests\.support\.([a-z0-9_.]+)",
    re.MULTILINE,
)


def test_what_tests_ask_of_their_support_is_there() -> None:
    missing = []
    for path in modules(("tests", "bench")):
        for module, name, program in SUPPORT.findall(path.read_text("utf-8")):
            asked = ROOT.joinpath("tests", "support", *(module or program).split("."))
            if not asked.with_suffix(".py").is_file() and not (asked / f"{name}.py").is_file():
                sought = asked.name if module or program else name
                lies = (ROOT / "tests" / "support").rglob(f"{sought}.py")
                found = [str(other.relative_to(ROOT)) for other in lies]
                missing.append((str(path.relative_to(ROOT)), module or program, found))
    assert not missing, "files, the modules that they import, and where these lie now"


TESTS_OF_OTHER_TESTS: Final[Mapping[str, str]] = {
    "tests/diskless/workers/test_clients_of_workers.py": "the same tests of tests/clients, and a"
    " broker of several processes: they are the suite that both must pass",
    "tests/diskless/workers/test_secured_clients_of_workers.py": "the same, of clients that log in",
}
"""Files that run tests of other files on a `broker` of their own, and why."""


def test_test_files_import_no_test_files() -> None:
    """What two of them need is in tests/support, or in a module beside them."""
    importing = set()
    for path in modules(("tests", "bench")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    asked = [module, *(f"{module}.{alias.name}" for alias in names)]
                case ast.Import(names=names):
                    asked = [alias.name for alias in names]
                case _:
                    continue
            tests = {name for name in asked if is_test_file(name)}
            if tests - {name_of(path)}:
                importing.add(str(path.relative_to(ROOT)))
    assert importing == TESTS_OF_OTHER_TESTS.keys()


def is_test_file(module: str) -> bool:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return path.name.startswith("test_") and path.is_file()
