"""docs/tables.md against the options and columns of the Spark source."""

import re
from pathlib import Path
from typing import Final

from tiering.source.columns import schema_of
from tiering.source.options import OPTIONS, SINK_OPTIONS
from tiering.source.planning import SHARE_BYTES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tables.md").read_text("utf-8")


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


def test_what_can_be_seen_is_on_the_page_and_has_a_test_that_is_there() -> None:
    section = PAGE.split("\n## What there is, and how to see it\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| .+ \| `(.+)` \| `(tests/.+?\.py)::(\w+)` \|$", section, re.MULTILINE)
    assert len(found) == section.count("\n|") - 2 >= 8
    rest = PAGE.replace(section, "")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for command, path, name in found:
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}:" in makefile
        else:
            blocks = "".join(re.findall(r"```\w+\n(.*?)```", rest, re.DOTALL))
            assert command in blocks.replace(" \\\n", " "), command
        test = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^(async )?def {name}\(", test, re.MULTILINE), f"{path}::{name}"
