"""The report of a rebuild: what it found, decided and could not know, as values and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from metadata.rebuild.facts import Unreadable
from metadata.rebuild.layout import Doubt

NEVER_KNOWN: Final = (
    "topics that have nothing in the bucket",
    "partitions and configuration that a topic got after the last object that names it",
    "records deleted since the last commit to their partition: they may be back",
    "offsets of the newest records of a partition, if they were deleted before anything was written"
    " to it: they are given again",
    "the time of append of batches whose commit nobody noted: the time of their upload instead",
    "consumer groups and their offsets",
    "transactional ids, their producers, and offsets of groups that waited in transactions",
)
"""What no bucket tells, whatever is in it."""


class RebuiltPartition(NamedTuple):
    """One partition as it is now."""

    topic: str
    partition: int
    log_start_offset: int
    exact_end: int
    """Below it every offset is known; from it on they were inferred from the order of objects."""
    high_watermark: int
    segments: int
    wal_objects: int


class InferredRun(NamedTuple):
    """Batches whose offsets nobody noted: where they are now, and why there."""

    object_key: str
    topic: str
    partition: int
    base_offset: int
    record_count: int
    why: str


class InferredEnd(NamedTuple):
    """A transaction that was open, or whose end nobody noted for this partition: it is ended."""

    topic: str
    partition: int
    producer_id: int
    number: int
    first_offset: int
    marker_offset: int
    """Of the marker that it has now, behind its last record."""
    is_commit: bool
    is_known: bool
    """Notes of another partition say how it ended."""


class LeftObject(NamedTuple):
    """An object of which something is not served, and why: (reason, number of batches)."""

    object_key: str
    reasons: Mapping[str, int]
    is_committed: bool
    """Whether the new metadata know it all the same. What they do not know stays in the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """Everything to tell."""

    wal_objects: int
    segments: int
    batches: int
    topics: Sequence[str]
    tables: Sequence[str]
    """Topics that are tables: nothing points to these now, so a tiering job makes them anew."""
    partitions: Sequence[RebuiltPartition]
    doubts: Sequence[Doubt]
    """What may be wrong; empty: everything is as it was, as far as a bucket can tell."""
    unreadable: Sequence[Unreadable]
    inferred: Sequence[InferredRun]
    """What was placed although nobody noted its commit: the last objects of a broker's life."""
    inferred_objects: Sequence[str]
    """The objects that these are in."""
    ended: Sequence[InferredEnd]
    """The transactions of which no end was noted for a partition."""
    maybe_uncommitted: Sequence[str]
    """Those of them that were young enough to be on their way when everything ended."""
    left_out: Sequence[LeftObject]
    unused_segments: Sequence[str]
    dropped_topics: Sequence[str]
    """Topics that were not brought back because another topic of their name has newer records."""
    sinks: Mapping[str, int]
    """By sink id its last batch: from the next one on it goes on."""
    uncommitted: Mapping[str, int]
    """By sink id, how many staged objects there are of which no commit is noted."""
    written_objects: Sequence[str]
    """Objects that the rebuild adds: fillers of holes, and copies."""
    next_producer_id: int
    metadata_records: int

    @property
    def doubt_count(self) -> int:
        return len(self.doubts) + len(self.unreadable)

    @property
    def is_certain(self) -> bool:
        return self.doubt_count == 0

    def lists(self) -> Mapping[str, Sequence[str]]:
        """Returns what there is to say besides the table of partitions, for people."""
        young = set(self.maybe_uncommitted)
        return {
            "never known": NEVER_KNOWN,
            "table made anew by the next tiering job, under a new UUID": self.tables,
            "not brought back": [f"topic {name}" for name in self.dropped_topics],
            "offset not noted": [
                f"{run.topic}-{run.partition} {run.base_offset}.."
                f"{run.base_offset + run.record_count - 1} from {run.object_key}: {run.why}"
                for run in self.inferred
            ],
            "taken as committed": [
                f"{key} (perhaps never was)" if key in young else key
                for key in self.inferred_objects
            ],
            "transaction without noted end": [
                f"{end.topic}-{end.partition} {end.first_offset}..{end.marker_offset - 1}, producer"
                f" {end.producer_id}, transaction {end.number}: "
                f"{'committed' if end.is_commit else 'aborted'}"
                f"{', as it ended elsewhere' if end.is_known else ''}, with a marker at"
                f" {end.marker_offset}"
                for end in self.ended
            ],
            "left out": [
                f"{left.object_key}{'' if left.is_committed else ', not in the metadata'}: "
                + ", ".join(f"{count} batches: {why}" for why, count in left.reasons.items())
                for left in self.left_out
            ],
            "segment not used": self.unused_segments,
            "sink": [
                f"{sink_id}: its last batch is {last}" for sink_id, last in self.sinks.items()
            ],
            "staged and not committed": [
                f"{count} objects of sink {sink_id}" for sink_id, count in self.uncommitted.items()
            ],
            "written": self.written_objects,
            "unreadable": [f"{key}: {problem}" for key, problem in self.unreadable],
            "DOUBT": [f"{subject}: {problem}" for subject, problem in self.doubts],
        }

    def to_json(self) -> dict[str, Any]:
        """For json.dumps."""
        values = asdict(self)
        for name in ("partitions", "doubts", "unreadable", "left_out", "inferred", "ended"):
            values[name] = [item._asdict() for item in getattr(self, name)]
        values["is_certain"] = self.is_certain
        values["never_known"] = list(NEVER_KNOWN)
        return values
