"""DisklessCommitFile (95) as bytes, the operation whose speed matters; and one for several files.

Fields as in KIP-1164's schema, version 0; what is common to all messages is in
metadata/messages/codec.py. Ours are three tagged fields of the request:

    10000 UploaderBrokerId int32   -1 when left out
    10001 BatchCrcs []uint32       per batch; all 0 when left out
    10002 TransactionNumbers []int64   per batch; all -1, for batches of none, when left out

What the schema leaves open:

- Offsets are relative to the batch: 0 and record count - 1. Any BaseOffset and LastOffset with the
  same distance mean the same.
- A batch whose offsets or sequences contradict each other, or whose magic is not 2, is answered
  with InvalidRecord; the others are committed without it.
- LogAppendTime of an answer is -1 unless the batch has TimestampType LogAppendTime.

A batch takes 77 bytes, at a fixed stride as long as no batch has tagged fields; 29 bytes an answer
without an error.

CoordinatorCommitFilesAt (10013) is ours, for the files of one broker that wait for their commit at
the same coordinator. A file has the fields of a CommitFile request; one with a batch that no broker
sends is no request.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from metadata.batch_commits import BatchCommits
from metadata.messages.codec import (
    Address,
    AnswerShape,
    MessageReader,
    Operation,
    RequestShape,
    Tags,
    error_fields,
    reading,
)
from metadata.messages.shapes import Addressed
from metadata.operations import BatchCommit, CommitFile, CommittedFile
from wal.batch_extents import BatchExtents
from wal.columns import FEW_MAX, Int64s, Rows, row_type
from wal.coordinates import CREATE_TIME, NO_TRANSACTION, ObjectKey
from wal.errors import DisklessError, InvalidRecord, NotCoordinator, ObjectExpired, Rejected
from wal.records.record_batch import MAGIC_V2
from wal.wire.fields import (
    INT8,
    INT32,
    INT64,
    NO_TAGS,
    FieldReader,
    compact_string,
    tag_section,
    uvarint,
)

UPLOADER_BROKER_ID_TAG: Final = 10_000
BATCH_CRCS_TAG: Final = 10_001
TRANSACTION_NUMBERS_TAG: Final = 10_002

COMMIT_BATCH: Final = struct.Struct(">bi16siiiqqqbqhiiB")
"""One batch of a request and its empty tag section."""
assert COMMIT_BATCH.size == 77
_BATCH_ROW: Final = row_type(
    COMMIT_BATCH,
    "magic request_id topic_id partition byte_offset length_bytes base_offset last_offset"
    " max_timestamp_ms timestamp_type producer_id producer_epoch base_sequence last_sequence tags",
)

BATCH_RESULT: Final = struct.Struct(">hBqqqBB")
"""The answer to one batch without error message, and its empty tag section."""
assert BATCH_RESULT.size == 29

_INT32_MAX: Final = 2**31 - 1


class CommitFileMessage(NamedTuple):
    """A CommitFile request: what is to be committed, and what cannot be.

    Only a received one has refused batches; `file.batches` are the others, in their order.
    """

    file: CommitFile
    refused: Mapping[int, DisklessError] = {}
    """Why, by position in the request."""


def _write_file(file: CommitFile, parts: list[bytes]) -> Mapping[int, bytes]:
    """Appends the fields; gives the tagged ones."""
    parts += (
        compact_string(file.object_key),
        INT8.pack(file.object_format),
        INT64.pack(file.file_size_bytes),
        uvarint(len(file.owner_ids) + 1),
        *map(INT32.pack, file.owner_ids),
        uvarint(len(file.batches) + 1),
    )
    batches = BatchExtents.of(file.batches)
    rows = batches.rows(_BATCH_ROW)
    rows["magic"] = MAGIC_V2
    rows["last_offset"] = batches.record_count - 1
    rows["last_sequence"] = batches.last_sequence
    parts.append(rows.tobytes())
    tags = {}
    if file.uploader_broker_id != -1:
        tags[UPLOADER_BROKER_ID_TAG] = INT32.pack(file.uploader_broker_id)
    if batches.crc.any():
        tags[BATCH_CRCS_TAG] = uvarint(len(batches) + 1) + batches.crc.astype(">u4").tobytes()
    numbers = batches.transaction_number
    if (numbers != NO_TRANSACTION).any():
        tags[TRANSACTION_NUMBERS_TAG] = uvarint(len(numbers) + 1) + numbers.astype(">i8").tobytes()
    return tags


_BATCH_TAGS_AT: Final = COMMIT_BATCH.size - 1


class _FileFields(NamedTuple):
    """What stands before the tag section of a file."""

    object_key: ObjectKey
    object_format: int
    file_size: int
    owner_ids: Sequence[int]
    rows: Rows


def _read_fields(reader: MessageReader) -> _FileFields:
    return _FileFields(
        ObjectKey(reader.compact_string()),
        reader.int8(),
        reader.int64(),
        reader.int32s(),
        _commit_batch_rows(reader),
    )


def _message_of(fields: _FileFields, tags: Tags) -> CommitFileMessage:
    rows = fields.rows
    uploader = -1
    crcs: Int64s = np.zeros(len(rows), np.int64)
    numbers: Int64s = np.full(len(rows), NO_TRANSACTION, np.int64)
    if UPLOADER_BROKER_ID_TAG in tags:
        uploader = tags[UPLOADER_BROKER_ID_TAG].int32()
    if BATCH_CRCS_TAG in tags:
        crcs = _per_batch(tags[BATCH_CRCS_TAG], len(rows), ">u4", "CRCs")
    if TRANSACTION_NUMBERS_TAG in tags:
        content = tags[TRANSACTION_NUMBERS_TAG]
        numbers = _per_batch(content, len(rows), ">i8", "numbers of transactions")
    batches, refused = _batches_of(rows, crcs, numbers)
    file = CommitFile(
        object_key=fields.object_key,
        file_size_bytes=fields.file_size,
        uploader_broker_id=uploader,
        batches=batches,
        object_format=fields.object_format,
        owner_ids=fields.owner_ids,
    )
    return CommitFileMessage(file, refused)


def _read_commit_file(reader: MessageReader) -> tuple[CommitFileMessage, int]:
    fields = _read_fields(reader)
    timeout_ms, tags = reader.request_end()
    return _message_of(fields, tags), timeout_ms


def _commit_batch_rows(reader: MessageReader) -> Rows:
    size = COMMIT_BATCH.size
    count = reader.array_count(size)
    start = reader.position
    end = start + count * size
    # While tag sections are empty, batches lie at a fixed stride; that every 77th byte is zero
    # proves it, batch by batch.
    if not any(reader.data[start + _BATCH_TAGS_AT : end : size]):
        reader.skip(count * size)
        return np.frombuffer(reader.data, _BATCH_ROW, count, start)
    rows = bytearray()
    for _ in range(count):
        at = reader.skip(_BATCH_TAGS_AT)
        rows += reader.data[at : at + _BATCH_TAGS_AT] + NO_TAGS
        reader.skip_tags()
    return np.frombuffer(rows, _BATCH_ROW)


def _per_batch(content: FieldReader, batch_count: int, kind: str, what: str) -> Int64s:
    """An array with one number of `kind` for each batch."""
    size = np.dtype(kind).itemsize
    if content.array_count(size) != batch_count:
        raise content.corrupt(f"not as many {what} as batches, which are {batch_count},")
    start = content.skip(size * batch_count)
    content.finish()
    return np.frombuffer(content.data, kind, batch_count, start).astype(np.int64)


def _batches_of(
    rows: Rows, crcs: Int64s, numbers: Int64s
) -> tuple[BatchExtents, Mapping[int, DisklessError]]:
    first, last = rows["base_offset"].astype(np.int64), rows["last_offset"].astype(np.int64)
    # The difference may wrap around 64 bits; then `last` is the smaller one, or the count is not
    # that of a batch.
    counts = last - first + 1
    batches = BatchExtents.of_rows(rows, record_count=counts, crc=crcs, transaction_number=numbers)
    is_sound = (
        (rows["magic"] == MAGIC_V2)
        & (last >= first)
        & (counts > 0)
        & (counts <= _INT32_MAX)
        & (rows["last_sequence"] == batches.last_sequence)
    )
    if is_sound.all():
        return batches, {}
    refused: dict[int, DisklessError] = {}
    for position in np.flatnonzero(~is_sound).tolist():
        row = rows[position]
        refused[position] = InvalidRecord(
            f"batch {position}, of {batches.at(position).partition}: magic {row['magic']}, offsets "
            f"{row['base_offset']} to {row['last_offset']}, sequences {row['base_sequence']} to "
            f"{row['last_sequence']}"
        )
    return batches.take(np.flatnonzero(is_sound)), refused


def _write_commits(
    message: CommitFileMessage, commits: Sequence[BatchCommit], parts: list[bytes]
) -> None:
    """`commits` are those of `message.file.batches`; the refused ones are put between them."""
    refused = message.refused
    parts.append(uvarint(len(commits) + len(refused) + 1))
    if type(commits) is BatchCommits and not commits.errors and not refused:
        rows = np.zeros(len(commits), _RESULT_ROW)
        for name in _RESULT_FIELDS:
            rows[name] = getattr(commits, name)
        is_create_time = BatchExtents.of(message.file.batches).timestamp_type == CREATE_TIME
        rows["log_append_time_ms"][is_create_time] = -1
        parts.append(rows.tobytes())
        return
    pack = BATCH_RESULT.pack
    position = 0
    timestamp_types = BatchExtents.of(message.file.batches).timestamp_type.tolist()
    for timestamp_type, commit in zip(timestamp_types, commits, strict=True):
        while position in refused:
            parts.append(_refusal(refused[position]))
            position += 1
        position += 1
        base_offset, append_time_ms, log_start_offset, is_duplicate, error = commit
        if error is not None:
            parts.append(_refusal(error))
            continue
        if timestamp_type == CREATE_TIME:
            append_time_ms = -1
        parts.append(pack(0, 0, base_offset, append_time_ms, log_start_offset, is_duplicate, 0))
    while position in refused:
        parts.append(_refusal(refused[position]))
        position += 1


_REFUSED: Final = struct.Struct(">qqqBB").pack(-1, -1, -1, 0, 0)


def _refusal(error: DisklessError) -> bytes:
    return error_fields(error) + _REFUSED


_COMMIT_FIELDS: Final = struct.Struct(">xxxqqqBx")
_RESULT_FIELDS: Final = ("base_offset", "log_append_time_ms", "log_start_offset", "is_duplicate")
_RESULT_ROW: Final = row_type(_COMMIT_FIELDS, " ".join(_RESULT_FIELDS))


def _read_commits(reader: MessageReader, message: CommitFileMessage) -> Sequence[BatchCommit]:
    size = BATCH_RESULT.size
    count = reader.array_count(size)
    start = reader.position
    end = start + count * size
    data = reader.data
    # As for the request: no code, no message and no tags, batch by batch, prove the stride.
    if not (
        any(data[start:end:size])
        or any(data[start + 1 : end : size])
        or any(data[start + 2 : end : size])
        or any(data[start + size - 1 : end : size])
    ):
        reader.skip(count * size)
        if count > FEW_MAX:
            rows = np.frombuffer(data[start:end], _RESULT_ROW)
            *numbers, is_duplicate = (rows[name].astype(np.int64) for name in _RESULT_FIELDS)
            return BatchCommits(
                **dict(zip(_RESULT_FIELDS, numbers, strict=False)),
                is_duplicate=is_duplicate != 0,
                errors={},
            )
        return [
            BatchCommit(base_offset, append_time_ms, log_start_offset, is_duplicate != 0)
            for base_offset, append_time_ms, log_start_offset, is_duplicate in (
                _COMMIT_FIELDS.iter_unpack(data[start:end])
            )
        ]
    commits = []
    for _ in range(count):
        error = reader.error()
        commits.append(
            BatchCommit(reader.int64(), reader.int64(), reader.int64(), reader.boolean(), error)
        )
        reader.skip_tags()
    return commits


COMMIT_FILE: Final[Operation[CommitFileMessage, BatchCommit]] = Operation(
    key=95,
    name="DisklessCommitFile",
    address=Address.BY_PARTITION,
    request=RequestShape(
        lambda message, parts: _write_file(message.file, parts),
        _read_commit_file,
        lambda message: message.file.batches,
        lambda message, batches: message._replace(file=replace(message.file, batches=batches)),
    ),
    answers=AnswerShape(_write_commits, _read_commits),
    at=lambda coordinator, message: coordinator.commit_file(message.file),
    failed=lambda error: BatchCommit(error=error),
    # What one coordinator refuses for the whole object concerns its batches alone; repeating the
    # commit then gives each its first answer again.
    contained=(NotCoordinator, Rejected, ObjectExpired),
)


# -- several files ------------------------------------------------------------------------------

_FILE_BYTES_MIN: Final = 13
_COMMITTED_BYTES_MIN: Final = 5


def _write_files(asked: Addressed[CommitFile], parts: list[bytes]) -> Mapping[int, bytes]:
    parts.append(INT32.pack(asked.coordinator))
    write_files(asked.entries, parts)
    return {}


def write_files(files: Sequence[CommitFile], parts: list[bytes]) -> None:
    """A compact array of files, each as in a CommitFile request."""
    parts.append(uvarint(len(files) + 1))
    for file in files:
        parts.append(tag_section(_write_file(file, parts)))


def _read_files(reader: MessageReader) -> tuple[Addressed[CommitFile], int]:
    coordinator = reader.int32()
    files = read_files(reader)
    timeout_ms, _ = reader.request_end()
    return Addressed(coordinator, files), timeout_ms


def read_files(reader: MessageReader) -> list[CommitFile]:
    """The inverse of `write_files`; a batch that no broker sends is no request."""
    files = []
    for _ in reader.entries(_FILE_BYTES_MIN):
        fields = _read_fields(reader)
        message = _message_of(fields, dict(reader.tags()))
        if message.refused:
            raise reader.corrupt(str(next(iter(message.refused.values()))))
        files.append(message.file)
    return files


def pack_files(files: Sequence[CommitFile]) -> bytes:
    """Files as bytes that are kept, or passed on by those who need not look into them."""
    parts: list[bytes] = []
    write_files(files, parts)
    return b"".join(parts)


def unpack_files(data: bytes) -> list[CommitFile]:
    """The inverse of `pack_files`. Raises: InvalidRequest."""
    reader = MessageReader(data, "packed files")
    with reading(reader):
        return read_files(reader)


def _write_committed(
    asked: Addressed[CommitFile], answers: Sequence[CommittedFile], parts: list[bytes]
) -> None:
    parts.append(uvarint(len(answers) + 1))
    for file, (commits, error) in zip(asked.entries, answers, strict=True):
        parts.append(error_fields(error))
        if error is None:
            _write_commits(CommitFileMessage(file), commits, parts)
        else:
            parts.append(uvarint(1))
        parts.append(NO_TAGS)


def _read_committed(reader: MessageReader, asked: Addressed[CommitFile]) -> Sequence[CommittedFile]:
    answers = []
    for _, file in zip(reader.entries(_COMMITTED_BYTES_MIN), asked.entries, strict=False):
        error = reader.error()
        commits = _read_commits(reader, CommitFileMessage(file))
        if len(commits) != (len(file.batches) if error is None else 0):
            raise reader.corrupt(f"{len(commits)} answers to {len(file.batches)} batches")
        answers.append(CommittedFile(commits, error))
        reader.skip_tags()
    return answers


COMMIT_FILES_AT: Final[Operation[Addressed[CommitFile], CommittedFile]] = Operation(
    key=10_013,
    name="CoordinatorCommitFilesAt",
    address=Address.NAMED,
    request=RequestShape(
        _write_files,
        _read_files,
        lambda asked: asked.entries,
        lambda asked, files: asked._replace(entries=files),
    ),
    answers=AnswerShape(_write_committed, _read_committed),
    at=lambda coordinator, asked: coordinator.commit_files(asked.entries),
    failed=lambda error: CommittedFile(error=error),
)
