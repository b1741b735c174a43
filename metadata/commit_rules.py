"""Deciding a commit: which batches of a WAL object are appended, at which offsets.

Pure functions over the speculative view; nothing here waits or does I/O. A commit is idempotent
by object key: a key that was committed before, or is pending, gets the first answer again, whatever
became of its batches since. A batch that is refused (no such partition, stale epoch, sequence out
of order) or that is a duplicate is refused alone.

Source: KIP-1164, DisklessCommitFile; Kafka's ProducerAppendInfo (metadata/producer_state.py).
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from metadata.commit_answer import REFUSAL_CODES, AnswerEntry, pack_answer, unpack_answer
from metadata.image import PartitionState, ProducerKey
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT, BatchCommit, CommitFile
from metadata.producer_state import ProducerBatch, check_sequence, with_batch
from metadata.records import (
    REQUEST_DIGEST_BYTES,
    CommittedBatch,
    FileCommittedRecord,
    MetadataRecord,
    RefusedBatch,
)
from metadata.speculative import FileStanding, KnownFile, SpeculativeView
from wal.coordinates import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchExtent,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.errors import ObjectExpired, Rejected, UnknownPartition
from wal.object_store import check_object_key
from wal.ulid import minted_ms

MAGIC: Final = 2
"""The only RecordBatch magic there is here."""

_INT32_MAX: Final = 2**31 - 1
_INT16_MAX: Final = 2**15 - 1

_DIGESTED_FILE: Final = struct.Struct("<bqq")
_DIGESTED_BATCH: Final = struct.Struct("<16siqiiIqbqhiq")


_Answer = TypeVar("_Answer")


class Decision(NamedTuple, Generic[_Answer]):
    """Records to append (possibly none) and what to answer once they are durable."""

    records: Sequence[MetadataRecord]
    answer: _Answer


class CheckedCommit(NamedTuple):
    """A commit request that holds together, with the digest that identifies its content."""

    request: CommitFile
    digest: bytes
    minted_ms: int
    """When the object's key was minted, which is before its upload began."""


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
    _check_extents(request)
    return CheckedCommit(request, _digest(request), minted)


def _check_extents(request: CommitFile) -> None:
    end = 0
    is_ascending = True
    for batch in request.batches:
        is_ascending &= batch.byte_offset >= end
        end = batch.byte_offset + batch.length_bytes
        has_producer = batch.producer_id >= 0
        if (
            batch.byte_offset < 0
            or batch.length_bytes <= 0
            or end > request.file_size_bytes
            or not 0 < batch.record_count <= _INT32_MAX
            or batch.timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME)
            or not 0 <= batch.partition.partition <= _INT32_MAX
            or (has_producer and not 0 <= batch.producer_epoch <= _INT16_MAX)
            or (has_producer and not 0 <= batch.base_sequence <= _INT32_MAX)
        ):
            raise Rejected(f"{request.object_key}: not a batch of this object: {batch}")
    if is_ascending:
        return
    end = 0
    for batch in sorted(request.batches, key=_byte_offset_of):
        if batch.byte_offset < end:
            raise Rejected(f"{request.object_key}: extents overlap at byte {batch.byte_offset}")
        end = batch.byte_offset + batch.length_bytes


def _byte_offset_of(batch: BatchExtent) -> int:
    return batch.byte_offset


def _digest(request: CommitFile) -> bytes:
    """16 bytes over the object and all its batches; who uploaded it does not matter."""
    parts = [
        _DIGESTED_FILE.pack(request.object_format, request.file_size_bytes, len(request.batches))
    ]
    topic_id: UUID | None = None
    topic_bytes = b""
    try:
        for batch in request.batches:
            partition = batch.partition
            if partition.topic_id is not topic_id:
                topic_id = partition.topic_id
                topic_bytes = topic_id.bytes
            parts.append(_DIGESTED_BATCH.pack(topic_bytes, partition.partition, *batch[1:]))
    except struct.error as error:
        raise Rejected(f"{request.object_key}: a number of {batch} is out of range") from error
    return blake2b(b"".join(parts), digest_size=REQUEST_DIGEST_BYTES).digest()


def owns_first(owner_ids: Sequence[int], coordinator_id: int) -> bool:
    """Whether a file with this owner list belongs to this coordinator from its commit on."""
    return not owner_ids or owner_ids[0] == coordinator_id


def producers_of(request: CommitFile, view: SpeculativeView) -> set[ProducerKey]:
    """The producers whose state deciding `request` needs."""
    keys: set[ProducerKey] = set()
    partition: TopicIdPartition | None = None
    state: PartitionState | None = None
    for batch in request.batches:
        if batch.producer_id < 0:
            continue
        if batch.partition is not partition:
            partition = batch.partition
            state = view.partition(partition)
        if state is not None:
            keys.add((state.id, batch.producer_id))
    return keys


def decide_commit(
    view: SpeculativeView,
    commit: CheckedCommit,
    *,
    now_ms: int,
    wall_ms: int,
    settings: CoordinatorSettings,
) -> Decision[Sequence[BatchCommit]]:
    """Assign offsets; the view has the effect afterwards.

    `now_ms` becomes the append time and never goes back; `wall_ms` does, and keys are judged by it:
    after a clock was set back, new keys look old to a time that only goes forward.

    Raises (and leaves the view alone): Rejected (other content was committed under this key),
    ObjectExpired (too old, forgotten or tombstoned).
    """
    request = commit.request
    key: ObjectKey = request.object_key
    known = view.file(key)
    if known is not None and known.standing is FileStanding.COMMITTED:
        if known.request_digest != commit.digest:
            raise Rejected(f"{key} was committed with other content")
        return Decision((), unpack_answer(known.answer, request.batches))
    if known is not None and known.standing is not FileStanding.HANDED_OVER:
        raise ObjectExpired(f"{key} was given up: whoever looked for orphans deletes it")
    if (
        wall_ms - commit.minted_ms > settings.max_commit_age_ms
        or commit.minted_ms <= view.forgotten_until_ms
    ):
        # Nobody remembers any more whether it was committed before, and whoever looks for orphans
        # may delete it, trusting that it stays unknown.
        raise ObjectExpired(f"{key} is older than {settings.max_commit_age_ms} ms or was forgotten")

    accepted: list[CommittedBatch] = []
    refused: list[RefusedBatch] = []
    answer: list[AnswerEntry] = []
    partition: TopicIdPartition | None = None
    state: PartitionState | None = None
    high_watermark = 0

    def leave_partition() -> None:
        if partition is not None and state is not None and high_watermark > state.high_watermark:
            view.put_partition(partition, state._replace(high_watermark=high_watermark))

    for position, batch in enumerate(request.batches):
        if batch.partition != partition:
            leave_partition()
            partition = batch.partition
            state = view.partition(partition)
            high_watermark = 0 if state is None else state.high_watermark
        if state is None:
            code = REFUSAL_CODES[UnknownPartition]
            refused.append(RefusedBatch(position, code))
            answer.append(AnswerEntry(refusal=code))
            continue
        last_sequence = batch.last_sequence
        if batch.producer_id >= 0:
            producer_key = (state.id, batch.producer_id)
            producer = view.producer(producer_key)
            verdict = check_sequence(
                producer,
                epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                last_sequence=last_sequence,
                now_ms=now_ms,
                expiration_ms=settings.producer_expiration_ms,
            )
            if isinstance(verdict, ProducerBatch):
                duplicate = AnswerEntry(
                    verdict.base_offset,
                    verdict.append_time_ms,
                    state.log_start_offset,
                    is_duplicate=True,
                )
                refused.append(RefusedBatch(position, 0, *duplicate[:3]))
                answer.append(duplicate)
                continue
            if verdict is not None:
                code = REFUSAL_CODES[verdict]
                refused.append(RefusedBatch(position, code))
                answer.append(AnswerEntry(refusal=code))
                continue
            view.put_producer(
                producer_key,
                with_batch(
                    producer,
                    batch.producer_epoch,
                    ProducerBatch(batch.base_sequence, last_sequence, high_watermark, now_ms),
                ),
            )
        last_offset = high_watermark + batch.record_count - 1
        accepted.append(
            CommittedBatch(
                partition,
                position,
                MAGIC,
                batch.byte_offset,
                batch.length_bytes,
                Offset(high_watermark),
                Offset(last_offset),
                now_ms,
                batch.max_timestamp_ms,
                batch.timestamp_type,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                last_sequence,
            )
        )
        answer.append(AnswerEntry(high_watermark, now_ms, state.log_start_offset))
        high_watermark = last_offset + 1
    leave_partition()

    stored = pack_answer(answer)
    view.put_file(
        key,
        KnownFile(
            commit.digest,
            stored,
            is_owner=known is not None or owns_first(request.owner_ids, view.coordinator_id),
        ),
    )
    record = FileCommittedRecord(
        object_key=key,
        object_format=request.object_format,
        file_size=request.file_size_bytes,
        uploader_broker_id=request.uploader_broker_id,
        owner_ids=tuple(request.owner_ids),
        committed_at_ms=now_ms,
        batches=accepted,
        refused=refused,
        request_digest=commit.digest,
    )
    return Decision((record,), unpack_answer(stored, request.batches))
