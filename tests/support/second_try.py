"""A second try for tests that live in real time, at most three in a run, each named at its end.

A test that drives stock clients, processes or servers depends on what else the machine does. One of
several thousand that fails and then passes says little about the change that is tested, so it does
not fail the run; the run names it, and it is mended at its root. More than three fail the run.

No second try: unit tests, and long ones like them (`is_steady`), without a running broker
(`LiveBroker`), which have no real time in them; tests that crash a broker, which promise that
nothing is lost, ever; random searches, whose finding is a bug the first time.
"""

from collections.abc import Sequence
from typing import Final

import pytest

from tests.support.unit_tests import is_steady

MOST: Final = 3
PAUSE_S: Final = 10
"""Whatever took the machine may be over then."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _may_have_one(item):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=PAUSE_S))


def _may_have_one(item: pytest.Item) -> bool:
    is_search = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    marks = {mark.name for mark in item.iter_markers()}
    in_real_time = not is_steady(item) or "LiveBroker" in vars(getattr(item, "module", item))
    return in_real_time and not is_search and "crash" not in marks


def _unsteady(reporter: pytest.TerminalReporter) -> Sequence[str]:
    return sorted({report.nodeid for report in reporter.stats.get("rerun", ())})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(_unsteady(reporter)) > MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each of them, with the failure of its first try."""
    names = _unsteady(terminalreporter)
    if not names:
        return
    terminalreporter.section("tests that needed a second try: mend them", yellow=True)
    for report in terminalreporter.stats["rerun"]:
        terminalreporter.line(f"{report.nodeid} ({report.when})")
        terminalreporter.line(report.longreprtext)
        for title, text in report.sections:
            if title.startswith("the end of "):  # tests/support/broker_logs.py
                terminalreporter.line(f"{title}:\n{text}")
    if len(names) > MOST:
        terminalreporter.line(f"{len(names)} of them; at most {MOST} are allowed", red=True)
