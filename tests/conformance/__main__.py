"""`make conformance`: run other people's test suites on brokers of ours, and write the page.

    python -m tests.conformance --librdkafka PATH --kafka-python PATH
        [--suites NAME,…] [--only PATTERN] [--patience FACTOR] [--security sasl_ssl] [--workers N]

A suite without a path is left out, with a message. Each suite gets its own broker. A line per test
while it runs, a table at the end, docs/reports/conformance.md (not with `--only`, which is for
trying a few tests, and not with several workers, of which the page says nothing).

Exit status: 0 everything was as the judgements say; 1 a test failed that is not listed, a listed
one passes now, a pattern fits nothing, a suite or its broker broke, or a broker logged an error;
2 there was nothing to run.

`outcomes.py` says what a test can come to, `suites.py` what a suite is, `judgements.py` what is
expected of its tests, `page.py` how the page tells it. pytest collects nothing in this directory;
tests/conformance_tools tests these modules.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.conformance import librdkafka_suite
from tests.conformance.broker_process import BrokerError, broker_for, logged_errors
from tests.conformance.judgements import PLAINTEXT
from tests.conformance.kafka_python_suite import KafkaPythonSuite
from tests.conformance.outcomes import Outcome, Result, Whose, count
from tests.conformance.page import Section, written
from tests.conformance.security import SASL_SSL, SaslSsl
from tests.conformance.suites import Suite, SuiteError, SuiteRun

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE: Final = REPOSITORY / "docs" / "reports" / "conformance.md"
WORK: Final = REPOSITORY / "build" / "conformance"
_LOG_WIDTH: Final = 120
"""Of the table where there is no terminal that has a width."""
BROKER_PACKAGES: Final = ("diskless", "tiering", "metadata", "wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a suite comes from, as whoever starts the command is told."""

    variable: str
    """Of make; the option is the same in small letters, with dashes."""
    home: str

    @property
    def option(self) -> str:
        return "--" + self.variable.lower().replace("_", "-")


KAFKA_PYTHON: Final = Source(variable="KAFKA_PYTHON", home="https://github.com/dpkp/kafka-python")
LIBRDKAFKA: Final = Source(variable="LIBRDKAFKA", home="https://github.com/confluentinc/librdkafka")

SUITES: Final[Mapping[str, tuple[Source, Callable[[Path], Suite]]]] = {
    "librdkafka-classic": (LIBRDKAFKA, librdkafka_suite.classic),
    "librdkafka-consumer": (LIBRDKAFKA, librdkafka_suite.consumer),
    "kafka-python": (KAFKA_PYTHON, KafkaPythonSuite),
    "librdkafka-classic-sasl-ssl": (
        LIBRDKAFKA,
        partial(librdkafka_suite.classic, security=SASL_SSL),
    ),
    "librdkafka-consumer-sasl-ssl": (
        LIBRDKAFKA,
        partial(librdkafka_suite.consumer, security=SASL_SSL),
    ),
    "kafka-python-sasl-ssl": (KAFKA_PYTHON, partial(KafkaPythonSuite, security=SASL_SSL)),
}
"""Every suite by its name, in the order of the page."""
_SECURED: Final = f"-{SASL_SSL.replace('_', '-')}"


def main(
    arguments: Sequence[str] | None = None,
    *,
    suites: Mapping[str, tuple[Source, Callable[[Path], Suite]]] = SUITES,
    page: Path = PAGE,
    work: Path = WORK,
) -> int:
    options = _parser(suites).parse_args(arguments)
    console = Console(
        highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _LOG_WIDTH
    )
    secured = options.security == SASL_SSL
    names = [name for name in options.suites.split(",") if name]
    if secured:
        names = [name if name.endswith(_SECURED) else f"{name}{_SECURED}" for name in names]
    names = names or [name for name in suites if name.endswith(_SECURED) == secured]
    if unknown := [name for name in names if name not in suites]:
        print(f"no such suite: {unknown[0]}; there are {', '.join(suites)}", file=sys.stderr)
        return 2
    sections: list[Section] = []
    troubles: list[str] = []
    nothing_run = True
    for name in names:
        source, make = suites[name]
        path: Path | None = getattr(options, source.variable.lower())
        if path is None or not path.is_dir():
            print(_missing(name, source, path), file=sys.stderr)
            continue
        nothing_run = False
        suite = make(path.resolve())
        try:
            section, surprises = _run(suite, work, options, console)
        except (SuiteError, BrokerError) as error:
            troubles.append(f"{name}: {error}")
            continue
        sections.append(section)
        troubles += surprises
    if nothing_run:
        return 2
    _show(sections, console)
    if options.only is None and options.workers == 1:
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(written(before, sections, list(suites)), encoding="utf-8")
        console.print(f"written: {page}")
    for trouble in troubles:
        console.print(f"[bold red]✗[/] {escape(trouble)}")
    return 1 if troubles else 0


def _run(
    suite: Suite, all_work: Path, options: argparse.Namespace, console: Console
) -> tuple[Section, Sequence[str]]:
    """One suite on a broker of its own: its section, and what was not as expected."""
    work, only = all_work / suite.name, options.only
    console.print(f"[bold]{escape(suite.title)}[/] {escape(suite.version())}")
    work.mkdir(parents=True, exist_ok=True)
    console.print("  [dim]preparing …[/]")
    suite.prepare(work)
    judgements = suite.judgements
    run = SuiteRun(
        suite=suite.name,
        bootstrap="",
        work=work,
        patience=options.patience,
        workers=options.workers,
        judgements=judgements,
        is_wanted=lambda test: only is None or fnmatchcase(test, only),
        progress=lambda outcome, seconds: console.print(_line(outcome, seconds)),
        note=lambda text: console.print(f"  [dim]… {escape(text)}[/]"),
        security=SaslSsl(work / "security") if suite.security == SASL_SSL else None,
    )
    broker = broker_for(work, suite.broker_settings, run.security, run.workers)
    with broker as run.bootstrap:
        suite.run(run)
    section = Section(
        name=suite.name,
        title=suite.title,
        how=suite.how,
        version=suite.version(),
        broker=_broker_version(),
        outcomes=tuple(sorted(run.outcomes, key=lambda outcome: outcome.test)),
    )
    logged = [f"{suite.name}: {error}" for error in logged_errors(work)]
    if only is None:
        return section, [*judgements.surprises(run.outcomes), *logged]
    found = [judgements.surprise(outcome) for outcome in run.outcomes]
    return section, [*(told for told in found if told is not None), *logged]


def _line(outcome: Outcome, seconds: float | None) -> str:
    mark = {
        Result.PASSED: "[green]✓[/]",
        Result.FAILED: "[red]✗[/]",
        Result.NOT_APPLICABLE: "[dim]–[/]",
    }[outcome.result]
    took = "" if seconds is None else f" ({seconds:.1f} s)"
    why = " ".join(outcome.why.split())
    whose = f" [{outcome.whose}]" if outcome.whose is not Whose.NOBODYS else ""
    return f"  {mark} {escape(outcome.test)}{took}{escape(whose)} [dim]{escape(why[:200])}[/]"


def _show(sections: Sequence[Section], console: Console) -> None:
    table = Table()
    table.add_column("suite")
    for name in ("passed", "failed, ours", "failed, theirs", "not judged", "not applicable"):
        table.add_column(name, justify="right")
    for section in sections:
        counts = count(section.outcomes)
        table.add_row(
            section.name,
            str(counts.passed),
            str(counts.failed_ours),
            str(counts.failed_theirs),
            str(counts.failed_not_judged),
            str(counts.not_applicable),
        )
    console.print(table)


def _missing(name: str, source: Source, path: Path | None) -> str:
    trouble = "no source is given" if path is None else f"{path} is no directory"
    return (
        f"{name}: {trouble}. Give the path of a checkout or of an unpacked release of\n"
        f"  {source.home}\n"
        f"as {source.variable}=/path/to/it (make) or {source.option} PATH. "
        f"The suite's section of docs/reports/conformance.md stays as it is."
    )


def _broker_version() -> str:
    """The package's, and the commit if this is a checkout; `+` after it: with changes."""
    told = version("diskless")
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return told
    changed = _git("status", "--porcelain", "--", *BROKER_PACKAGES)
    return f"{told} ({commit}{'+' if changed else ''})"


def _git(*arguments: str) -> str:
    """What git says of this repository; nothing where there is no git or no repository."""
    try:
        finished = subprocess.run(
            ["git", "-C", REPOSITORY, *arguments], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        return ""
    return finished.stdout.strip() if finished.returncode == 0 else ""


def _parser(suites: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description="Run the test suites of client libraries on brokers of this repository.",
    )
    for source in (LIBRDKAFKA, KAFKA_PYTHON):
        parser.add_argument(
            source.option, type=_path, metavar="PATH", help=f"a source of {source.home}"
        )
    parser.add_argument(
        "--suites", default="", metavar="NAME,…", help=f"of {', '.join(suites)}; default: all"
    )
    parser.add_argument(
        "--security",
        choices=("", PLAINTEXT, SASL_SSL),
        default="",
        help=f"of the brokers; default: {PLAINTEXT}",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="of each broker; more than 1: no page"
    )
    parser.add_argument(
        "--only", type=lambda text: text or None, metavar="PATTERN", help="a few tests, no page"
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="FACTOR", help="of the suites' timeouts"
    )
    return parser


def _path(text: str) -> Path | None:
    """An empty text is what make hands over for a variable that is not set."""
    return Path(text).expanduser() if text else None


if __name__ == "__main__":
    sys.exit(main())
