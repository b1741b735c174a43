"""The operations that replace committed segments by others, as values.

A rewrite takes neighbouring segments of one partition and puts fewer or smaller ones in their
place. A *merge* keeps every record. A *compaction* leaves out records that a later one of the same
key has replaced. Offsets, and everything else of the records that stay, are as they were.

    PlanRewrites -> RewritePlan: the live segments in a range of offsets, a generation, the limits
    (a Spark job writes the outputs under keys that hold the generation)
    CommitRewrites <- Rewrite: for some of these segments, by what they are replaced

A partition has one rewrite at a time. Its plan is durable and fixes all that the outputs depend on,
so that a job that is killed, repeated or run twice writes the same objects. An output takes the
place of one or several whole inputs, and says how many of their records it leaves out; the
coordinator holds that against its own counts (metadata/rules/rewriting/rewrites.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import Int8, Int32, UInt32

NO_REWRITE: Final = 0
MERGE: Final = 1
COMPACTION: Final = 2
"""Kinds of rewrites."""


class RewriteInput(NamedTuple):
    """A committed segment that is to be rewritten."""

    object_key: ObjectKey
    object_bytes: int
    base_offset: Offset
    last_offset: Offset
    record_count: Int32
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """Segments to be rewritten, by ascending offsets, without gap between them.

    A plan whose inputs begin to go with the log start ends; those that go while it is being
    answered are not in it.
    """

    topic_name: str
    partition: TopicIdPartition
    kind: Int8
    generation: Int32
    """In the keys of its outputs; greater than that of any rewrite of the partition before."""
    planned_at_ms: int
    delete_horizon_ms: int
    """Until when a tombstone is kept that this compaction is the first to see."""
    producers_since_ms: int
    """A producer that wrote nothing since then is forgotten, its last sequence with it."""
    target_bytes: int
    """What an output has at most, if it is made of several segments."""
    inputs: Sequence[RewriteInput]


class PlanRewrites(NamedTuple):
    """What a job asks for, and a broker of another for its sake."""

    max_plans: Int32 = 2**31 - 1
    """The answer holds no more."""
    topics: Sequence[str] = ()
    """Topics to plan, as names or patterns with `*`, `?` and `[…]`. An empty list means all."""
    excluded_topics: Sequence[str] = ()
    """Topics to leave out, written in the same way."""

    def wants(self, topic_name: str) -> bool:
        """Whether rewrites of the topic are asked for."""
        return (
            not self.topics or any(fnmatchcase(topic_name, name) for name in self.topics)
        ) and not any(fnmatchcase(topic_name, name) for name in self.excluded_topics)


ALL_REWRITES: Final = PlanRewrites()


class PlannedRewrites(NamedTuple):
    """What is due, and where its objects lie; the URL holds no secrets."""

    plans: Sequence[RewritePlan]
    object_store_url: str = ""


class RewrittenSegment(NamedTuple):
    """What a task wrote, exactly, in place of the inputs of these offsets."""

    base_offset: Offset
    last_offset: Offset
    object_key: ObjectKey
    object_bytes: int
    crc32c: UInt32
    """CRC32C over the whole object."""
    record_count: int
    removed_count: int
    """Records of the inputs that it leaves out."""
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The outcome of a plan; inputs that no segment replaces stay as they are."""

    partition: TopicIdPartition
    generation: Int32
    segments: Sequence[RewrittenSegment]


class RewriteCommit(NamedTuple):
    """`is_duplicate`: this outcome was committed before; nothing changed."""

    is_duplicate: bool = False
    error: DisklessError | None = None


def outcome_of(plan: RewritePlan, segments: Sequence[RewrittenSegment]) -> Rewrite:
    """What is committed when `segments` replace inputs of the plan."""
    return Rewrite(partition=plan.partition, generation=plan.generation, segments=segments)
