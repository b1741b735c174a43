"""Writes the WAL objects that a rebuild adds: fillers for holes, and copies that resolve an order.

A *hole* is a range of offsets whose records nobody has. Consumers have committed offsets behind it,
so it must stay; extents of a partition follow each other without gap, so something must lie there.
That is a batch of control records: Kafka clients step over those without showing them to anybody,
and a roll makes a gap of them. They have no timestamp, so that no look-up by time finds them.

A *copy* repeats batches of another object. It is needed when two objects would each have to be
committed before the other, which cannot be in one metadata log: brokers that committed to several
coordinators left such objects, for each coordinator has an order of its own.

Both are WAL objects like others, under keys of their own. Pure functions; the bytes of copies are
read by metadata/rebuild/rebuild.py.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metadata.rebuild.facts import ObjectFacts
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.wal_object import WalObjectPlan, plan_wal_object
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchExtent,
    ObjectKey,
    TopicIdPartition,
)
from wal.records.record_batch import CONTROL_BIT, packed_batch, parse_header
from wal.wire.fields import zigzag

FILLER_RECORDS_MAX: Final = 100_000
"""Records of one filler batch; it inflates to some 18 bytes for each."""

REBUILD_BROKER_ID: Final = -1
"""No broker wrote it."""

_GZIP: Final = 1
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_ABORT_KEY: Final = b"\0\0\0\0"
"""Version 0, type 0: the marker of an aborted transaction, of which there is none here."""
_ABORT_VALUE: Final = bytes(6)
"""Version 0, coordinator epoch 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBatch:
    """A batch to be copied."""

    source: ObjectFacts
    extent: BatchExtent
    """In the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewObject:
    """An object to be put: for each extent of `plan` its bytes, or where to copy them from."""

    plan: WalObjectPlan
    parts: Sequence[bytes | CopiedBatch]

    @property
    def object_key(self) -> ObjectKey:
        return self.plan.object_key


def filler_batches(record_count: int) -> Sequence[bytes]:
    """Control batches of `record_count` records together."""
    batches: list[bytes] = []
    while record_count:
        count = min(record_count, FILLER_RECORDS_MAX)
        batches.append(_filler(count))
        record_count -= count
    return batches


def _filler(count: int) -> bytes:
    records = zlib.compress(b"".join(map(_control_record, range(count))), wbits=_GZIP_WINDOW)
    fields = (
        CONTROL_BIT | _GZIP, count - 1, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH, NO_SEQUENCE, count,
    )  # fmt: skip
    return packed_batch(0, fields, records)


def _control_record(offset_delta: int) -> bytes:
    body = b"".join(
        (
            b"\0\0",  # attributes, timestamp delta
            zigzag(offset_delta),
            zigzag(len(_ABORT_KEY)),
            _ABORT_KEY,
            zigzag(len(_ABORT_VALUE)),
            _ABORT_VALUE,
            b"\0",  # no headers
        )
    )
    return zigzag(len(body)) + body


def filler_object(
    ulid: str, partition: TopicIdPartition, record_count: int, timestamp_ms: int
) -> NewObject:
    """The object that fills one hole."""
    batches = filler_batches(record_count)
    entries = []
    for data in batches:
        header = parse_header(data)
        entries.append(
            ChunkEntry(
                partition, 0, len(data), header.record_count, header.crc, NO_TIMESTAMP, 0,
                NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, 0,
            )
        )  # fmt: skip
    return NewObject(plan=_plan(ulid, entries, timestamp_ms), parts=batches)


def copied_object(
    ulid: str, source: ObjectFacts, positions: Sequence[int], timestamp_ms: int
) -> NewObject:
    """The object that repeats the batches at `positions` of `source`, in their order."""
    extents = [source.extents[position] for position in positions]
    entries = [
        ChunkEntry(
            extent.partition,
            0,
            extent.length_bytes,
            extent.record_count,
            extent.crc,
            extent.max_timestamp_ms,
            extent.timestamp_type,
            extent.producer_id,
            extent.producer_epoch,
            extent.base_sequence,
            extent.request_id,
            transaction_number=extent.transaction_number,
        )
        for extent in extents
    ]
    plan = _plan(ulid, entries, timestamp_ms)
    parts = [CopiedBatch(source=source, extent=extents[position]) for position in plan.positions]
    return NewObject(plan=plan, parts=parts)


def _plan(ulid: str, entries: Sequence[ChunkEntry], timestamp_ms: int) -> WalObjectPlan:
    identity = ChunkIdentity(
        ulid=ulid, salt=0, broker_id=REBUILD_BROKER_ID, opened_at_ms=timestamp_ms
    )
    return plan_wal_object(identity, entries)
