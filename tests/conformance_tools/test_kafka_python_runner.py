"""The runner of kafka-python's suite, on a little tree whose tests do all that can happen."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conformance.judgements import Judgement, Judgements, Verdict
from tests.conformance.kafka_python_suite import KafkaPythonSuite
from tests.conformance.outcomes import Result
from tests.conformance.suites import KAFKA_VERSION, SuiteError, SuiteRun

CONFTEST = """\
def pytest_addoption(parser):
    # What pytest-timeout would take; their environment has it.
    parser.addoption("--timeout")
    parser.addoption("--timeout-method")
"""

TESTS = """\
import os
from pathlib import Path

import pytest

STATE = Path(__file__).parents[2] / "state"


def test_where_the_broker_is():
    assert os.environ["KAFKA_URI"] == "kafka://127.0.0.1:9"
    assert os.path.isdir(os.environ["KAFKA_ROOT"])


def test_never_passes():
    assert 1 == 2, "one is not two"


def test_passes_alone():
    first = not STATE.exists()
    STATE.touch()
    assert not first, "too slow"


@pytest.mark.skipif(os.environ["KAFKA_VERSION"] > "4", reason="only for old brokers")
def test_old():
    assert False


@pytest.fixture
def broken():
    raise OSError("no such thing")


@pytest.fixture
def leaky():
    yield
    raise OSError("left behind")


def test_with_a_broken_fixture(broken):
    pass


def test_that_cannot_clean_up(leaky):
    pass


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_codecs(codec):
    pass


def test_takes_the_run_with_it():
    os._exit(7)


def test_after_it():
    pass


def test_acls():
    raise AssertionError("is never run")
"""


HANGING = """\
import threading


def test_waits_for_ever():
    threading.Event().wait()


def test_is_quick():
    pass
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Our environment has many plugins, which take longer to load than these tests to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    source = tmp_path / "kafka-python"
    tests = source / "test" / "integration"
    tests.mkdir(parents=True)
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_all.py").write_text(dedent(TESTS))
    (source / "kafka").mkdir()
    (source / "kafka" / "version.py").write_text("__version__ = '7.1.dev'\n")
    return source


@pytest.fixture
def run(tmp_path: Path) -> SuiteRun:
    work = tmp_path / "work"
    work.mkdir()
    return SuiteRun(
        suite="kafka-python",
        bootstrap="127.0.0.1:9",
        work=work,
        judgements=Judgements(
            entries=(Judgement(patterns=("*acls",), verdict=Verdict.NOT_APPLICABLE, why="none"),)
        ),
    )


def test_every_test_of_the_tree_comes_to_something(source: Path, run: SuiteRun) -> None:
    before = set(source.rglob("*"))
    KafkaPythonSuite(source, python=Path(sys.executable)).run(run)
    found = {
        outcome.test.removeprefix("test_all.py::test_"): (outcome.result, outcome.why)
        for outcome in run.outcomes
    }
    assert len(found) == len(run.outcomes)
    assert found.pop("passes_alone") == (
        Result.PASSED,
        "alone; in the whole run: AssertionError: too slow\nassert not True",
    )
    result, why = found.pop("takes_the_run_with_it")
    assert result is Result.FAILED
    assert "the test run died in it; see alone-" in why
    assert found == {
        "where_the_broker_is": (Result.PASSED, ""),
        "never_passes": (Result.FAILED, "AssertionError: one is not two\nassert 1 == 2"),
        "old": (Result.NOT_APPLICABLE, "only for old brokers"),
        "with_a_broken_fixture": (Result.FAILED, "in setup: OSError: no such thing"),
        "that_cannot_clean_up": (Result.FAILED, "in teardown: OSError: left behind"),
        "codecs[None]": (Result.PASSED, ""),
        "codecs[gzip]": (Result.PASSED, ""),
        "after_it": (Result.PASSED, ""),
        "acls": (Result.NOT_APPLICABLE, "none"),
    }
    after = set(source.rglob("*"))
    assert after - before == {source / "state"}, "the source is only read"


def test_a_test_that_never_ends_does_not_stop_the_others(source: Path, run: SuiteRun) -> None:
    (source / "test" / "integration" / "test_all.py").write_text(HANGING)
    notes: list[str] = []
    run.note = notes.append
    KafkaPythonSuite(source, python=Path(sys.executable), test_timeout_s=1.5).run(run)
    found = {outcome.test: outcome.result for outcome in run.outcomes}
    assert found == {
        "test_all.py::test_waits_for_ever": Result.FAILED,
        "test_all.py::test_is_quick": Result.PASSED,
    }
    assert notes == ["the test run died in test_all.py::test_waits_for_ever; the rest in a new one"]


def test_a_tree_without_the_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no source of kafka-python"):
        KafkaPythonSuite(tmp_path).prepare(tmp_path / "work")


def test_a_tree_whose_tests_cannot_be_read_is_refused(source: Path, run: SuiteRun) -> None:
    (source / "test" / "integration" / "test_all.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(SuiteError, match="found no tests"):
        KafkaPythonSuite(source, python=Path(sys.executable)).run(run)


def test_the_version_is_that_of_the_source(source: Path, tmp_path: Path) -> None:
    assert KafkaPythonSuite(source).version() == "7.1.dev"
    assert KafkaPythonSuite(tmp_path).version() == "unknown"


def test_the_version_of_a_checkout_is_what_git_says(source: Path) -> None:
    git = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"], ["tag", "7.0"]):
        subprocess.run([*git, *command], check=True)
    assert KafkaPythonSuite(source).version() == "7.0"
    (source / "kafka" / "version.py").write_text("")
    assert KafkaPythonSuite(source).version() == "7.0-dirty"


def test_the_version_that_is_claimed_is_one_that_the_suite_takes() -> None:
    assert tuple(map(int, KAFKA_VERSION.split("."))) >= (4, 0)
