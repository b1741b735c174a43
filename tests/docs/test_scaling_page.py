"""docs/scaling.md is what scripts/scaling prints."""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def test_the_page_is_what_the_script_prints() -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "scaling")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    page = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    assert page == printed, "run `scripts/scaling > docs/scaling.md`"
