"""docs/coordinator-api.md against the KIP's schemas, the codecs and the table of errors."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.api.coordinator.diskless_find_batches import EXTENTS_MAX
from metadata.messages.access_tokens import (
    ALTER_ACCESS_TOKENS,
    ALTER_ACCESS_TOKENS_HERE,
    LIST_ACCESS_TOKENS,
    TOKENS_BETWEEN_BROKERS,
)
from metadata.messages.brokers import BETWEEN_BROKERS, OF_A_TIERING_JOB
from metadata.messages.codec import ENTRIES_MAX
from metadata.messages.coordinator import OF_THE_KIP
from metadata.messages.errors import COORDINATOR_CODES
from metadata.messages.feeds import FEEDS_BETWEEN_BROKERS
from metadata.messages.readers import OF_A_READER, READ_EXTENTS, READ_OFFSETS, READ_TOPIC
from metadata.messages.sinks import SINKS_BETWEEN_BROKERS, SINKS_OF_A_DRIVER
from metadata.messages.tables import TABLES_BETWEEN_BROKERS, TABLES_OF_A_TIERING_JOB
from metadata.messages.transactions import (
    ABORT_TRANSACTIONS,
    LIST_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
    TRANSACTIONS_BETWEEN_BROKERS,
)
from tests.support.profiles import examples
from tests.support.samples.coordinator_samples import SAMPLES, Samples, draw_answers
from tests.support.wire.kip_1164_schemas import (
    SCHEMAS,
    Field,
    Schemas,
    decode,
    encode,
    parse_schemas,
)
from wal.errors import CommitOutcomeUnknown, DisklessError, Rejected

PAGE: Final = (Path(__file__).parents[2] / "docs" / "coordinator-api.md").read_text("utf-8")

LAYOUTS: Final[Schemas] = {
    title: fields
    for block in re.findall(r"```text\n(\d.*?)```", PAGE, re.DOTALL)
    for title, fields in parse_schemas(block).items()
}


def without_ours(fields: Sequence[Field]) -> list[Field]:
    return [
        field._replace(children=without_ours(field.children))
        for field in fields
        if field.tag is None or field.tag < 10_000
    ]


def test_the_kips_messages_are_those_of_the_kip() -> None:
    told = {title: without_ours(fields) for title, fields in LAYOUTS.items() if title in SCHEMAS}
    assert told == SCHEMAS


def test_every_operation_has_a_sample() -> None:
    rows = (
        *OF_THE_KIP,
        *BETWEEN_BROKERS,
        *TABLES_BETWEEN_BROKERS,
        READ_TOPIC,
        *SINKS_BETWEEN_BROKERS,
        *SINKS_OF_A_DRIVER,
        *TOKENS_BETWEEN_BROKERS,
        LIST_ACCESS_TOKENS,
        *TRANSACTIONS_BETWEEN_BROKERS,
        ABORT_TRANSACTIONS,
        *FEEDS_BETWEEN_BROKERS,
    )
    assert {operation.name for operation in rows} == set(SAMPLES)
    assert len({operation.key for operation in rows}) == len(rows)


def test_the_operations_of_a_tiering_job_are_on_the_page() -> None:
    for operation in (*OF_A_TIERING_JOB, *TABLES_OF_A_TIERING_JOB):
        assert f"**{operation.name}** ({operation.key})" in PAGE
        here = SAMPLES[f"Coordinator{operation.name}Here"].operation
        assert (operation.request, operation.answers) == (here.request, here.answers)


def test_the_operations_of_a_reader_are_on_the_page() -> None:
    for operation in OF_A_READER:
        assert f"**{operation.name}**" in PAGE
    for operation in (READ_EXTENTS, READ_OFFSETS):
        assert f"**{operation.name}** ({operation.key})" in PAGE


def test_the_operations_about_tokens_are_on_the_page() -> None:
    for operation in (ALTER_ACCESS_TOKENS, LIST_ACCESS_TOKENS):
        assert f"**{operation.name}**" in PAGE
    here = ALTER_ACCESS_TOKENS_HERE
    assert (ALTER_ACCESS_TOKENS.request, ALTER_ACCESS_TOKENS.answers) == (
        here.request,
        here.answers,
    )


def test_the_list_of_transactions_for_commands_is_on_the_page() -> None:
    assert f"**{LIST_TRANSACTIONS.name}** ({LIST_TRANSACTIONS.key})" in PAGE
    here = LIST_TRANSACTIONS_HERE
    assert (LIST_TRANSACTIONS.request, LIST_TRANSACTIONS.answers) == (here.request, here.answers)


def test_every_operation_is_on_the_page_and_no_other() -> None:
    assert set(LAYOUTS) == {
        f"{samples.operation.key} {name} {kind}"
        for name, samples in SAMPLES.items()
        for kind in ("request", "response")
    }


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
@given(data=st.data())
@examples(0.15)
def test_messages_read_and_write_by_the_page_alone(samples: Samples, data: st.DataObject) -> None:
    operation = samples.operation
    request = data.draw(samples.requests)
    title = f"{operation.key} {operation.name}"
    body = operation.encode_request(request, 4_321)
    values = decode(LAYOUTS[f"{title} request"], body)
    assert values["TimeoutMs"] == 4_321
    assert encode(LAYOUTS[f"{title} request"], values) == body
    body = operation.encode_response(request, draw_answers(data, samples, request))
    values = decode(LAYOUTS[f"{title} response"], body)
    assert values["ThrottleTimeMs"] == 0
    assert encode(LAYOUTS[f"{title} response"], values) == body


def test_the_page_has_every_code() -> None:
    rows = re.findall(r"^\| (-?\d+) \| `(\w+)` \| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert rows == [
        (str(row.code), row.name, row.kind.__name__, _happened(row.kind))
        for row in COORDINATOR_CODES
    ]


def _happened(kind: type[DisklessError]) -> str:
    return "perhaps" if kind in (DisklessError, CommitOutcomeUnknown) else "no"


def test_what_is_refused_for_good_is_to_be_given_up() -> None:
    for row in COORDINATOR_CODES:
        (advice,) = re.findall(rf"^\| {row.code} \|.*\| (.+) \|$", PAGE, re.MULTILINE)
        assert ("give up" in advice) == issubclass(row.kind, Rejected)


def test_limits_are_those_of_the_code() -> None:
    assert f"{ENTRIES_MAX:,} entries" in PAGE
    assert f"At most {EXTENTS_MAX:,} batches" in PAGE
