"""Metadata records about sinks; metadata/records/records.py has the frame and the encoding.

    1050 SinkCommitted   SinkId string, Principal string, BatchId int64, Digest bytes,
                         CommittedAt int64,
                         Ranges [] TopicId uuid, PartitionIndex int32, BaseOffset int64,
                                   LastOffset int64
    1051 SinksExpired    SinkIds [] string
    1052 SinkDecided     as SinkCommitted, and behind it
                         Shares [] Coordinator int32, ObjectKeys [] string, Files bytes

SinkCommitted stands in one batch of the log with the FileCommitted records of its objects: all of
them happened, or nothing. So does SinkDecided, in whose place a SinkCommitted comes when all
coordinators have committed their shares. At each of these a SinkCommitted, under the share's name,
stands with the FileCommitted records of the share. metadata/apply/apply_sinks.py applies them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metadata.sink_operations import Sink, StoredShare


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommittedRecord:
    """This is the sink's last batch from here on."""

    sink: Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDecidedRecord:
    """The same, and other coordinators have these shares to commit: it is open until then."""

    sink: Sink
    shares: Sequence[StoredShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksExpiredRecord:
    """These sinks committed nothing for so long that nobody remembers them any more."""

    sink_ids: Sequence[str]


SinkRecord = SinkCommittedRecord | SinkDecidedRecord | SinksExpiredRecord

SINK_RECORDS: Final[Mapping[int, type[Any]]] = {
    1050: SinkCommittedRecord,
    1051: SinksExpiredRecord,
    1052: SinkDecidedRecord,
}
