"""What is expected of the tests of one suite: a TOML file beside this module, read once per run.

    [[judgement]]
    tests = ["test_sasl_integration.py::*"]     # shell patterns (`*`, `?`, `[!x]`) of whole names
    verdict = "not applicable"                  # then it is not run
    why = "SASL: there is no authentication yet"

    [[judgement]]
    tests = ["0045_subscribe_mock"]
    verdict = "known failure"                   # run, and expected to fail
    whose = "theirs"                            # or "ours"
    sometimes = true                            # it may pass as well; false unless it is said
    suites = ["librdkafka-consumer"]            # all that read the file unless it is said
    security = "plaintext"                      # of the broker: any unless it is said
    why = "asks a mock cluster that only builds with ..."

The first judgement with a pattern that fits a test is the one that holds. A pattern's `[` has to be
written `[[]`, which matters for the names of parametrised tests.

A run is as expected when every failure is a known one, every known failure failed (those of
`sometimes` apart) and every pattern fits a test; `surprises` tells what was otherwise, one sentence
each. Without the last rule, judgements of tests that were renamed would stay for ever.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from tests.conformance.outcomes import Outcome, Result, Whose

PLAINTEXT: Final = "plaintext"

_KEYS: Final = frozenset({"tests", "suites", "verdict", "whose", "sometimes", "why", "security"})


class InvalidJudgements(Exception):
    """The file does not make sense; the message says where."""


class Verdict(StrEnum):
    NOT_APPLICABLE = "not applicable"
    KNOWN_FAILURE = "known failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One entry of the file. `whose` is NOBODYS exactly for what is not applicable."""

    patterns: Sequence[str]
    verdict: Verdict
    why: str
    whose: Whose = Whose.NOBODYS
    sometimes: bool = False
    suites: frozenset[str] = frozenset()
    """Empty: all suites."""
    security: str = ""
    """Of the broker that it is about; empty: any."""

    def fits(self, test: str) -> bool:
        return any(fnmatchcase(test, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """The judgements of one suite, in the order of the file."""

    entries: Sequence[Judgement] = ()

    @classmethod
    def read(cls, path: Path, suite: str, *, security: str = PLAINTEXT) -> Self:
        """Those of `path` that are about `suite`, on such a broker. Raises InvalidJudgements."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise InvalidJudgements(f"{path.name}: {error}") from error
        if surplus := content.keys() - {"judgement"}:
            raise InvalidJudgements(f"{path.name}: unknown key {sorted(surplus)[0]!r}")
        entries = [
            _entry(entry, f"{path.name}, judgement {number}")
            for number, entry in enumerate(content.get("judgement", []), start=1)
        ]
        return cls(
            entries=tuple(
                one
                for one in entries
                if (not one.suites or suite in one.suites)
                and (not one.security or one.security == security)
            )
        )

    def of(self, test: str) -> Judgement | None:
        """The one that holds for `test`."""
        return next((entry for entry in self.entries if entry.fits(test)), None)

    def is_applicable(self, test: str) -> bool:
        """Whether `test` is worth running."""
        judgement = self.of(test)
        return judgement is None or judgement.verdict is not Verdict.NOT_APPLICABLE

    def judged(self, outcome: Outcome) -> Outcome:
        """What to tell of `outcome`, as the suite reported it: our reason before the suite's."""
        judgement = self.of(outcome.test)
        if judgement is not None and judgement.verdict is Verdict.NOT_APPLICABLE:
            return replace(
                outcome, result=Result.NOT_APPLICABLE, why=judgement.why, whose=Whose.NOBODYS
            )
        if outcome.result is not Result.FAILED:
            return replace(outcome, whose=Whose.NOBODYS)
        if judgement is None:
            return replace(outcome, whose=Whose.UNKNOWN)
        return replace(outcome, why=judgement.why, whose=judgement.whose)

    def surprise(self, outcome: Outcome) -> str | None:
        """What is unexpected of one judged outcome, as a sentence."""
        judgement = self.of(outcome.test)
        is_known = judgement is not None and judgement.verdict is Verdict.KNOWN_FAILURE
        if outcome.result is Result.FAILED and not is_known:
            return f"{outcome.suite}: {outcome.test} failed, and is no known failure"
        if (
            judgement is not None
            and is_known
            and not judgement.sometimes
            and outcome.result is not Result.FAILED
        ):
            return f"{outcome.suite}: {outcome.test} is a known failure, but {outcome.result}"
        return None

    def surprises(self, outcomes: Iterable[Outcome]) -> list[str]:
        """What is unexpected of all outcomes of a whole suite."""
        all_of_them = list(outcomes)
        found = [told for outcome in all_of_them if (told := self.surprise(outcome)) is not None]
        for entry in self.entries:
            for pattern in entry.patterns:
                if not any(fnmatchcase(outcome.test, pattern) for outcome in all_of_them):
                    found.append(f"the pattern {pattern!r} fits no test")
        return found


def _entry(entry: Any, where: str) -> Judgement:
    if not isinstance(entry, dict):
        raise InvalidJudgements(f"{where}: it is no table")
    if surplus := entry.keys() - _KEYS:
        raise InvalidJudgements(f"{where}: unknown key {sorted(surplus)[0]!r}")
    tests, suites = (_texts(entry, key, where) for key in ("tests", "suites"))
    if not tests:
        raise InvalidJudgements(f"{where}: `tests` has to be a list of patterns")
    security = entry.get("security", "")
    if not isinstance(security, str):
        raise InvalidJudgements(f"{where}: `security` has to be a text")
    why = entry.get("why")
    if not isinstance(why, str) or not why.strip():
        raise InvalidJudgements(f"{where}: `why` has to say why")
    sometimes = entry.get("sometimes", False)
    if not isinstance(sometimes, bool):
        raise InvalidJudgements(f"{where}: `sometimes` has to be true or false")
    try:
        verdict = Verdict(entry.get("verdict", ""))
    except ValueError:
        raise InvalidJudgements(f"{where}: `verdict` has to be one of {_listed(Verdict)}") from None
    if verdict is Verdict.NOT_APPLICABLE:
        if "whose" in entry or "sometimes" in entry:
            raise InvalidJudgements(
                f"{where}: `whose` and `sometimes` are said of known failures only"
            )
        return Judgement(
            patterns=tests,
            verdict=verdict,
            why=why.strip(),
            suites=frozenset(suites),
            security=security,
        )
    if entry.get("whose") not in (Whose.OURS, Whose.THEIRS):
        raise InvalidJudgements(f"{where}: `whose` has to be 'ours' or 'theirs'")
    return Judgement(
        patterns=tests,
        verdict=verdict,
        why=why.strip(),
        whose=Whose(entry["whose"]),
        sometimes=sometimes,
        suites=frozenset(suites),
        security=security,
    )


def _texts(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    texts = entry.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidJudgements(f"{where}: `{key}` has to be a list of texts")
    return tuple(texts)


def _listed(kinds: type[StrEnum]) -> str:
    return ", ".join(repr(str(kind)) for kind in kinds)
