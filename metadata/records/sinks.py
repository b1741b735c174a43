"""Metadata records about sinks; metadata/records/records.py has the frame and the encoding.

    1050 SinkCommitted   SinkId string, Principal string, BatchId int64, Digest bytes,
                         CommittedAt int64,
                         Ranges [] TopicId uuid, PartitionIndex int32, BaseOffset int64,
                                   LastOffset int64
    1051 SinksExpired    SinkIds [] string

SinkCommitted stands in one batch of the log with the FileCommitted records of its objects: all of
them happened, or nothing. metadata/apply/apply_sinks.py applies both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metadata.sink_operations import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommittedRecord:
    """This is the sink's last batch from here on."""

    sink: Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksExpiredRecord:
    """These sinks committed nothing for so long that nobody remembers them any more."""

    sink_ids: Sequence[str]


SinkRecord = SinkCommittedRecord | SinksExpiredRecord

SINK_RECORDS: Final[Mapping[int, type[Any]]] = {
    1050: SinkCommittedRecord,
    1051: SinksExpiredRecord,
}
