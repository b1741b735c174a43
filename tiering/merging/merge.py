"""Merges the segments of one plan: what they hold becomes one Parquet object under a new key.

`merge` is a plain function of a plan and a store, called by a Spark task and by tests without
Spark. Like the roll it may be killed anywhere, run again, and run twice at once: the plan fixes the
inputs and the key, the put is put-if-absent, and an attempt that finds a complete, intact segment
of this plan under the key takes it as its own result. Nothing is a segment before the coordinator
commits it, so the object of a killed attempt is never read as data.

Every row is carried over as it is, with all its columns, in offset order; row groups are put
together, never cut, so that each still has whole batches. Counts of control, aborted and removed
records add up, empty batches and raw batches come along. Typed columns are brought under one schema
(tiering/merging/typed_union.py).

Sources are those of all inputs whose WAL objects still exist, so that a rebuild knows of these what
was rolled, and the list does not grow for ever; the newest one stays in any case, because it says
up to when the topic was written. Which exist may differ between two attempts, and then so do their
bytes: the second one takes what the first one put.

    footers, all inputs --> row groups, some ahead --> put together to 4 MiB --> one file --> put

Memory is bounded whatever the sizes: `READ_AHEAD_BYTES` of row groups, one row group as Arrow.

Failure cases: CorruptSegment naming the input that does not hold what was planned, or what lies
under the key instead; ObjectNotFound when an input is gone, with the log start or with its topic;
ObjectStoreUnavailable and UploadOutcomeUnknown from the store. The same plan may be merged again.
"""

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from metadata.records.segment_identity import segment_key
from metadata.rewrites import RewriteInput, RewritePlan, RewrittenSegment
from tiering.merging.typed_union import made_by, typed_columns_of, union_of_typed
from tiering.segment_columns import SEGMENT_SCHEMA, read_whole_row_group
from tiering.segment_format import SegmentFooter, SegmentIdentity, WrittenSegment
from tiering.segment_sources import SourceRange, decode_sources
from tiering.segment_verification import existing_segment, existing_sources, read_footer_and_sources
from tiering.segment_writer import ROW_GROUP_BYTES, FileBody, SegmentWriter, put_together
from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment, ObjectExists
from wal.failpoint import failpoint
from wal.stores.blocking_store import BlockingStore

READ_AHEAD_BYTES: Final = 32 << 20
"""Of row groups in flight or waiting while earlier ones are encoded."""

READS_AT_ONCE: Final = 16
"""Row groups, footers, or objects asked for at a time: what hides the latency of the store."""


class _Input(NamedTuple):
    key: ObjectKey
    footer: SegmentFooter
    sources: Sequence[SourceRange]
    schema: pa.Schema


def merge(plan: RewritePlan, store: BlockingStore) -> RewrittenSegment:
    """Write the segment that takes the place of all inputs, or find it written.

    Blocks. Failpoints: merge.before_put, merge.after_put.
    """
    identity = _identity(plan)
    key = segment_key(*identity)
    written = existing_segment(store, key, identity)
    if written is None:
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="merge-read") as readers:
            inputs = list(readers.map(lambda one: _input(store, plan, one), plan.inputs))
            _check_neighbours(key, inputs)
            found = [source for one in inputs for source in one.sources]
            sources = existing_sources(store, found, readers)
            written = _write(key, identity, store, inputs, sources, readers)
    records = sum(one.record_count for one in plan.inputs)
    if written.counts.records != records:
        raise CorruptSegment(f"{key}: {written.counts.records} rows of {records} in its inputs")
    return RewrittenSegment(
        base_offset=plan.inputs[0].base_offset,
        last_offset=plan.inputs[-1].last_offset,
        object_key=key,
        object_bytes=written.object_bytes,
        crc32c=written.crc32c,
        record_count=written.counts.records,
        removed_count=0,
        max_timestamp_ms=written.max_timestamp_ms,
    )


def _identity(plan: RewritePlan) -> SegmentIdentity:
    first, last = plan.inputs[0], plan.inputs[-1]
    return SegmentIdentity(
        plan.topic_name, plan.partition, first.base_offset, last.last_offset, plan.generation
    )


# --- what goes in ---------------------------------------------------------------------------------


def _input(store: BlockingStore, plan: RewritePlan, planned: RewriteInput) -> _Input:
    key = planned.object_key
    footer, sources = read_footer_and_sources(store, key, planned.object_bytes)
    found = footer.identity
    if (
        found[:2] != (plan.topic_name, plan.partition)
        or found[2:4] != (planned.base_offset, planned.last_offset)
        or footer.counts.records != planned.record_count
    ):
        raise CorruptSegment(f"{key}: holds {footer.counts} of {found}, not {planned}")
    schema = pq.read_schema(pa.BufferReader(footer.footer_bytes))
    return _Input(key, footer, decode_sources(key, sources), schema)


def _check_neighbours(key: ObjectKey, inputs: Sequence[_Input]) -> None:
    for one, following in pairwise(inputs):
        if following.footer.identity.base_offset != one.footer.identity.last_offset + 1:
            raise CorruptSegment(f"{key}: {following.key} does not follow {one.key}")


def _row_groups(
    store: BlockingStore, inputs: Sequence[_Input], readers: ThreadPoolExecutor
) -> Iterator[tuple[_Input, pa.Table]]:
    """All row groups of all inputs in order; later ones are read while the caller works."""
    waiting: deque[tuple[_Input, int, int, Future[bytes]]] = deque()
    waiting_bytes = 0

    def first() -> tuple[_Input, pa.Table]:
        nonlocal waiting_bytes
        one, index, length, future = waiting.popleft()
        waiting_bytes -= length
        return one, read_whole_row_group(one.key, one.footer, index, future.result())

    try:
        for one in inputs:
            for index, group in enumerate(one.footer.row_groups):
                length = group.end - group.byte_offset
                while waiting and (
                    waiting_bytes + length > READ_AHEAD_BYTES or len(waiting) >= READS_AT_ONCE
                ):
                    yield first()
                future = readers.submit(store.get_range, one.key, group.byte_offset, length)
                waiting.append((one, index, length, future))
                waiting_bytes += length
        while waiting:
            yield first()
    finally:
        for _, _, _, future in waiting:
            future.cancel()


# --- what comes out -------------------------------------------------------------------------------


def _write(
    key: ObjectKey,
    identity: SegmentIdentity,
    store: BlockingStore,
    inputs: Sequence[_Input],
    sources: Sequence[SourceRange],
    readers: ThreadPoolExecutor,
) -> WrittenSegment:
    with tempfile.TemporaryFile(prefix="diskless-merge-") as file:
        typed = union_of_typed([one.schema for one in inputs])
        typed_columns = made_by([one.footer for one in inputs])
        with SegmentWriter(
            file, identity, sources, typed=typed, typed_columns=typed_columns
        ) as writer:
            groups = _conformed(_row_groups(store, inputs, readers), typed)
            for rows in put_together(groups, ROW_GROUP_BYTES):
                writer.write_row_group(
                    rows.select(SEGMENT_SCHEMA.names), rows.columns[len(SEGMENT_SCHEMA) :]
                )
            written = writer.finish(
                controls=sum(one.footer.counts.controls for one in inputs),
                removed=sum(one.footer.counts.removed for one in inputs),
                aborted=sum(one.footer.counts.aborted for one in inputs),
                empty_batches=[empty for one in inputs for empty in one.footer.empty_batches],
            )
        failpoint("merge.before_put")
        try:
            store.put(key, FileBody(file, written.object_bytes))
        except ObjectExists:
            existing = existing_segment(store, key, identity)
            if existing is None:
                raise
            return existing
        failpoint("merge.after_put")
        return written


def _conformed(
    groups: Iterator[tuple[_Input, pa.Table]], typed: Sequence[pa.Field]
) -> Iterator[pa.Table]:
    """Row groups with our columns and exactly these typed ones."""
    schema = pa.schema([*SEGMENT_SCHEMA, *typed])
    for one, rows in groups:
        columns = [
            *rows.columns[: len(SEGMENT_SCHEMA)],
            *typed_columns_of(one.key, rows, typed),
        ]
        yield pa.Table.from_arrays(columns, schema=schema)
