"""docs/reports/conformance.md as a run writes it: what it keeps, and no message can break it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.__main__ import PAGE, SUITES
from tests.conformance.outcomes import Outcome, Result, Whose
from tests.conformance.page import WHY_MAX, Section, in_a_cell, written

ORDER = ("one", "two", "three")


def a_section(name: str, *outcomes: Outcome, version: str = "1.0") -> Section:
    return Section(
        name=name,
        title=f"Suite {name}",
        how="By hand.",
        version=version,
        broker="0.1.0 (abc)",
        outcomes=outcomes or (Outcome(suite=name, test="t", result=Result.PASSED),),
    )


def headings(page: str) -> list[str]:
    return re.findall(r"^## (.*)$", page, re.MULTILINE)


def test_a_page_has_a_row_for_each_suite_and_a_row_for_each_test() -> None:
    page = written(
        "",
        [
            a_section(
                "two",
                Outcome(suite="two", test="a[x|y]", result=Result.PASSED),
                Outcome(
                    suite="two", test="b", result=Result.FAILED, why="late", whose=Whose.THEIRS
                ),
                Outcome(suite="two", test="c", result=Result.NOT_APPLICABLE, why="no ACLs"),
            )
        ],
        ORDER,
    )
    assert "| [Suite two](#two) | 1.0 | 0.1.0 (abc) | 1 | 0 | 1 | 0 | 1 |" in page
    assert "| `a[x\\|y]` | passed |  |" in page
    assert "| `b` | **failed, theirs** | late |" in page
    assert "| `c` | not applicable | no ACLs |" in page


def test_sections_of_suites_that_were_not_run_stay_and_all_are_in_order() -> None:
    first = written("", [a_section("three"), a_section("one")], ORDER)
    assert headings(first) == ["Suite one", "Suite three"]
    second = written(first, [a_section("two"), a_section("three", version="2.0")], ORDER)
    assert headings(second) == ["Suite one", "Suite two", "Suite three"]
    assert re.findall(r"\| (\d\.0) \|", second) == ["1.0", "1.0", "2.0"]
    kept = first[first.index("<!-- suite one -->") : first.index("<!-- suite three -->")]
    assert kept in second


def test_a_page_that_is_written_again_is_the_same() -> None:
    page = written("", [a_section(name) for name in ORDER], ORDER)
    assert written(page, [], ORDER) == page
    assert written(page, [a_section("two")], ORDER) == page


def test_the_section_of_a_suite_that_is_no_more_is_dropped() -> None:
    page = written("", [a_section(name) for name in ORDER], ORDER)
    assert headings(written(page, [], ["two"])) == ["Suite two"]


@pytest.mark.parametrize("text", ["", "short", "x" * WHY_MAX])
def test_a_reason_that_fits_is_whole(text: str) -> None:
    assert in_a_cell(text) == text


def test_of_a_long_message_both_ends_are_shown() -> None:
    shown = in_a_cell("begin " + "x" * 10 * WHY_MAX + " end")
    assert shown.startswith("begin x")
    assert shown.endswith("x end")
    assert " … " in shown
    assert len(shown) <= WHY_MAX + 3


@given(st.lists(st.text(max_size=400), max_size=4))
def test_no_message_breaks_the_page(messages: list[str]) -> None:
    messages += ["<!-- end of one -->\n## not a heading", "a | b\n| c | d |", "`", "\\|"]
    outcomes = [
        Outcome(suite="one", test=f"t{number}", result=Result.FAILED, why=why)
        for number, why in enumerate(messages)
    ]
    page = written("", [a_section("one", *outcomes), a_section("two")], ORDER)
    assert headings(page) == ["Suite one", "Suite two"]
    rows = [line for line in page.split("\n") if line.startswith("| `t")]
    assert len(rows) == len(messages) + 1
    for row in rows:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 4, row
    assert written(page, [], ORDER) == page


def test_the_page_in_the_repository_is_what_a_run_without_suites_would_leave() -> None:
    page = Path(PAGE).read_text(encoding="utf-8")
    assert written(page, [], list(SUITES)) == page
    assert f"**failed, {Whose.UNKNOWN}**" not in page, "judge it, or mend it"
