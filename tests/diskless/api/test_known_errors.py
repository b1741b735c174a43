"""An error that an older version of a request does not know is one that it does."""

from diskless.api.known_errors import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    known_error,
)
from diskless.transactions.errors import TransactionAbortable
from wal.errors import (
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    StaleProducerEpoch,
)


def test_a_fenced_producer_was_once_one_with_a_stale_epoch() -> None:
    fenced = ProducerFenced("why")
    for key, known_from in ((INIT_PRODUCER_ID, 4), (ADD_PARTITIONS_TO_TXN, 2), (END_TXN, 2)):
        older = known_error(key, known_from - 1, fenced)
        assert (type(older), str(older)) == (StaleProducerEpoch, "why")
        assert known_error(key, known_from, fenced) is fenced
    for key in (PRODUCE, TXN_OFFSET_COMMIT):
        assert type(known_error(key, 13, fenced)) is StaleProducerEpoch


def test_a_transaction_to_be_aborted_was_once_in_a_wrong_state() -> None:
    abortable = TransactionAbortable("why")
    for key, known_from in ((PRODUCE, 11), (TXN_OFFSET_COMMIT, 4), (END_TXN, 4)):
        older = known_error(key, known_from - 1, abortable)
        assert (type(older), str(older)) == (InvalidTransactionState, "why")
        assert known_error(key, known_from, abortable) is abortable


def test_other_errors_and_none_are_left_alone() -> None:
    other = InvalidProducerIdMapping("why")
    assert known_error(END_TXN, 0, other) is other
    assert known_error(END_TXN, 0, None) is None
