"""What a test of somebody else's suite came to, and what that says about a broker of ours."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """`NOT_APPLICABLE`: the test asks for something that no broker of ours claims to do."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Whose(StrEnum):
    """Whose fault a failure is. `NOBODYS`: nothing failed. `UNKNOWN`: nobody has judged it yet."""

    OURS = "ours"
    THEIRS = "theirs"
    UNKNOWN = "not judged"
    NOBODYS = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One test, one row of the page.

    `why` is empty only for a test that simply passed; it may be any text, of several lines too, as
    the page and the screen shorten it.
    """

    suite: str
    test: str
    result: Result
    why: str = ""
    whose: Whose = Whose.NOBODYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """One row of a summary."""

    passed: int
    failed_ours: int
    failed_theirs: int
    failed_not_judged: int
    not_applicable: int


def count(outcomes: Iterable[Outcome]) -> Counts:
    """How many of each kind."""
    numbers = Counter((outcome.result, outcome.whose) for outcome in outcomes)
    results = Counter(dict.fromkeys(Result, 0))
    for (result, _), number in numbers.items():
        results[result] += number
    return Counts(
        passed=results[Result.PASSED],
        failed_ours=numbers[Result.FAILED, Whose.OURS],
        failed_theirs=numbers[Result.FAILED, Whose.THEIRS],
        failed_not_judged=numbers[Result.FAILED, Whose.UNKNOWN],
        not_applicable=results[Result.NOT_APPLICABLE],
    )
