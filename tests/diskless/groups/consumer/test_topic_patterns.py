"""Topics by pattern: RE2's dialect, whole names, within limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.api.errors import kafka_code
from diskless.groups.consumer.topic_patterns import PATTERN_LENGTH_MAX, PatternsInUse, TopicPattern
from diskless.groups.errors import InvalidRegularExpression

NAMES = ("orders", "orders-eu", "orders.v1", "my-orders", "payments", "o")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu", "orders.v1"}),
        (r"orders\..*", {"orders.v1"}),
        ("o|payments", {"o", "payments"}),
        ("^orders$", {"orders"}),
        ("(?i)ORDERS-[a-z]{2}", {"orders-eu"}),
        (r"[[:alpha:]]+", {"orders", "payments", "o"}),
        (r"\w+-\w+", {"orders-eu", "my-orders"}),
        (".*", set(NAMES)),
        ("", set()),
    ],
)
def test_a_pattern_is_for_whole_names(pattern: str, expected: set[str]) -> None:
    assert TopicPattern(pattern).matching(NAMES) == expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(", "missing )"),
        ("*", "no argument for repetition"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("(([a-z]{30}){30}){30}", "invalid repetition size"),
        (r"\p{L}{1000}", "too large"),
        ("x" * (PATTERN_LENGTH_MAX + 1), "longer than"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRegularExpression, match=r"pattern '.{0,101}': ") as refused:
        TopicPattern(pattern)
    assert reason in str(refused.value)
    assert kafka_code(refused.value) == 128


@given(st.text(max_size=30), st.lists(st.text(max_size=10), max_size=5))
def test_any_text_is_a_pattern_or_is_refused(pattern: str, names: list[str]) -> None:
    try:
        compiled = TopicPattern(pattern)
    except InvalidRegularExpression:
        return
    assert compiled.matching(names) <= set(names)


def test_a_pattern_that_would_backtrack_for_ever_answers() -> None:
    assert TopicPattern("(a*)*b").matching(["a" * 249]) == frozenset()


def test_names_are_matched_in_steps_and_only_once() -> None:
    pattern = TopicPattern("orders.*")
    names = {*NAMES}
    assert len([*pattern.match(names)]) == len(NAMES)
    assert [*pattern.match(names)] == []
    assert len([*pattern.match(names | {"orders-us"})]) == 1
    assert pattern.matching(names | {"orders-us"}) == {
        "orders",
        "orders-eu",
        "orders.v1",
        "orders-us",
    }


def test_matching_that_is_given_up_in_the_middle_goes_on_later() -> None:
    pattern = TopicPattern("orders.*")
    steps = pattern.match({*NAMES})
    next(steps)
    steps.close()
    assert len([*pattern.match({*NAMES})]) == len(NAMES) - 1
    assert pattern.matching(NAMES) == {"orders", "orders-eu", "orders.v1"}


def test_a_name_that_is_gone_is_not_matched_and_may_come_back() -> None:
    pattern = TopicPattern("orders.*")
    assert pattern.matching(NAMES) == {"orders", "orders-eu", "orders.v1"}
    assert pattern.matching(["orders"]) == {"orders"}
    assert pattern.matching(NAMES) == {"orders", "orders-eu", "orders.v1"}


def test_a_pattern_is_there_once_while_somebody_uses_it() -> None:
    patterns = PatternsInUse()
    used = patterns.get("a.*")
    [*used.match({"ab"})]
    assert patterns.get("a.*") is used
    del used
    assert len([*patterns.get("a.*").match({"ab"})]) == 1
