"""Identifies a committed segment by one digest of its place and its bytes.

Kept beside the segment's file like the digest of a commit request, so that committing it again is
recognised, and committing other bytes under its key is refused.
"""

from hashlib import blake2b
from typing import Protocol

from metadata.records.records import REQUEST_DIGEST_BYTES
from wal.coordinates import ObjectKey, TopicIdPartition


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
