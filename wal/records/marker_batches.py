"""Builds the batch that ends a transaction in a partition: its marker.

A marker takes one offset and is stored nowhere as bytes: the coordinator keeps what it says as a
row, and these bytes are made of it when a consumer fetches the offset. A consumer that reads
committed records only drops what it was told is aborted until it sees the producer's marker of an
abort; other consumers step over it.

It is a control batch of one record, without a sequence, of 78 bytes. The record's key is a version
and what became of the transaction, its value a version and the epoch of the transaction's
coordinator. The timestamp is the time at which the transaction ended.

Source: Kafka's EndTransactionMarker and ControlRecordType; KIP-98.
"""

import struct
from typing import Final, NamedTuple

from wal.coordinates import NO_SEQUENCE, Offset
from wal.records.record_batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    EncodedBatch,
    packed_batch,
)
from wal.wire.layouts import Int16, Int32

MARKER_BYTES: Final = 78

_ABORT: Final = 0
_COMMIT: Final = 1
_RECORD: Final = struct.Struct(">bbbbbhhbhib")
"""Length, attributes, timestamp delta, offset delta, key length, key, value length, value, header
count: the varints of these values take one byte each."""
assert HEADER_BYTES + _RECORD.size == MARKER_BYTES

_KEY_BYTES: Final = 4
_VALUE_BYTES: Final = 6


def _zigzag(value: int) -> int:
    return value << 1


class Marker(NamedTuple):
    """What ended a transaction of `producer_id` in a partition."""

    offset: int
    producer_id: int
    producer_epoch: Int16
    is_commit: bool
    coordinator_epoch: Int32
    timestamp_ms: int

    @property
    def base_offset(self) -> Offset:
        return Offset(self.offset)

    @property
    def last_offset(self) -> Offset:
        return Offset(self.offset)

    def bytes_between(self, first: int, end: int) -> int:
        """How much of it holds offsets from `first` to before `end`."""
        return MARKER_BYTES if first <= self.offset < end else 0

    def bytes_from(self, offset: int) -> int:
        """How much of it holds `offset` and what follows."""
        return MARKER_BYTES if offset <= self.offset else 0


def marker_batch(marker: Marker, *, leader_epoch: int) -> EncodedBatch:
    """Returns the batch that consumers get at the marker's offset."""
    record = _RECORD.pack(
        _zigzag(_RECORD.size - 1),
        0,
        0,
        0,
        _zigzag(_KEY_BYTES),
        0,
        _COMMIT if marker.is_commit else _ABORT,
        _zigzag(_VALUE_BYTES),
        0,
        marker.coordinator_epoch,
        0,
    )
    fields = (
        CONTROL_BIT | TRANSACTIONAL_BIT, 0, marker.timestamp_ms, marker.timestamp_ms,
        marker.producer_id, marker.producer_epoch, NO_SEQUENCE, 1,
    )  # fmt: skip
    data = packed_batch(marker.offset, fields, record, leader_epoch=leader_epoch)
    return EncodedBatch(marker.offset, marker.offset, data)
