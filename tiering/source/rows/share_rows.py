"""Reads one share of a topic, as a Spark task does: WAL objects and segments as one run of rows.

    look up extents -> WAL extents: decoded as a roll does it; segments: their row groups
        -> rows in offset order -> the columns of the query

The task looks up the extents itself, when it begins. While it reads, a roll may replace WAL objects
by a segment and retention may delete what it has not come to. Deleted objects stay in the store for
`diskless.file.delete.grace.ms`; when one is gone all the same, the extents from there on are looked
up again, once for each offset. So a task fails only where the records themselves are gone.

Invariants: rows come in offset order, each once, all of them in [start, end); extents that follow
each other are checked to have no gap, so none is left out. A repeated task gives the same rows: all
of its range is below the last stable offset, so that batches of aborted transactions, which are
left out of WAL objects as a roll leaves them out, are the same ever after.

Failure cases: RecordsGone when records were deleted before they were read, if that is to fail;
CorruptObject and CorruptSegment naming the object; ObjectNotFound naming what keeps it longer;
ObjectStoreUnavailable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from metadata.operations import AbortedTransaction, Extent, SegmentExtent, WalExtent
from tiering.segment_columns import segment_table
from tiering.source.planning import Share, greatest_timestamp_ms
from tiering.source.rows.segment_rows import any_between, rows_between, segment_tables
from tiering.source.rows.typed_by_field import NO_TYPES, TypedRead, WalTypes
from tiering.source.topic_log import Located, TopicLog
from tiering.wal_rows import decoded
from wal.columns import Int64s
from wal.coordinates import TopicIdPartition
from wal.errors import ObjectNotFound, OffsetOutOfRange, Rejected
from wal.stores.blocking_store import BlockingStore


class RecordsGone(Rejected):
    """Records were deleted, by retention or on request, before they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which columns and times a query wants of the share's records."""

    columns: Sequence[str]
    """Of a segment, in its order."""
    typed: TypedRead = NO_TYPES
    """Columns behind them."""
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    offsets: Int64s | None = None
    """Those of the rows to give, in their order; None: all."""
    fail_on_data_loss: bool = True


def share_tables(
    log: TopicLog,
    partition: TopicIdPartition,
    share: Share,
    store: BlockingStore,
    wanted: Wanted,
    *,
    known: Located | None = None,
) -> Iterator[pa.Table]:
    """The rows of a share, with the columns wanted, as tables of some megabytes.

    `known`: its extents, if they were looked up before; they may be those of more than the share.
    """
    reading = _Reading(log, partition, share, store, wanted, known)
    missing_at: int | None = None
    while reading.position < share.end:
        try:
            yield from reading.tables()
        except ObjectNotFound as error:
            if missing_at == reading.position:
                raise ObjectNotFound(
                    f"{log.name}-{share.partition}: the records from offset {reading.position} on"
                    f" are in an object that is gone: {error}. If queries take longer than objects"
                    " are kept after their last use, raise diskless.file.delete.grace.ms on the"
                    " brokers; if Spark reads another bucket than the brokers, set option"
                    " objectStore"
                ) from error
            missing_at = reading.position
        except OffsetOutOfRange as error:
            reading.skip_deleted(error)


class _Reading:
    """A share that is being read; all rows below `position` were given."""

    def __init__(
        self,
        log: TopicLog,
        partition: TopicIdPartition,
        share: Share,
        store: BlockingStore,
        wanted: Wanted,
        known: Located | None,
    ) -> None:
        self._known = known
        self._aborted: dict[AbortedTransaction, None] = {}
        self._log = log
        self._partition = partition
        self._share = share
        self._store = store
        self._wanted = wanted
        self._types = WalTypes(wanted.typed)
        self.position = share.start

    def tables(self) -> Iterator[pa.Table]:
        """Rows from `position` on. Raises: ObjectNotFound, OffsetOutOfRange, and what is wrong."""
        # WAL extents that follow each other are decoded together; a segment is read by itself.
        wal: list[WalExtent] = []
        end = self.position
        for extent in self._extents():
            end = extent.last_offset + 1
            if isinstance(extent, WalExtent):
                wal.append(extent)
            elif isinstance(extent, SegmentExtent):
                yield from self._of_wal(wal)
                wal = []
                yield from self._of_segment(extent)
        yield from self._of_wal(wal)
        # The last ones may be markers, which are no rows.
        self.position = max(self.position, min(end, self._share.end))

    def _extents(self) -> Iterator[Extent]:
        # Once: who comes again found one of those that were known missing.
        known, self._known = self._known, None
        pages = (
            self._log.located(self._partition, self.position, self._share.end)
            if known is None
            else [known]
        )
        for page in pages:
            self._aborted |= dict.fromkeys(page.aborted)
            for extent in page.extents:
                if extent.last_offset >= self.position and extent.base_offset < self._share.end:
                    yield extent

    def skip_deleted(self, error: OffsetOutOfRange) -> None:
        """Go on where the log begins now. Raises: RecordsGone when that is not wanted."""
        start = self._log.starts([self._partition])[self._share.partition]
        if start <= self.position:
            raise error
        if self._wanted.fail_on_data_loss:
            raise records_gone(self._log.name, self._share.partition, self.position, start)
        self.position = min(start, self._share.end)

    def _of_wal(self, extents: Sequence[WalExtent]) -> Iterator[pa.Table]:
        if not extents:
            return
        wanted = [extent for extent in extents if self._may_match(extent)]
        for group in decoded(wanted, self._store, self._aborted):
            rows = segment_table(group.rows)
            last = group.batches[-1].batch.base_offset + group.batches[-1].record_count
            rows = self._asked(rows_between(rows, self.position, self._share.end))
            key = group.batches[0].object_key
            yield self._types.with_types(key, rows, self._wanted.columns)
            self.position = max(self.position, min(last, self._share.end))
        self.position = min(extents[-1].last_offset + 1, self._share.end)

    def _of_segment(self, extent: SegmentExtent) -> Iterator[pa.Table]:
        end = min(extent.last_offset + 1, self._share.end)
        if self._may_match(extent):
            tables = segment_tables(
                extent,
                self._partition,
                self._store,
                self._wanted.columns,
                max(self.position, extent.base_offset),
                end,
                timestamp_min_ms=self._wanted.timestamp_min_ms,
                timestamp_max_ms=self._wanted.timestamp_max_ms,
                offsets=self._wanted.offsets,
                typed=self._types.fields,
            )
            for rows in tables:
                if rows.num_rows:
                    yield self._asked(rows)
                    self.position = rows.column("offset")[-1].as_py() + 1
        self.position = end

    def _asked(self, rows: pa.Table) -> pa.Table:
        offsets = self._wanted.offsets
        if offsets is None:
            return rows
        return rows.filter(pa.array(np.isin(rows.column("offset").to_numpy(), offsets)))

    def _may_match(self, extent: Extent) -> bool:
        wanted = self._wanted
        if wanted.offsets is not None and not any_between(
            wanted.offsets, extent.base_offset, extent.last_offset
        ):
            return False
        least = wanted.timestamp_min_ms
        return least is None or greatest_timestamp_ms(extent) >= least


def records_gone(topic: str, partition: int, offset: int, start: int) -> RecordsGone:
    """The error that says which option goes on without them."""
    return RecordsGone(
        f"{topic}-{partition}: the records {offset} .. {start - 1} were deleted before they were"
        " read. Set option failOnDataLoss=false to go on with what is left, or keep records longer"
        " (retention.ms, retention.bytes)"
    )
