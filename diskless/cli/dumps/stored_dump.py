"""Chunks and WAL objects as tables for people: `diskless chunk dump` and `diskless wal dump`.

Values only; the command line prints them. A damaged chunk is shown record by record, with what is
wrong with each, because that is what one looks at a chunk for.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from wal.chunks.chunk import CHUNK_FILE, ChunkPaths
from wal.chunks.chunk_scan import inspect_chunk
from wal.chunks.wal_object import WalObjectIndex
from wal.coordinates import LOG_APPEND_TIME, BatchExtent, ObjectKey
from wal.errors import InvalidSettings
from wal.fd_cache import FdCache

_CHUNK_FILES_OPEN: Final = 2


class Dump(NamedTuple):
    """Facts about the whole, and a table with one row per batch."""

    facts: Mapping[str, object]
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


_BATCH_COLUMNS: Final = (
    "topic id",
    "partition",
    "byte offset",
    "bytes",
    "records",
    "crc",
    "max timestamp",
    "time type",
    "producer id",
    "epoch",
    "base sequence",
    "request",
)


def dump_chunk(file: Path) -> Dump:
    """A chunk named by any of its files; rows in arrival order, the last column says what is wrong.

    Raises: InvalidSettings (not a chunk's file), CorruptChunk (header or a file missing),
    StorageFailed.
    """
    match = CHUNK_FILE.fullmatch(file.name)
    if match is None:
        raise InvalidSettings(f"{file}: not one of the files of a chunk, such as chunk-000001.idx")
    paths = ChunkPaths.of(file.parent, int(match[1]))
    fd_cache = FdCache(_CHUNK_FILES_OPEN)
    try:
        identity, records = inspect_chunk(paths, fd_cache)
    finally:
        fd_cache.close()
    rows: list[Sequence[object]] = []
    for sequence, record in enumerate(records):
        if isinstance(record, str):
            rows.append((sequence, *[""] * len(_BATCH_COLUMNS), record))
            continue
        rows.append(
            (
                sequence,
                record.partition.topic_id,
                record.partition.partition,
                record.data_offset,
                record.length_bytes,
                record.record_count,
                f"{record.crc:08x}",
                _time(record.max_timestamp_ms),
                _time_type(record.timestamp_type),
                record.producer_id,
                record.producer_epoch,
                record.base_sequence,
                record.request_id,
                "",
            )
        )
    facts = {
        "chunk": paths.idx,
        "object key": identity.object_key,
        "broker": identity.broker_id,
        "lane": identity.lane,
        "opened at": _time(identity.opened_at_ms),
        "salt": f"{identity.salt:016x}",
        "batches": len(records),
        "damaged": sum(isinstance(record, str) for record in records),
    }
    return Dump(facts, ("sequence", *_BATCH_COLUMNS, "damage"), rows)


def dump_wal_index(key: ObjectKey, index: WalObjectIndex) -> Dump:
    """Returns the index that `WalObjectReader` read; rows in the object's order."""
    facts = {
        "object": key,
        "bytes": index.object_bytes,
        "broker": index.header.broker_id,
        "lane": index.header.lane,
        "chunk opened at": _time(index.header.created_at_ms),
        "batches": len(index.extents),
        "partitions": len({extent.partition for extent in index.extents}),
        "records": sum(extent.record_count for extent in index.extents),
        "topics": ", ".join(sorted(facts.name for facts in index.notes.topics.values())),
        "notes of": ", ".join(note.ulid for note in index.notes.commits),
    }
    return Dump(facts, _BATCH_COLUMNS, [_extent_row(extent) for extent in index.extents])


def _extent_row(extent: BatchExtent) -> Sequence[object]:
    return (
        extent.partition.topic_id,
        extent.partition.partition,
        extent.byte_offset,
        extent.length_bytes,
        extent.record_count,
        f"{extent.crc:08x}",
        _time(extent.max_timestamp_ms),
        _time_type(extent.timestamp_type),
        extent.producer_id,
        extent.producer_epoch,
        extent.base_sequence,
        extent.request_id,
    )


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the bare number for a time that no calendar holds (clients may send any)."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _time_type(timestamp_type: int) -> str:
    return "append" if timestamp_type == LOG_APPEND_TIME else "create"
