"""Writes and reads what a WAL object notes beside its batches, for a rebuild of the metadata.

The index of an object says which batches it holds. It cannot say what their topics are called, nor
at which offsets they were committed: the object is stored before it is committed. So each object
carries *notes*, taken when its chunk is sealed:

- for each topic in it: name, number of partitions, and the configuration that was set;
- for each object of the same broker that was committed or given up since the broker's previous
  notes: the answer. So an object's offsets stand in one that the same broker wrote a little later;
- for each partition in it: its floor, the high watermark that this broker knew. What the object
  holds was committed at or above it. And the log start offset.

The last objects of a broker's life are noted nowhere; metadata/rebuild/plan.py says what can be
known of them. Notes are hints for a rebuild alone: no broker reads them otherwise, and an object
without any is as good as one with.

    notes    uvarint count, topics; uvarint count, commits; uvarint count, floors
    topic    topic id 16s; string name; uvarint partitions; uvarint count, (string, string) configs
    commit   ULID 16s; u8 outcome: 0 committed, 1 never will be
             if committed: time i64; uvarint count, runs; uvarint count, exceptions
    run      uvarint base offset + 1, or 0 where no batch was appended, and then nothing more;
             zigzag time - the commit's; uvarint base offset - log start offset
    except.  uvarint position - the previous position; u8 kind: 0 duplicate, 1 refused
    floor    uvarint high watermark + 1, or 0 where it is not known, and then nothing more;
             uvarint high watermark - log start offset; by (topic id, partition) in the object

A schema of a topic that is longer than NOTED_SCHEMA_MAX is not written into every object. In its
place stands `@` and the 32 hex digits of its digest; the text itself is in a notes object
(wal/chunks/kept_notes.py). No schema looks like that, because it is JSON.

Runs are the partitions of the noted object in its own order. The batches of a run that are no
exceptions got consecutive offsets from its base offset on; positions count batches in the object's
order. uvarint = 7 bits a byte, least significant first, at most 64 bits; string = uvarint length,
UTF-8. No notes at all are no bytes.

`CommitJournal` is where the broker's commit lane leaves the answers until the next seal. It is
bounded, because a long recovery may commit much before anything is sealed: the oldest go first.

Failure cases: CorruptObject for bytes that are no notes.
"""

import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from wal.batch_extents import BatchExtents
from wal.columns import Int64s, tuples
from wal.coordinates import BatchExtent, TopicIdPartition
from wal.errors import CorruptObject
from wal.ulid import decode_ulid, encode_ulid
from wal.wire.fields import FieldReader, sized_string, to_zigzag, uvarint, uvarints

NOTES_KEPT_MAX: Final = 256
"""Commits that wait for an object to carry them; a broker has one or a few per upload lane."""

COMMITTED: Final = 0
GIVEN_UP: Final = 1

DUPLICATE: Final = 0
REFUSED: Final = 1

NOTED_SCHEMA_MAX: Final = 4096
"""Characters of a schema that every object of its topic carries."""

SCHEMA_CONFIGS: Final = ("key.schema", "value.schema")

_DIGEST_BYTES: Final = 16
_REFERENCE: Final = re.compile(r"@[0-9a-f]{32}")

_TIME: Final = struct.Struct(">q")
_ID_BYTES: Final = 16
_RUN_BYTES_MIN: Final = 1


class TopicFacts(NamedTuple):
    """What a rebuild must know of a topic; `configs` by name."""

    name: str
    partition_count: int
    configs: Sequence[tuple[str, str]] = ()


TopicLookup = Callable[[UUID], TopicFacts | None]
"""What is known of a topic; called from the write loop's thread."""


class Floor(NamedTuple):
    """Where a partition's log was when an object was sealed."""

    high_watermark: int
    log_start_offset: int = 0


FloorLookup = Callable[[TopicIdPartition], Floor | None]
"""What is known of a partition."""
FloorsLookup = Callable[[Sequence[TopicIdPartition]], Sequence[Floor | None]]
"""The same of many; called from the write loop's thread."""


class BatchOutcome(NamedTuple):
    """What the coordinator made of one batch. The offset counts for an appended one only."""

    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = 0
    """Of the partition, at the time of the commit."""
    exception: int | None = None
    """DUPLICATE, REFUSED, or None: appended."""


class BatchOutcomes(NamedTuple):
    """The same of many, as columns."""

    base_offset: Int64s
    append_time_ms: Int64s
    log_start_offset: Int64s
    exceptions: Mapping[int, int]
    """Position -> DUPLICATE or REFUSED."""


class NotedRun(NamedTuple):
    """The batches of one partition in a noted object; -1 where none of them was appended."""

    base_offset: int
    append_time_ms: int
    log_start_offset: int = 0


_NO_RUN: Final = NotedRun(-1, 0)


class CommitNote(NamedTuple):
    """What became of one object."""

    ulid: str
    runs: Sequence[NotedRun] = ()
    exceptions: Mapping[int, int] = {}
    """Position in the object -> DUPLICATE or REFUSED."""
    outcome: int = COMMITTED

    def outcomes(self, extents: Sequence[BatchExtent]) -> Sequence[BatchOutcome]:
        """Returns the outcome of each batch of the object. Raises: CorruptObject (not this one)."""
        found: list[BatchOutcome] = []
        runs = _record_counts(extents)
        if self.outcome != COMMITTED:
            return [BatchOutcome(exception=REFUSED)] * len(extents)
        if len(runs) != len(self.runs):
            raise CorruptObject(f"{self.ulid}: noted with {len(self.runs)} runs, has {len(runs)}")
        for noted, record_counts in zip(self.runs, runs, strict=True):
            offset = noted.base_offset
            for record_count in record_counts:
                exception = self.exceptions.get(len(found))
                if exception is not None:
                    found.append(BatchOutcome(exception=exception))
                    continue
                if offset < 0:
                    raise CorruptObject(f"{self.ulid}: batch {len(found)} is noted without offset")
                found.append(BatchOutcome(offset, noted.append_time_ms, noted.log_start_offset))
                offset += record_count
        return found


class ObjectNotes(NamedTuple):
    """All that an object notes."""

    topics: Mapping[UUID, TopicFacts] = {}
    commits: Sequence[CommitNote] = ()
    floors: Sequence[Floor | None] = ()
    """Per partition of the object in its order."""


NO_NOTES: Final = ObjectNotes()


def long_schemas(configs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The schemas among the configs of a topic of which objects note the digest alone."""
    for name, value in configs:
        if name in SCHEMA_CONFIGS and len(value) > NOTED_SCHEMA_MAX:
            yield value


def schema_reference(text: str) -> str:
    """What is noted of a long schema."""
    return f"@{blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"


def is_schema_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def noted_configs(configs: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """The configs of a topic as objects note them, by name."""
    texts = set(long_schemas(configs.items()))
    return tuple(
        (name, schema_reference(value) if value in texts else value)
        for name, value in sorted(configs.items())
    )


def note_commit(
    ulid: str, extents: Sequence[BatchExtent], outcomes: Sequence[BatchOutcome] | BatchOutcomes
) -> CommitNote | None:
    """The note of a committed object; None when its offsets are not what notes can tell.

    That would be an appended batch that does not follow the one before it in its partition, or lies
    below the log's start, which no coordinator answers.
    """
    batches = BatchExtents.of(extents)
    if isinstance(outcomes, BatchOutcomes):
        return _note_columns(ulid, batches, outcomes)
    record_counts = batches.record_count.tolist()
    runs: list[NotedRun] = []
    exceptions: dict[int, int] = {}
    # Where the next batch of the run must begin; -1 while none of it was appended.
    place = expected = -1
    for position, batch_place in enumerate(batches.partition_of.tolist()):
        base_offset, append_time_ms, log_start_offset, exception = outcomes[position]
        if batch_place != place:
            place, expected = batch_place, -1
            runs.append(_NO_RUN)
        if exception is not None:
            exceptions[position] = exception
            continue
        if expected < 0:
            if not 0 <= log_start_offset <= base_offset:
                return None
            runs[-1] = NotedRun(base_offset, append_time_ms, log_start_offset)
        elif base_offset != expected or append_time_ms != runs[-1].append_time_ms:
            return None
        expected = base_offset + record_counts[position]
    return CommitNote(ulid, runs, exceptions)


def _note_columns(ulid: str, batches: BatchExtents, outcomes: BatchOutcomes) -> CommitNote | None:
    is_start = np.zeros(len(batches), np.int64)
    is_start[batches.run_starts] = 1
    run_of = is_start.cumsum() - 1
    is_appended = np.ones(len(batches), np.bool_)
    is_appended[[*outcomes.exceptions]] = False
    which = np.flatnonzero(is_appended)
    base, times, starts = (
        numbers[which]
        for numbers in (outcomes.base_offset, outcomes.append_time_ms, outcomes.log_start_offset)
    )
    follows = np.zeros(len(which), np.bool_)
    follows[1:] = run_of[which][1:] == run_of[which][:-1]
    ends = base + batches.record_count[which]
    is_next = (base[1:] == ends[:-1]) & (times[1:] == times[:-1])
    is_within = (starts >= 0) & (starts <= base)
    if not (is_next | ~follows[1:]).all() or not (is_within | follows).all():
        return None
    runs = [_NO_RUN] * int(is_start.sum())
    firsts = np.flatnonzero(~follows)
    noted = tuples(NotedRun, *(numbers[firsts].tolist() for numbers in (base, times, starts)))
    for place, run in zip(run_of[which][firsts].tolist(), noted, strict=True):
        runs[place] = run
    return CommitNote(ulid, runs, dict(outcomes.exceptions))


def _record_counts(extents: Sequence[BatchExtent]) -> Sequence[Sequence[int]]:
    """The record counts of the object's batches by partition; one partition's lie together."""
    batches = BatchExtents.of(extents)
    counts = batches.record_count.tolist()
    return [
        counts[start:end] for start, end in pairwise([*batches.run_starts.tolist(), len(counts)])
    ]


class CommitJournal:
    """Notes of commits between the commit lane, which adds, and the next seal, which takes them.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._notes: deque[CommitNote] = deque(maxlen=NOTES_KEPT_MAX)
        self._lock = threading.Lock()

    def add(self, note: CommitNote) -> None:
        with self._lock:
            self._notes.append(note)

    def take(self) -> list[CommitNote]:
        """All notes, oldest first; they are gone from here."""
        with self._lock:
            notes = list(self._notes)
            self._notes.clear()
        return notes

    def give_back(self, notes: Sequence[CommitNote]) -> None:
        """Notes that were taken and that no object carries after all."""
        with self._lock:
            kept = NOTES_KEPT_MAX - len(self._notes)
            self._notes.extendleft(reversed(notes[-kept:] if kept else ()))


def encode_notes(notes: ObjectNotes) -> bytes:
    """The bytes of `notes`; none when there is nothing to note."""
    floors = notes.floors if any(floor is not None for floor in notes.floors) else ()
    if not notes.topics and not notes.commits and not floors:
        return b""
    numbers = [len(floors)]
    for floor in floors:
        if floor is None:
            numbers.append(0)
        else:
            high_watermark, log_start_offset = floor
            numbers += (high_watermark + 1, high_watermark - log_start_offset)
    return b"".join((encode_topics(notes.topics), encode_commits(notes.commits), uvarints(numbers)))


def encode_topics(topics: Mapping[UUID, TopicFacts]) -> bytes:
    """The bytes of what is noted of topics, with their number in front."""
    parts: list[bytes] = [uvarint(len(topics))]
    for topic_id, facts in sorted(topics.items()):
        parts += (topic_id.bytes, sized_string(facts.name), uvarint(facts.partition_count))
        parts.append(uvarint(len(facts.configs)))
        for name, value in facts.configs:
            parts += (sized_string(name), sized_string(value))
    return b"".join(parts)


def encode_commits(commits: Sequence[CommitNote]) -> bytes:
    """The bytes of what is noted of commits, with their number in front."""
    parts: list[bytes] = [uvarint(len(commits))]
    for note in commits:
        parts += (ulid_bytes(note.ulid), bytes((note.outcome,)))
        if note.outcome == COMMITTED:
            parts += _committed(note)
    return b"".join(parts)


def _committed(note: CommitNote) -> tuple[bytes, bytes]:
    first = next((run.append_time_ms for run in note.runs if run.base_offset >= 0), 0)
    numbers = [len(note.runs)]
    for base_offset, append_time_ms, log_start_offset in note.runs:
        if base_offset < 0:
            numbers.append(0)
            continue
        delta = to_zigzag(append_time_ms - first)
        numbers += (base_offset + 1, delta, base_offset - log_start_offset)
    numbers.append(len(note.exceptions))
    previous = 0
    for position, kind in sorted(note.exceptions.items()):
        # A kind is a byte, and as such a varint.
        numbers += (position - previous, kind)
        previous = position
    return _TIME.pack(first), uvarints(numbers)


def decode_notes(data: bytes, name: str) -> ObjectNotes:
    """The inverse of `encode_notes`. Raises: CorruptObject naming `name`."""
    if not data:
        return NO_NOTES
    reader = FieldReader(data, f"{name}: notes", CorruptObject)
    topics = decode_topics(reader)
    commits = decode_commits(reader)
    floors = [_decode_floor(reader) for _ in range(reader.count(1))]
    reader.finish()
    return ObjectNotes(topics, commits, tuple(floors))


def decode_topics(reader: FieldReader) -> Mapping[UUID, TopicFacts]:
    """The inverse of `encode_topics`. Raises: CorruptObject."""
    topics: dict[UUID, TopicFacts] = {}
    for _ in range(reader.count(_ID_BYTES + 3)):
        topic_id = reader.uuid()
        topic_name = reader.sized_string()
        partition_count = reader.uvarint()
        configs = [(reader.sized_string(), reader.sized_string()) for _ in range(reader.count(2))]
        topics[topic_id] = TopicFacts(topic_name, partition_count, tuple(configs))
    return topics


def decode_commits(reader: FieldReader) -> Sequence[CommitNote]:
    """The inverse of `encode_commits`. Raises: CorruptObject."""
    return tuple(_decode_commit(reader) for _ in range(reader.count(_ID_BYTES + 1)))


def ulid_bytes(ulid: str) -> bytes:
    """The 16 bytes that stand for a ULID in notes."""
    return decode_ulid(ulid).to_bytes(_ID_BYTES, "big")


def read_ulid(reader: FieldReader) -> str:
    """The inverse of `ulid_bytes`. Raises: CorruptObject."""
    try:
        return encode_ulid(int.from_bytes(reader.raw(_ID_BYTES), "big"))
    except ValueError as error:
        raise reader.corrupt(str(error)) from error


def _decode_floor(reader: FieldReader) -> Floor | None:
    high_watermark = reader.uvarint(64) - 1
    if high_watermark < 0:
        return None
    return Floor(high_watermark, high_watermark - reader.uvarint(64))


def _decode_commit(reader: FieldReader) -> CommitNote:
    ulid = read_ulid(reader)
    outcome = reader.uint8()
    if outcome == GIVEN_UP:
        return CommitNote(ulid, outcome=GIVEN_UP)
    if outcome != COMMITTED:
        raise reader.corrupt(f"outcome {outcome}")
    (first,) = _TIME.unpack(reader.raw(_TIME.size))
    runs: list[NotedRun] = []
    for _ in range(reader.count(_RUN_BYTES_MIN)):
        base = reader.uvarint(64) - 1
        if base < 0:
            runs.append(_NO_RUN)
            continue
        delta = reader.zigzag()
        runs.append(NotedRun(base, first + delta, base - reader.uvarint(64)))
    exceptions: dict[int, int] = {}
    position = 0
    for _ in range(reader.count(2)):
        position += reader.uvarint()
        kind = reader.uint8()
        if kind not in (DUPLICATE, REFUSED):
            raise reader.corrupt(f"exception of kind {kind}")
        exceptions[position] = kind
    return CommitNote(ulid, tuple(runs), exceptions)
