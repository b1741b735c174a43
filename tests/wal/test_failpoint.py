"""The table of failpoints has all that the code comes to, and no others."""

import re
from pathlib import Path

from tests.support.documented_failpoints import documented_failpoints

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("wal", "metadata", "tiering", "diskless")
REACHED = re.compile(r"\bfailpoint\(\s*\"([a-z_.]+)\"\s*\)")
OF_JOBS = {
    f"{job}.{place}_commit" for job in ("roll", "merge", "compact") for place in ("before", "after")
}
"""Their names are put together (tiering/rounds.py)."""


def test_every_failpoint_of_the_code_is_in_the_table() -> None:
    sources = [file for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py")]
    reached = {
        name
        for file in sources
        if file.name != "failpoint.py"
        for name in REACHED.findall(file.read_text(encoding="utf-8"))
    }
    assert reached | OF_JOBS == documented_failpoints()
