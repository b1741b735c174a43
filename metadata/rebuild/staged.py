"""Reads the staged objects of sinks whose commit is noted, for a rebuild.

An object below `staged/` was written by a task, which no rebuild believes: whoever may write there
could have replaced it since, too. What counts is the note of its commit, which the coordinator put
into a notes object (metadata/coordinator/sink_notes.py): it says which bytes of the object are
which offsets of which partition. The object's index adds where each batch begins, how many records
it has, and its CRC; all of it together must be what is noted, or the object is left out and
reported.

So offsets of staged objects are never inferred. What no note names was not committed, or not
answered; it stays where it is, and out of the log.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from metadata.rebuild.facts import STAGED_BROKER_ID, ObjectFacts, Unreadable
from metadata.rebuild.rebuild import Progress, for_each
from wal.chunks.kept_notes import KeptNotes, StagedNote, StagedRun
from wal.chunks.object_notes import DUPLICATE, BatchOutcome, CommitNote, note_commit
from wal.chunks.wal_object import WalObjectIndex, WalObjectReader
from wal.coordinates import NO_TRANSACTION, BatchExtent, ObjectKey
from wal.errors import CorruptObject, ObjectNotFound
from wal.staging.staged_keys import STAGED_PREFIX, sink_of, staged_key
from wal.stores.object_store import ObjectStat, ObjectStore

_ELSEWHERE: Final = BatchOutcome(exception=DUPLICATE)
"""In a segment, or deleted, when it was noted."""


class StagedFacts(NamedTuple):
    """What the bucket tells of staged objects."""

    objects: Sequence[ObjectFacts]
    commits: Sequence[CommitNote]
    """Where their batches are."""
    unreadable: Sequence[Unreadable]
    uncommitted: Mapping[str, int]
    """By sink id, how many objects there are of which no commit is noted."""


async def read_staged_objects(
    store: ObjectStore, kept: KeptNotes, *, progress: Progress
) -> StagedFacts:
    """Raises: ObjectStoreUnavailable."""
    noted = {staged_key(note.sink_id, note.ulid): note for note in kept.staged}
    reader = WalObjectReader(store)
    found: dict[ObjectKey, tuple[ObjectFacts, CommitNote]] = {}
    unreadable: list[Unreadable] = []
    uncommitted: Counter[str] = Counter()

    async def read(stat: ObjectStat) -> None:
        try:
            index = await reader.read_index(stat.key, object_bytes=stat.length_bytes)
            found[stat.key] = _facts(stat, index, noted[stat.key])
        except (CorruptObject, ObjectNotFound) as error:
            unreadable.append(Unreadable(stat.key, f"{type(error).__name__}: {error}"))

    wanted: list[ObjectStat] = []
    async for stat in store.list(STAGED_PREFIX):
        sink_id = sink_of(stat.key)
        if stat.key in noted:
            wanted.append(stat)
        elif sink_id is not None:
            uncommitted[sink_id] += 1
    await for_each(wanted, read, "staged objects", progress=progress)
    ordered = [found[key] for key in sorted(found)]
    return StagedFacts(
        [facts for facts, _ in ordered],
        [note for _, note in ordered],
        sorted(unreadable),
        dict(sorted(uncommitted.items())),
    )


def _facts(
    stat: ObjectStat, index: WalObjectIndex, noted: StagedNote
) -> tuple[ObjectFacts, CommitNote]:
    """Raises CorruptObject."""
    extents = list(index.extents)
    outcomes = [_ELSEWHERE] * len(extents)
    for run in noted.runs:
        offset = run.base_offset
        for position in _positions(stat.key, extents, run):
            extent = extents[position]
            extents[position] = extent._replace(
                timestamp_type=run.timestamp_type, transaction_number=NO_TRANSACTION
            )
            outcomes[position] = BatchOutcome(
                offset, run.append_time_ms, min(run.log_start_offset, offset)
            )
            offset += extent.record_count
    note = note_commit(noted.ulid, extents, outcomes)
    if note is None:
        raise CorruptObject(f"{stat.key}: what is noted of it has gaps")
    facts = ObjectFacts(
        object_key=stat.key,
        ulid=noted.ulid,
        broker_id=STAGED_BROKER_ID,
        object_bytes=stat.length_bytes,
        stored_ms=stat.last_modified_ms,
        extents=extents,
    )
    return facts, note


def _positions(key: ObjectKey, extents: Sequence[BatchExtent], run: StagedRun) -> Sequence[int]:
    """The batches of a run, in its order. Raises CorruptObject when they are not what is noted."""
    end = run.byte_offset + run.byte_size
    positions = [
        position
        for position, extent in enumerate(extents)
        if extent.partition == run.partition
        and run.byte_offset <= extent.byte_offset
        and extent.byte_offset + extent.length_bytes <= end
    ]
    inside = [extents[position] for position in positions]
    told = (
        sum(extent.length_bytes for extent in inside),
        sum(extent.record_count for extent in inside),
        max((extent.max_timestamp_ms for extent in inside), default=-1),
    )
    if told != (run.byte_size, run.record_count, run.max_timestamp_ms):
        raise CorruptObject(
            f"{key}: is not what was committed at {run.partition} {run.base_offset}"
        )
    return positions
