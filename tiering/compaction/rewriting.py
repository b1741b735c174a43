"""Writes one output of a compaction: inputs in, one segment without the lost records out.

Runs in a Spark task, or wherever an output and the offsets that it loses are. Row groups are read
and written whole, so that a segment of any size takes the memory of a few row groups.

What stays is exactly what it was: offset, timestamp, key, value, headers, typed columns, and of its
RecordBatch everything that is served, its bounds above all. Only `delete_horizon` is set, of
tombstones that no compaction has seen before.

Of a batch that lost all records nothing is left but, in the footer, its producer and sequences,
where it is the last batch of that producer among the inputs: a rebuild of the metadata learns the
producer's last sequence there. It goes with a later compaction when the producer has been silent
for so long that a coordinator forgets it too.

The footer names the bytes of WAL objects that the inputs were rolled from, as far as these objects
still exist: a rebuild must not take them for records that are in no segment.

Counts are exact: rows and removed records of the output are the rows of its inputs, and each offset
that is to go is found. The object is put under the key that its plan gives; where it is already,
every byte of it is checked, and its own counts are told.

Failure cases: CorruptSegment naming an input or the output, ObjectStoreUnavailable.
Failpoints: compact.before_put, compact.after_put.
"""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metadata.records.segment_identity import segment_key
from metadata.rewrites import RewriteInput, RewritePlan, RewrittenSegment
from tiering.compaction.key_columns import checked_footer
from tiering.compaction.outputs import Output
from tiering.merging.typed_union import made_by, typed_columns_of, union_of_typed
from tiering.segment_columns import SEGMENT_SCHEMA, read_whole_row_group, timestamps_ms
from tiering.segment_format import EmptyBatch, SegmentFooter, SegmentIdentity, WrittenSegment
from tiering.segment_sources import SourceRange, decode_sources
from tiering.segment_verification import existing_segment, existing_sources
from tiering.segment_writer import ROW_GROUP_BYTES, FileBody, SegmentWriter, put_together
from wal.columns import Int64s
from wal.coordinates import ObjectKey, Offset
from wal.errors import CorruptSegment, ObjectExists
from wal.failpoint import failpoint
from wal.stores.blocking_store import BlockingStore

_HEADS_AT_ONCE: Final = 16
_BATCH_COLUMNS: Final = (
    "batch_base_offset",
    "batch_last_offset",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """An output to be written, by itself: what a task needs besides the offsets that go."""

    plan: RewritePlan
    """With the inputs of this output alone."""

    @property
    def identity(self) -> SegmentIdentity:
        return SegmentIdentity(
            self.plan.topic_name,
            self.plan.partition,
            self.plan.inputs[0].base_offset,
            self.plan.inputs[-1].last_offset,
            self.plan.generation,
        )

    @property
    def object_key(self) -> ObjectKey:
        name, partition, base, last, generation = self.identity
        return segment_key(name, partition, base, last, generation)


def task_of(plan: RewritePlan, output: Output) -> OutputTask:
    """What is to be done for an output of `plan`."""
    return OutputTask(plan=replace(plan, inputs=plan.inputs[output.first : output.last + 1]))


def rewrite(
    task: OutputTask,
    removed: Int64s,
    store: BlockingStore,
    *,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> RewrittenSegment:
    """Write the output without the records at the offsets `removed`, which ascend."""
    written = existing_segment(store, task.object_key, task.identity)
    if written is None:
        written = _write(task, removed, store, row_group_bytes)
    total = sum(segment.record_count for segment in task.plan.inputs)
    return RewrittenSegment(
        base_offset=Offset(task.identity.base_offset),
        last_offset=Offset(task.identity.last_offset),
        object_key=task.object_key,
        object_bytes=written.object_bytes,
        crc32c=written.crc32c,
        record_count=written.counts.records,
        removed_count=total - written.counts.records,
        max_timestamp_ms=written.max_timestamp_ms,
    )


def _write(
    task: OutputTask,
    removed: Int64s,
    store: BlockingStore,
    row_group_bytes: int,
) -> WrittenSegment:
    inputs = [_read_input(segment, store) for segment in task.plan.inputs]
    footers = [one.footer for one in inputs]
    producers = _Producers(footers)
    typed = union_of_typed([one.schema for one in inputs])
    found = [source for one in inputs for source in one.sources]
    with ThreadPoolExecutor(_HEADS_AT_ONCE, thread_name_prefix="compact-head") as threads:
        sources = existing_sources(store, found, threads)
    with tempfile.TemporaryFile(prefix="diskless-compact-") as file:
        with SegmentWriter(
            file, task.identity, sources, typed=typed, typed_columns=made_by(footers)
        ) as writer:
            kept = 0
            tables = _kept_rows(
                inputs, removed, typed, task.plan.delete_horizon_ms, store, producers
            )
            for rows in put_together(tables, row_group_bytes):
                kept += rows.num_rows
                ours = rows.select(SEGMENT_SCHEMA.names)
                writer.write_row_group(ours, rows.columns[len(SEGMENT_SCHEMA) :])
            total = sum(segment.record_count for segment in task.plan.inputs)
            if kept + len(removed) != total:
                raise CorruptSegment(
                    f"{task.object_key}: {kept} records stay and {len(removed)} go, of {total}"
                )
            written = writer.finish(
                controls=sum(footer.counts.controls for footer in footers),
                removed=len(removed) + sum(footer.counts.removed for footer in footers),
                aborted=sum(footer.counts.aborted for footer in footers),
                empty_batches=producers.empty_batches(task.plan.producers_since_ms),
            )
        failpoint("compact.before_put")
        try:
            store.put(task.object_key, FileBody(file, written.object_bytes))
        except ObjectExists:
            # Another attempt was faster.
            existing = existing_segment(store, task.object_key, task.identity)
            if existing is None:
                raise
            return existing
        failpoint("compact.after_put")
        return written


# --- what goes in ---------------------------------------------------------------------------------


class _Input(NamedTuple):
    key: ObjectKey
    footer: SegmentFooter
    sources: Sequence[SourceRange]
    schema: pa.Schema


def _read_input(segment: RewriteInput, store: BlockingStore) -> _Input:
    key = segment.object_key
    footer, sources = checked_footer(segment, store)
    schema = pq.read_schema(pa.BufferReader(footer.footer_bytes))
    return _Input(key, footer, decode_sources(key, sources), schema)


# --- rows -----------------------------------------------------------------------------------------


def _kept_rows(
    inputs: Sequence[_Input],
    removed: Int64s,
    typed: Sequence[pa.Field],
    delete_horizon_ms: int,
    store: BlockingStore,
    producers: "_Producers",
) -> Iterator[pa.Table]:
    """What stays of each row group, which may be nothing, in offset order."""
    schema = pa.schema([*SEGMENT_SCHEMA, *typed])
    for one in inputs:
        for index, group in enumerate(one.footer.row_groups):
            data = store.get_range(one.key, group.byte_offset, group.end - group.byte_offset)
            rows = read_whole_row_group(one.key, one.footer, index, data)
            stays = _stays(rows.column("offset").to_numpy(), removed)
            producers.learn(rows, stays)
            if not stays.all():
                rows = rows.filter(pa.array(stays))
            columns = [
                *_marked(rows, delete_horizon_ms).columns[: len(SEGMENT_SCHEMA)],
                *typed_columns_of(one.key, rows, typed),
            ]
            yield pa.Table.from_arrays(columns, schema=schema)


def _stays(offsets: Int64s, removed: Int64s) -> npt.NDArray[np.bool_]:
    if not len(removed):
        return np.ones(len(offsets), np.bool_)
    at = np.searchsorted(removed, offsets)
    found: npt.NDArray[np.bool_] = removed[np.minimum(at, len(removed) - 1)] != offsets
    return found


def _marked(rows: pa.Table, delete_horizon_ms: int) -> pa.Table:
    """With a delete horizon for each tombstone that has none."""
    place = rows.schema.get_field_index("delete_horizon")
    horizons = rows.column(place)
    is_new = pc.and_(rows.column("tombstone"), horizons.is_null())
    marked = pc.if_else(is_new, pa.scalar(delete_horizon_ms, pa.int64()), horizons)
    return rows.set_column(place, rows.schema.field(place), marked)


# --- what a rebuild asks for ----------------------------------------------------------------------


class _Last(NamedTuple):
    """The last batch of a producer, so far."""

    batch: EmptyBatch
    is_empty: bool


class _Producers:
    """The last batch of each producer in the inputs, and whether a record of it stays."""

    def __init__(self, footers: Sequence[SegmentFooter]) -> None:
        self._last: dict[int, _Last] = {}
        for footer in footers:
            for batch in footer.empty_batches:
                self._add(_Last(batch, is_empty=True))

    def learn(self, rows: pa.Table, stays: npt.NDArray[np.bool_]) -> None:
        """Take in the batches of a row group; `stays` says which of its rows do."""
        bases = rows.column("batch_base_offset").to_numpy()
        firsts = np.flatnonzero(np.diff(bases, prepend=bases[0] + 1))
        columns = [rows.column(name).to_numpy()[firsts] for name in _BATCH_COLUMNS]
        times = np.maximum.reduceat(timestamps_ms(rows).to_numpy(), firsts)
        kept = np.add.reduceat(stays.astype(np.int64), firsts)
        # The last batch of each producer: the first one from behind.
        producer_ids = columns[2]
        _, behind = np.unique(producer_ids[::-1], return_index=True)
        for at in (len(producer_ids) - 1 - behind).tolist():
            if producer_ids[at] >= 0:
                batch = EmptyBatch._make([*(int(column[at]) for column in columns), int(times[at])])
                self._add(_Last(batch, is_empty=not kept[at]))

    def _add(self, last: _Last) -> None:
        known = self._last.get(last.batch.producer_id)
        if known is None or known.batch.last_offset < last.batch.last_offset:
            self._last[last.batch.producer_id] = last

    def empty_batches(self, since_ms: int) -> Sequence[EmptyBatch]:
        """Those of which nothing stays, by offset, but for producers that are forgotten."""
        return sorted(
            last.batch
            for last in self._last.values()
            if last.is_empty and last.batch.max_timestamp_ms >= since_ms
        )
