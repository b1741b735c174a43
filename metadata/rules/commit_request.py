"""Checks a commit request: what can be said of it without any state.

That it holds together, which content it has (the digest that a re-sent commit is recognised by),
and when its key was minted. metadata/rules/commit.py decides about it then. A few batches are
checked one by one, many column by column; what is said of them is the same.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT, CommitFile
from metadata.records.records import REQUEST_DIGEST_BYTES
from wal.batch_extents import BatchExtents
from wal.columns import FEW_MAX, Int64s, row_type
from wal.coordinates import LOG_APPEND_TIME, NO_TRANSACTION, BatchExtent
from wal.errors import Rejected
from wal.staging.staged_keys import is_staged, sink_of
from wal.stores.object_store import check_object_key
from wal.ulid import minted_ms

_INT32_MAX: Final = 2**31 - 1
_INT16_MAX: Final = 2**15 - 1

_DIGESTED_FILE: Final = struct.Struct("<bqq")
_DIGESTED_FIELDS: Final = struct.Struct("<16siqiiIqbqhiq")
_DIGESTED_BATCH: Final = row_type(
    _DIGESTED_FIELDS,
    "topic_id partition byte_offset length_bytes record_count crc max_timestamp_ms timestamp_type"
    " producer_id producer_epoch base_sequence request_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCommit:
    """A commit request that holds together."""

    request: CommitFile
    batches: BatchExtents | Sequence[BatchExtent]
    """Those of the request: as columns, unless they are few."""
    digest: bytes
    """Identifies the request's content."""
    minted_ms: int
    """When the object's key was minted, which is before its upload began."""


def check_commit(
    request: CommitFile, settings: CoordinatorSettings, *, sink_id: str | None = None
) -> CheckedCommit:
    """Check everything that does not depend on state.

    `sink_id`: that of the sink that staged the object; None for a broker's own objects.
    Raises Rejected: not a WAL object's key, an extent outside the object, extents that overlap,
    numbers that no RecordBatch has.
    """
    key = request.object_key
    check_object_key(key)
    if sink_of(key) != sink_id or is_staged(key) != (sink_id is not None):
        raise Rejected(f"{key} is no object of {'a broker' if sink_id is None else sink_id}")
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
    if len(request.batches) <= FEW_MAX:
        few = [*request.batches]
        _check_few(request, few)
        return CheckedCommit(
            request=request, batches=few, digest=_digest_of_few(request, few), minted_ms=minted
        )
    try:
        columns = BatchExtents.of(request.batches)
    except ValueError as error:
        raise Rejected(f"{key}: {error}") from error
    check_extents(request, columns)
    return CheckedCommit(
        request=request, batches=columns, digest=digest_of(request, columns), minted_ms=minted
    )


# -- a few batches ------------------------------------------------------------------------------


def _check_few(request: CommitFile, batches: Sequence[BatchExtent]) -> None:
    size = request.file_size_bytes
    for batch in batches:
        if not _is_sound(batch, size):
            raise _unsound(request, batch)
    end = 0
    for start, length in sorted((batch.byte_offset, batch.length_bytes) for batch in batches):
        if start < end:
            raise _overlap(request, start)
        end = start + length


def _is_sound(batch: BatchExtent, size: int) -> bool:
    partition, start, length, count, crc, _, kind, producer_id, epoch, sequence, _, number = batch
    return (
        start >= 0
        and length >= 1
        and start + length <= size
        and 1 <= count <= _INT32_MAX
        and 0 <= crc < 1 << 32
        and 0 <= kind <= LOG_APPEND_TIME
        and 0 <= partition.partition <= _INT32_MAX
        and (
            0 <= epoch <= _INT16_MAX and 0 <= sequence <= _INT32_MAX
            if producer_id >= 0
            else -1 - _INT16_MAX <= epoch <= 0 and -1 - _INT32_MAX <= sequence <= 0
        )
        and (number == NO_TRANSACTION or (number >= 0 and producer_id >= 0))
    )


def _digest_of_few(request: CommitFile, batches: Sequence[BatchExtent]) -> bytes:
    pack = _DIGESTED_FIELDS.pack
    try:
        digested = [
            pack(partition.topic_id.bytes, partition.partition, *numbers)
            for partition, *numbers, _ in batches
        ]
        transactions = [batch.transaction_number for batch in batches]
        if any(number != NO_TRANSACTION for number in transactions):
            digested.append(struct.pack(f"<{len(transactions)}q", *transactions))
    except struct.error as error:
        raise Rejected(f"{request.object_key}: {error}") from error
    return _digest(request, b"".join(digested))


# -- many as columns ----------------------------------------------------------------------------


def _within(numbers: Int64s, smallest: int, greatest: int) -> npt.NDArray[np.bool_]:
    return (numbers >= smallest) & (numbers <= greatest)


def check_extents(request: CommitFile, columns: BatchExtents) -> None:
    """Raises Rejected."""
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
        & (
            (columns.transaction_number == NO_TRANSACTION)
            | (has_producer & (columns.transaction_number >= 0))
        )
    )
    fine[fine] = start[fine] + length[fine] <= size
    if not fine.all():
        raise _unsound(request, columns.at(int(np.flatnonzero(~fine)[0])))
    end = start + length
    if (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        overlap = np.flatnonzero(start[order][1:] < end[order][:-1])
        if len(overlap):
            raise _overlap(request, int(start[order][int(overlap[0]) + 1]))


def digest_of(request: CommitFile, columns: BatchExtents) -> bytes:
    """16 bytes over the object and all its batches; who uploaded it does not matter."""
    digested = columns.rows(_DIGESTED_BATCH).tobytes()
    transactions = columns.transaction_number
    if (transactions != NO_TRANSACTION).any():
        digested += transactions.astype("<i8").tobytes()
    return _digest(request, digested)


def _digest(request: CommitFile, digested: bytes) -> bytes:
    file = _DIGESTED_FILE.pack(request.object_format, request.file_size_bytes, len(request.batches))
    return blake2b(file + digested, digest_size=REQUEST_DIGEST_BYTES).digest()


def _unsound(request: CommitFile, batch: BatchExtent) -> Rejected:
    return Rejected(f"{request.object_key}: not a batch of this object: {batch}")


def _overlap(request: CommitFile, at: int) -> Rejected:
    return Rejected(f"{request.object_key}: extents overlap at byte {at}")
