"""What is asked about sinks, and answered: writers that stage objects and commit them all at once.

A *sink* is one stream of batches with ascending ids, such as one streaming query. Its tasks put
WAL objects under `staged/<sink id>/`; its driver then commits those of one batch together. The
coordinator keeps of each sink the last batch: its id, a digest of what it held, and the answer. So
a batch that is committed again, by a driver that was restarted, gets the answer of the first time.

A sink belongs to the principal that first committed with its id. What is asked by a driver
(`OpenSink`, `CommitStaged`) names objects; what one broker asks another (`CommitSink`) has the
batches that it found in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from metadata.operations import CommitFile
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import CompactBytes, Int32

SINK_DIGEST_BYTES: Final = 16
STAGED_OBJECTS_MAX: Final = 2_000
"""Objects of one commit."""


class SinkRange(NamedTuple):
    """The offsets that the records of one partition got."""

    partition: TopicIdPartition
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """What a coordinator keeps of a sink: its owner, and its last batch."""

    sink_id: str
    principal: str
    batch_id: int
    digest: CompactBytes
    committed_at_ms: int
    ranges: Sequence[SinkRange]


class FoundSink(NamedTuple):
    """A sink as one coordinator knows it."""

    coordinator: Int32
    sink: Sink


class FoundSinks(NamedTuple):
    """The sink of one id, at each of the asked coordinators that knows it."""

    found: Sequence[FoundSink]


class SinkCommit(NamedTuple):
    """`is_repeated`: the batch was committed before, and this is the answer it got then."""

    is_repeated: bool = False
    ranges: Sequence[SinkRange] = ()
    error: DisklessError | None = None


class CommitSink(NamedTuple):
    """One batch of a sink, for the coordinator of all of its partitions."""

    sink_id: str
    principal: str
    batch_id: int
    digest: bytes
    files: Sequence[CommitFile]


class StagedFile(NamedTuple):
    """An object that a task has put."""

    object_key: ObjectKey
    object_bytes: int


class CommitStaged(NamedTuple):
    """What a driver asks of any broker: commit these objects as one batch, or none of them."""

    sink_id: str
    batch_id: int
    digest: CompactBytes
    """Of what the batch holds, whatever objects it lies in."""
    topics: Sequence[str]
    """All that the objects have records of."""
    files: Sequence[StagedFile]


class OpenSink(NamedTuple):
    """What a driver asks before any task starts: whether it may commit to these topics."""

    sink_id: str
    topics: Sequence[str]


class SinkTopic(NamedTuple):
    """What a task must know of a topic that it writes records for."""

    name: str
    topic_id: UUID
    partition_count: Int32
    max_message_bytes: int
    is_compacted: bool
    codec: str
    """What batches must be compressed with: a name of compression.type, `producer` for any."""


class OpenedSink(NamedTuple):
    """What tasks and driver must know."""

    topics: Sequence[SinkTopic]
    object_store_url: str
    batches_max: Int32
    """Record batches that one commit may have."""
    last_batch_id: int
    """-1: nothing was committed yet."""
