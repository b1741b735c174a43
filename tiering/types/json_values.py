"""Turns texts of JSON into typed columns, all of a row group at once, by DuckDB.

`json_transform` alone will not do: it fails as a whole on text that is no JSON, makes null of what
does not fit without a word, and takes what nearly fits (`"12"` for 12, 2 for 1.5). So the text is
tried (`json_valid`), the type of the JSON at each leaf is compared with what its column takes, and
a leaf that has a value and no data does not fit. In lists and maps that is a comparison of how many
there are. A record of which one field does not fit has no data at all: half a record would be
believed.

Texts are tried only after `json_transform` has failed on some of them, which is rare. That takes as
many values for JSON as `json_valid` does, as long as nothing is put around them.

Types come from DuckDB as one list for each record, and are compared here: as codes of a dictionary,
which has a handful of entries, a column at a time.

JSON's numbers are one type, and DuckDB reads those with a fraction or an exponent, and those beyond
64 bits, as doubles. An integer column takes none of these.

Measured on 60,000 flights of 14 fields, in CPU time on a shared core: `json_transform` takes 50 ms,
all of this 167, of which the types are 70; with one malformed text among them 224.
`pyarrow.json`, which fails as a whole and knows no maps, takes 1.8 times as long as
`json_transform`.

One decoder belongs to one thread. Failure cases: none but for memory; what DuckDB fails on is
halved until the records that it fails on are alone, and those are malformed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tiering.types import arrow_types
from tiering.types.columns import Column
from tiering.types.shapes import ROOT_FIELD, Kind

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_DUCKDB_TYPES: Final = {
    Kind.BOOLEAN: "BOOLEAN",
    Kind.INT: "INTEGER",
    Kind.LONG: "BIGINT",
    Kind.FLOAT: "FLOAT",
    Kind.DOUBLE: "DOUBLE",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    Kind.LOCAL_TIMESTAMP: "TIMESTAMP",
    Kind.STRING: "VARCHAR",
    Kind.JSON: "JSON",
}
_INTEGERS: Final = ("UBIGINT", "BIGINT")
_TAKEN: Final = {
    Kind.BOOLEAN: ("BOOLEAN",),
    Kind.INT: _INTEGERS,
    Kind.LONG: _INTEGERS,
    Kind.DECIMAL: _INTEGERS,
    Kind.FLOAT: ("DOUBLE", *_INTEGERS),
    Kind.DOUBLE: ("DOUBLE", *_INTEGERS),
    Kind.DATE: ("VARCHAR",),
    Kind.TIMESTAMP: ("VARCHAR",),
    Kind.LOCAL_TIMESTAMP: ("VARCHAR",),
    Kind.STRING: ("VARCHAR",),
    Kind.STRUCT: ("OBJECT",),
    Kind.LIST: ("ARRAY",),
    Kind.MAP: ("OBJECT",),
}
"""What `json_type` says of JSON that a column of the kind takes. JSON text takes everything."""

_NO_VALUE: Final = ("NULL", None)
"""What it says of a null, and where there is nothing."""

_YEARS: Final = ("0001-01-01", "9999-12-31")
"""SQL's dates; DuckDB has `infinity` besides, and others have nothing to read that with."""


class JsonDecoder:
    """Decodes into `columns`; a context manager."""

    def __init__(self, columns: Sequence[Column], *, is_wrapped: bool = False) -> None:
        self._columns = tuple(columns)
        self._is_wrapped = is_wrapped
        given = tuple(filter(None, map(_of_json, self._columns)))
        self._checks = [_ROOT, *_checks(given, _ROOT)]
        self._query = _query(given, self._checks, is_wrapped=is_wrapped, is_trying=True)
        self._fast_query = _query(given, self._checks, is_wrapped=False, is_trying=False)
        self._connection = duckdb.connect(
            config={
                "threads": 1,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "enable_external_access": False,
            }
        )
        self._connection.execute("set TimeZone = 'UTC'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def decode(self, values: pa.Array) -> arrow_types.TypedValues:
        """Returns data of the struct of the columns, and codes, for binary `values`."""
        if not self._is_wrapped:
            # What is put around a text may make JSON of what is none.
            try:
                return self._decoded_together(values, self._fast_query)
            except (duckdb.Error, pa.ArrowException, UnicodeError):
                pass  # one of them is malformed; DuckDB's error quotes it, be it UTF-8 or not
        return arrow_types.behind_each_other(self._decoded(values), self._columns)

    def _decoded(self, values: pa.Array) -> Iterator[arrow_types.TypedValues]:
        try:
            yield self._decoded_together(values, self._query)
            return
        except (duckdb.Error, pa.ArrowException):
            if len(values) == 1:
                yield arrow_types.failed(1, self._columns, arrow_types.MALFORMED)
                return
        middle = len(values) // 2
        yield from self._decoded(values[:middle])
        yield from self._decoded(values[middle:])

    def _decoded_together(self, values: pa.Array, query: str) -> arrow_types.TypedValues:
        # DuckDB checks what is UTF-8 as part of what is JSON.
        text = pa.Array.from_buffers(
            pa.string(), len(values), values.buffers(), values.null_count, values.offset
        )
        relation = pa.table({"v": text})
        cursor = self._connection.cursor()
        try:
            cursor.register("given", relation)
            found = cursor.execute(query).to_arrow_table().combine_chunks()
        finally:
            cursor.close()
        if found.num_rows != len(values):
            raise pa.ArrowInvalid(f"{found.num_rows} rows of {len(values)}")
        data = _one_array(found.column("d"))
        is_outside = _one_array(found.column("outside"))
        is_bad = pc.or_(is_outside, pa.array(_mismatches(self._checks, found)))
        is_malformed = pc.and_(values.is_valid(), pc.invert(_one_array(found.column("ok"))))
        errors = pc.if_else(
            is_malformed,
            pa.scalar(arrow_types.MALFORMED, pa.int8()),
            pc.if_else(
                is_bad, pa.scalar(arrow_types.TYPE_MISMATCH, pa.int8()), pa.scalar(None, pa.int8())
            ),
        )
        fits = pc.and_(values.is_valid(), errors.is_null())
        return arrow_types.TypedValues(_struct(data, self._columns, pc.invert(fits)), errors)


def _of_json(column: Column) -> Column | None:
    """`column` with the fields that JSON can give; None when it is not such a one itself.

    A topic whose values were Avro before has columns that no JSON Schema asks for.
    """
    inside = tuple(map(_of_json, column.inside))
    match column.kind:
        case Kind.STRUCT:
            there = tuple(filter(None, inside))
            return replace(column, inside=there) if there else None
        case Kind.LIST | Kind.MAP:
            return column if inside == column.inside else None
    return column if column.kind in _TAKEN or column.kind is Kind.JSON else None


# --- the query -----------------------------------------------------------------------------------


def _query(
    columns: Sequence[Column], checks: Sequence["_Check"], *, is_wrapped: bool, is_trying: bool
) -> str:
    structure = _text(json.dumps(_structure(columns), ensure_ascii=False))
    kinds = ", ".join(_text(check.path) for check in checks if not check.in_many)
    many = [check for check in checks if check.in_many]
    kinds_in_many = [
        f", json_type(v, {_text(check.path)}) as {_kinds_name(number)}"
        for number, check in enumerate(many)
    ]
    counts_in_many = [
        f", {_kinds_name(number)}, coalesce(list_count({check.data}), 0) as {_count_name(number)}"
        for number, check in enumerate(many)
    ]
    is_outside = " or ".join(filter(None, map(_is_outside, checks))) or "false"
    wrapped = f"""'{{"{ROOT_FIELD}":' || v || '}}'""" if is_wrapped else "v"
    given = f"""
        given_ok as materialized (select v, coalesce(json_valid(v), false) as ok from given),
        valid as materialized (select ok, case when ok then {wrapped} end as v from given_ok)
    """
    if not is_trying:
        given = "valid as (select v is not null as ok, v from given)"
    return f"""
        with {given},
        decoded as materialized (
            select ok, json_transform(v, {structure}) as d, json_type(v, [{kinds}]) as k
                {"".join(kinds_in_many)}
            from valid
        )
        select ok, d, k {"".join(counts_in_many)}, {is_outside} as outside from decoded
    """


def _kinds_name(number: int) -> str:
    """Of the column with the types at the places of a check that finds many."""
    return f"k{number}"


def _count_name(number: int) -> str:
    """Of the column that says how many of these places have data."""
    return f"n{number}"


class _Check(NamedTuple):
    """A place in the JSON, the data that came of it, and what may be there."""

    path: str
    data: str
    """As an expression; a list if it is in many."""
    place: tuple[str, ...]
    """The fields that lead to the data; of what is in many, to the outermost list or map."""
    column: Column | None
    """None: all of the value, which is an object."""
    in_many: bool
    """Whether it is inside of a list or a map: `path` finds many."""


_ROOT: Final = _Check("$", "d", (), None, False)


def _structure(columns: Sequence[Column]) -> object:
    return {column.name: _structure_of(column) for column in columns if column.is_live}


def _structure_of(column: Column) -> object:
    match column.kind:
        case Kind.STRUCT:
            return _structure(column.inside)
        case Kind.LIST:
            return [_structure_of(column.inside[0])]
        case Kind.MAP:
            return _sql_type(column)
    return _sql_type(column)


def _sql_type(column: Column) -> str:
    """The type in SQL; `json_transform` takes one for maps only in this form."""
    match column.kind:
        case Kind.STRUCT:
            inside = ", ".join(
                f"{_name(inner.name)} {_sql_type(inner)}"
                for inner in column.inside
                if inner.is_live
            )
            return f"STRUCT({inside})"
        case Kind.LIST:
            return f"{_sql_type(column.inside[0])}[]"
        case Kind.MAP:
            return f"MAP(VARCHAR, {_sql_type(column.inside[1])})"
        case Kind.DECIMAL:
            return f"DECIMAL({column.precision}, {column.scale})"
    return _DUCKDB_TYPES[column.kind]


def _checks(columns: Sequence[Column], outer: _Check) -> Iterator[_Check]:
    for column in columns:
        if not column.is_live:
            continue
        name = _text(column.name)
        data = f"struct_extract({outer.data}, {name})"
        if outer.in_many:
            data = f"list_transform({outer.data}, lambda x: struct_extract(x, {name}))"
        place = outer.place if outer.in_many else (*outer.place, column.name)
        path = f"{outer.path}.{_step(column.name)}"
        yield from _checks_of(_Check(path, data, place, column, outer.in_many))


def _checks_of(check: _Check) -> Iterator[_Check]:
    path, data, place, column, in_many = check
    assert column is not None
    if column.kind is Kind.JSON:
        return
    yield check
    match column.kind:
        case Kind.STRUCT:
            yield from _checks(column.inside, check)
        case Kind.LIST:
            inner = f"flatten({data})" if in_many else data
            yield from _checks_of(_Check(f"{path}[*]", inner, place, column.inside[0], True))
        case Kind.MAP:
            inner = (
                f"flatten(list_transform({data}, lambda x: map_values(x)))"
                if in_many
                else f"map_values({data})"
            )
            yield from _checks_of(_Check(f"{path}.*", inner, place, column.inside[1], True))


def _is_outside(check: _Check) -> str:
    """Whether data are there that are none of the column's; empty where that cannot be."""
    if check.column is None:
        return ""
    outside = _outside(check.column, "y" if check.in_many else check.data)
    if outside and check.in_many:
        outside = f" or len(list_filter({check.data}, lambda y: false{outside})) > 0"
    return f"coalesce(false{outside}, false)" if outside else ""


def _outside(column: Column, data: str) -> str:
    """Whether data are none of the column's in the eyes of those who read files."""
    match column.kind:
        case Kind.DATE:
            low, high = (f"DATE '{day}'" for day in _YEARS)
        case Kind.TIMESTAMP:
            low = f"TIMESTAMPTZ '{_YEARS[0]} 00:00:00+00'"
            high = f"TIMESTAMPTZ '{_YEARS[1]} 23:59:59.999999+00'"
        case Kind.LOCAL_TIMESTAMP:
            low = f"TIMESTAMP '{_YEARS[0]} 00:00:00'"
            high = f"TIMESTAMP '{_YEARS[1]} 23:59:59.999999'"
        case Kind.DOUBLE | Kind.FLOAT:
            return f" or isinf({data})"
        case Kind.MAP:
            # DuckDB itself refuses to read such a map from a file.
            return f" or len(list_distinct(map_keys({data}))) <> len(map_keys({data}))"
        case _:
            return ""
    return f" or {data} not between {low} and {high}"


def _taken(column: Column) -> str:
    return ", ".join(f"'{name}'" for name in _TAKEN[column.kind])


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def _step(name: str) -> str:
    """A name in a path of DuckDB's."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- what DuckDB gave ----------------------------------------------------------------------------


def _mismatches(checks: Sequence[_Check], found: pa.Table) -> Flags:
    """Which records have a value that its column does not take, or of which no data came."""
    bad = _mismatches_alone(
        [check for check in checks if not check.in_many],
        _one_array(found.column("k")),
        _one_array(found.column("d")),
    )
    for number, check in enumerate(check for check in checks if check.in_many):
        kinds = _one_array(found.column(_kinds_name(number)))
        bad |= _mismatches_in_many(check, kinds, found.column(_count_name(number)).to_numpy())
    return bad


def _mismatches_alone(checks: Sequence[_Check], kinds: pa.Array, data: pa.Array) -> Flags:
    """At the places that are in no list or map.

    `kinds` has a list for each record, of the types at these places; null where there is no such
    value. Null for what is not JSON.
    """
    bad = np.zeros(len(kinds), np.bool_)
    names, codes = _codes(kinds)
    by_record = codes.reshape(-1, len(checks))
    is_there = ~_flags(kinds.is_null()) if kinds.null_count else slice(None)
    has_value = np.array([name not in _NO_VALUE for name in names])
    for number, check in enumerate(checks):
        taken = ("OBJECT",) if check.column is None else (*_TAKEN[check.column.kind], *_NO_VALUE)
        code = by_record[:, number]
        unfit = np.array([name not in taken for name in names])[code]
        array = data
        for name in check.place:
            array = pc.struct_field(array, [array.type.get_field_index(name)])
        if array.null_count:
            unfit |= has_value[code] & _flags(array.is_null())[is_there]
        bad[is_there] |= unfit
    return bad


def _mismatches_in_many(check: _Check, kinds: pa.Array, data_counts: Counts) -> Flags:
    """In lists and maps: `kinds` has the types of all values at the place, for each record."""
    assert check.column is not None
    names, codes = _codes(kinds)
    taken = (*_TAKEN[check.column.kind], *_NO_VALUE)
    unfit = np.array([name not in taken for name in names])[codes]
    has_value = np.array([name not in _NO_VALUE for name in names])[codes]
    ends = np.cumsum(pc.fill_null(pc.list_value_length(kinds), 0).to_numpy())

    def count(flags: Flags) -> Counts:
        sums = np.concatenate(([0], np.cumsum(flags)))
        counts: Counts = np.diff(sums[ends], prepend=0)
        return counts

    lost: Flags = (count(unfit) > 0) | (count(has_value) != data_counts)
    return lost


def _codes(kinds: pa.Array) -> tuple[Sequence[str | None], npt.NDArray[np.int32]]:
    """The types that lists of them have, and all behind each other as places in these."""
    coded = kinds.flatten().dictionary_encode()
    names = [*coded.dictionary.to_pylist(), None]
    return names, coded.indices.fill_null(len(names) - 1).to_numpy()


def _flags(array: pa.Array) -> Flags:
    found: Flags = array.to_numpy(zero_copy_only=False)
    return found


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _struct(found: pa.Array, columns: Sequence[Column], is_null: pa.Array | None) -> pa.Array:
    """`found` with all columns in their order, those that are no fields any more as nulls."""
    if is_null is None:
        is_null = found.is_null()
    names = {field.name for field in found.type}
    children = [
        _column(pc.struct_field(found, [found.type.get_field_index(column.name)]), column)
        if column.is_live and column.name in names
        else pa.nulls(len(found), arrow_types.arrow_type(column))
        for column in columns
    ]
    fields = list(arrow_types.struct_type(columns))
    return pa.StructArray.from_arrays(children, fields=fields, mask=is_null)


def _column(found: pa.Array, column: Column) -> pa.Array:
    match column.kind:
        case Kind.STRUCT:
            return _struct(found, column.inside, None)
        case Kind.LIST:
            taken = arrow_types.listed(found)
            return arrow_types.as_list(taken, _column(taken.items, column.inside[0]), column)
        case Kind.MAP:
            taken = arrow_types.listed(found)
            keys, values = (pc.struct_field(taken.items, [index]) for index in (0, 1))
            return arrow_types.as_map(taken, keys, _column(values, column.inside[1]), column)
    return found.cast(arrow_types.arrow_type(column))
