"""Names places: which partition, which offset, which bytes of which object.

These values cross every layer, thousands per WAL object, so they are tuples: immutable, cheap to
make, and they sort by (topic id, partition), which is the order of a WAL object.
"""

from typing import Final, NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""A record's position in its partition, assigned by the coordinator."""

ByteOffset = NewType("ByteOffset", int)
"""A position in a file or an object."""

ObjectKey = NewType("ObjectKey", str)
"""The name of an object below the store's prefix, such as `wal/3f/01J…`."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""0 follows 2**31 - 1."""
NO_TIMESTAMP: Final = -1
NO_TRANSACTION: Final = -1

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


class TopicIdPartition(NamedTuple):
    """One partition of one incarnation of a topic; a recreated topic has a new id."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class BatchExtent(NamedTuple):
    """Where one RecordBatch lies in a WAL object, and what the coordinator must know of it.

    Offsets inside the object are relative (the batch's base offset field is 0); the coordinator
    assigns `record_count` consecutive offsets at commit.
    """

    partition: TopicIdPartition
    byte_offset: ByteOffset
    length_bytes: int
    record_count: int
    crc: int
    """The CRC32C that the batch itself carries (bytes 17-20)."""
    max_timestamp_ms: int
    timestamp_type: int
    """The topic's message.timestamp.type at append: CREATE_TIME or LOG_APPEND_TIME."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    request_id: int
    """Groups the batches of one Produce request within its WAL object."""
    transaction_number: int = NO_TRANSACTION
    """Which transaction of its producer a transactional batch belongs to."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping 2**31 - 1 -> 0; NO_SEQUENCE without a producer."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.record_count - 1) & SEQUENCE_MASK
