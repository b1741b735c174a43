"""Checks the typed columns of a segment against the bytes of its keys and values.

`diskless verify` calls it, for one row group of each segment or for all. The footer has what the
columns were made by, so they are made once more and compared, value by value and vectorised. That
finds a job that typed wrongly, and typed parts that do not belong to their rows, which no checksum
does: they were right when they were written.

Not compared are columns of values that carry the id of a schema in a registry, and those of a merge
of rows that were typed by several schemas.

Failure cases: CorruptSegment naming the key, the row group and the first offset that differs;
ModuleNotFoundError where the libraries that type are not installed; and what the store raises.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiering.segment_columns import SEGMENT_SCHEMA, read_whole_row_group
from tiering.segment_format import SegmentFooter
from tiering.types.columns import decode_columns
from tiering.types.typed_rows import TypedRows
from wal.coordinates import ObjectKey
from wal.errors import CorruptSegment
from wal.stores.blocking_store import BlockingStore

_Bools = np.ndarray[Any, np.dtype[np.bool_]]

_COLUMNS_OF_OURS: Final = len(SEGMENT_SCHEMA)


def check_typed_values(
    store: BlockingStore, key: ObjectKey, footer: SegmentFooter, groups: Sequence[int]
) -> int:
    """Checks the row groups with these indexes; returns how many rows were compared."""
    if not footer.typed_columns:
        return 0
    try:
        columns = decode_columns(footer.typed_columns)
        if columns.key.is_framed or columns.value.is_framed:
            return 0
        typed = TypedRows(footer.typed_columns, None)
    except ValueError as error:
        raise CorruptSegment(f"{key}: what typed it cannot be read: {error}") from error
    count = 0
    for index in groups:
        group = footer.row_groups[index]
        length = group.end - group.byte_offset
        data = store.get_range(key, group.byte_offset, length)
        rows = read_whole_row_group(key, footer, index, data)
        _check_rows(key, index, rows, typed)
        count += rows.num_rows
    return count


def _check_rows(key: ObjectKey, index: int, rows: pa.Table, typed: TypedRows) -> None:
    ours = rows.select(range(_COLUMNS_OF_OURS))
    stored = {name: rows.column(name) for name in rows.column_names[_COLUMNS_OF_OURS:]}
    for field, made in zip(typed.fields, typed.columns(ours), strict=True):
        if field.name not in stored:
            raise CorruptSegment(f"{key}: row group {index} has no column {field.name}")
        column = stored.pop(field.name)
        if not _is_same_type(column.type, field.type):
            raise CorruptSegment(f"{key}: column {field.name} is {column.type}, not {field.type}")
        wrong = np.flatnonzero(differing(pa.concat_arrays(column.chunks), made))
        if len(wrong):
            offset = ours.column("offset")[int(wrong[0])].as_py()
            raise CorruptSegment(
                f"{key}: row group {index}, offset {offset}: {field.name} is not what the bytes "
                f"say; so are {len(wrong)} rows of the row group"
            )
    if stored:
        raise CorruptSegment(f"{key}: row group {index} has columns {sorted(stored)} of nobody")


def differing(one: pa.Array, other: pa.Array) -> _Bools:
    """Which values of two arrays of the same type are not equal; NaN is equal to itself."""
    is_there, is_other = _valid(one), _valid(other)
    found: _Bools = is_there != is_other
    both = is_there & is_other
    kind = one.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            inner = differing(pc.struct_field(one, [number]), pc.struct_field(other, [number]))
            found |= both & inner
        return found
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        lengths = [np.diff(array.offsets.to_numpy()) for array in (one, other)]
        found |= both & (lengths[0] != lengths[1])
        rows = np.flatnonzero(both & ~found)
        if len(rows):
            wrong = differing(*(_flat(array, rows) for array in (one, other)))
            found[np.repeat(rows, lengths[0][rows])[wrong]] = True
        return found
    equal = pc.equal(one, other)
    if pa.types.is_floating(kind):
        equal = pc.or_kleene(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    found |= both & ~equal.fill_null(True).to_numpy(zero_copy_only=False)
    return found


def _flat(array: pa.Array, rows: np.ndarray[Any, Any]) -> pa.Array:
    """All elements of these lists, or all entries of these maps, behind each other."""
    taken = array.take(pa.array(rows))
    if pa.types.is_list(array.type):
        return taken.flatten()
    start, end = taken.offsets[0].as_py(), taken.offsets[-1].as_py()
    return pa.StructArray.from_arrays(
        [taken.keys.slice(start, end - start), taken.items.slice(start, end - start)],
        ["key", "value"],
    )


def _valid(array: pa.Array) -> _Bools:
    found: _Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _is_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether only names of what has none in Parquet differ, and what Arrow notes beside."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return one.num_fields == other.num_fields and all(
            one.field(at).name == other.field(at).name
            and _is_same_type(one.field(at).type, other.field(at).type)
            for at in range(one.num_fields)
        )
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _is_same_type(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _is_same_type(one.key_type, other.key_type) and _is_same_type(
            one.item_type, other.item_type
        )
    return bool(one == other)
