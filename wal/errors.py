"""The one tree of errors.

    DisklessError
    ├── Rejected                 it did not happen, and the same request would be refused again
    │   ├── BatchRejected        one RecordBatch breaks a rule of the format or of its topic
    │   │   ├── CorruptBatch         CRC, length or count do not fit
    │   │   ├── InvalidRecord        wrong magic, offset, sequence, control bit, batch count
    │   │   │   └── KeysMissing          records without key, for a compacted topic
    │   │   ├── InvalidTimestamp
    │   │   ├── TransactionalIdMissing
    │   │   ├── UnsupportedCompression
    │   │   └── RecordTooLarge
    │   ├── UnknownPartition
    │   ├── UnknownTopicId, UnknownFile
    │   ├── InvalidTopic, TopicExists, InvalidPartitions, InvalidConfig
    │   ├── InvalidRequest, PolicyViolation, ClusterAuthorizationFailed
    │   ├── OffsetOutOfRange
    │   ├── StaleProducerEpoch, OutOfOrderSequence, SequenceGivenAgain
    │   ├── ProducerFenced, InvalidProducerIdMapping, InvalidTransactionState
    │   ├── InvalidTransactionTimeout
    │   ├── FencedLeaderEpoch, UnknownLeaderEpoch
    │   └── AppendTooLarge       a streamed append ran past its threshold; the log is as it was
    ├── Retriable                it did not happen; the same request may be tried again
    │   ├── ObjectStoreUnavailable
    │   │   └── ObjectStoreRefused   it answered, and does not let us: bucket, credentials, rights
    │   ├── StorageFailed        a local disk refused a write or an fsync
    │   │   └── ChunkLost            somebody deleted a chunk's files before its object was stored
    │   ├── NotCoordinator       this process may not (or no longer) write the metadata log
    │   ├── ConcurrentTransactions   an earlier transaction of the producer is being ended
    │   ├── CommitFailed         an operation's metadata append failed; nothing was applied
    │   ├── ObjectExpired        a WAL object came to be committed too late; write it anew
    │   └── Overloaded           a bounded queue is full
    ├── OutcomeUnknown           it may have happened; repeat it only under the same object key
    │   ├── UploadOutcomeUnknown
    │   └── CommitOutcomeUnknown
    ├── ObjectNotFound           a key that should be in the store is not
    ├── ObjectExists             put-if-absent met an object that somebody else wrote
    ├── CorruptData              stored bytes fail their own checks; names the file and the position
    │   ├── CorruptChunk, CorruptObject, CorruptLog, CorruptSegment, CorruptState
    ├── DirectoryLost            somebody deleted a directory of this broker, which cannot go on
    ├── OutOfBounds              an index beyond the ends of a segmented log
    └── InvalidSettings          a configuration value or key; names it

A class exists where a caller acts differently on it. Two tables map the tree to Kafka's codes:
`diskless/api/errors.py` for clients, `metadata/messages/errors.py` between brokers.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar


class DisklessError(Exception):
    """Root of everything this project raises on purpose."""


class Rejected(DisklessError):
    """The request was refused and had no effect; repeating it unchanged is pointless."""


class BatchRejected(Rejected):
    """One RecordBatch breaks a rule of the format or of its topic; the others are unaffected."""


class CorruptBatch(BatchRejected):
    """The batch's CRC, length or record count does not fit its bytes."""


class InvalidRecord(BatchRejected):
    """Wrong magic, base offset, sequence, control bit, or not exactly one batch."""


class KeysMissing(InvalidRecord):
    """Records of a batch for a compacted topic have no key; producers are told which."""

    def __init__(self, message: str, positions: Sequence[int] = ()) -> None:
        """`positions` of these records in the batch, ascending from 0."""
        super().__init__(message)
        self.positions = positions


class InvalidTimestamp(BatchRejected):
    """A timestamp outside the topic's bounds, or a timestamp type clients may not set."""


class TransactionalIdMissing(BatchRejected):
    """A batch of a transaction, in a request that does not say whose transaction it is."""


class UnsupportedCompression(BatchRejected):
    """A codec this request version or this broker does not know."""


class RecordTooLarge(BatchRejected):
    """The batch, or what it inflates to, is larger than the topic or the reader allows."""


class UnknownPartition(Rejected):
    """No such topic or partition (any more)."""


class UnknownTopicId(Rejected):
    """No topic has this id (any more)."""


class UnknownFile(Rejected):
    """A coordinator was asked about an object that it never heard of, or has forgotten."""


class InvalidTopic(Rejected):
    """The topic name breaks Kafka's naming rules."""


class TopicExists(Rejected):
    """A topic of this name exists already."""


class InvalidPartitions(Rejected):
    """The partition count is not allowed."""


class InvalidConfig(Rejected):
    """A topic configuration key or value is not allowed."""


class InvalidRequest(Rejected):
    """A request whose fields contradict each other or the protocol."""


class PolicyViolation(Rejected):
    """Allowed by the protocol but not by this cluster's configuration."""


class UnknownCredential(Rejected):
    """There is no such credential of this user."""


class ClusterAuthorizationFailed(Rejected):
    """The client may not do this to the cluster as a whole."""


class TopicAuthorizationFailed(Rejected):
    """The client may not do this to the topic."""


class OffsetOutOfRange(Rejected):
    """Below the log start offset or above the high watermark, checked with the coordinator."""


class StaleProducerEpoch(Rejected):
    """A newer epoch of the same producer id has already written."""


class OutOfOrderSequence(Rejected):
    """The batch's base sequence does not follow the producer's last one."""


class SequenceGivenAgain(Rejected):
    """The sequence is that of a batch of an earlier transaction; the producer needs a new epoch."""


class ProducerFenced(Rejected):
    """Another producer has the transactional id now, or its transaction was ended for it."""


class InvalidProducerIdMapping(Rejected):
    """The transactional id is not known, or not as that of this producer id."""


class TransactionalIdNotFound(Rejected):
    """No producer has used this transactional id, or none for a long time."""


class InvalidTransactionState(Rejected):
    """The producer's transaction is not in a state in which this can be done."""


class InvalidTransactionTimeout(Rejected):
    """A transaction may not be open for so long."""


class FencedLeaderEpoch(Rejected):
    """The client's leader epoch is older than the partition's."""


class UnknownLeaderEpoch(Rejected):
    """The client's leader epoch is newer than the partition's."""


class AppendTooLarge(Rejected):
    """A streamed append ran past its threshold and was cut off; the log is as it was before."""


class Retriable(DisklessError):
    """It did not happen; the same request may be tried again."""


class ObjectStoreUnavailable(Retriable):
    """The object store answered with an error, too slowly, or not at all; nothing was stored."""


class ObjectStoreRefused(ObjectStoreUnavailable):
    """The object store answered and does not let this process in; a start ends with it.

    The bucket is missing, the credentials are wrong, or they do not have a right that is needed.
    While a broker runs this is an outage like any other: rights and credentials come back.
    """


class StorageFailed(Retriable):
    """A local disk refused a write or an fsync."""


class ChunkLost(StorageFailed):
    """The files of a chunk are gone before its object was stored: its batches are nowhere."""


class NotCoordinator(Retriable):
    """This process may not, or may no longer, write the metadata log."""


class ConcurrentTransactions(Retriable):
    """The producer's last transaction is being ended; the next one has to wait for that."""


class CommitFailed(Retriable):
    """The metadata append of this operation, or of one it was checked against, failed."""


class ObjectExpired(Retriable):
    """A WAL object came to be committed after its maximum age; its records must be sent again."""


class Overloaded(Retriable):
    """A bounded queue is full."""


class OutcomeUnknown(DisklessError):
    """It may have happened; repeat it only under the same object key."""


class UploadOutcomeUnknown(OutcomeUnknown):
    """A put may still land in the object store."""


class CommitOutcomeUnknown(OutcomeUnknown):
    """A commit may have been made durable although no answer came."""


class ObjectNotFound(DisklessError):
    """A key that should be in the object store is not there."""


class ObjectExists(DisklessError):
    """Put-if-absent met an object that somebody else wrote under this key."""


class CorruptData(DisklessError):
    """Stored bytes fail their own checks; the message names the file and the position."""


class CorruptChunk(CorruptData):
    """A chunk file is damaged other than by a torn tail."""


class CorruptObject(CorruptData):
    """A WAL object's header, footer, trailer or batch fails its check."""


class CorruptLog(CorruptData):
    """A segmented log is damaged other than by a torn tail."""


class CorruptSegment(CorruptData):
    """A Parquet segment does not hold what its metadata says."""


class CorruptState(CorruptData):
    """The SQLite state contradicts its checksums or the metadata log."""


class DirectoryLost(DisklessError):
    """A directory was deleted or replaced under this broker and cannot be made anew by it."""


class OutOfBounds(DisklessError):
    """An index below the lowest or at/above the highest index of a segmented log."""


class InvalidSettings(DisklessError):
    """A configuration key or value; the message names it and says what is allowed."""


_Error = TypeVar("_Error", bound=BaseException)
_Result = TypeVar("_Result")


def detached(error: _Error) -> _Error:
    """The error without the frames it went through, to be kept as a value.

    A traceback keeps the variables of all these frames: of a batch that was refused, what it had
    inflated to, until the answer is built and the garbage collector has found the cycle.
    """
    error.__traceback__ = None
    error.__context__ = error.__cause__ = None
    return error


def outcome_of(work: Callable[[], _Result]) -> _Result | DisklessError:
    """Returns what `work()` returns, or the DisklessError that it raises, detached; for threads."""
    try:
        return work()
    except DisklessError as error:
        return detached(error)
