"""What a suite is to `make conformance`, and what it is given for a run.

A suite finds its tests, runs those that are applicable against a broker, and reports each as it
ends. It knows nothing of judgements, pages and brokers' processes: `SuiteRun` stands between.
"""

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tests.conformance.judgements import PLAINTEXT, Judgements
from tests.conformance.outcomes import Outcome, Result
from tests.conformance.security import SaslSsl

KAFKA_VERSION: Final = "4.1.0"
"""What suites that ask are told of the broker's version: they choose their tests by it."""


def git_description(source: Path) -> str:
    """`git describe` of a checkout; empty for anything else, and where there is no git."""
    if not (source / ".git").exists():
        return ""
    command = ["git", "-C", str(source), "describe", "--tags", "--always", "--dirty"]
    try:
        described = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return described.stdout.strip() if described.returncode == 0 else ""


def named(name: str, title: str, security: str) -> tuple[str, str]:
    """A suite's name and title, with how its clients connect unless that is in plain text."""
    if security == PLAINTEXT:
        return name, title
    return f"{name}-{security.replace('_', '-')}", f"{title} {security.replace('_', '-')}"


class SuiteError(Exception):
    """A suite could not be run at all (what is missing, what did not build); the message tells."""


class Suite(Protocol):
    """One column of the page: a suite in one configuration."""

    @property
    def name(self) -> str:
        """As in SUITES, such as `librdkafka-classic`; also the name of its work directory."""

    @property
    def title(self) -> str:
        """The heading of its section, such as `librdkafka, classic groups`."""

    @property
    def how(self) -> str:
        """A sentence or two for the page: what is run, and with which settings of the suite."""

    @property
    def security(self) -> str:
        """PLAINTEXT or SASL_SSL: the broker that it is run on."""

    @property
    def judgements(self) -> Judgements: ...

    @property
    def broker_settings(self) -> Mapping[str, str]:
        """Configuration keys of the broker that the suite takes for granted."""

    def version(self) -> str:
        """Of their source: `git describe` of a checkout, otherwise what its files say."""

    def prepare(self, work: Path) -> None:
        """Build what has to be built, below `work` and nowhere else. Raises SuiteError.

        It is called before the broker is started, and does nothing if all is there already.
        """

    def run(self, run: "SuiteRun") -> None:
        """Run what `run.choose` left of the suite's tests and report each. Raises SuiteError."""


@dataclass(slots=True, kw_only=True)
class SuiteRun:
    """One run of one suite against one broker. Outcomes are judged as they are reported."""

    suite: str
    bootstrap: str
    work: Path
    """A directory of the suite's own; logs of tests belong here."""
    security: SaslSsl | None = None
    """How the broker is to be connected to; None: anybody, in plain text."""
    workers: int = 1
    """Of each broker."""
    patience: float = 1.0
    """What to multiply timeouts of the suite with: more than 1 on a slow or a loaded machine."""
    judgements: Judgements = field(default_factory=Judgements)
    is_wanted: Callable[[str], bool] = lambda test: True
    """False for tests that whoever started the run does not want to see."""
    progress: Callable[[Outcome, float | None], None] = lambda outcome, seconds: None
    """Called with every judged outcome, and how long it took if it was run."""
    note: Callable[[str], None] = lambda text: None
    """Called with what whoever watches the run should know before there is an outcome."""
    outcomes: list[Outcome] = field(default_factory=list)

    def choose(self, tests: Iterable[str]) -> Sequence[str]:
        """Those of `tests` that have to be run; what is not applicable is reported here."""
        chosen = []
        for test in filter(self.is_wanted, tests):
            if self.judgements.is_applicable(test):
                chosen.append(test)
            else:
                self.report(test, Result.NOT_APPLICABLE)
        return chosen

    def report(
        self, test: str, result: Result, why: str = "", *, seconds: float | None = None
    ) -> None:
        """What the suite itself says of `test`; a test that it skips is NOT_APPLICABLE.

        `why` is the suite's own reason or message. A judgement's reason goes before it.
        """
        outcome = self.judgements.judged(
            Outcome(suite=self.suite, test=test, result=result, why=why)
        )
        self.outcomes.append(outcome)
        self.progress(outcome, seconds)
