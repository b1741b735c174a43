"""docs/tables.md against the options and columns of the Spark source."""

import re
from pathlib import Path
from typing import Final

from tiering.source.columns import schema_of
from tiering.source.options import OPTIONS, SINK_OPTIONS
from tiering.source.planning import SHARE_BYTES

PAGE: Final = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")


def rows(heading: str) -> list[str]:
    section = PAGE.split(f"| {heading} |")[1].split("\n\n")[0]
    return re.findall(r"^\| (.+?) \|", section, re.MULTILINE)


def test_every_option_is_told_and_no_other() -> None:
    assert rows("option") == [f"`{name}`" for name in OPTIONS]


def test_every_option_of_a_write_is_told_and_no_other() -> None:
    assert rows("option of a write | |") == [f"`{name}`" for name in SINK_OPTIONS]


def test_every_column_is_told() -> None:
    assert re.findall(r"`(\w+)`", " ".join(rows("column"))) == schema_of(None).names


def test_limits_are_those_of_the_code() -> None:
    assert f"{SHARE_BYTES >> 20} MiB as stored" in PAGE


def test_what_is_written_has_a_chapter_of_its_own() -> None:
    chapter = PAGE.split("\n## Writing to a topic\n")[1].split("\n## ")[0]
    assert "| option of a write | | |" in chapter
    assert "\n### Exactly once\n" in chapter
