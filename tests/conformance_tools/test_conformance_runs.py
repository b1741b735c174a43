"""Whole conformance runs with small suites of our own, on real brokers."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.__main__ import KAFKA_PYTHON, Source, main
from tests.conformance.judgements import PLAINTEXT, Judgement, Judgements, Verdict
from tests.conformance.outcomes import Result, Whose
from tests.conformance.security import SASL_SSL
from tests.conformance.suites import Suite, SuiteError, SuiteRun

KNOWN = Judgement(
    patterns=("known",), verdict=Verdict.KNOWN_FAILURE, whose=Whose.THEIRS, why="a bug of theirs"
)
NOT_OURS = Judgement(patterns=("acl*",), verdict=Verdict.NOT_APPLICABLE, why="no ACLs")


@dataclass
class SmallSuite:
    """Connects to the broker, and says of each test what it was told to say."""

    results: Mapping[str, Result]
    entries: tuple[Judgement, ...] = (KNOWN, NOT_OURS)
    name: str = "small"
    title: str = "A small suite"
    how: str = "As it is."
    security: str = PLAINTEXT
    trouble: str = ""
    kills_the_broker: bool = False
    logged: str = ""
    """What a second broker of the suite's own would write to its log."""
    broker_settings: Mapping[str, str] = field(default_factory=lambda: {"num.partitions": "2"})

    @property
    def judgements(self) -> Judgements:
        return Judgements(entries=self.entries)

    def version(self) -> str:
        return "v9"

    def prepare(self, work: Path) -> None:
        (work / "prepared").touch()

    def run(self, run: SuiteRun) -> None:
        assert (run.work / "prepared").exists()
        host, port = run.bootstrap.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=120).close()
        for test in run.choose(self.results):
            run.report(test, self.results[test], "because", seconds=0.1)
        if self.kills_the_broker:
            (broker,) = (
                child for child in psutil.Process().children() if "serve" in child.cmdline()
            )
            broker.kill()
        if self.logged:
            (run.work / "second").mkdir(exist_ok=True)
            (run.work / "second" / "broker.log").write_text(self.logged)
        if self.trouble:
            raise SuiteError(self.trouble)


GOOD = {"plain": Result.PASSED, "known": Result.FAILED, "acl_1": Result.PASSED}


@pytest.fixture
def conformance(tmp_path: Path) -> Callable[..., int]:
    """Runs `main` on suites, with a page and work of the test's own."""

    def run(*suites: Suite, options: tuple[str, ...] = ()) -> int:
        table: dict[str, tuple[Source, Callable[[Path], Suite]]] = {
            suite.name: (KAFKA_PYTHON, lambda path, suite=suite: suite) for suite in suites
        }
        arguments = ["--kafka-python", str(tmp_path), *options]
        return main(arguments, suites=table, page=tmp_path / "page.md", work=tmp_path / "work")

    return run


def test_a_run_as_expected_writes_the_page_and_ends_well(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance(SmallSuite(GOOD)) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| `acl_1` | not applicable | no ACLs |" in page
    assert "| `known` | **failed, theirs** | a bug of theirs |" in page
    assert "| `plain` | passed | because |" in page
    assert "| [A small suite](#small) | v9 | " in page
    shown = capsys.readouterr().out
    assert "✓ plain (0.1 s)" in shown
    assert "✗ known (0.1 s) [theirs]" in shown
    assert "num.partitions=2" in (tmp_path / "work/small/broker.properties").read_text()
    assert "ready on" in (tmp_path / "work/small/broker.log").read_text()


def test_a_suite_over_sasl_ssl_logs_in_and_has_a_section_of_its_own(
    conformance: Callable[..., int], tmp_path: Path
) -> None:
    class LogsIn(SmallSuite):
        def run(self, run: SuiteRun) -> None:
            assert run.security is not None
            told = {**run.security.librdkafka, "bootstrap.servers": run.bootstrap}
            admin = AdminClient(told)
            admin.create_topics([NewTopic("mine", 1)])["mine"].result(120)
            super().run(run)

    plain = SmallSuite(GOOD)
    secured = LogsIn(GOOD, name="small-sasl-ssl", title="A small suite", security=SASL_SSL)
    assert conformance(plain, secured, options=("--security", "sasl_ssl")) == 0
    page = (tmp_path / "page.md").read_text()
    assert "(#small-sasl-ssl)" in page
    assert "(#small)" not in page


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"plain": Result.FAILED}, "plain failed, and is no known failure"),
        ({"known": Result.PASSED}, "known is a known failure, but passed"),
    ],
)
def test_what_was_not_expected_ends_a_run_badly(
    conformance: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Mapping[str, Result],
    trouble: str,
) -> None:
    assert conformance(SmallSuite({**GOOD, **change})) == 1
    assert trouble in capsys.readouterr().out
    assert "A small suite" in (tmp_path / "page.md").read_text()


def test_a_suite_that_cannot_be_run_keeps_its_section_and_does_not_hinder_others(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance(SmallSuite(GOOD), SmallSuite(GOOD, name="other")) == 0
    before = (tmp_path / "page.md").read_text()
    broken = SmallSuite({}, trouble="it does not build")
    more = {**GOOD, "more": Result.PASSED}
    assert conformance(broken, SmallSuite(more, name="other")) == 1
    assert "small: it does not build" in capsys.readouterr().out
    after = (tmp_path / "page.md").read_text()
    start, end = before.index("<!-- suite small -->"), before.index("<!-- suite other -->")
    assert before[start:end] in after
    assert "| `more` | passed | because |" in after


@pytest.mark.cold
def test_a_broker_that_dies_takes_the_suite_with_it(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance(SmallSuite(GOOD, kills_the_broker=True)) == 1
    told = capsys.readouterr().out
    assert "the end of" in told
    assert "broker.log" in told
    assert "suite small" not in (tmp_path / "page.md").read_text()


def test_what_a_broker_logged_as_an_error_ends_a_run_badly(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = (
        "\x1b[2mnow\x1b[0m [\x1b[31mwarning  \x1b[0m] slow\nnow [\x1b[31merror    \x1b[0m] lost\n"
    )
    assert conformance(SmallSuite(GOOD, logged=logged)) == 1
    told = capsys.readouterr().out
    assert "small: second/broker.log: lost" in told
    assert "slow" not in told
    assert "suite small" in (tmp_path / "page.md").read_text()


def test_a_broker_that_does_not_start_is_told(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = SmallSuite(GOOD, broker_settings={"num.partitions": "none"})
    assert conformance(suite) == 1
    assert "the broker was not ready" in capsys.readouterr().out
    assert "suite small" not in (tmp_path / "page.md").read_text()


def test_a_few_tests_can_be_run_without_writing_the_page(
    conformance: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = SmallSuite({**GOOD, "plainer": Result.FAILED})
    assert conformance(suite, options=("--only", "plain")) == 0
    assert conformance(suite, options=("--only", "plain*")) == 1
    assert "acl_1" not in capsys.readouterr().out
    assert not (tmp_path / "page.md").exists()


def test_without_a_source_it_is_told_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = {"small": (KAFKA_PYTHON, lambda path: SmallSuite(GOOD))}
    for option in ((), ("--kafka-python", ""), ("--kafka-python", str(tmp_path / "gone"))):
        status = main(option, suites=suites, page=tmp_path / "page.md", work=tmp_path / "work")
        assert status == 2
        told = capsys.readouterr().err
        assert "KAFKA_PYTHON=/path/to/it" in told
        assert "github.com/dpkp/kafka-python" in told
    assert not (tmp_path / "page.md").exists()


def test_a_suite_that_does_not_exist_is_refused(
    conformance: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance(SmallSuite(GOOD), options=("--suites", "small,smaller")) == 2
    assert "no such suite: smaller; there are small" in capsys.readouterr().err
