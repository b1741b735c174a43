"""docs/reports/conformance.md: one section per suite, rewritten by each run of that suite.

A page is an introduction, a summary with one row per suite, and the sections. A run that left a
suite out keeps that suite's row and section, byte for byte: `written` takes the page as it was, and
gives the page as it is to be. Sections lie between lines that are comments, `<!-- suite NAME -->`
and `<!-- end of NAME -->`, which no line of a section can look like.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.conformance.outcomes import Counts, Outcome, Result, count

WHY_MAX: Final = 300
"""Characters of a reason that the page shows; a suite's own message may be pages long."""

_INTRODUCTION: Final = """\
# Conformance: the clients' own test suites

Written by `make conformance`, which starts brokers on loopback and runs on them the suites by which
client libraries test themselves against Apache Kafka. Nothing of theirs is in this repository; give
the paths of their sources:

```
make conformance LIBRDKAFKA=/path/to/librdkafka KAFKA_PYTHON=/path/to/kafka-python
make conformance KAFKA_PYTHON=/path/to/kafka-python SUITES=kafka-python
make conformance KAFKA_PYTHON=/path/to/kafka-python SECURITY=sasl_ssl
make conformance KAFKA_PYTHON=/path/to/kafka-python ONLY='*test_group'   # leaves this page alone
```

A section of a suite that was not run stays as it was. What is not applicable and which failures are
known, and why, is written down in `tests/conformance/judgements_*.toml`; the command fails when a
test fails that is not listed there, and when a listed one passes.

- **passed**: as it is upstream, unchanged.
- **failed, ours**: the broker does something else than Apache Kafka does, and should not.
- **failed, theirs**: the test is wrong, or asks for what only one implementation can give.
- **not applicable**: it is about something that no Diskless broker claims to do yet.
"""

_SUMMARY_HEAD: Final = """\
| suite | version | broker | passed | failed, ours | failed, theirs | not judged | not applicable |
|---|---|---|---|---|---|---|---|"""

_ROW: Final = re.compile(r"^\| \[.*\]\(#(?P<name>[a-z0-9-]+)\) \|.*$", re.MULTILINE)
_SECTION: Final = re.compile(
    r"^<!-- suite (?P<name>[a-z0-9-]+) -->\n(?P<body>.*?)^<!-- end of (?P=name) -->\n",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one run of one suite has to tell."""

    name: str
    """Letters, digits and dashes."""
    title: str
    how: str
    version: str
    broker: str
    outcomes: Sequence[Outcome]


def written(page: str, sections: Sequence[Section], order: Sequence[str]) -> str:
    """`page` with `sections` in place of those of the same names; `order` has every suite's name.

    `page` may be empty. A section of it whose name is not in `order` is dropped.
    """
    rows = {found["name"]: found[0] for found in _ROW.finditer(page)}
    bodies = {found["name"]: found[0] for found in _SECTION.finditer(page)}
    for section in sections:
        rows[section.name] = _row(section)
        bodies[section.name] = _body(section)
    present = [name for name in order if name in rows and name in bodies]
    summary = "\n".join([_SUMMARY_HEAD, *(rows[name] for name in present)])
    return "\n".join([_INTRODUCTION, summary + "\n", *(bodies[name] for name in present)])


def in_a_cell(text: str, length_max: int = WHY_MAX) -> str:
    """`text` as one cell of a table: one line, nothing in it that Markdown or HTML would take up.

    Shortened in the middle when it is longer than `length_max` characters.
    """
    line = " ".join(text.split())
    if len(line) > length_max:
        head = length_max * 2 // 3
        line = f"{line[:head].rstrip()} … {line[len(line) - (length_max - head) :].lstrip()}"
    for special in "\\|<>*_[]":
        line = line.replace(special, "\\" + special)
    return line


def _row(section: Section) -> str:
    numbers = count(section.outcomes)
    cells = [
        f"[{section.title}](#{section.name})",
        in_a_cell(section.version),
        in_a_cell(section.broker),
        *map(str, _numbers(numbers)),
    ]
    return f"| {' | '.join(cells)} |"


def _numbers(counts: Counts) -> tuple[int, ...]:
    return (
        counts.passed,
        counts.failed_ours,
        counts.failed_theirs,
        counts.failed_not_judged,
        counts.not_applicable,
    )


def _body(section: Section) -> str:
    lines = [
        f"<!-- suite {section.name} -->",
        f'<a id="{section.name}"></a>',
        "",
        f"## {section.title}",
        "",
        section.how,
        "",
        "| test | result | why |",
        "|---|---|---|",
        *(_test(outcome) for outcome in section.outcomes),
        "",
        f"<!-- end of {section.name} -->",
        "",
    ]
    return "\n".join(lines)


def _test(outcome: Outcome) -> str:
    result = str(outcome.result)
    if outcome.result is Result.FAILED:
        result = f"**failed, {outcome.whose}**"
    return f"| {_code(outcome.test)} | {result} | {in_a_cell(outcome.why)} |"


def _code(name: str) -> str:
    return "`" + name.replace("|", "\\|").replace("`", "'") + "`"
