"""Reads segments as `metadata.rebuild.facts.SegmentFacts`, in ranged reads of the little it needs.

A footer gives almost all of it, also the checksum of the whole object. The batches of idempotent
producers come from five columns that lie side by side in each row group, so a row group costs one
small read; row groups whose statistics know no producer cost none. Batches whose records are all
gone are in the footer.

PyArrow works in threads. Failure cases: CorruptSegment naming the key, ObjectNotFound,
ObjectStoreUnavailable.
"""

import asyncio
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metadata.rebuild.facts import RolledBatch, RolledRange, SegmentFacts
from tiering.segment_columns import read_part_of_row_group
from tiering.segment_format import SegmentFooter, footer_length, parse_footer
from tiering.segment_sources import decode_sources
from tiering.types.remembered import remembered_columns
from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment
from wal.stores.object_store import ObjectStat, ObjectStore

_TAIL_GUESS_BYTES: Final = 64 << 10
_BATCH_COLUMNS: Final = [
    "batch_base_offset",
    "batch_last_offset",
    "producer_id",
    "producer_epoch",
    "base_sequence",
]


class _ColumnRange(NamedTuple):
    start: int
    length: int


async def read_segment_facts(
    store: ObjectStore, stat: ObjectStat, *, existing: Collection[ObjectKey]
) -> SegmentFacts:
    """Reads what the footer says; of its sources, those among the `existing` WAL objects."""
    footer, tail, tail_start = await _footer(store, stat)
    start = footer.footer_start - footer.sources_bytes
    if start >= tail_start:
        encoded = tail[start - tail_start : footer.footer_start - tail_start]
    else:
        encoded = await store.get_range(stat.key, start, footer.sources_bytes)
    sources = decode_sources(stat.key, encoded)
    ulids = [source.object_key.rpartition("/")[2] for source in sources]
    identity = footer.identity
    column_id_max, columns = await asyncio.to_thread(_typed_columns, footer)
    return SegmentFacts(
        object_key=stat.key,
        object_bytes=stat.length_bytes,
        crc32c=footer.object_crc32c,
        topic_name=identity.topic_name,
        partition=identity.partition,
        base_offset=identity.base_offset,
        last_offset=identity.last_offset,
        generation=identity.generation,
        record_count=footer.counts.records,
        max_timestamp_ms=footer.max_timestamp_ms,
        stored_ms=stat.last_modified_ms,
        sources=[RolledRange(*source) for source in sources if source.object_key in existing],
        last_source=max(ulids, default=None),
        producer_id_max=await asyncio.to_thread(_greatest_producer_id, footer),
        batch_timestamp_ms_max=max(
            footer.max_timestamp_ms, *(empty.max_timestamp_ms for empty in footer.empty_batches), -1
        ),
        column_id_max=column_id_max,
        columns=columns,
    )


async def read_producers(
    store: ObjectStore, stat: ObjectStat, *, since_ms: int
) -> list[RolledBatch]:
    """The batches of idempotent producers, in row groups with a timestamp of `since_ms` or later.

    In offset order, with those whose records are gone. Whole row groups are read, so older batches
    come with them.
    """
    footer, _, _ = await _footer(store, stat)
    batches = [
        RolledBatch(*empty[:-1])
        for empty in footer.empty_batches
        if empty.producer_id >= 0 and empty.max_timestamp_ms >= since_ms
    ]
    for index, group in enumerate(footer.row_groups):
        where = await asyncio.to_thread(_producer_columns, footer, index)
        if where is None or group.max_timestamp_ms < since_ms:
            continue
        data = await store.get_range(stat.key, where.start, where.length)
        batches += await asyncio.to_thread(_producers_in, stat.key, footer, index, where, data)
    return sorted(batches)


async def _footer(store: ObjectStore, stat: ObjectStat) -> tuple[SegmentFooter, bytes, int]:
    """The footer, the bytes that were read for it, and where they start."""
    guess = min(_TAIL_GUESS_BYTES, stat.length_bytes)
    start = stat.length_bytes - guess
    tail = await store.get_range(stat.key, start, guess)
    length = footer_length(stat.key, tail, stat.length_bytes)
    if length > guess:
        start = stat.length_bytes - length
        tail = await store.get_range(stat.key, start, length)
    footer = await asyncio.to_thread(parse_footer, stat.key, tail[-length:], stat.length_bytes)
    return footer, tail, start


def _metadata(footer: SegmentFooter) -> pq.FileMetaData:
    return pq.read_metadata(pa.BufferReader(footer.footer_bytes))


def _typed_columns(footer: SegmentFooter) -> tuple[int, bytes]:
    schema = _metadata(footer).schema.to_arrow_schema()
    try:
        return remembered_columns(schema, footer.typed_columns)
    except ValueError:
        # Of another release. The columns themselves tell all that must not be lost.
        return remembered_columns(schema, b"")


def _greatest_producer_id(footer: SegmentFooter) -> int:
    """By the statistics of the column, which every row group has, and the empty batches."""
    metadata = _metadata(footer)
    greatest = max((empty.producer_id for empty in footer.empty_batches), default=-1)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for number in range(group.num_columns):
            column = group.column(number)
            statistics = column.statistics
            if column.path_in_schema == "producer_id" and statistics is not None:
                greatest = max(greatest, statistics.max)
    return greatest


def _producer_columns(footer: SegmentFooter, index: int) -> _ColumnRange | None:
    """Where the batch columns of a row group lie; None when it knows no producer."""
    group = _metadata(footer).row_group(index)
    start = end = -1
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema not in _BATCH_COLUMNS:
            continue
        if column.path_in_schema == "producer_id":
            statistics = column.statistics
            if statistics is not None and statistics.max < 0:
                return None
        first = column.data_page_offset
        if column.dictionary_page_offset is not None:
            first = min(first, column.dictionary_page_offset)
        start = first if start < 0 else min(start, first)
        end = max(end, first + column.total_compressed_size)
    return _ColumnRange(start, end - start)


def _producers_in(
    key: ObjectKey, footer: SegmentFooter, index: int, where: _ColumnRange, data: bytes
) -> list[RolledBatch]:
    rows = read_part_of_row_group(key, footer, index, where.start, data, _BATCH_COLUMNS)
    return [batch for batch in _batches(key, rows) if batch.producer_id >= 0]


def _batches(key: ObjectKey, rows: pa.Table) -> Iterator[RolledBatch]:
    """One batch per run of rows with the same base offset."""
    bases = rows.column("batch_base_offset").to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], bases[1:] != bases[:-1])))
    if np.any(np.diff(bases[starts]) <= 0):
        raise CorruptSegment(f"{key}: its batches do not follow each other")
    columns = [rows.column(name).to_numpy()[starts].tolist() for name in _BATCH_COLUMNS]
    for batch in zip(*columns, strict=True):
        yield RolledBatch(*batch)
