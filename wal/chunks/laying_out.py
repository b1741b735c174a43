"""Lays out the object that a chunk becomes: its batches in their order, and its notes beside them.

What an object notes of others (wal/chunks/object_notes.py) is asked for at that moment. Notes of
commits are taken from the journal, each for one object: whoever does not write an object gives
them back.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkBatches
from wal.chunks.object_notes import (
    CommitJournal,
    CommitNote,
    FloorsLookup,
    ObjectNotes,
    TopicFacts,
    TopicLookup,
    encode_notes,
)
from wal.chunks.wal_object import ObjectLayout, WalObjectPlan
from wal.coordinates import TopicIdPartition


class LaidOut(NamedTuple):
    """A chunk's object, before or after the chunk is written."""

    identity: ChunkIdentity
    batches: ChunkBatches
    """In arrival order."""
    layout: ObjectLayout
    commits: Sequence[CommitNote]
    """Those in `notes`."""
    notes: bytes
    plan: WalObjectPlan


class LayingOut:
    """Lays out the objects of one chunk directory."""

    def __init__(
        self,
        topics: TopicLookup | None,
        floors: FloorsLookup | None,
        commits: CommitJournal | None,
    ) -> None:
        """What objects note: wal/chunks/object_notes.py."""
        self._topics: Final = topics
        self._floors: Final = floors
        self._commits: Final = commits or CommitJournal()

    def lay_out(self, identity: ChunkIdentity, batches: ChunkBatches) -> LaidOut:
        """The object of a chunk that has these batches and no others."""
        layout = ObjectLayout.of(batches)
        commits = self._commits.take()
        notes = self.notes_of(layout.extents.partitions, commits)
        plan = layout.plan(identity, notes)
        return LaidOut(identity, batches, layout, commits, notes, plan)

    def give_back(self, laid_out: LaidOut) -> LaidOut:
        """Have another object note what this one would have; the same object without notes."""
        self._commits.give_back(laid_out.commits)
        plan = laid_out.layout.plan(laid_out.identity, b"")
        return laid_out._replace(commits=(), notes=b"", plan=plan)

    def notes_of(
        self, partitions: Sequence[TopicIdPartition], commits: Sequence[CommitNote] = ()
    ) -> bytes:
        """The notes of an object with these partitions, which are in its order."""
        topics: dict[UUID, TopicFacts] = {}
        if self._topics is not None:
            for topic_id in dict.fromkeys(partition.topic_id for partition in partitions):
                facts = self._topics(topic_id)
                if facts is not None:
                    topics[topic_id] = facts
        floors = () if self._floors is None else self._floors(partitions)
        return encode_notes(ObjectNotes(topics, commits, floors))
