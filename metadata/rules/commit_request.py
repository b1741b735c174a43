"""Checks a commit request: what can be said of it without any state.

That it holds together, which content it has (the digest that a re-sent commit is recognised by),
and when its key was minted. metadata/rules/commit.py decides about it then.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT, CommitFile
from metadata.records.records import REQUEST_DIGEST_BYTES
from wal.batch_extents import BatchExtents
from wal.columns import Int64s, row_type
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import Rejected
from wal.stores.object_store import check_object_key
from wal.ulid import minted_ms

_INT32_MAX: Final = 2**31 - 1
_INT16_MAX: Final = 2**15 - 1

_DIGESTED_FILE: Final = struct.Struct("<bqq")
_DIGESTED_BATCH: Final = row_type(
    struct.Struct("<16siqiiIqbqhiq"),
    "topic_id partition byte_offset length_bytes record_count crc max_timestamp_ms timestamp_type"
    " producer_id producer_epoch base_sequence request_id",
)


class ProducerGroups(NamedTuple):
    """The batches that have a producer and a partition, by (partition, producer id)."""

    which: Int64s
    """Which batches they are; in request order within a group."""
    starts: Int64s
    """Where in `which` each group starts."""
    keys: Sequence[tuple[int, int]]
    """(partition's surrogate key, producer id) of each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCommit:
    """A commit request that holds together."""

    request: CommitFile
    columns: BatchExtents
    digest: bytes
    """Identifies the request's content."""
    minted_ms: int
    """When the object's key was minted, which is before its upload began."""
    partition_ids: Int64s
    """The surrogate key of each of `columns.partitions`, -1 until it was found. They never
    change."""
    by_producer: list[ProducerGroups] = field(default_factory=list)
    """Made once, from `partition_ids`; empty before."""

    @property
    def has_producers(self) -> bool:
        return bool((self.columns.producer_id >= 0).any())


def check_commit(request: CommitFile, settings: CoordinatorSettings) -> CheckedCommit:
    """Check everything that does not depend on state.

    Raises Rejected: not a WAL object's key, an extent outside the object, extents that overlap,
    numbers that no RecordBatch has.
    """
    key = request.object_key
    check_object_key(key)
    try:
        minted = minted_ms(key)
    except ValueError as error:
        raise Rejected(f"{key} is not named by a ULID") from error
    if request.object_format != WRITE_AHEAD_MULTI_SEGMENT:
        raise Rejected(f"{key}: object format {request.object_format}")
    if not 0 < request.file_size_bytes <= _INT32_MAX:
        raise Rejected(f"{key}: an object of {request.file_size_bytes} bytes")
    if len(request.batches) > settings.commit_batches_max:
        raise Rejected(
            f"{key}: {len(request.batches)} batches, at most allowed are "
            f"{settings.commit_batches_max}"
        )
    for number in (request.uploader_broker_id, *request.owner_ids):
        if not -_INT32_MAX <= number <= _INT32_MAX:
            raise Rejected(f"{key}: {number} is not a broker or coordinator id")
    try:
        columns = BatchExtents.of(request.batches)
    except ValueError as error:
        raise Rejected(f"{key}: {error}") from error
    _check_extents(request, columns)
    return CheckedCommit(
        request=request,
        columns=columns,
        digest=_digest(request, columns),
        minted_ms=minted,
        partition_ids=np.full(len(columns.partitions), -1),
    )


def _within(numbers: Int64s, smallest: int, greatest: int) -> npt.NDArray[np.bool_]:
    return (numbers >= smallest) & (numbers <= greatest)


def _check_extents(request: CommitFile, columns: BatchExtents) -> None:
    size = request.file_size_bytes
    start, length = columns.byte_offset, columns.length_bytes
    has_producer = columns.producer_id >= 0
    fits_epoch = _within(columns.producer_epoch, 0, _INT16_MAX)
    fits_sequence = _within(columns.base_sequence, 0, _INT32_MAX)
    fine = (
        _within(start, 0, size)
        & _within(length, 1, size)
        & _within(columns.record_count, 1, _INT32_MAX)
        & _within(columns.crc, 0, 2**32 - 1)
        & _within(columns.timestamp_type, 0, LOG_APPEND_TIME)
        & _within(columns.indexes, 0, _INT32_MAX)[columns.partition_of]
        & np.where(has_producer, fits_epoch, _within(columns.producer_epoch, -1 - _INT16_MAX, 0))
        & np.where(has_producer, fits_sequence, _within(columns.base_sequence, -1 - _INT32_MAX, 0))
    )
    fine[fine] = start[fine] + length[fine] <= size
    if not fine.all():
        batch = columns.at(int(np.flatnonzero(~fine)[0]))
        raise Rejected(f"{request.object_key}: not a batch of this object: {batch}")
    end = start + length
    if (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        overlap = np.flatnonzero(start[order][1:] < end[order][:-1])
        if len(overlap):
            at = start[order][int(overlap[0]) + 1]
            raise Rejected(f"{request.object_key}: extents overlap at byte {at}")


def _digest(request: CommitFile, columns: BatchExtents) -> bytes:
    """16 bytes over the object and all its batches; who uploaded it does not matter."""
    file = _DIGESTED_FILE.pack(request.object_format, request.file_size_bytes, len(columns))
    digested = columns.rows(_DIGESTED_BATCH)
    return blake2b(file + digested.tobytes(), digest_size=REQUEST_DIGEST_BYTES).digest()
