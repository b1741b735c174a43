"""Names segments, and identifies a committed one by a digest of its place and its bytes.

The digest is kept beside the segment's file like the digest of a commit request, so that committing
it again is recognised, and committing other bytes under its key is refused.
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from metadata.records.records import REQUEST_DIGEST_BYTES
from wal.coordinates import ObjectKey, TopicIdPartition

SEGMENTS_PREFIX: Final = "segments/"

_KEY: Final = re.compile(
    r"segments/topic=(?P<topic>[^/]+)/id=(?P<id>[0-9a-f-]{36})/partition=(?P<partition>\d{1,9})"
    r"/(?P<base>\d{20})-(?P<last>\d{20})(-(?P<generation>\d{1,9}))?\.parquet"
)


class NamedSegment(NamedTuple):
    """What the key of a segment says."""

    topic_name: str
    partition: TopicIdPartition
    base_offset: int
    last_offset: int
    generation: int


class SegmentIdentity(Protocol):
    """A RolledSegment that is offered, or the record of one that was committed."""

    @property
    def partition(self) -> TopicIdPartition: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def object_key(self) -> ObjectKey: ...
    @property
    def object_bytes(self) -> int: ...
    @property
    def crc32c(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...


def segment_digest(segment: SegmentIdentity) -> bytes:
    """16 bytes over everything that is known of the segment."""
    content = (
        f"{segment.partition}:{segment.base_offset}:{segment.last_offset}:{segment.object_bytes}:"
        f"{segment.crc32c}:{segment.record_count}:{segment.max_timestamp_ms}:{segment.object_key}"
    )
    return blake2b(content.encode(), digest_size=REQUEST_DIGEST_BYTES).digest()


def segment_key(
    topic_name: str,
    partition: TopicIdPartition,
    base_offset: int,
    last_offset: int,
    generation: int = 0,
) -> ObjectKey:
    """`<segment_directory>/partition=<n>/<base>-<last>[-<generation>].parquet`.

    Offsets have 20 digits, which sort by offset in a listing. What the roll writes is generation 0,
    which is not said; what is made of segments has a generation above all of theirs.
    """
    name = f"{base_offset:020d}-{last_offset:020d}" + (f"-{generation}" if generation else "")
    return ObjectKey(
        f"{segment_directory(topic_name, partition.topic_id)}"
        f"/partition={partition.partition}/{name}.parquet"
    )


def named_segment(key: ObjectKey) -> NamedSegment | None:
    """The inverse of `segment_key`; None for a key that it does not make."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    try:
        topic_id = UUID(match["id"])
    except ValueError:
        return None
    named = NamedSegment(
        match["topic"],
        TopicIdPartition(topic_id, int(match["partition"])),
        int(match["base"]),
        int(match["last"]),
        int(match["generation"] or 0),
    )
    return named if segment_key(*named) == key else None


def segment_directory(topic_name: str, topic_id: UUID) -> str:
    """`segments/topic=<name>/id=<topic id>`: where all segments of a topic are.

    Spark and others turn `topic=`, `id=` and `partition=` into columns, so one read of `segments/`
    takes all topics. The id keeps a deleted topic apart from the next one of its name. Names need
    no escaping: Kafka allows letters, digits, `.`, `_` and `-`. The longest name, of 249
    characters, makes a directory of 255, which is what file systems allow.
    """
    return f"segments/topic={topic_name}/id={topic_id}"
