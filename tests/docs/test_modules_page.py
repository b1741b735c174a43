"""docs/modules.md names every module there is, and none that is not."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("diskless", "tiering", "metadata", "wal")


def test_the_page_has_every_module_once() -> None:
    page = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    told = re.findall(r"`((?:diskless|tiering|metadata|wal)/[\w/]+\.py)`", page)
    modules = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and path.parent.name != "api"
    ]
    assert sorted(told) == sorted(modules)
