"""Decides which records a compaction removes, from keys and offsets alone.

Of each key the record with the greatest offset stays. The others go, and so does a tombstone that
is the only one left of its key, when its delete horizon has passed. Records without a key, and
batches that could not be decoded, have no place here: nothing removes them.

A tombstone goes only when nothing older of its key is left. So whichever outputs of a compaction
come into use (a rebuild of the metadata may find some of them), no older record comes back because
its tombstone went first.

Who calls it gives all rows of some keys together. Which keys those are is a matter of load: what is
compared here are whole keys. Columns are worked on as a whole; nothing loops over records.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal.columns import Int64s

KEY_ROWS: Final = pa.schema(
    [
        pa.field("plan", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        # A tombstone that no compaction has seen before.
        pa.field("is_new_tombstone", pa.bool_(), nullable=False),
        # A tombstone whose delete horizon has passed.
        pa.field("is_expired", pa.bool_(), nullable=False),
    ]
)
"""A record with a key: in which input of which plan it is."""

LOSSES: Final = pa.schema(
    [
        pa.field("plan", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("removed", pa.int64(), nullable=False),
        pa.field("marked", pa.int64(), nullable=False),
        # Offsets, as little-endian 64-bit numbers.
        pa.field("offsets", pa.binary(), nullable=False),
    ]
)
"""What an input loses: records, by their offsets; and how many new tombstones stay in it."""

_OFFSET: Final = np.dtype("<i8")


class Loss(NamedTuple):
    """What one input loses, in numbers."""

    removed: int = 0
    marked: int = 0
    """New tombstones that stay: they get their delete horizon, so the segment is written anew."""


def losses_of(rows: pa.Table) -> pa.Table:
    """Rows of LOSSES for rows of KEY_ROWS, which are all of their keys.

    Inputs that lose nothing and have no new tombstones are left out.
    """
    tables = [
        pa.Table.from_pylist(list(_losses_of_plan(plan, rows)), schema=LOSSES)
        for plan in np.unique(rows.column("plan").to_numpy()).tolist()
    ]
    return pa.concat_tables(tables) if tables else LOSSES.empty_table()


def offsets_in(losses: Iterable[bytes]) -> Int64s:
    """All offsets of a column `offsets` of LOSSES, ascending."""
    parts = [np.frombuffer(part, _OFFSET) for part in losses]
    offsets: Int64s = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    return offsets


def _losses_of_plan(plan: int, rows: pa.Table) -> Iterator[dict[str, object]]:
    mine = np.flatnonzero(rows.column("plan").to_numpy() == plan)
    chosen = rows if len(mine) == rows.num_rows else rows.take(mine)
    segments = chosen.column("segment").to_numpy()
    offsets = chosen.column("offset").to_numpy()
    removed, marked = _outcome(
        _numbered(chosen.column("key")),
        offsets,
        _bools(chosen.column("is_new_tombstone")),
        _bools(chosen.column("is_expired")),
    )
    for segment in np.unique(segments[removed | marked]).tolist():
        here = segments == segment
        gone = np.sort(offsets[here & removed])
        yield {
            "plan": plan,
            "segment": segment,
            "removed": len(gone),
            "marked": int(np.count_nonzero(here & marked)),
            "offsets": gone.astype(_OFFSET).tobytes(),
        }


def _outcome(
    keys: Int64s,
    offsets: Int64s,
    is_new_tombstone: npt.NDArray[np.bool_],
    is_expired: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For each record whether it is removed, and whether it is a tombstone to be marked."""
    counts = np.bincount(keys)
    newest = np.full(len(counts), -1, np.int64)
    np.maximum.at(newest, keys, offsets)
    is_newest = offsets == newest[keys]
    is_alone = counts[keys] == 1
    return ~is_newest | (is_expired & is_alone), is_newest & is_new_tombstone


def _numbered(keys: pa.ChunkedArray) -> Int64s:
    """The same number for equal keys: whole keys are compared, whatever brought them together."""
    encoded = keys.combine_chunks().dictionary_encode()
    numbers: Int64s = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _bools(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    values: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return values
