"""What a tiering job asks of the coordinators about tables, as values.

A topic with `table.enabled` is an Iceberg table. Its metadata files lie in the object store; which
of them is the current one, the *pointer*, is state of the catalogue (metadata partition 0), so that
a compare-and-set decides between two writers. The data files of the table are the live segments of
the topic, which each coordinator knows of its own partitions.

An answer about live segments says up to which offset of its metadata log the coordinator had
applied: the *applied offset*. A pointer carries those of all coordinators that were asked, so that
everybody can tell which segments the table cannot name any more (metadata/rules/tables.py).

Requests and answers follow the rules of metadata/operations.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple
from uuid import UUID

from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import Int32

NO_TABLE: Final = ObjectKey("")
"""The location of a table that was never written."""

SEGMENTS_PER_ANSWER_MAX: Final = 1_000
"""Segments of one partition in one answer."""

TABLES_PREFIX: Final = "tables/"


def table_prefix(topic_id: UUID) -> str:
    """Returns what the keys of all metadata files of a table start with."""
    return f"{TABLES_PREFIX}{topic_id}/metadata/"


class ListTables(NamedTuple):
    """Which tables are asked for, by the names of their topics, as in PlanSegments."""

    topics: Sequence[str] = ()
    excluded_topics: Sequence[str] = ()

    def wants(self, topic_name: str) -> bool:
        """Whether the table of this topic is asked for."""
        return (
            not self.topics or any(fnmatchcase(topic_name, name) for name in self.topics)
        ) and not any(fnmatchcase(topic_name, name) for name in self.excluded_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A table that is switched on, its settings, and its pointer."""

    topic_id: UUID
    topic_name: str
    namespace: str
    partition_count: Int32
    snapshot_retention_ms: int
    commit_interval_ms: int
    hides_deleted: bool = False
    """Whether the table leaves out rows below the log start offset."""
    location: ObjectKey = NO_TABLE
    age_ms: int = -1
    """How long ago the pointer was set, by the catalogue's clock; -1: never."""
    applied: Mapping[Int32, int] = field(default_factory=dict)
    """Applied offsets that the pointer carries, by coordinator."""


class ListedTables(NamedTuple):
    """The tables, and where their objects lie; the URL holds no secrets."""

    tables: Sequence[TableDescription]
    object_store_url: str = ""


class ListSegments(NamedTuple):
    """Asks for the live segments of a partition that end at `from_offset` or behind it."""

    partition: TopicIdPartition
    from_offset: int


class LiveSegment(NamedTuple):
    """A segment that serves the records `base_offset` .. `last_offset`."""

    object_key: ObjectKey
    object_bytes: int
    base_offset: Offset
    last_offset: Offset
    record_count: int


class ListedSegments(NamedTuple):
    """Live segments in offset order, at most SEGMENTS_PER_ANSWER_MAX of them."""

    segments: Sequence[LiveSegment] = ()
    coordinator: Int32 = 0
    applied_offset: int = -1
    """Everything below it in the coordinator's metadata log is in this answer, nothing above."""
    left_offset: int = -1
    """The last metadata offset at which a segment of the topic left the live ones and is still
    stored; -1: none is."""
    log_start_offset: int = 0
    """Of the partition: the records below it are deleted."""
    error: DisklessError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTable:
    """Makes `new_location` the pointer, if it is `old_location` now.

    Both may be equal: then the table names what it named, and more is known to have left it.
    """

    topic_id: UUID
    old_location: ObjectKey
    new_location: ObjectKey
    applied: Mapping[Int32, int]


class TableCommit(NamedTuple):
    """Where the pointer is now; `is_committed`: where it was asked to be."""

    is_committed: bool = False
    location: ObjectKey = NO_TABLE
    error: DisklessError | None = None
