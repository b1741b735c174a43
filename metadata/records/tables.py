"""The metadata record about tables; metadata/records/records.py has the frame and the encoding.

    1040 TableCommitted    TopicId uuid, OldLocation string, NewLocation string,
                           Applied [] CoordinatorId int32, Offset int64 (by coordinator),
                           CommittedAt int64, RetentionMs int64

Only the catalogue (metadata partition 0) writes it. metadata/apply/apply_tables.py applies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from wal.coordinates import ObjectKey
from wal.wire.layouts import Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommittedRecord:
    """The table of a topic is what the metadata file `new_location` says.

    `old_location` was the pointer before, empty for the first commit. `applied` has the offset up
    to which each coordinator had applied its metadata log when it told its live segments.
    `retention_ms` is how long a superseded snapshot is promised to be readable.
    """

    topic_id: UUID
    old_location: ObjectKey
    new_location: ObjectKey
    applied: Mapping[Int32, int]
    committed_at_ms: int
    retention_ms: int


TableRecord = TableCommittedRecord

TABLE_RECORDS: Final[Mapping[int, type[Any]]] = {1040: TableCommittedRecord}
