"""Holds what a Fetch knows while it is served: its rows at one moment, and what look-ups gave.

A row whose log end is known and asked for, or that is wrong, needs no look-up; `Look` says so for
all rows at once, in columns. `Found` keeps what the look-ups of the other rows gave, and how much
that is; the fetcher waits, reserves and reads by it (diskless/replica/fetcher.py).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows, RowErrors
from diskless.ports import LEADER_EPOCH, Buffer
from diskless.replica.batch_reader import ReadResult
from diskless.replica.batch_stamping import NO_END
from diskless.replica.metadata_topic import LogRead
from metadata import operations as ops
from metadata.clients.finding import taken_bytes
from wal.columns import Int64s
from wal.errors import (
    DisklessError,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from wal.records.marker_batches import MARKER_BYTES, Marker

_WATCHED_PARTITIONS_MAX: Final = 64
"""A fetch of more partitions watches their topics, and is asked at each commit to one of those."""


class Look(NamedTuple):
    """The rows of a fetch at one moment; where a column says nothing, there is an entry instead."""

    isolation: int
    looked_at: int
    generation: int
    topics: Sequence[ops.TopicDescription | None]
    firsts: Sequence[int]
    """Where the slots of the topics begin."""
    slots: Int64s
    high_watermarks: Int64s
    last_stable_offsets: Int64s
    log_start_offsets: Int64s
    open_rows: npt.NDArray[np.intp]
    """What has to be looked up. The others are at the ends of their logs, or have an error."""
    errors: RowErrors

    def learn(self, rows: Sequence[int], answers: Sequence[ops.FoundBatches]) -> None:
        """Take in the offsets that a look-up gave."""
        self.high_watermarks[rows] = [answer.high_watermark for answer in answers]
        self.last_stable_offsets[rows] = [answer.last_stable_offset for answer in answers]
        self.log_start_offsets[rows] = [answer.log_start_offset for answer in answers]

    def end_of(self, row: int) -> int:
        """Where the batches of a row that was looked up end for its reader."""
        if self.isolation == ops.READ_COMMITTED:
            return int(self.last_stable_offsets[row])
        return NO_END

    def keys(self) -> Sequence[int]:
        """Returns what to watch: partitions, or topics where that is less."""
        if len(self.slots) <= _WATCHED_PARTITIONS_MAX:
            slots: list[int] = self.slots.tolist()
            return slots
        return [-first for first in self.firsts]


class Found:
    """What look-ups gave, by row, ascending; nothing of rows that are at the ends of their logs."""

    __slots__ = (
        "aborted",
        "errors",
        "extents",
        "logs",
        "ready_bytes",
        "taken_bytes",
        "to_read_bytes",
    )

    def __init__(self) -> None:
        self.errors: dict[int, DisklessError] = {}
        self.extents: dict[int, Sequence[ops.Extent]] = {}
        self.aborted: dict[int, Sequence[ops.AbortedTransaction]] = {}
        """With batches in the extents, which an answer may end before."""
        self.logs: dict[int, LogRead] = {}
        """Of the metadata topic. How much there is shows when it is read, so any ends the wait."""
        self.ready_bytes = 0
        """About how much can be read now; a segment, being old, always counts as plenty."""
        self.taken_bytes = 0
        """How much the extents use up of what all rows may give."""
        self.to_read_bytes = 0
        """What an answer takes; of a segment as much as the client wants decoded."""

    def add(self, row: int, request: ops.FindBatches, answer: ops.FoundBatches, end: int) -> None:
        """`end`: where the batches end that the reader may see."""
        if answer.error is not None:
            self.errors[row] = answer.error
        if not answer.extents:
            return
        self.extents[row] = answer.extents
        if answer.aborted:
            self.aborted[row] = answer.aborted
        self.taken_bytes += taken_bytes([request], [answer])
        has_segment = False
        for extent in answer.extents:
            self.ready_bytes += extent.bytes_between(request.offset, end)
            if has_segment:
                continue
            if isinstance(extent, ops.WalExtent):
                self.to_read_bytes += extent.length_bytes
            elif isinstance(extent, Marker):
                self.to_read_bytes += MARKER_BYTES
            else:
                has_segment = True
                self.to_read_bytes += request.max_bytes

    def add_log(self, row: int, read: LogRead, ends: ops.FoundBatches) -> None:
        if ends.error is not None:
            self.errors[row] = ends.error
        elif read.offset < ends.high_watermark:
            self.logs[row] = read
            self.to_read_bytes += read.max_bytes


_REFUSALS: Final = (
    UnknownPartition("no such topic"),
    UnknownTopicId("no topic has this id"),
    UnknownPartition("the topic has no such partition"),
    UnknownLeaderEpoch(f"the leader epoch is ahead of {LEADER_EPOCH}"),
    FencedLeaderEpoch(f"the leader epoch is behind {LEADER_EPOCH}"),
)
"""What can be wrong with a row; its client is sent nothing but the code."""


def refusals_of(
    rows: FetchRows,
    by_topic: Sequence[int],
    is_there: npt.NDArray[np.bool_],
    is_right: npt.NDArray[np.bool_],
) -> RowErrors:
    """Returns what is wrong with the rows that name nothing that could be read.

    `by_topic` says what is wrong with those whose partition is not there, as a place in _REFUSALS.
    """
    wrong = np.flatnonzero(~is_right)
    of_epoch = np.where(rows.leader_epochs[wrong] > LEADER_EPOCH, 3, 4)
    which = np.where(is_there[wrong], of_epoch, np.array(by_topic, np.int64)[rows.topic_of[wrong]])
    return RowErrors(wrong, which, _REFUSALS)


def answer_of(look: Look, found: Found, pieces: Mapping[int, ReadResult]) -> FetchAnswer:
    """All rows: those that were looked up, those with an error, and the others as they are known.

    A row that could be read in part has records and no error. Of the aborted transactions it has
    those that began within the records: a client that hears of others drops what is committed.
    """
    errors = found.errors
    records: dict[int, Sequence[Buffer]] = {}
    aborted: dict[int, Sequence[ops.AbortedTransaction]] = {}
    for row, piece in sorted(pieces.items()):
        if row in found.errors:
            continue
        if piece.size_bytes:
            records[row] = piece.records
            if row in found.aborted:
                begun = [one for one in found.aborted[row] if one.first_offset < piece.next_offset]
                aborted[row] = sorted(begun, key=_first_offset)
        elif piece.error is not None:
            errors[row] = piece.error
    return FetchAnswer(
        look.high_watermarks,
        look.log_start_offsets,
        records,
        look.errors.joined(RowErrors.of(errors)),
        last_stable_offsets=look.last_stable_offsets,
        aborted=aborted,
    )


def _first_offset(transaction: ops.AbortedTransaction) -> int:
    return transaction.first_offset
