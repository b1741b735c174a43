"""A pytest plugin for somebody else's test run: tells a pipe what happens, one JSON line each.

It is loaded by the Python of the suite's own environment (`-p conformance_events`, this directory
on PYTHONPATH), so it imports nothing but the standard library and pytest. Lines:

    {"event": "collected", "test": "dir/test_x.py::test_y[1]"}       one for each test, first
    {"event": "started", "test": ...}
    {"event": "ended", "test": ..., "result": "passed", "why": "", "seconds": 1.25}

The result is passed, failed or skipped.

A report file that is written at the end would be lost with a run that dies in the middle.
`CONFORMANCE_EVENTS` is the number of the pipe's descriptor.
"""

import json
import os

import pytest


class Events:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._failed: dict[str, str] = {}
        self._skipped: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._tell(event="collected", test=item.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell(event="started", test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of set-up, call and tear-down; the first that failed is what counts."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            phase = "" if report.when == "call" else f"in {report.when}: "
            self._failed.setdefault(report.nodeid, phase + _message(report))
        elif report.skipped:
            self._skipped[report.nodeid] = _message(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        result, why = "passed", ""
        if nodeid in self._failed:
            result, why = "failed", self._failed[nodeid]
        elif nodeid in self._skipped:
            result, why = "skipped", self._skipped[nodeid]
        self._tell(
            event="ended", test=nodeid, result=result, why=why, seconds=self._seconds.get(nodeid)
        )

    def _tell(self, **line: object) -> None:
        # One write per line, and at once: whoever reads it must not wait for the end of the run.
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def _message(report: pytest.TestReport) -> str:
    """What went wrong, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    descriptor = os.environ.get("CONFORMANCE_EVENTS")
    if descriptor is not None:
        config.pluginmanager.register(Events(int(descriptor)), "conformance-events")
