"""Metadata records about transactions; metadata/records/records.py has the frame and the encoding.

At the coordinator of the transactional id:

    1070 TransactionBegan         TransactionalId string, ProducerId int64, ProducerEpoch int16,
                                  LastProducerId int64, LastEpoch int16, TimeoutMs int32, AtMs int64
    1071 TransactionGrew          TransactionalId string, Number int64, AtMs int64,
                                  BumpsEpoch int8,
                                  Partitions [] TopicId uuid, PartitionIndex int32,
                                                Coordinator int32
                                  Groups [] GroupId string, Coordinator int32
    1072 TransactionDecided       TransactionalId string, Number int64, IsCommit int8,
                                  ProducerEpoch int16, LastEpoch int16,
                                  NextProducerId int64, AtMs int64
    1074 TransactionCompleted     TransactionalId string, Number int64, AtMs int64
    1075 TransactionalIdsExpired  TransactionalIds [] string

At the coordinators of its partitions and groups:

    1073 TransactionEnded         ProducerId int64, ProducerEpoch int16, Number int64,
                                  IsCommit int8, CoordinatorEpoch int32, EndedAt int64,
                                  Partitions [] TopicId uuid, PartitionIndex int32,
                                                MarkerOffset int64, FirstOffset int64,
                                                LastStableOffset int64
                                  GroupId nullable string
    1076 TransactionalOffsets     GroupId string, ProducerId int64, Number int64,
                                  Offsets [] as in OffsetsCommitted
    1077 ClosedTransactionsExpired  BeforeMs int64, Limit int32

Once in a log:

    1078 ConstantFixed            Name int32, Value int64

TransactionBegan gives a transactional id its producer, TransactionGrew of the next number begins
the transaction itself. Where one coordinator is all of them, the records from TransactionDecided to
TransactionCompleted stand in one batch of the log: all of it happened, or nothing.
metadata/apply/apply_transactions.py applies them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from metadata.records.groups import OFFSET_LAYOUT, CommittedOffset
from metadata.transaction_operations import TransactionGroup, TransactionPartition
from wal.coordinates import TopicIdPartition
from wal.wire.layouts import Int16, Int32, array


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBeganRecord:
    """The transactional id has this producer from here on, and no open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: Int16
    last_producer_id: int
    last_epoch: Int16
    timeout_ms: Int32
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionGrewRecord:
    """These belong to the transaction too; one with the next number begins with it."""

    transactional_id: str
    number: int
    at_ms: int
    bumps_epoch: bool
    """It ends with another epoch."""
    partitions: Sequence[TransactionPartition]
    groups: Sequence[TransactionGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDecidedRecord:
    """How the transaction ends, for ever; `producer_epoch` is that of the producer afterwards.

    `last_epoch` is the one it had, if it may ask with that again. A `next_producer_id` that is not
    -1 takes the place of the producer's, with epoch 0, when the transaction is completed.
    """

    transactional_id: str
    number: int
    is_commit: bool
    producer_epoch: Int16
    last_epoch: Int16
    next_producer_id: int
    at_ms: int


class EndedPartition(NamedTuple):
    """Where a transaction ended in one partition."""

    partition: TopicIdPartition
    marker_offset: int
    first_offset: int
    """Of its first batch; -1 when it had none here."""
    last_stable_offset: int
    """Of the partition, with the marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEndedRecord:
    """The transaction is closed in these partitions, and in the group if there is one.

    A record has one group at most, for the row of a group has the offset of the record that named
    it first.
    """

    producer_id: int
    producer_epoch: Int16
    number: int
    is_commit: bool
    coordinator_epoch: Int32
    ended_ms: int
    partitions: Sequence[EndedPartition]
    group_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCompletedRecord:
    """Every partition and group has closed the transaction."""

    transactional_id: str
    number: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdsExpiredRecord:
    """These transactional ids were not used for so long that nobody remembers them any more."""

    transactional_ids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalOffsetsRecord:
    """Offsets that the group commits if the transaction is committed."""

    group_id: str
    producer_id: int
    number: int
    offsets: Annotated[Sequence[CommittedOffset], array(OFFSET_LAYOUT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedTransactionsExpiredRecord:
    """Up to `limit` numbers that were closed before `before_ms` are forgotten, the oldest first."""

    before_ms: int
    limit: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantFixedRecord:
    """A number that the log has for ever; `name` is a `Constant`."""

    name: Int32
    value: int


TransactionRecord = (
    TransactionBeganRecord
    | TransactionGrewRecord
    | TransactionDecidedRecord
    | TransactionEndedRecord
    | TransactionCompletedRecord
    | TransactionalIdsExpiredRecord
    | TransactionalOffsetsRecord
    | ClosedTransactionsExpiredRecord
    | ConstantFixedRecord
)

TRANSACTION_RECORDS: Final[Mapping[int, type[Any]]] = {
    1070: TransactionBeganRecord,
    1071: TransactionGrewRecord,
    1072: TransactionDecidedRecord,
    1073: TransactionEndedRecord,
    1074: TransactionCompletedRecord,
    1075: TransactionalIdsExpiredRecord,
    1076: TransactionalOffsetsRecord,
    1077: ClosedTransactionsExpiredRecord,
    1078: ConstantFixedRecord,
}
