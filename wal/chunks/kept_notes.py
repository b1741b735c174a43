"""Notes that outlive the objects they were in: small objects of their own, `notes/<ULID>`.

The note that tells an object's offsets is carried by a later object of the same broker
(wal/chunks/object_notes.py), and that may be deleted first. The deletion of a WAL object first
writes what it says of objects that stay into a notes object (`metadata.workers.note_keeper`). A
rebuild reads them all.

    byte 0   magic    8s   "DLSNOTES"
    8        version  u16  1
    10       zeros    2s
    12       CRC      u32  over everything behind it
    16       topics   as in wal/chunks/object_notes.py: of which an object was deleted
             commits  as in wal/chunks/object_notes.py: what became of objects that existed at the
             time uvarint count, floors: topic id 16s; uvarint partition; uvarint high watermark;
             uvarint high watermark - log start offset

All integers big-endian. A *topic* is kept because segments do not say how it is configured, and its
last WAL object may be the one that goes. A *floor* is kept where nothing else tells it any more: of
a partition that has no records left, or of which a rebuild left segments below the log start alone.
A floor at its high watermark is proof of a topic, what is kept otherwise is not: it may have been
deleted. Two objects may say the same; what they say never contradicts, but for the configuration of
topics, where the later one counts.

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
)
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import crc32c
from wal.errors import CorruptObject
from wal.ulid import minted_ms
from wal.wire.fields import FieldReader, uvarint

NOTES_PREFIX: Final = "notes/"
MAGIC: Final = b"DLSNOTES"
FORMAT_VERSION: Final = 1
HEAD: Final = struct.Struct(">8sH2sI")
HEAD_BYTES: Final = 16
assert HEAD.size == HEAD_BYTES

_ID_BYTES: Final = 16
_FLOOR_BYTES_MIN: Final = _ID_BYTES + 3


class KeptNotes(NamedTuple):
    """What one notes object holds, or several of them together."""

    topics: Mapping[UUID, TopicFacts] = {}
    commits: Sequence[CommitNote] = ()
    floors: Mapping[TopicIdPartition, Floor] = {}

    @property
    def is_empty(self) -> bool:
        return not self.commits and not self.floors and not self.topics


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
    """All of `parts`, oldest first, as one: a commit counts for more than that one was given up."""
    topics: dict[UUID, TopicFacts] = {}
    commits: dict[str, CommitNote] = {}
    floors: dict[TopicIdPartition, Floor] = {}
    for part in parts:
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
    return KeptNotes(topics, tuple(commits.values()), floors)


def encode_kept_notes(notes: KeptNotes) -> bytes:
    """The bytes of a notes object."""
    parts = [encode_topics(notes.topics), encode_commits(notes.commits)]
    parts.append(uvarint(len(notes.floors)))
    for partition, floor in sorted(notes.floors.items()):
        parts += (
            partition.topic_id.bytes,
            uvarint(partition.partition),
            uvarint(floor.high_watermark, 64),
            uvarint(floor.high_watermark - floor.log_start_offset, 64),
        )
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
        topic_id = reader.uuid()
        partition = TopicIdPartition(topic_id, reader.uvarint())
        high_watermark = reader.uvarint(64)
        floors[partition] = Floor(high_watermark, high_watermark - reader.uvarint(64))
    reader.finish()
    return KeptNotes(topics, commits, floors)
