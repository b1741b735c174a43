"""Notes in objects of their own, `notes/<ULID>`: those that no WAL object carries.

The note that tells an object's offsets is carried by a later object of the same broker
(wal/chunks/object_notes.py), and that may be deleted first. The deletion of a WAL object first
writes what it says of objects that stay into a notes object (`metadata.workers.note_keeper`). No
object carries notes about those that sinks stage: a coordinator writes what it committed of them
into a notes object before it answers (`metadata.coordinator.sink_notes`). Nor does any say how
transactions ended, which a coordinator notes every few seconds (`metadata.workers.end_notes`). And
of long schemas objects have the digest alone; a broker notes their text before they are set
(`diskless.topics.schema_notes`). A rebuild reads them all.

    byte 0   magic    8s   "DLSNOTES"
    8        version  u16  1
    10       zeros    2s
    12       CRC      u32  over everything behind it
    16       topics   as in wal/chunks/object_notes.py: of which an object was deleted or staged
             commits  as in wal/chunks/object_notes.py: what became of objects that existed at the
                      time
             uvarint count, floors: topic id 16s; uvarint partition; uvarint high watermark;
                      uvarint high watermark - log start offset
             uvarint count, staged objects: string sink id; ULID 16s; uvarint count, runs
                      run: topic id 16s; uvarint partition; uvarint byte offset; uvarint bytes;
                      uvarint base offset; uvarint records; u8 timestamp type; time of append i64;
                      greatest timestamp i64; uvarint log start offset
             uvarint count, sinks: string sink id; string principal; batch id i64; digest 16s; time
                      of the commit i64; uvarint count, ranges: topic id 16s; uvarint partition;
                      uvarint base offset; uvarint records
             uvarint count, partitions with ends of transactions: topic id 16s; uvarint partition;
                      uvarint count, ends, by marker: uvarint offset of the marker - the previous
                      one; uvarint producer id; uvarint number of the transaction; producer epoch
                      i16; u8 1: committed; coordinator epoch i32; time i64
             uvarint producer id: of no producer below it is a transaction open
             uvarint count, schemas: string

All integers big-endian. An *end* is noted as long as its marker is in no segment. A *staged object*
is in the notes because of its commit, so it is proof of that, and of the place of each of its runs,
which are batches back to back. A *sink* is noted with its last batch. A *topic* is kept because
segments do not say how it is configured, and its last WAL object may be the one that goes. A
*floor* is kept where nothing else tells it any more: of a partition that has no records left, or of
which a rebuild left segments below the log start alone. A floor at its high watermark is proof of a
topic, what is kept otherwise is not: it may have been deleted. Two objects may say the same; what
they say never contradicts, but for the configuration of topics, where the later one counts.

Failure cases: CorruptObject for bytes that are no such object.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from wal.chunks.object_notes import (
    COMMITTED,
    CommitNote,
    Floor,
    TopicFacts,
    decode_commits,
    decode_topics,
    encode_commits,
    encode_topics,
    read_ulid,
    ulid_bytes,
)
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import crc32c
from wal.errors import CorruptObject
from wal.records.marker_batches import Marker
from wal.ulid import minted_ms
from wal.wire.fields import FieldReader, sized_string, uvarint

NOTES_PREFIX: Final = "notes/"
MAGIC: Final = b"DLSNOTES"
FORMAT_VERSION: Final = 1
HEAD: Final = struct.Struct(">8sH2sI")
HEAD_BYTES: Final = 16
assert HEAD.size == HEAD_BYTES

_ID_BYTES: Final = 16
_FLOOR_BYTES_MIN: Final = _ID_BYTES + 3
_RUN_TIMES: Final = struct.Struct(">Bqq")
_RUN_BYTES_MIN: Final = _ID_BYTES + 6 + _RUN_TIMES.size
_STAGED_BYTES_MIN: Final = _ID_BYTES + 2
_DIGEST_BYTES: Final = 16
_SINK_BATCH: Final = struct.Struct(f">q{_DIGEST_BYTES}sq")
_SINK_BYTES_MIN: Final = _SINK_BATCH.size + 3
_RANGE_BYTES_MIN: Final = _ID_BYTES + 3
_END: Final = struct.Struct(">hBiq")
_END_BYTES_MIN: Final = _END.size + 3
_ENDS_BYTES_MIN: Final = _ID_BYTES + 2


class StagedRun(NamedTuple):
    """Batches of one partition that lie back to back in a staged object, and where they are."""

    partition: TopicIdPartition
    byte_offset: int
    byte_size: int
    base_offset: int
    record_count: int
    timestamp_type: int
    append_time_ms: int
    max_timestamp_ms: int
    log_start_offset: int
    """Of the partition, when it was noted."""


class StagedNote(NamedTuple):
    """What was committed of one staged object, as far as no segment had it when it was noted."""

    sink_id: str
    ulid: str
    runs: Sequence[StagedRun]


class NotedSink(NamedTuple):
    """The last batch of a sink: who committed it, what it held, and the answer it got."""

    sink_id: str
    principal: str
    batch_id: int
    digest: bytes
    committed_at_ms: int
    ranges: Sequence[tuple[TopicIdPartition, int, int]]
    """Partition, base offset, last offset."""

    def is_later_than(self, other: "NotedSink") -> bool:
        """Whether `other` was the last batch before. An expired sink may begin at any batch."""
        return (self.committed_at_ms, self.batch_id) > (other.committed_at_ms, other.batch_id)


class NotedEnd(NamedTuple):
    """How a transaction ended in a partition, and where."""

    marker: Marker
    number: int
    """Of the transaction."""


class KeptNotes(NamedTuple):
    """What one notes object holds, or several of them together."""

    topics: Mapping[UUID, TopicFacts] = {}
    commits: Sequence[CommitNote] = ()
    floors: Mapping[TopicIdPartition, Floor] = {}
    staged: Sequence[StagedNote] = ()
    sinks: Sequence[NotedSink] = ()
    ends: Mapping[TopicIdPartition, Sequence[NotedEnd]] = {}
    """By partition, in the order of their markers."""
    ended_below: int = 0
    """No transaction of a producer below it is open: a rebuild has ended them all."""
    schemas: Sequence[str] = ()
    """Texts that stand as references in what is noted of topics; sorted."""

    @property
    def is_empty(self) -> bool:
        return not any(self)


NOTHING_KEPT: Final = KeptNotes()


def notes_key(ulid: str) -> ObjectKey:
    """The key of the notes object with this ULID."""
    return ObjectKey(NOTES_PREFIX + ulid)


def minted_ms_of_notes_key(key: str) -> int | None:
    """When a notes object was made, by its key; None when no notes object is named like this."""
    ulid = key.removeprefix(NOTES_PREFIX)
    try:
        return minted_ms(ulid) if key == NOTES_PREFIX + ulid and "/" not in ulid else None
    except ValueError:
        return None


def merged(parts: Iterable[KeptNotes]) -> KeptNotes:
    """All of `parts`, oldest first, as one: a commit counts for more than that one was given up.

    What was noted of a staged object later lacks what segments had by then; its runs add up.
    """
    staged: dict[tuple[str, str], dict[tuple[TopicIdPartition, int], StagedRun]] = {}
    sinks: dict[str, NotedSink] = {}
    topics: dict[UUID, TopicFacts] = {}
    commits: dict[str, CommitNote] = {}
    floors: dict[TopicIdPartition, Floor] = {}
    ends: dict[TopicIdPartition, dict[int, NotedEnd]] = {}
    ended_below = 0
    schemas: set[str] = set()
    for part in parts:
        schemas.update(part.schemas)
        ended_below = max(ended_below, part.ended_below)
        for partition, noted_ends in part.ends.items():
            by_offset = ends.setdefault(partition, {})
            by_offset.update((end.marker.offset, end) for end in noted_ends)
        topics.update(part.topics)
        for note in part.commits:
            if note.outcome == COMMITTED or note.ulid not in commits:
                commits[note.ulid] = note
        for partition, floor in part.floors.items():
            known = floors.get(partition, floor)
            floors[partition] = Floor(
                max(known.high_watermark, floor.high_watermark),
                max(known.log_start_offset, floor.log_start_offset),
            )
        for noted in part.staged:
            runs = staged.setdefault((noted.sink_id, noted.ulid), {})
            runs.update(((run.partition, run.byte_offset), run) for run in noted.runs)
        for sink in part.sinks:
            if sink.sink_id not in sinks or sink.is_later_than(sinks[sink.sink_id]):
                sinks[sink.sink_id] = sink
    return KeptNotes(
        topics,
        tuple(commits.values()),
        floors,
        tuple(StagedNote(*named, tuple(runs.values())) for named, runs in staged.items()),
        tuple(sinks.values()),
        {
            partition: tuple(by_offset[offset] for offset in sorted(by_offset))
            for partition, by_offset in ends.items()
        },
        ended_below,
        tuple(sorted(schemas)),
    )


def encode_kept_notes(notes: KeptNotes) -> bytes:
    """The bytes of a notes object."""
    parts = [encode_topics(notes.topics), encode_commits(notes.commits)]
    parts.append(uvarint(len(notes.floors)))
    for partition, floor in sorted(notes.floors.items()):
        parts += (
            *_place(partition),
            uvarint(floor.high_watermark, 64),
            uvarint(floor.high_watermark - floor.log_start_offset, 64),
        )
    parts.append(uvarint(len(notes.staged)))
    for staged in notes.staged:
        parts += (sized_string(staged.sink_id), ulid_bytes(staged.ulid))
        parts.append(uvarint(len(staged.runs)))
        for run in staged.runs:
            parts += (
                *_place(run.partition),
                uvarint(run.byte_offset, 64),
                uvarint(run.byte_size, 64),
                uvarint(run.base_offset, 64),
                uvarint(run.record_count, 64),
                _RUN_TIMES.pack(run.timestamp_type, run.append_time_ms, run.max_timestamp_ms),
                uvarint(run.log_start_offset, 64),
            )
    parts.append(uvarint(len(notes.sinks)))
    for sink in notes.sinks:
        parts += (sized_string(sink.sink_id), sized_string(sink.principal))
        parts.append(_SINK_BATCH.pack(sink.batch_id, sink.digest, sink.committed_at_ms))
        parts.append(uvarint(len(sink.ranges)))
        for partition, base_offset, last_offset in sink.ranges:
            parts += (
                *_place(partition),
                uvarint(base_offset, 64),
                uvarint(last_offset - base_offset + 1, 64),
            )
    parts.append(uvarint(len(notes.ends)))
    for partition, ends in sorted(notes.ends.items()):
        parts += (*_place(partition), uvarint(len(ends)))
        previous = 0
        for (offset, producer_id, *rest), number in ends:
            parts += (
                uvarint(offset - previous, 64),
                uvarint(producer_id, 64),
                uvarint(number, 64),
                _END.pack(*rest),
            )
            previous = offset
    parts.append(uvarint(notes.ended_below, 64))
    parts.append(uvarint(len(notes.schemas)))
    parts += map(sized_string, notes.schemas)
    content = b"".join(parts)
    return HEAD.pack(MAGIC, FORMAT_VERSION, b"\0\0", crc32c(content)) + content


def decode_kept_notes(data: bytes, name: str) -> KeptNotes:
    """The inverse of `encode_kept_notes`. Raises: CorruptObject naming `name`."""
    if len(data) < HEAD_BYTES:
        raise CorruptObject(f"{name}: {len(data)} bytes cannot hold notes")
    magic, version, _, crc = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptObject(f"{name}: no head of notes")
    if version != FORMAT_VERSION:
        raise CorruptObject(
            f"{name}: format version {version}; this release reads version {FORMAT_VERSION}"
        )
    content = data[HEAD_BYTES:]
    if crc32c(content) != crc:
        raise CorruptObject(f"{name}: fails its CRC")
    reader = FieldReader(content, f"{name}: notes", CorruptObject)
    topics = decode_topics(reader)
    commits = decode_commits(reader)
    floors: dict[TopicIdPartition, Floor] = {}
    for _ in range(reader.count(_FLOOR_BYTES_MIN)):
        partition = _read_place(reader)
        high_watermark = reader.uvarint(64)
        floors[partition] = Floor(high_watermark, high_watermark - reader.uvarint(64))
    staged = tuple(_read_staged(reader) for _ in range(reader.count(_STAGED_BYTES_MIN)))
    sinks = tuple(_read_sink(reader) for _ in range(reader.count(_SINK_BYTES_MIN)))
    ends: dict[TopicIdPartition, Sequence[NotedEnd]] = {}
    for _ in range(reader.count(_ENDS_BYTES_MIN)):
        partition = _read_place(reader)
        ends[partition] = _read_ends(reader)
    ended_below = reader.uvarint(64)
    schemas = tuple(reader.sized_string() for _ in range(reader.count(1)))
    reader.finish()
    return KeptNotes(topics, commits, floors, staged, sinks, ends, ended_below, schemas)


def _read_staged(reader: FieldReader) -> StagedNote:
    sink_id, ulid = reader.sized_string(), read_ulid(reader)
    runs = tuple(_read_run(reader) for _ in range(reader.count(_RUN_BYTES_MIN)))
    return StagedNote(sink_id, ulid, runs)


def _read_run(reader: FieldReader) -> StagedRun:
    partition = _read_place(reader)
    numbers = [reader.uvarint(64) for _ in range(4)]
    times = _RUN_TIMES.unpack(reader.raw(_RUN_TIMES.size))
    return StagedRun._make((partition, *numbers, *times, reader.uvarint(64)))


def _read_sink(reader: FieldReader) -> NotedSink:
    sink_id, principal = reader.sized_string(), reader.sized_string()
    batch_id, digest, committed_at_ms = _SINK_BATCH.unpack(reader.raw(_SINK_BATCH.size))
    ranges = []
    for _ in range(reader.count(_RANGE_BYTES_MIN)):
        partition, base_offset = _read_place(reader), reader.uvarint(64)
        ranges.append((partition, base_offset, base_offset + reader.uvarint(64) - 1))
    return NotedSink(sink_id, principal, batch_id, digest, committed_at_ms, tuple(ranges))


def _read_ends(reader: FieldReader) -> Sequence[NotedEnd]:
    ends = []
    offset = 0
    for _ in range(reader.count(_END_BYTES_MIN)):
        offset += reader.uvarint(64)
        producer_id, number = reader.uvarint(64), reader.uvarint(64)
        epoch, is_commit, *rest = _END.unpack(reader.raw(_END.size))
        ends.append(NotedEnd(Marker(offset, producer_id, epoch, bool(is_commit), *rest), number))
    return tuple(ends)


def _place(partition: TopicIdPartition) -> tuple[bytes, bytes]:
    return partition.topic_id.bytes, uvarint(partition.partition)


def _read_place(reader: FieldReader) -> TopicIdPartition:
    return TopicIdPartition(reader.uuid(), reader.uvarint())
