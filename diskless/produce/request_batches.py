"""The batches of one Produce request on their way to the write loop: checked, and made into rows.

A request comes as rows (diskless/protocol/batch_scan.py) and leaves as rows of a chunk
(wal/chunks/chunk_batches.py), some of its batches at a time. In between, many batches of a topic
are checked as columns. A few are checked one by one; so is each that the columns do not find right,
because what is wrong with a batch is said in one place (wal/records/batch_validation.py).

`RequestBatches` collects what may be appended; `pending` gives it to the write loop.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np

from diskless.ports import ProducedBatches
from diskless.produce.delayed_produce import NO_NAME, BatchWaiter, DelayedProduce
from diskless.protocol.batch_scan import ScannedBatch
from metadata.operations import TopicDescription
from wal.chunks.batch_rows import batch_names, batch_row, batch_rows
from wal.chunks.buffer import ChainCutter
from wal.chunks.chunk import PendingBatches
from wal.columns import Rows
from wal.errors import InvalidRecord
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES, NeededWork, needed_work
from wal.records.batch_validation import TopicRules, check_contents, check_header
from wal.records.recompression import Compression


class CheckedTopic(NamedTuple):
    """What produced batches are judged by and made into, made of a topic's configs once."""

    topic: TopicDescription
    id_bytes: bytes
    rules: TopicRules
    compression: Compression | None
    may_need_work: bool
    """Whether any batch does that is not very large."""


class RequestBatches:
    """One request. What was collected and not given is nobody's, and may be dropped."""

    def __init__(
        self,
        batches: ProducedBatches,
        produce: DelayedProduce,
        *,
        request_id: int,
        produce_version: int,
        connection_id: int,
        transactional_id: str | None,
    ) -> None:
        self.batches = batches
        self.produce = produce
        self.request_id = request_id
        self.produce_version = produce_version
        self.connection_id = connection_id
        self.transactional_id = transactional_id
        self._cutter = ChainCutter(batches.frame)
        self._rows: bytearray | None = None
        """The rows of the batches that are collected; None when there are none."""

    def _begin(self) -> bytearray:
        self._rows = bytearray()
        self._data_bytes = 0
        self._positions: list[int] = []
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._names: list[bytes] = []
        self._has_names = False
        self._topic_ids: dict[bytes, UUID] = {}
        return self._rows

    def check(self, topic: CheckedTopic, batch: ScannedBatch, *, now_ms: int) -> NeededWork | None:
        """Kafka's checks of one batch; what it needs first. Raises the Rejected that is wrong."""
        _, partition, size, actual_crc, _, header = batch
        rules = topic.rules
        if size <= 0:
            raise InvalidRecord(f"no batch for {topic.topic.name}-{partition}")
        check_header(header, size=size, rules=rules, produce_version=self.produce_version)
        has_transactional_id = self.transactional_id is not None
        needed = None
        if topic.may_need_work or size > SUMMED_AT_ONCE_BYTES:
            needed = needed_work(
                header,
                rules,
                topic.compression,
                now_ms=now_ms,
                has_transactional_id=has_transactional_id,
            )
        if needed is None or not needed.is_unchecked:
            check_contents(
                header,
                actual_crc,
                rules=rules,
                now_ms=now_ms,
                has_transactional_id=has_transactional_id,
            )
        return needed

    def row_of(self, topic: CheckedTopic, batch: ScannedBatch) -> bytes:
        """The row of a batch that is the next one collected."""
        return batch_row(
            topic.id_bytes,
            batch.partition,
            self._data_bytes if self._rows else 0,
            batch.header,
            topic.rules.timestamp_type,
            self.request_id,
        )

    def add(
        self, topic: CheckedTopic, position: int, batch: ScannedBatch, row: bytes, name: bytes
    ) -> None:
        """Collect a batch; `row` is that of `row_of`."""
        rows = self._rows or self._begin()
        rows += row
        self._topic_ids[topic.id_bytes] = topic.topic.topic_id
        self._data_bytes += batch.size
        self._positions.append(position)
        self._starts.append(batch.position)
        self._lengths.append(batch.size)
        self._names.append(name)
        self._has_names = self._has_names or name != NO_NAME

    def rows_of(self, topic: CheckedTopic, scanned: Rows) -> bytes:
        """The rows of batches that are the next ones collected."""
        start = self._data_bytes if self._rows else 0
        timestamp_type = topic.rules.timestamp_type
        return batch_rows(topic.id_bytes, start, scanned, timestamp_type, self.request_id)

    def add_all(
        self,
        topic: CheckedTopic,
        first: int,
        scanned: Rows,
        rows: bytes,
        names: Sequence[bytes],
    ) -> None:
        """Collect batches that follow each other in the request, from position `first` on.

        `rows` are those of `rows_of`.
        """
        count = len(scanned)
        collected = self._rows or self._begin()
        collected += rows
        self._topic_ids[topic.id_bytes] = topic.topic.topic_id
        self._data_bytes += int(scanned["size"].sum())
        self._positions += range(first, first + count)
        self._starts += scanned["position"].tolist()
        self._lengths += scanned["size"].tolist()
        self._names += names or [NO_NAME] * count
        self._has_names = self._has_names or bool(names)

    def pending(self) -> tuple[PendingBatches, BatchWaiter, Sequence[bytes]] | None:
        """What was collected, who waits for it, and its names if it has any; then it is forgotten.

        None: nothing was.
        """
        rows, self._rows = self._rows, None
        if rows is None:
            return None
        starts, lengths = self._starts, self._lengths
        payload = (
            self._cutter.share(starts[0], lengths[0])
            if len(starts) == 1
            else self._cutter.share_all(starts, lengths)
        )
        waiter = BatchWaiter(self.produce, self._positions, rows)
        pending = PendingBatches(rows, len(starts), self._topic_ids, payload, waiter)
        return pending, waiter, self._names if self._has_names else ()


def names_in(rows: bytes, scanned: Rows) -> Sequence[bytes]:
    """What names each of these batches; nothing where no producer of them is idempotent."""
    has_producer = scanned["producer_id"] >= 0
    if not has_producer.any():
        return ()
    names = batch_names(rows)
    for place in np.flatnonzero(~has_producer).tolist():
        names[place] = NO_NAME
    return names
