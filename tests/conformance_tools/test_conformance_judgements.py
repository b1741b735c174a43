"""What is expected of other people's tests: reading it, and holding outcomes against it."""

from pathlib import Path

import pytest

from tests.conformance import judgements as module
from tests.conformance.judgements import InvalidJudgements, Judgements
from tests.conformance.outcomes import Counts, Outcome, Result, Whose, count
from tests.conformance.suites import SuiteRun

JUDGED = """
[[judgement]]
tests = ["sasl::*", "tls"]
verdict = "not applicable"
why = "no authentication"

[[judgement]]
tests = ["clock"]
verdict = "known failure"
whose = "theirs"
why = "compares local with universal time"

[[judgement]]
tests = ["race"]
verdict = "known failure"
whose = "ours"
sometimes = true
why = "answers too early"

[[judgement]]
tests = ["new_groups"]
suites = ["other"]
verdict = "not applicable"
why = "not of this suite"
"""


def read(path: Path, text: str, suite: str = "suite") -> Judgements:
    file = path / "judgements.toml"
    file.write_text(text)
    return Judgements.read(file, suite)


@pytest.fixture
def judgements(tmp_path: Path) -> Judgements:
    return read(tmp_path, JUDGED)


def an_outcome(test: str, result: Result, why: str = "") -> Outcome:
    return Outcome(suite="suite", test=test, result=result, why=why)


def test_what_is_not_applicable_is_not_run(judgements: Judgements) -> None:
    assert not judgements.is_applicable("sasl::plain")
    assert not judgements.is_applicable("tls")
    assert judgements.is_applicable("tls2")
    assert judgements.is_applicable("clock")


def test_a_judgement_can_be_about_some_suites_only(tmp_path: Path, judgements: Judgements) -> None:
    assert judgements.is_applicable("new_groups")
    assert not read(tmp_path, JUDGED, "other").is_applicable("new_groups")


def test_a_judgement_can_be_about_one_way_to_connect(tmp_path: Path) -> None:
    file = tmp_path / "judgements.toml"
    file.write_text(
        '[[judgement]]\ntests = ["acl"]\nsecurity = "plaintext"\n'
        'verdict = "not applicable"\nwhy = "no rules"\n'
    )
    assert not Judgements.read(file, "any").is_applicable("acl")
    assert Judgements.read(file, "any", security="sasl_ssl").is_applicable("acl")


def test_our_reason_goes_before_that_of_the_suite(judgements: Judgements) -> None:
    judged = judgements.judged(an_outcome("clock", Result.FAILED, "assert 1 == 2"))
    assert (judged.whose, judged.why) == (Whose.THEIRS, "compares local with universal time")
    judged = judgements.judged(an_outcome("sasl::x", Result.NOT_APPLICABLE, "skipped"))
    assert (judged.whose, judged.why) == (Whose.NOBODYS, "no authentication")


def test_a_failure_that_nobody_judged_keeps_the_suites_message(judgements: Judgements) -> None:
    judged = judgements.judged(an_outcome("group", Result.FAILED, "assert 1 == 2"))
    assert (judged.whose, judged.why) == (Whose.UNKNOWN, "assert 1 == 2")


def test_a_run_as_expected_has_no_surprises(judgements: Judgements) -> None:
    for race in (Result.FAILED, Result.PASSED):
        outcomes = [
            an_outcome("sasl::plain", Result.NOT_APPLICABLE),
            an_outcome("tls", Result.NOT_APPLICABLE),
            an_outcome("clock", Result.FAILED),
            an_outcome("race", race),
            an_outcome("group", Result.PASSED),
        ]
        assert judgements.surprises(map(judgements.judged, outcomes)) == []


def test_surprises_are_new_failures_listed_passes_and_patterns_without_a_test(
    judgements: Judgements,
) -> None:
    outcomes = [
        an_outcome("sasl::plain", Result.NOT_APPLICABLE),
        an_outcome("clock", Result.PASSED),
        an_outcome("race", Result.FAILED),
        an_outcome("group", Result.FAILED),
    ]
    assert judgements.surprises(map(judgements.judged, outcomes)) == [
        "suite: clock is a known failure, but passed",
        "suite: group failed, and is no known failure",
        "the pattern 'tls' fits no test",
    ]


def test_outcomes_are_counted_by_result_and_by_whose_fault_they_are(
    judgements: Judgements,
) -> None:
    failed = [an_outcome(name, Result.FAILED) for name in ("clock", "race", "group", "sasl::x")]
    passed = [an_outcome(name, Result.PASSED) for name in ("clock", "group")]
    assert count(map(judgements.judged, [*failed, *passed])) == Counts(
        passed=2, failed_ours=1, failed_theirs=1, failed_not_judged=1, not_applicable=1
    )


def test_a_run_reports_what_is_not_applicable_and_hands_out_the_rest(
    judgements: Judgements,
) -> None:
    shown: list[tuple[str, float | None]] = []
    run = SuiteRun(
        suite="suite",
        bootstrap="nowhere",
        work=Path(),
        judgements=judgements,
        is_wanted=lambda test: test != "unwanted",
        progress=lambda outcome, seconds: shown.append((outcome.test, seconds)),
    )
    assert run.choose(["group", "tls", "unwanted", "clock"]) == ["group", "clock"]
    run.report("clock", Result.FAILED, "at noon", seconds=1.5)
    assert [(one.test, one.result, one.whose) for one in run.outcomes] == [
        ("tls", Result.NOT_APPLICABLE, Whose.NOBODYS),
        ("clock", Result.FAILED, Whose.THEIRS),
    ]
    assert shown == [("tls", None), ("clock", 1.5)]


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("[[judgement", "Expected"),
        ("[[judgment]]", "unknown key 'judgment'"),
        ('[[judgement]]\ntests = ["a"]\nverdict = "known failure"\nwhose = "ours"', "`why`"),
        ('[[judgement]]\ntests = ["a"]\nverdict = "gone"\nwhy = "x"', "not applicable"),
        ('[[judgement]]\ntests = []\nverdict = "not applicable"\nwhy = "x"', "`tests`"),
        ('[[judgement]]\ntests = "a"\nverdict = "not applicable"\nwhy = "x"', "`tests`"),
        ('[[judgement]]\ntests = ["a"]\nverdict = "known failure"\nwhy = "x"', "`whose`"),
        (
            '[[judgement]]\ntests = ["a"]\nverdict = "not applicable"\nwhose = "ours"\nwhy = "x"',
            "known failures only",
        ),
        (
            '[[judgement]]\ntests = ["a"]\nverdict = "known failure"\nwhose = "ours"\nwhy = "x"\n'
            'sometimes = "yes"',
            "`sometimes`",
        ),
        (
            '[[judgement]]\ntests = ["a"]\nverdict = "not applicable"\nwhy = "x"\nwhat = 1',
            "unknown key 'what'",
        ),
        ("judgement = [1]", "no table"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, trouble: str) -> None:
    with pytest.raises(InvalidJudgements, match=trouble):
        read(tmp_path, text)


def test_the_judgements_of_every_suite_can_be_read() -> None:
    files = sorted(Path(module.__file__).parent.glob("judgements_*.toml"))
    assert files
    for file in files:
        assert Judgements.read(file, "any").entries, file.name
