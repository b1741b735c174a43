"""Turns Avro values into typed columns, many at once, by `polars.read_avro`.

Schemas that Polars does not read, those of unions of several types before all, are read by
`avro_lockstep`, and what follows is of all others.

Values of one writer's schema are put into one container file in memory, as its one block. That
block must be believed only as far as each value ends where it should: a value that is shorter or
longer than its schema says would move all values behind it, and they would be read as something
else without an error. So each value is followed by a mark of eight bytes, which is a field of its
own in the schema that Polars is given. The mark is a hash of all the values, so that no value can
hold it. Where a mark is wrong, or Polars fails, the values are halved until those that are wrong
are alone.

Polars is given the layout of the bytes, not the meaning: what it cannot read or reads without a
check is replaced by something of the same layout.

| in the writer's schema | for Polars | then |
|---|---|---|
| boolean | long | false is 0, true -1; another byte does not fit |
| int | long | what an int cannot hold does not fit |
| enum | long | its symbols; another number does not fit |
| map | array of records of key and value | the same memory as a map |
| date, timestamp | long | within SQL's years, or does not fit |
| a union of one type | record of a long and the type | the long is 0 |
| null, a record of nothing | left out: they take no bytes | |

Columns are found by name. A field without a column is left out: a schema that is newer than the
plan has some. A value of an older schema goes into the column that its type had then, when that was
renamed since.

One decoder belongs to one thread. Failure cases: none but for memory.
"""

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc

from tiering.types import arrow_types
from tiering.types.avro.avro_schema import AvroType
from tiering.types.avro.lockstep import NARROW, read_together
from tiering.types.columns import Column, accepts
from tiering.types.shapes import ROOT_FIELD, Kind
from wal.wire.fields import zigzag

BLOCK_BYTES_MAX: Final = 16 << 20
"""Polars reads a block at a time; smaller blocks are faster to halve."""

_MARK_BYTES: Final = 8
_SYNC: Final = b"diskless-roll..."
assert len(_SYNC) == 16

_SQL_YEARS: Final = {
    "date": (-719_162, 2_932_896),
    "millis": (-62_135_596_800_000, 253_402_300_799_999),
    "micros": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""0001-01-01 to 9999-12-31."""


class _Undecodable(Exception):
    """Not all of these values are of their schema."""


class AvroDecoder:
    """Decodes values of one writer's schema into `columns`."""

    def __init__(
        self,
        writer: AvroType,
        columns: Sequence[Column],
        *,
        is_wrapped: bool = False,
        narrow: int = NARROW,
    ) -> None:
        """`narrow` is for `read_together`."""
        self._writer = writer
        self._narrow = narrow
        self._columns = tuple(columns)
        self._is_wrapped = is_wrapped
        self._head = b""
        """Of the container file; empty where it is not for Polars to read."""
        if writer.is_plain:
            self._head = self._container_head()

    def _container_head(self) -> bytes:
        schema = {
            "type": "record",
            "name": "Marked",
            "fields": [
                {"name": "value", "type": _Layout().of(self._writer)},
                {"name": "mark", "type": "double"},
            ],
        }
        text = json.dumps(schema).encode()
        return b"".join(
            (b"Obj\x01", zigzag(1), zigzag(11), b"avro.schema", zigzag(len(text)), text, zigzag(0))
        )

    def decode(self, values: pa.Array) -> arrow_types.TypedValues:
        """Returns data of the struct of the columns, and codes, for binary `values`, none null."""
        return arrow_types.behind_each_other(self._decoded(values), self._columns)

    def _decoded(self, values: pa.Array) -> Iterator[arrow_types.TypedValues]:
        if not len(values):
            return
        if len(values) == 1 or pc.sum(pc.binary_length(values)).as_py() <= BLOCK_BYTES_MAX:
            if not self._head:
                yield self._of_lockstep(values)
                return
            try:
                found = self._block(values)
            except _Undecodable:
                if len(values) == 1:
                    yield arrow_types.failed(1, self._columns, arrow_types.MALFORMED)
                    return
            else:
                yield self._typed(found)
                return
        middle = len(values) // 2
        yield from self._decoded(values[:middle])
        yield from self._decoded(values[middle:])

    def _of_lockstep(self, values: pa.Array) -> arrow_types.TypedValues:
        found, is_malformed, is_unfit = read_together(values, self._writer, narrow=self._narrow)
        typed = self._typed(found)
        codes = np.where(is_malformed, arrow_types.MALFORMED, arrow_types.TYPE_MISMATCH).astype(
            np.int8
        )
        is_bad = is_malformed | is_unfit
        return arrow_types.TypedValues(
            pc.if_else(pa.array(is_bad), pa.scalar(None, typed.data.type), typed.data),
            pc.if_else(pa.array(is_bad), pa.array(codes), typed.errors),
        )

    def _typed(self, found: pa.Array) -> arrow_types.TypedValues:
        if self._is_wrapped:
            part = _fitted(found, self._writer, _column_of(ROOT_FIELD, self._writer, self._columns))
            part = _struct_of({ROOT_FIELD: part}, self._columns, found, np.zeros(len(found), bool))
        else:
            part = _fitted_struct(found, self._writer, self._columns)
        unfit = pa.array(part.unfit)
        errors = pc.if_else(
            unfit, pa.scalar(arrow_types.TYPE_MISMATCH, pa.int8()), pa.scalar(None, pa.int8())
        )
        data = pc.if_else(unfit, pa.scalar(None, part.array.type), part.array)
        return arrow_types.TypedValues(data, errors)

    def _block(self, values: pa.Array) -> pa.Array:
        """The values as Polars reads them. Raises: _Undecodable."""
        mark = _mark(values)
        marked = pc.binary_join_element_wise(values, pa.scalar(mark), pa.scalar(b""))
        block = _bytes_of(marked)
        file = b"".join((self._head, _SYNC, zigzag(len(values)), zigzag(len(block)), block, _SYNC))
        try:
            table = polars.read_avro(io.BytesIO(file)).to_arrow()
        except BaseException as error:
            # What Polars did not expect is a panic, which is no Exception; whoever interrupts
            # this process means it.
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise _Undecodable from error
        if table.num_rows != len(values):
            raise _Undecodable
        marks = _one_array(table.column("mark")).to_numpy().view(np.uint64)
        if np.any(marks != np.frombuffer(mark, np.uint64)[0]):
            raise _Undecodable
        return _one_array(table.column("value"))


def _mark(values: pa.Array) -> bytes:
    """Bytes that are in none of the values, but by a chance of 2⁻⁶⁴ that nobody can help along."""
    return blake2b(_bytes_of(values), digest_size=_MARK_BYTES).digest()


def _bytes_of(values: pa.Array) -> memoryview:
    """All values behind each other."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[
        values.offset : values.offset + len(values) + 1
    ]
    data = values.buffers()[2]
    return memoryview(b"" if data is None else data)[int(offsets[0]) : int(offsets[-1])]


class _Layout:
    """Schemas for Polars; each record has another name."""

    def __init__(self) -> None:
        self._names = 0

    def of(self, writer: AvroType) -> Any:
        inner = self._of_one(writer)
        if writer.is_lone_union:
            return self._record([("branch", "long"), ("value", inner)])
        if writer.null_index is not None:
            return ["null", inner] if writer.null_index == 0 else [inner, "null"]
        return inner

    def _of_one(self, writer: AvroType) -> Any:
        match writer.name:
            case "record":
                return self._record(
                    [
                        (field.name, self.of(field.type))
                        for field in writer.fields
                        if not field.type.is_empty
                    ]
                )
            case "array":
                return {"type": "array", "items": self.of(writer.fields[0].type)}
            case "map":
                pair = [("key", "string"), ("value", self.of(writer.fields[0].type))]
                return {"type": "array", "items": self._record(pair)}
            case "fixed" | "bytes":
                own: dict[str, Any] = {"type": writer.name}
                if writer.name == "fixed":
                    own |= {"name": self._name(), "size": writer.size}
                if writer.logical == "decimal":
                    own |= {
                        "logicalType": "decimal",
                        "precision": writer.precision,
                        "scale": writer.scale,
                    }
                return own
            case "boolean" | "int" | "enum":
                return "long"
        return writer.name

    def _record(self, fields: Sequence[tuple[str, Any]]) -> Any:
        # A name of Avro's is letters, digits and _, and a field may be named otherwise: by number.
        return {
            "type": "record",
            "name": self._name(),
            "fields": [
                {"name": f"f{index}", "type": inner} for index, (_, inner) in enumerate(fields)
            ],
        }

    def _name(self) -> str:
        self._names += 1
        return f"T{self._names}"


# --- from Polars' layout to columns --------------------------------------------------------------


class _Fitted(NamedTuple):
    """An array of a column's type, and which of its places had something that does not fit."""

    array: pa.Array
    unfit: np.ndarray[Any, np.dtype[np.bool_]]


def _column_of(name: str, writer: AvroType, columns: Sequence[Column]) -> Column | None:
    """The column for a field: of this name, or of this name when it had this type.

    None: none of the name. One of another type is for the values to fail on.
    """
    of_name = [column for column in columns if name in (column.was or column.name, column.name)]
    of_name.sort(key=lambda column: (not column.is_live, -column.id))
    for column in of_name:
        if _fits(column, writer):
            return column
    return of_name[0] if of_name else None


def _fits(column: Column, writer: AvroType) -> bool:
    if not writer.is_unit:
        match writer.name:
            case "record":
                return column.kind is Kind.STRUCT
            case "union":
                return column.kind is Kind.UNION
            case "array" if writer.fields[0].type.has_column:
                return column.kind is Kind.LIST and _fits(column.inside[0], writer.fields[0].type)
            case "map" if writer.fields[0].type.has_column:
                return column.kind is Kind.MAP and _fits(column.inside[1], writer.fields[0].type)
            case "map":
                return column.kind is Kind.LIST and column.inside[0].kind is Kind.STRING
    return accepts(column, writer.shape)


def _fitted(found: pa.Array, writer: AvroType, column: Column | None) -> _Fitted:
    unfit = np.zeros(len(found), np.bool_)
    if writer.is_lone_union:
        unfit = _true(pc.not_equal(pc.struct_field(found, [0]), 0))
        found = pc.struct_field(found, [1])
    assert column is not None
    if not _fits(column, writer):
        unfit |= _true(found.is_valid())
        return _Fitted(pa.nulls(len(found), arrow_types.arrow_type(column)), unfit)
    if writer.is_unit:
        return _Fitted(found, unfit)
    match writer.name:
        case "record" | "union":
            inner = _fitted_struct(found, writer, column.inside)
            return _Fitted(inner.array, unfit | inner.unfit)
        case "map" if not writer.fields[0].type.has_column:
            taken = arrow_types.listed(found)
            unfit |= _any_of(_repeated(taken.items, taken.offsets), taken.offsets)
            return _Fitted(arrow_types.as_list(taken, taken.items, column), unfit)
        case "array" if writer.fields[0].type.has_column:
            taken = arrow_types.listed(found)
            inner = _fitted(taken.items, writer.fields[0].type, column.inside[0])
            unfit |= _any_of(inner.unfit, taken.offsets)
            return _Fitted(arrow_types.as_list(taken, inner.array, column), unfit)
        case "map":
            taken = arrow_types.listed(found)
            keys = pc.struct_field(taken.items, [0]).cast(pa.string())
            values = pc.struct_field(taken.items, [1])
            inner = _fitted(values, writer.fields[0].type, column.inside[1])
            unfit |= _any_of(inner.unfit | _repeated(keys, taken.offsets), taken.offsets)
            return _Fitted(arrow_types.as_map(taken, keys, inner.array, column), unfit)
    array, outside = _simple(found, writer)
    unfit |= outside
    if unfit.any():
        array = pc.if_else(pa.array(unfit), pa.scalar(None, array.type), array)
    return _Fitted(array.cast(arrow_types.arrow_type(column)), unfit)


def _fitted_struct(found: pa.Array, writer: AvroType, columns: Sequence[Column]) -> _Fitted:
    parts: dict[str, _Fitted] = {}
    unfit = np.zeros(len(found), np.bool_)
    is_union = writer.name == "union"
    fields = [
        field
        for field in writer.fields
        if (field.type.name != "null" if is_union else not field.type.is_empty)
    ]
    for index, field in enumerate(fields):
        if not (is_union or field.type.has_column):
            continue
        column = _column_of(field.name, field.type, columns)
        if column is None:
            continue
        part = _fitted(pc.struct_field(found, [index]), field.type, column)
        unfit |= part.unfit
        parts[column.name] = part
    return _struct_of(parts, columns, found, unfit)


def _struct_of(
    parts: Mapping[str, _Fitted],
    columns: Sequence[Column],
    found: pa.Array,
    unfit: np.ndarray[Any, np.dtype[np.bool_]],
) -> _Fitted:
    for part in parts.values():
        unfit = unfit | part.unfit
    children = [
        parts[column.name].array
        if column.name in parts
        else pa.nulls(len(found), arrow_types.arrow_type(column))
        for column in columns
    ]
    array = pa.StructArray.from_arrays(
        children, fields=list(arrow_types.struct_type(columns)), mask=_struct_mask(found)
    )
    return _Fitted(array, unfit)


def _struct_mask(found: pa.Array) -> pa.Array:
    if pa.types.is_struct(found.type):
        return found.is_null()
    return pa.array(np.zeros(len(found), np.bool_))


def _simple(
    found: pa.Array, writer: AvroType
) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """(values of the kind of the writer's type, where they are outside of it)."""
    match writer.name, writer.logical:
        case "boolean", _:
            return pc.equal(found, -1), _outside(found, -1, 0)
        case "int", "date":
            outside = _outside(found, *_SQL_YEARS["date"])
            return _without(found, outside).cast(pa.int32()).cast(pa.date32()), outside
        case "int", _:
            outside = _outside(found, -(2**31), 2**31 - 1)
            return _without(found, outside).cast(pa.int32()), outside
        case "long", logical if logical:
            unit = "millis" if logical.endswith("millis") else "micros"
            outside = _outside(found, *_SQL_YEARS[unit])
            moments = _without(found, outside).cast(
                pa.timestamp("ms" if unit == "millis" else "us")
            )
            zone = None if logical.startswith("local") else "UTC"
            moments = moments.cast(pa.timestamp("us"))
            return moments if zone is None else moments.cast(pa.int64()).cast(
                pa.timestamp("us", tz=zone)
            ), outside
        case "enum", _:
            outside = _outside(found, 0, len(writer.symbols) - 1)
            symbols = pa.array(writer.symbols, pa.string())
            return pc.take(symbols, _without(found, outside)), outside
        case _, "decimal":
            return _decimals(found, writer)
        case (("string" | "named"), _):
            return found.cast(pa.string()), np.zeros(len(found), np.bool_)
        case (("bytes" | "fixed"), _):
            return found.cast(pa.binary()), np.zeros(len(found), np.bool_)
    return found, np.zeros(len(found), np.bool_)


def _decimals(
    found: pa.Array, writer: AvroType
) -> tuple[pa.Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Polars does not look at the digits; two numbers of 64 bits are what it read."""
    wanted = pa.decimal128(writer.precision, writer.scale)
    words = np.frombuffer(found.buffers()[1], np.uint64)
    words = words[2 * found.offset : 2 * (found.offset + len(found))].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1].view(np.int64)
    limit = 10**writer.precision
    outside = np.zeros(len(found), np.bool_)
    for bound, beyond in ((limit - 1, 1), (1 - limit, -1)):
        bound_high, bound_low = np.int64(bound >> 64), np.uint64(bound & (2**64 - 1))
        if beyond > 0:
            outside |= (high > bound_high) | ((high == bound_high) & (low > bound_low))
        else:
            outside |= (high < bound_high) | ((high == bound_high) & (low < bound_low))
    outside &= _true(found.is_valid())
    decimals = pa.Array.from_buffers(
        wanted, len(found), found.buffers(), found.null_count, found.offset
    )
    return decimals, outside


def _outside(found: pa.Array, low: int, high: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return _true(pc.or_(pc.less(found, low), pc.greater(found, high)))


def _without(found: pa.Array, outside: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    if not outside.any():
        return found
    return pc.if_else(pa.array(outside), pa.scalar(None, found.type), found)


def _true(flags: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where a flag is set; null is not."""
    found: np.ndarray[Any, np.dtype[np.bool_]] = np.array(
        pc.fill_null(flags, False).to_numpy(zero_copy_only=False), dtype=np.bool_
    )
    return found


def _any_of(
    unfit: np.ndarray[Any, np.dtype[np.bool_]], offsets: pa.Array
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which lists have an item that does not fit."""
    sums = np.concatenate(([0], np.cumsum(unfit)))
    bounds = offsets.to_numpy()
    counts: np.ndarray[Any, np.dtype[np.bool_]] = sums[bounds[1:]] > sums[bounds[:-1]]
    return counts


def _repeated(keys: pa.Array, offsets: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which keys were in their map before; DuckDB refuses to read such a map from a file."""
    bounds = offsets.to_numpy()
    owners = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    codes = pc.dictionary_encode(keys).indices.to_numpy()
    places = owners * (int(codes.max(initial=0)) + 1) + codes
    repeated = np.ones(len(keys), np.bool_)
    repeated[np.unique(places, return_index=True)[1]] = False
    return repeated


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


assert sys.byteorder == "little", "marks and decimals are read as they lie in memory"
