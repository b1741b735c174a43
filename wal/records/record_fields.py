"""Locates the fields of records: numbers decoded, byte strings found, all records at once.

`wal/records/record_columns.py` makes columns of whole batches with it, `wal/records/record_scan.py`
looks into single ones. The records have been found before (`wal/records/varint_columns.py`); here
each field is one vectorised step over all of them.

    length, attributes i8, timestamp delta, offset delta, key, value, header count, headers

Safe against any input: what does not fit is marked in `bad` and clamped, never followed.
"""

from typing import Final, NamedTuple

import numpy as np

from wal.columns import Int64s
from wal.records.varint_columns import Arena, Bools, Links, read_varints

_BODY_BYTES_MIN: Final = 6
_HEADER_BYTES_MIN: Final = 2


class RecordFields(NamedTuple):
    """A row for each record; where `bad` is set nothing else means anything."""

    offset_deltas: Int64s
    timestamp_deltas: Int64s
    keys: Links
    values: Links
    header_counts: Int64s
    header_starts: Int64s
    ends: Int64s
    bad: Bools


def locate_fields(arena: Arena, records: Links) -> RecordFields:
    """The fields of `records`. Whether offset deltas rise is for the caller to check."""
    ends = records.starts + records.lengths
    bad = records.lengths < _BODY_BYTES_MIN
    position = records.starts + 1  # attributes, of which none are defined
    timestamp_deltas, sizes = read_varints(arena, position)
    position, bad = _advance(position, sizes, ends, bad | (sizes == 0))
    offset_deltas, sizes = read_varints(arena, position)
    position, bad = _advance(position, sizes, ends, bad | (sizes == 0))
    keys, position, bad = _locate_blobs(arena, position, ends, bad)
    values, position, bad = _locate_blobs(arena, position, ends, bad)
    header_counts, sizes = read_varints(arena, position)
    position, bad = _advance(position, sizes, ends, bad | (sizes == 0))
    bad |= (header_counts < 0) | (header_counts > (ends - position) // _HEADER_BYTES_MIN)
    bad |= (header_counts == 0) & (position != ends)
    return RecordFields(
        offset_deltas, timestamp_deltas, keys, values, header_counts, position, ends, bad
    )


def _advance(position: Int64s, by: Int64s, ends: Int64s, bad: Bools) -> tuple[Int64s, Bools]:
    """Positions moved on, those past their record's end marked bad and held back."""
    position = position + by
    bad |= position > ends
    # A record that failed keeps being read, within the arena, until all are judged together.
    return np.maximum(np.minimum(position, ends), 0), bad


def _locate_blobs(
    arena: Arena, position: Int64s, ends: Int64s, bad: Bools
) -> tuple[Links, Int64s, Bools]:
    lengths, sizes = read_varints(arena, position)
    starts, bad = _advance(position, sizes, ends, bad | (sizes == 0) | (lengths < -1))
    bad |= lengths > ends - starts
    lengths[bad] = -1
    position, bad = _advance(starts, np.maximum(lengths, 0), ends, bad)
    return Links(starts, lengths), position, bad
