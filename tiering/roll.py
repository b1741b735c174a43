"""Rolls one planned segment: committed batches in WAL objects become one Parquet object.

`roll` is a plain function of a plan and a store, called by a Spark task (tiering/jobs/rolls.py) and
by tests without Spark. It may be killed anywhere, run again, and run twice at once; all attempts
converge on one object, because

- the plan fixes offsets, what of them is aborted, and the key, and the same plan gives the same
  bytes (no time, no host, no task number goes into the file);
- the put is put-if-absent, and of two attempts with equal bytes both succeed;
- an attempt that finds a complete, intact segment of this plan under the key takes it as its own
  result, whichever version of this program wrote it. Anything else under the key is an error:
  nothing is ever overwritten.

Nothing is a segment before the coordinator commits it, so an object left by a killed attempt is
never read as data; the next attempt meets it by name.

tiering/wal_rows.py reads and decodes the batches; here their rows become row groups. Memory is
bounded whatever the segment's size: what that module takes, and a row group. The file grows on the
local disk. Measured: 250 MiB for 128 MiB of batches.

Failure cases: CorruptObject naming the WAL object and the byte when the bytes there are not the
planned batches; CorruptSegment when something else lies under the segment's key; Rejected for a
plan that contradicts itself; ObjectNotFound, ObjectStoreUnavailable and UploadOutcomeUnknown from
the store. After each of them the same plan may be rolled again.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from metadata.operations import RolledSegment, SegmentPlan
from tiering.segment_columns import segment_table
from tiering.segment_format import SegmentIdentity, WrittenSegment
from tiering.segment_sources import SourceRange
from tiering.segment_verification import existing_segment
from tiering.segment_writer import FileBody, SegmentWriter
from tiering.typed_columns import NO_TYPED_COLUMNS, TypedColumns
from tiering.wal_rows import LeftOut, decoded
from wal.errors import (
    ObjectExists,
    Rejected,
)
from wal.failpoint import failpoint
from wal.stores.blocking_store import BlockingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RollSettings:
    """How segments are written."""

    row_group_bytes: int = 4 << 20
    """Arrow bytes after which a row group ends, at the next end of a batch. A broker decodes whole
    row groups and keeps one for every partition that a consumer goes through in turn, a megabyte
    each time; every row group costs a kilobyte of footer."""


class Rolled(NamedTuple):
    """A segment that lies in the store, and what of it is not as it should be."""

    segment: RolledSegment
    raw_batch_count: int
    """Batches that could not be decoded."""
    untyped_count: int = 0
    """Keys and values that did not fit their schema; 0 when the segment was found written."""


def roll(
    plan: SegmentPlan,
    store: BlockingStore,
    *,
    typed: TypedColumns = NO_TYPED_COLUMNS,
    settings: RollSettings | None = None,
) -> Rolled:
    """Write the segment of `plan`, or find it written; returns what lies in the store, exactly.

    Blocks. Failpoints: roll.before_put, roll.after_put.
    """
    _check_plan(plan)
    written = existing_segment(store, plan.object_key, _identity(plan))
    if written is None:
        written = _write(plan, store, typed, settings or RollSettings())
    segment = RolledSegment(
        partition=plan.partition,
        object_key=plan.object_key,
        base_offset=plan.base_offset,
        last_offset=plan.last_offset,
        object_bytes=written.object_bytes,
        crc32c=written.crc32c,
        record_count=written.counts.records,
        control_count=written.counts.controls,
        aborted_count=written.counts.aborted,
        max_timestamp_ms=written.max_timestamp_ms,
    )
    return Rolled(segment, written.raw_batch_count)


def _identity(plan: SegmentPlan) -> SegmentIdentity:
    return SegmentIdentity(plan.topic_name, plan.partition, plan.base_offset, plan.last_offset)


def _check_plan(plan: SegmentPlan) -> None:
    """Every planned offset lies in one extent or is one marker. Raises: Rejected."""
    offset: int = plan.base_offset
    markers = iter(plan.markers)
    marker = next(markers, None)
    for extent in plan.extents:
        while offset == marker:
            offset, marker = offset + 1, next(markers, None)
        if extent.base_offset != offset or extent.last_offset < offset or extent.length_bytes <= 0:
            raise Rejected(f"{plan.object_key}: planned extents do not follow at offset {offset}")
        offset = extent.last_offset + 1
    while offset == marker:
        offset, marker = offset + 1, next(markers, None)
    if offset != plan.last_offset + 1 or marker is not None:
        raise Rejected(f"{plan.object_key}: planned extents end before offset {offset}")


def _write(
    plan: SegmentPlan,
    store: BlockingStore,
    typed: TypedColumns,
    settings: RollSettings,
) -> WrittenSegment:
    with tempfile.TemporaryFile(prefix="diskless-roll-") as file:
        with SegmentWriter(
            file,
            _identity(plan),
            sources(plan),
            typed=typed.fields,
            typed_columns=typed.encoded,
        ) as writer:
            left_out = LeftOut(controls=len(plan.markers))
            for table in row_groups(plan, store, settings.row_group_bytes, left_out):
                rows = segment_table(table)
                writer.write_row_group(rows, typed.columns(rows))
            written = writer.finish(controls=left_out.controls, aborted=left_out.aborted)
        failpoint("roll.before_put")
        try:
            store.put(plan.object_key, FileBody(file, written.object_bytes))
        except ObjectExists:
            # Another version of this program was faster. It wrote the same records.
            existing = existing_segment(store, plan.object_key, _identity(plan))
            if existing is None:
                raise
            return existing
        failpoint("roll.after_put")
        return written


def sources(plan: SegmentPlan) -> Sequence[SourceRange]:
    """Returns where the plan's records come from: its extents, neighbours in one object as one."""
    found: list[SourceRange] = []
    for extent in plan.extents:
        if found:
            key, start, length = found[-1]
            if key == extent.object_key and start + length == extent.byte_offset:
                found[-1] = SourceRange(key, start, length + extent.length_bytes)
                continue
        found.append(SourceRange(extent.object_key, extent.byte_offset, extent.length_bytes))
    return found


# --- row groups -----------------------------------------------------------------------------------


def row_groups(
    plan: SegmentPlan,
    store: BlockingStore,
    row_group_bytes: int,
    left_out: LeftOut | None = None,
) -> Iterator[pa.Table]:
    """All records of the plan as tables of RECORD_SCHEMA, each of whole batches, in offset order.

    A table with raw batches has the column `raw_batch` too. A table is of about `row_group_bytes`,
    the last one smaller. Control batches and those of aborted transactions are left out, and
    counted in `left_out`.
    Raises: CorruptObject, and what the store raises.
    """
    tables: list[pa.Table] = []
    size_bytes = 0.0
    for rows, batches, _ in decoded(plan.extents, store, plan.aborted, left_out):
        # A batch is as large in Arrow as its share of the bytes says: close enough, and cheap.
        ratio = rows.nbytes / sum(len(source.batch.data) for source in batches)
        start = end = 0
        for source in batches:
            more_bytes = len(source.batch.data) * ratio
            # Ending a little early beats a row group of half a target more.
            if size_bytes and size_bytes + more_bytes > row_group_bytes * 1.25:
                yield _together([*tables, rows.slice(start, end - start)])
                tables, size_bytes, start = [], 0.0, end
            end += source.record_count
            size_bytes += more_bytes
            if size_bytes >= row_group_bytes:
                yield _together([*tables, rows.slice(start, end - start)])
                tables, size_bytes, start = [], 0.0, end
        if start < end:
            tables.append(rows.slice(start, end - start))
    if tables:
        yield _together(tables)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all rows; where some have the column `raw_batch` it is null for the others."""
    return pa.concat_tables(tables, promote_options="default")
