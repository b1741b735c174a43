"""Maps our errors to Kafka's codes between brokers, and back.

The table here is not that of the client APIs (`diskless/api/errors.py`), where codes are chosen by
what clients do when they see them. Between brokers the sender must get back the very class that the
coordinator gave: whether an operation certainly did not happen (Retriable), was refused (Rejected)
or may have happened (OutcomeUnknown) decides what it does next. So every class in the table has a
code of its own, and a class that is not in it goes as its nearest ancestor that is.

What a code means depends on whether the operation changes something:

- 7 REQUEST_TIMED_OUT, -1 UNKNOWN_SERVER_ERROR and every code that is not in the table: a change may
  have happened, so it is CommitOutcomeUnknown, and asking again is safe for every operation.
- For what only reads there is nothing that may have happened: 7 and unknown codes are CommitFailed
  (ask again), -1 is a DisklessError.

Called by the codecs (metadata/messages/codec.py) and by the tiering job's client.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from wal import errors
from wal.errors import CommitFailed, CommitOutcomeUnknown, DisklessError

MESSAGE_LENGTH_MAX: Final = 1_000
"""Characters of an error message on the wire; what is behind them is cut off."""


class CoordinatorCode(NamedTuple):
    """The code that stands for a class between brokers."""

    kind: type[DisklessError]
    code: int
    name: str
    """Kafka's."""


UNKNOWN_SERVER_ERROR: Final = -1
REQUEST_TIMED_OUT: Final = 7

COORDINATOR_CODES: Final = (
    # Nobody knows what it means.
    CoordinatorCode(DisklessError, UNKNOWN_SERVER_ERROR, "UNKNOWN_SERVER_ERROR"),
    # Refused: the same request would be refused again.
    CoordinatorCode(errors.Rejected, 55, "OPERATION_NOT_ATTEMPTED"),
    CoordinatorCode(errors.InvalidRecord, 87, "INVALID_RECORD"),
    CoordinatorCode(errors.RecordTooLarge, 10, "MESSAGE_TOO_LARGE"),
    CoordinatorCode(errors.UnsupportedCompression, 76, "UNSUPPORTED_COMPRESSION_TYPE"),
    CoordinatorCode(errors.UnknownPartition, 3, "UNKNOWN_TOPIC_OR_PARTITION"),
    CoordinatorCode(errors.UnknownTopicId, 100, "UNKNOWN_TOPIC_ID"),
    CoordinatorCode(errors.UnknownFile, 91, "RESOURCE_NOT_FOUND"),
    CoordinatorCode(errors.InvalidTopic, 17, "INVALID_TOPIC_EXCEPTION"),
    CoordinatorCode(errors.TopicExists, 36, "TOPIC_ALREADY_EXISTS"),
    CoordinatorCode(errors.InvalidPartitions, 37, "INVALID_PARTITIONS"),
    CoordinatorCode(errors.InvalidConfig, 40, "INVALID_CONFIG"),
    CoordinatorCode(errors.InvalidRequest, 42, "INVALID_REQUEST"),
    CoordinatorCode(errors.PolicyViolation, 44, "POLICY_VIOLATION"),
    CoordinatorCode(errors.UnknownCredential, 62, "DELEGATION_TOKEN_NOT_FOUND"),
    CoordinatorCode(errors.ClusterAuthorizationFailed, 31, "CLUSTER_AUTHORIZATION_FAILED"),
    CoordinatorCode(errors.TopicAuthorizationFailed, 29, "TOPIC_AUTHORIZATION_FAILED"),
    CoordinatorCode(errors.OffsetOutOfRange, 1, "OFFSET_OUT_OF_RANGE"),
    CoordinatorCode(errors.StaleProducerEpoch, 47, "INVALID_PRODUCER_EPOCH"),
    CoordinatorCode(errors.OutOfOrderSequence, 45, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    CoordinatorCode(errors.SequenceGivenAgain, 59, "UNKNOWN_PRODUCER_ID"),
    CoordinatorCode(errors.ProducerFenced, 90, "PRODUCER_FENCED"),
    CoordinatorCode(errors.InvalidProducerIdMapping, 49, "INVALID_PRODUCER_ID_MAPPING"),
    CoordinatorCode(errors.TransactionalIdNotFound, 105, "TRANSACTIONAL_ID_NOT_FOUND"),
    CoordinatorCode(errors.InvalidTransactionState, 48, "INVALID_TXN_STATE"),
    CoordinatorCode(errors.InvalidTransactionTimeout, 50, "INVALID_TRANSACTION_TIMEOUT"),
    CoordinatorCode(errors.FencedLeaderEpoch, 74, "FENCED_LEADER_EPOCH"),
    CoordinatorCode(errors.UnknownLeaderEpoch, 75, "UNKNOWN_LEADER_EPOCH"),
    # It did not happen; the same request may be tried again.
    CoordinatorCode(errors.Retriable, 14, "COORDINATOR_LOAD_IN_PROGRESS"),
    CoordinatorCode(errors.ConcurrentTransactions, 51, "CONCURRENT_TRANSACTIONS"),
    CoordinatorCode(errors.CommitFailed, 15, "COORDINATOR_NOT_AVAILABLE"),
    CoordinatorCode(errors.NotCoordinator, 16, "NOT_COORDINATOR"),
    CoordinatorCode(errors.ObjectStoreUnavailable, 9, "REPLICA_NOT_AVAILABLE"),
    CoordinatorCode(errors.StorageFailed, 56, "KAFKA_STORAGE_ERROR"),
    CoordinatorCode(errors.Overloaded, 89, "THROTTLING_QUOTA_EXCEEDED"),
    # Did not happen either, but the object's key is too old: its records must be sent anew.
    CoordinatorCode(errors.ObjectExpired, 32, "INVALID_TIMESTAMP"),
    # It may have happened.
    CoordinatorCode(errors.CommitOutcomeUnknown, REQUEST_TIMED_OUT, "REQUEST_TIMED_OUT"),
    # Stored bytes that fail their checks, or are not there.
    CoordinatorCode(errors.CorruptData, 2, "CORRUPT_MESSAGE"),
)
"""Every class that crosses the wire as itself."""

_CODES: Final[Mapping[type[DisklessError], int]] = {
    **{row.kind: row.code for row in COORDINATOR_CODES},
    errors.OutcomeUnknown: REQUEST_TIMED_OUT,
    errors.ObjectNotFound: 2,
}
_ROWS: Final[Mapping[int, CoordinatorCode]] = {row.code: row for row in COORDINATOR_CODES}


def coordinator_code(error: DisklessError | None) -> int:
    """The code of the nearest ancestor in the table; 0 for no error."""
    if error is None:
        return 0
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def coordinator_error(
    code: int, message: str | None, *, changes_state: bool
) -> DisklessError | None:
    """The error that a coordinator's `code` stands for; None for 0.

    `changes_state`: whether the operation that was answered so changes anything.
    """
    if code == 0:
        return None
    row = _ROWS.get(code)
    text = message or f"the coordinator answered with {row.name if row else f'code {code}'}"
    if changes_state and (row is None or row.code == UNKNOWN_SERVER_ERROR):
        return CommitOutcomeUnknown(text)
    if not changes_state and (row is None or row.code == REQUEST_TIMED_OUT):
        return CommitFailed(text)
    assert row is not None
    return row.kind(text)


def message_of(error: DisklessError) -> str:
    """Returns the message that goes beside the code."""
    return str(error)[:MESSAGE_LENGTH_MAX]
