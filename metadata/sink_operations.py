"""What is asked about sinks, and answered: writers that stage objects and commit them all at once.

A *sink* is one stream of batches with ascending ids, such as one streaming query. Its tasks put
WAL objects under `staged/<sink id>/`; its driver then commits those of one batch together. The
coordinator keeps of each sink the last batch: its id, a digest of what it held, and the answer. So
a batch that is committed again, by a driver that was restarted, gets the answer of the first time.

A sink belongs to the principal that first committed with its id. What is asked by a driver
(`OpenSink`, `CommitStaged`) names objects; what one broker asks another (`CommitSink`) has the
batches that it found in them.

Each sink has a *home*, the coordinator that decides about its batches and keeps the last one. The
objects of a batch whose partitions live at the home are committed with the decision. What others
have a part in are *shares*: the decision has them too, and each of these coordinators is told its
own until it has committed it. A batch is *open* from its decision until that is done everywhere.
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


class SinkShare(NamedTuple):
    """The objects of a batch whose partitions live at one coordinator."""

    coordinator: Int32
    files: Sequence[CommitFile]


class CommitSink(NamedTuple):
    """One batch of a sink, for the sink's home."""

    sink_id: str
    principal: str
    batch_id: int
    digest: bytes
    files: Sequence[CommitFile]
    """Those of partitions that live at the home."""
    shares: Sequence[SinkShare] = ()
    """All others, each coordinator once."""


class StoredShare(NamedTuple):
    """A share that is decided and perhaps not committed at its coordinator."""

    coordinator: Int32
    object_keys: Sequence[ObjectKey]
    files: CompactBytes
    """As `metadata.messages.commit_file.pack_files` gives them."""


class OpenBatch(NamedTuple):
    """A sink's last batch, of which not all coordinators have answered; `sink` has the home's own
    ranges only.
    """

    sink: Sink
    shares: Sequence[StoredShare]
    object_keys: frozenset[ObjectKey]
    """Of all shares."""


def open_batch(sink: Sink, shares: Sequence[StoredShare]) -> OpenBatch:
    """Returns the batch that is open with these shares."""
    keys = frozenset(key for share in shares for key in share.object_keys)
    return OpenBatch(sink, shares, keys)


class CommitShare(NamedTuple):
    """Tells a coordinator its share of a batch, which is decided: it commits it, once."""

    home: Int32
    sink_id: str
    principal: str
    batch_id: int
    digest: CompactBytes
    decided_at_ms: int
    """Names the decision: greater than that of every earlier one of the sink."""
    files: CompactBytes


def share_name(home: int, sink_id: str) -> str:
    """Under which name another coordinator keeps the last share that it committed of a sink.

    No sink id has a slash, so it is the name of no sink.
    """
    return f"{home}/{sink_id}"


def sink_of_share(name: str) -> str | None:
    """The sink whose share is kept under a name; None for the name of a sink itself."""
    _, slash, sink_id = name.partition("/")
    return sink_id if slash else None


def home_of_share(name: str) -> int:
    """The home of the sink whose share is kept under a name; of a name that is one's alone."""
    return int(name.partition("/")[0])


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
    coordinators: Sequence[Int32]
    """Of each partition. An object has batches of one coordinator's partitions only."""


class OpenedSink(NamedTuple):
    """What tasks and driver must know."""

    topics: Sequence[SinkTopic]
    object_store_url: str
    batches_max: Int32
    """Record batches that one commit may have."""
    last_batch_id: int
    """-1: nothing was committed yet."""
