"""Errors as codes between brokers: every class comes back, and none becomes more than it was."""

import pytest

from metadata.messages.errors import (
    COORDINATOR_CODES,
    REQUEST_TIMED_OUT,
    UNKNOWN_SERVER_ERROR,
    CoordinatorCode,
    coordinator_code,
    coordinator_error,
    message_of,
)
from metadata.state.commit_answer import REFUSAL_CODES
from wal import errors
from wal.errors import CommitFailed, CommitOutcomeUnknown, DisklessError


def _all_kinds(kind: type[DisklessError] = DisklessError) -> list[type[DisklessError]]:
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(found for child in children for found in _all_kinds(child))]


def _kind_of(code: int, *, changes_state: bool) -> type[DisklessError] | None:
    error = coordinator_error(code, "why", changes_state=changes_state)
    return None if error is None else type(error)


@pytest.mark.parametrize("row", COORDINATOR_CODES, ids=lambda row: row.kind.__name__)
@pytest.mark.parametrize("changes_state", [True, False])
def test_every_class_of_the_table_comes_back(row: CoordinatorCode, changes_state: bool) -> None:
    came = _kind_of(coordinator_code(row.kind("why")), changes_state=changes_state)
    if changes_state and row.code == UNKNOWN_SERVER_ERROR:
        assert came is CommitOutcomeUnknown
    elif not changes_state and row.code == REQUEST_TIMED_OUT:
        assert came is CommitFailed
    else:
        assert came is row.kind


def test_no_two_classes_share_a_code_and_none_is_success() -> None:
    codes = [row.code for row in COORDINATOR_CODES]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert coordinator_code(None) == 0
    assert coordinator_error(0, "ignored", changes_state=True) is None


@pytest.mark.parametrize("kind", _all_kinds(), ids=lambda kind: kind.__name__)
def test_a_class_that_is_not_in_the_table_keeps_what_it_says_of_the_outcome(
    kind: type[DisklessError],
) -> None:
    came = _kind_of(coordinator_code(kind("why")), changes_state=True)
    assert came is not None
    for category in (errors.Rejected, errors.Retriable, errors.OutcomeUnknown):
        if issubclass(kind, category):
            assert issubclass(came, category)
        elif category is not errors.OutcomeUnknown:
            assert not issubclass(came, category)


@pytest.mark.parametrize("code", [-2, 4, 119, 32_767])
def test_a_code_that_nobody_knows_is_an_unknown_outcome_only_where_there_is_one(code: int) -> None:
    assert _kind_of(code, changes_state=True) is CommitOutcomeUnknown
    assert _kind_of(code, changes_state=False) is CommitFailed


def test_codes_have_kafkas_names() -> None:
    from kio.schema.errors import ErrorCode

    for row in COORDINATOR_CODES:
        name = ErrorCode(row.code).name.upper()
        assert row.name.startswith(name) or name.startswith(row.name), (row, name)


def test_a_message_is_cut_to_a_length_that_suits_an_answer() -> None:
    assert message_of(errors.CommitFailed("x" * 10_000)) == "x" * 1_000


def test_refusals_are_stored_under_the_codes_that_they_have_between_brokers() -> None:
    codes = {row.kind: row.code for row in COORDINATOR_CODES}
    assert codes.items() >= REFUSAL_CODES.items()
