"""What a follower asks the leader of a metadata partition, and what it is fed.

An object of the metadata log goes over as it is stored (metadata/log/log_object.py): with its
put-id, that of the object before it, and its checksums. So a follower sees for itself whether what
it is fed continues what it has.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from wal.errors import DisklessError
from wal.wire.layouts import CompactBytes, Int32

FED_BYTES_MAX: Final = 1 << 20
"""Of the objects in one answer. A larger object is not fed: followers read it from the store."""
FED_OBJECTS_MAX: Final = 64
"""In one answer."""


class FollowLog(NamedTuple):
    """How far a follower has read."""

    broker_id: Int32
    """Who follows."""
    offset: int
    """Where the next object begins."""
    put_id: CompactBytes
    """Of the last object that the follower has."""
    wait_ms: Int32
    """How long the leader waits for something new before it answers without any."""


class FedObjects(NamedTuple):
    """What follows there."""

    error: DisklessError | None = None
    end_offset: int = -1
    """Where the leader's log ends. When it is beyond the last of `objects`, the leader has what
    comes next no more in memory, or sends it with the next answer."""
    objects: Sequence[CompactBytes] = ()
    """Neighbours, the first of which begins at the offset that was asked for."""
