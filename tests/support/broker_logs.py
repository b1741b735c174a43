"""The last lines of every broker's log below `tmp_path`, in the report of a test that failed.

Registered as a pytest plugin in `tests/conftest.py`.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

LINES: Final = 40
LINE_LENGTH_MAX: Final = 400


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(directory, Path):
        for log in sorted(directory.rglob("broker.log")):
            lines = log.read_text(errors="replace").splitlines()[-LINES:]
            text = "\n".join(line[:LINE_LENGTH_MAX] for line in lines)
            report.sections.append((f"the end of {log.relative_to(directory)}", text))
    return report
