"""Reconstructs which topics there were: ids, names, numbers of partitions, configuration.

A topic is named by the notes of objects with data of it, by segments, and by notes objects. A name
belongs to one topic at a time, so of several topics with one name all but one were deleted before
the next was made. The one with the latest commit that is certain keeps the name. Another of them
is left out only when that is proved: nothing of it was stored after that commit, so it ended before
it. Otherwise it may be the one that lives, with records that nobody has noted yet: it comes back
under another name, for the report to tell.

Of a long schema objects note a reference. Its text is in the notes from before it was set, so it is
found; a topic whose schema is not found all the same is not typed, for the report to tell.

Pure functions; called by metadata/rebuild/plan.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from metadata.rebuild.facts import ObjectFacts, RebuildOptions, SegmentFacts
from metadata.rebuild.layout import Doubt
from metadata.rules.topics import PARTITIONS_PER_TOPIC_MAX
from wal.chunks.kept_notes import KeptNotes
from wal.chunks.object_notes import (
    SCHEMA_CONFIGS,
    CommitNote,
    TopicFacts,
    is_schema_reference,
    schema_reference,
)
from wal.errors import CorruptObject, InvalidSettings
from wal.ulid import ulid_timestamp_ms

NAME_CHARS_MAX: Final = 249
"""Kafka's limit for the name of a topic."""


class RebuiltTopic(NamedTuple):
    """A topic to create."""

    topic_id: UUID
    name: str
    partition_count: int
    configs: Mapping[str, str]
    columns: bytes = b""
    """The typed columns of the segment whose ids are the greatest."""


@dataclass(slots=True, kw_only=True)
class FoundTopics:
    """All topics to create, by name, and what is to be said of others."""

    topics: list[RebuiltTopic] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    renamed: set[UUID] = field(default_factory=set)
    """Those that may have been deleted, and are called something else for that."""
    doubts: list[Doubt] = field(default_factory=list)


@dataclass(slots=True)
class _Trace:
    """What the bucket tells of one topic."""

    partition_count: int = 0
    committed_ms: int = -1
    """The latest commit that is certain."""
    active_ms: int = -1
    """Nothing of it was stored, or committed, later."""
    facts: TopicFacts | None = None
    column_id_max: int = -1
    columns: bytes = b""

    def has(self, partition: int) -> None:
        self.partition_count = max(self.partition_count, partition + 1)

    def was_committed(self, time_ms: int, *, until_ms: int) -> None:
        self.committed_ms = max(self.committed_ms, time_ms)
        self.active_ms = max(self.active_ms, until_ms)


def find_topics(
    objects: Sequence[ObjectFacts],
    segments: Sequence[SegmentFacts],
    kept: KeptNotes,
    notes: Mapping[str, CommitNote],
    options: RebuildOptions,
) -> FoundTopics:
    """`objects` by ULID, `notes` by the ULID of the object that they are about.

    Raises: InvalidSettings (a name that was asked for cannot be).
    """
    traces = _traces(objects, segments, kept, notes)
    found = FoundTopics()
    schemas = {schema_reference(text): text for text in kept.schemas}
    for topic_id, name in _names(traces, options, found).items():
        trace = traces[topic_id]
        facts = trace.facts or TopicFacts(name, 0)
        count = max(facts.partition_count, trace.partition_count)
        if count > PARTITIONS_PER_TOPIC_MAX:
            problem = f"{topic_id} would have {count} partitions; left out"
            found.doubts.append(Doubt(f"topic {name}", problem))
            continue
        configs = _resolved(name, facts.configs, schemas, found)
        found.topics.append(RebuiltTopic(topic_id, name, count, configs, trace.columns))
    found.topics.sort(key=lambda topic: topic.name)
    return found


def _resolved(
    topic_name: str,
    configs: Sequence[tuple[str, str]],
    schemas: Mapping[str, str],
    found: FoundTopics,
) -> Mapping[str, str]:
    """The configs with schemas in the place of references to them."""
    resolved: dict[str, str] = {}
    for name, value in configs:
        if name in SCHEMA_CONFIGS and is_schema_reference(value):
            if value not in schemas:
                problem = f"the text of its {name} is not in the bucket; set it again"
                found.doubts.append(Doubt(f"topic {topic_name}", problem))
                continue
            value = schemas[value]
        resolved[name] = value
    return resolved


def _traces(
    objects: Sequence[ObjectFacts],
    segments: Sequence[SegmentFacts],
    kept: KeptNotes,
    notes: Mapping[str, CommitNote],
) -> Mapping[UUID, _Trace]:
    traces: dict[UUID, _Trace] = {}

    def trace(topic_id: UUID) -> _Trace:
        return traces.setdefault(topic_id, _Trace())

    for segment in sorted(segments, key=lambda item: item.stored_ms):
        one = trace(segment.partition.topic_id)
        one.has(segment.partition.partition)
        one.facts = TopicFacts(segment.topic_name, 0)
        if segment.column_id_max > one.column_id_max:
            one.column_id_max, one.columns = segment.column_id_max, segment.columns
        rolled = segment.last_source
        one.was_committed(
            -1 if rolled is None else ulid_timestamp_ms(rolled), until_ms=segment.stored_ms
        )
    proven = {one.partition.topic_id for one in segments}
    proven.update(extent.partition.topic_id for item in objects for extent in item.extents)
    proven.update(
        partition.topic_id
        for partition, floor in kept.floors.items()
        if floor.log_start_offset == floor.high_watermark
    )
    for partition in (*kept.floors, *kept.ends):
        if partition.topic_id in proven:
            trace(partition.topic_id).has(partition.partition)
    for topic_id, facts in kept.topics.items():
        if topic_id in proven:
            trace(topic_id).facts = facts
    for item in objects:
        note = notes.get(item.ulid)
        try:
            outcomes = None if note is None else note.outcomes(item.extents)
        except CorruptObject:
            outcomes = None  # told of where offsets are looked for
        for position, extent in enumerate(item.extents):
            one = trace(extent.partition.topic_id)
            one.has(extent.partition.partition)
            if outcomes is None:
                one.active_ms = max(one.active_ms, item.stored_ms)
            elif outcomes[position].exception is None:
                time_ms = outcomes[position].append_time_ms
                one.was_committed(time_ms, until_ms=time_ms)
        for topic_id, facts in item.notes.topics.items():
            trace(topic_id).facts = facts
    return traces


def _names(
    traces: Mapping[UUID, _Trace], options: RebuildOptions, found: FoundTopics
) -> Mapping[UUID, str]:
    chosen = options.topic_names
    for topic_id in chosen:
        if topic_id not in traces:
            raise InvalidSettings(f"nothing in the bucket is of the topic {topic_id}")
    owner = {name: topic_id for topic_id, name in chosen.items()}
    if len(owner) < len(chosen):
        raise InvalidSettings("two topics cannot have one name")

    def latest_first(topic_id: UUID) -> tuple[int, int, bytes]:
        trace = traces[topic_id]
        return -trace.committed_ms, -trace.active_ms, topic_id.bytes

    for topic_id in sorted(traces, key=latest_first):
        if topic_id in chosen:
            continue
        facts = traces[topic_id].facts
        name = facts.name if facts is not None and facts.name else _own_name("recovered", topic_id)
        if facts is None or not facts.name:
            problem = f"its name is not known; it is {name} now"
            found.doubts.append(Doubt(f"topic {topic_id}", problem))
        if name in owner:
            before = owner[name]
            trace = traces[topic_id]
            if (
                before in chosen
                or trace.active_ms < 0  # everything of it was refused
                or trace.active_ms < traces[before].committed_ms
            ):
                # It was deleted, or somebody made it anew after the metadata were lost.
                found.dropped.append(f"{name} ({topic_id})")
                problem = (
                    f"another topic is called {name} and has newer records; this one is left out"
                    " unless it is given another name"
                )
                found.doubts.append(Doubt(f"topic {topic_id}", problem))
                continue
            other = _own_name(name, topic_id)
            problem = (
                f"another topic is called {name}, and which of the two was deleted is not known;"
                f" this one is {other} now"
            )
            found.doubts.append(Doubt(f"topic {topic_id}", problem))
            found.renamed.add(topic_id)
            name = other
        owner[name] = topic_id
    return {topic_id: name for name, topic_id in owner.items()}


def _own_name(name: str, topic_id: UUID) -> str:
    return f"{name[: NAME_CHARS_MAX - 37]}-{topic_id}"
