"""Every error of ours has a Kafka code, and clients act on it as they should."""

import pytest

from diskless.api import errors as api_errors
from diskless.api.errors import KAFKA_CODE, error_message, kafka_code
from wal import errors
from wal.errors import DisklessError


def _all_kinds(kind: type[DisklessError] = DisklessError) -> list[type[DisklessError]]:
    """The tree as `wal.errors` draws it; what a module refines is mapped as its parent."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(found for child in children for found in _all_kinds(child))]


def test_every_error_has_a_code_and_none_of_ours_is_success():
    for kind in _all_kinds():
        assert kafka_code(kind("x")) != 0, kind


def test_no_error_is_code_0_without_a_message():
    assert kafka_code(None) == 0
    assert error_message(None) is None


@pytest.mark.parametrize("kind", _all_kinds(errors.Retriable), ids=lambda kind: kind.__name__)
def test_what_certainly_did_not_happen_may_be_sent_again(kind):
    # Producers try again at both; only the second tells them that the last transaction is in work.
    assert kafka_code(kind("x")) == (51 if kind is errors.ConcurrentTransactions else 56)


@pytest.mark.parametrize("kind", _all_kinds(errors.OutcomeUnknown), ids=lambda kind: kind.__name__)
def test_what_may_have_happened_is_never_called_certain_or_final(kind):
    assert kafka_code(kind("x")) == 7


@pytest.mark.parametrize("kind", _all_kinds(errors.CorruptData), ids=lambda kind: kind.__name__)
def test_damage_is_shown_to_consumers(kind):
    assert kafka_code(kind("x")) == 2


def test_the_codes_of_produce_are_kafkas():
    expected = {
        errors.CorruptBatch: 2,
        errors.UnknownPartition: 3,
        errors.RecordTooLarge: 10,
        errors.AppendTooLarge: 10,
        errors.InvalidTimestamp: 32,
        errors.OutOfOrderSequence: 45,
        errors.StaleProducerEpoch: 47,
        errors.InvalidTransactionState: 48,
        errors.SequenceGivenAgain: 59,
        errors.InvalidProducerIdMapping: 49,
        errors.InvalidTransactionTimeout: 50,
        errors.ProducerFenced: 90,
        errors.UnsupportedCompression: 76,
        errors.InvalidRecord: 87,
        errors.UnknownTopicId: 100,
        errors.OffsetOutOfRange: 1,
        errors.UnknownLeaderEpoch: 75,
        errors.FencedLeaderEpoch: 74,
        errors.TopicExists: 36,
        errors.InvalidTopic: 17,
        errors.InvalidPartitions: 37,
        errors.InvalidConfig: 40,
        errors.InvalidRequest: 42,
        errors.PolicyViolation: 44,
        api_errors.InvalidRequiredAcks: 21,
        api_errors.InvalidReplicationFactor: 38,
        api_errors.ElectionNotNeeded: 84,
        api_errors.NoReassignmentInProgress: 85,
        api_errors.UnsupportedVersion: 35,
    }
    assert {kind: kafka_code(kind("x")) for kind in expected} == expected


def test_a_new_kind_takes_the_code_of_its_nearest_ancestor():
    class Worse(errors.CorruptSegment):
        pass

    assert kafka_code(Worse("x")) == KAFKA_CODE[errors.CorruptData]


def test_a_message_is_cut_to_a_length_that_suits_a_client():
    assert error_message(errors.InvalidConfig("x" * 10_000)) == "x" * 1_000
