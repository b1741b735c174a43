"""Checks what compactions removed, while the segments that they replaced still exist.

Counts cannot tell which records a compaction removed: one that drops the newest record of a key and
counts it as removed leaves a segment in which everything adds up. The segments that it replaced
tell, which stay for the deletion grace, or as long as a table holds them. Of a live segment whose
predecessors are all there, each record that it lost must have a newer record of the same whole
key in a segment of the partition, or be a tombstone whose delete horizon has passed.

Newer records are looked for in live and in replaced segments: one that was found by a compaction
may have lost to a later one, or have been a tombstone that went in its turn. Whatever replaced a
segment of higher offsets did so later, so that segment is there as long as its neighbour is. What a
compaction removed stood against segments only, so WAL objects are not looked into.

Memory is bounded: offsets and keys of a few row groups, and the keys of what was removed up to
REMOVED_BYTES at a time; for each such part the keys of the partition's segments above are read.

Called by `diskless verify`, which has checked the bytes of live segments before.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metadata.records.segment_identity import NamedSegment, named_segment
from tiering.compaction.key_columns import read_columns
from tiering.segment_format import SegmentFooter
from tiering.segment_verification import read_footer
from wal.columns import Int64s
from wal.coordinates import ObjectKey
from wal.errors import ObjectNotFound
from wal.stores.blocking_store import BlockingStore

REMOVED_BYTES: Final = 64 << 20

_KEY_COLUMNS: Final = ("offset", "tombstone", "key", "delete_horizon")


_ByBase = dict[int, list[tuple[NamedSegment, ObjectKey]]]
"""Replaced segments by their base offset."""


class RemovalReport(NamedTuple):
    """What was compared, and the records that should not have gone."""

    compared: int
    """Live segments that a compaction wrote."""
    not_compared: int
    """Those of which a predecessor is gone."""
    removed: int
    """Records that they lost."""
    violations: Sequence[tuple[ObjectKey, str]]


def check_removals(
    store: BlockingStore,
    live: Sequence[ObjectKey],
    replaced: Sequence[ObjectKey],
    *,
    now_ms: int,
    removed_bytes: int = REMOVED_BYTES,
) -> RemovalReport:
    """Look at the segments of one partition, of which `replaced` need not exist any more.

    Raises: CorruptSegment naming a key, ObjectNotFound for a live one, ObjectStoreUnavailable.
    """
    before: _ByBase = {}
    for key in replaced:
        if (named := named_segment(key)) is not None:
            before.setdefault(named.base_offset, []).append((named, key))
    outputs: list[tuple[ObjectKey, Sequence[ObjectKey]]] = []
    not_compared = 0
    for key in live:
        named = named_segment(key)
        if named is None or not named.generation:
            continue
        counts = _footer(store, key).counts
        if not counts.removed:
            continue
        inputs = _predecessors(named, before)
        footers = [_footer_or_none(store, one) for one in inputs]
        records = [0 if footer is None else footer.counts.records for footer in footers]
        if not inputs or None in footers:
            not_compared += 1
        elif sum(records) > counts.records:
            outputs.append((key, inputs))
    violations: list[tuple[ObjectKey, str]] = []
    removed = 0
    lost = (
        rows.append_column("output", pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
        for number, (output, inputs) in enumerate(outputs)
        for rows in _lost(store, output, inputs, now_ms)
    )
    for some in _parts(lost, removed_bytes):
        removed += some.num_rows
        for number, problem in _without_newer(store, some, [*live, *replaced]):
            violations.append((outputs[number][0], problem))
    return RemovalReport(len(outputs), not_compared, removed, violations)


def _footer(store: BlockingStore, key: ObjectKey) -> SegmentFooter:
    return read_footer(store, key, store.head(key).length_bytes)


def _footer_or_none(store: BlockingStore, key: ObjectKey) -> SegmentFooter | None:
    try:
        return _footer(store, key)
    except ObjectNotFound:
        return None


def _predecessors(output: NamedSegment, replaced: _ByBase) -> Sequence[ObjectKey]:
    """What `output` was made of, by their order; nothing when not all of it is known."""
    found: list[ObjectKey] = []
    position = output.base_offset
    while position <= output.last_offset:
        here = [
            (named.generation, named.last_offset, key)
            for named, key in replaced.get(position, ())
            if named.last_offset <= output.last_offset and named.generation < output.generation
        ]
        if not here:
            return []
        _, last, key = max(here)
        found.append(key)
        position = last + 1
    return found


def _lost(
    store: BlockingStore, output: ObjectKey, inputs: Sequence[ObjectKey], now_ms: int
) -> Iterator[pa.Table]:
    """Offset and key of the records that `output` does not have, but for what expired."""
    rewritten = _footer(store, output)
    for key in inputs:
        footer = _footer(store, key)
        for index, group in enumerate(footer.row_groups):
            rows = read_columns(key, store, footer, index, _KEY_COLUMNS)
            kept = _offsets(store, output, rewritten, group.base_offset, group.last_offset)
            is_gone = ~np.isin(rows.column("offset").to_numpy(), kept)
            passed = pc.fill_null(pc.less_equal(rows.column("delete_horizon"), now_ms), False)
            is_expired = pc.and_(rows.column("tombstone"), passed)
            rows = rows.filter(pc.and_not(pa.array(is_gone), is_expired.combine_chunks()))
            yield rows.select(["offset", "key"])


def _offsets(
    store: BlockingStore, key: ObjectKey, footer: SegmentFooter, first: int, last: int
) -> Int64s:
    """Those of the row groups that reach into a range."""
    found = [np.zeros(0, np.int64)]
    for index, group in enumerate(footer.row_groups):
        if group.base_offset <= last and group.last_offset >= first:
            rows = read_columns(key, store, footer, index, ["offset"])
            found.append(rows.column("offset").to_numpy())
    return np.concatenate(found)


def _parts(tables: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """Some of them together, until they are large enough."""
    some: list[pa.Table] = []
    for table in tables:
        some.append(table)
        if sum(one.nbytes for one in some) >= size_bytes:
            yield pa.concat_tables(some)
            some = []
    if some:
        yield pa.concat_tables(some)


def _without_newer(
    store: BlockingStore, lost: pa.Table, segments: Sequence[ObjectKey]
) -> Iterator[tuple[int, str]]:
    """For each output of which lost records have no newer one: its number, and the first one."""
    offsets = lost.column("offset").to_numpy()
    encoded = lost.column("key").combine_chunks().dictionary_encode()
    newest = np.full(len(encoded.dictionary) + 1, -1, np.int64)
    lowest = int(offsets.min(initial=2**63 - 1))
    for key in segments:
        if (footer := _footer_or_none(store, key)) is None:
            continue
        for index, group in enumerate(footer.row_groups):
            if group.last_offset <= lowest:
                continue  # nothing in it is newer
            rows = read_columns(key, store, footer, index, ["offset", "key"])
            places = pc.index_in(rows.column("key"), value_set=encoded.dictionary)
            # What has none of these keys counts for the place behind them.
            places = pc.fill_null(places, len(encoded.dictionary)).to_numpy()
            np.maximum.at(newest, places, rows.column("offset").to_numpy())
    # Nothing removes a record without a key: no record counts as a newer one of it.
    newest[-1] = -1
    numbers = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy()
    wrong = lost.filter(pa.array(newest[numbers] <= offsets))
    for output in pc.unique(wrong.column("output")).to_pylist():
        mine = wrong.filter(pc.equal(wrong.column("output"), output)).column("offset")
        yield (
            output,
            f"a compaction removed {len(mine)} records that have no newer one of their key, the"
            f" first at offset {pc.min(mine)}",
        )
