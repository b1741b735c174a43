"""Turns texts of JSON into typed columns, all of a row group at once, by DuckDB.

`json_transform` alone will not do: it fails as a whole on text that is no JSON, makes null of what
does not fit without a word, and takes what nearly fits (`"12"` for 12, 2 for 1.5). So the text is
tried first (`json_valid`), the type of the JSON at each leaf is compared with what its column
takes, and a leaf that has a value and no data does not fit. In lists and maps that is a comparison
of how many there are. A record of which one field does not fit has no data at all: half a record
would be believed.

JSON's numbers are one type, and DuckDB reads those with a fraction or an exponent, and those beyond
64 bits, as doubles. An integer column takes none of these.

Measured on records of 220 bytes and 17 fields: `json_transform` takes 87 ms of 60,000, all of this
175; `pyarrow.json`, which fails as a whole and knows no maps, 155.

One decoder belongs to one thread. Failure cases: none but for memory; what DuckDB fails on is
halved until the records that it fails on are alone, and those are malformed.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tiering.types.arrow_types import (
    MALFORMED,
    TYPE_MISMATCH,
    TypedValues,
    arrow_type,
    as_list,
    as_map,
    behind_each_other,
    failed,
    listed,
    struct_type,
)
from tiering.types.columns import Column
from tiering.types.shapes import ROOT_FIELD, Kind

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

_YEARS: Final = ("0001-01-01", "9999-12-31")
"""SQL's dates; DuckDB has `infinity` besides, and others have nothing to read that with."""


class JsonDecoder:
    """Decodes into `columns`; a context manager."""

    def __init__(self, columns: Sequence[Column], *, is_wrapped: bool = False) -> None:
        self._columns = tuple(columns)
        self._is_wrapped = is_wrapped
        self._query = _query(self._columns, is_wrapped)
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

    def decode(self, values: pa.Array) -> TypedValues:
        """Returns data of the struct of the columns, and codes, for binary `values`."""
        return behind_each_other(self._decoded(values), self._columns)

    def _decoded(self, values: pa.Array) -> Iterator[TypedValues]:
        try:
            yield self._decoded_together(values)
            return
        except (duckdb.Error, pa.ArrowException):
            if len(values) == 1:
                yield failed(1, self._columns, MALFORMED)
                return
        middle = len(values) // 2
        yield from self._decoded(values[:middle])
        yield from self._decoded(values[middle:])

    def _decoded_together(self, values: pa.Array) -> TypedValues:
        # DuckDB checks what is UTF-8 as part of what is JSON.
        text = pa.Array.from_buffers(
            pa.string(), len(values), values.buffers(), values.null_count, values.offset
        )
        relation = pa.table({"v": text})
        cursor = self._connection.cursor()
        try:
            cursor.register("given", relation)
            found = cursor.execute(self._query).to_arrow_table().combine_chunks()
        finally:
            cursor.close()
        if found.num_rows != len(values):
            raise pa.ArrowInvalid(f"{found.num_rows} rows of {len(values)}")
        data = _one_array(found.column("d"))
        is_bad = _one_array(found.column("bad"))
        is_malformed = pc.and_(values.is_valid(), pc.invert(_one_array(found.column("ok"))))
        errors = pc.if_else(
            is_malformed,
            pa.scalar(MALFORMED, pa.int8()),
            pc.if_else(is_bad, pa.scalar(TYPE_MISMATCH, pa.int8()), pa.scalar(None, pa.int8())),
        )
        fits = pc.and_(values.is_valid(), errors.is_null())
        return TypedValues(_struct(data, self._columns, pc.invert(fits)), errors)


# --- the query -----------------------------------------------------------------------------------


def _query(columns: Sequence[Column], is_wrapped: bool) -> str:
    structure = _text(json.dumps(_structure(columns), ensure_ascii=False))
    single: list[str] = []
    checks: list[str] = []
    for check in _checks(columns, "$", "d", in_many=False):
        if check.in_many:
            checks.append(_many_are_bad(check))
        else:
            single.append(check.path)
            checks.append(_one_is_bad(check, f"k[{len(single)}]"))
    paths = ", ".join(_text(path) for path in single)
    kinds = f"json_type(v, [{paths}])" if single else "null"
    bad = " or ".join(["coalesce(json_type(v) <> 'OBJECT', false)", *checks])
    wrapped = f"""'{{"{ROOT_FIELD}":' || v || '}}'""" if is_wrapped else "v"
    return f"""
        with given_ok as materialized (select v, coalesce(json_valid(v), false) as ok from given),
        valid as materialized (select ok, case when ok then {wrapped} end as v from given_ok),
        decoded as materialized (
            select ok, v, json_transform(v, {structure}) as d, {kinds} as k from valid
        )
        select ok, d, coalesce({bad}, false) as bad from decoded
    """


class _Check(NamedTuple):
    """A place in the JSON, the data that came of it, and the column."""

    path: str
    data: str
    column: Column
    in_many: bool
    """Whether it is inside of a list or a map: `path` finds many, `data` is a list."""


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


def _checks(columns: Sequence[Column], path: str, data: str, *, in_many: bool) -> Iterator[_Check]:
    for column in columns:
        if not column.is_live:
            continue
        name = _text(column.name)
        inner_path = f"{path}.{_step(column.name)}"
        inner_data = (
            f"list_transform({data}, lambda x: struct_extract(x, {name}))"
            if in_many
            else f"struct_extract({data}, {name})"
        )
        yield from _checks_of(column, inner_path, inner_data, in_many=in_many)


def _checks_of(column: Column, path: str, data: str, *, in_many: bool) -> Iterator[_Check]:
    if column.kind is Kind.JSON:
        return
    yield _Check(path, data, column, in_many)
    match column.kind:
        case Kind.STRUCT:
            yield from _checks(column.inside, path, data, in_many=in_many)
        case Kind.LIST:
            inner = f"flatten({data})" if in_many else data
            yield from _checks_of(column.inside[0], f"{path}[*]", inner, in_many=True)
        case Kind.MAP:
            inner = (
                f"flatten(list_transform({data}, lambda x: map_values(x)))"
                if in_many
                else f"map_values({data})"
            )
            yield from _checks_of(column.inside[1], f"{path}.*", inner, in_many=True)


def _one_is_bad(check: _Check, kind: str) -> str:
    unfit = f"{kind} not in ({_taken(check.column)}) or {check.data} is null"
    outside = _outside(check.column, check.data)
    return f"coalesce({kind} <> 'NULL' and ({unfit}{outside}), false)"


def _many_are_bad(check: _Check) -> str:
    kinds = f"json_type(v, {_text(check.path)})"
    unfit = f"len(list_filter({kinds}, lambda y: y not in ({_taken(check.column)}, 'NULL'))) > 0"
    full = f"len(list_filter({kinds}, lambda y: y <> 'NULL'))"
    lost = f"{full} <> coalesce(list_count({check.data}), 0)"
    outside = _outside(check.column, "y")
    if outside:
        outside = f" or len(list_filter({check.data}, lambda y: false{outside})) > 0"
    return f"coalesce({unfit} or {lost}{outside}, false)"


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
        else pa.nulls(len(found), arrow_type(column))
        for column in columns
    ]
    fields = list(struct_type(columns))
    return pa.StructArray.from_arrays(children, fields=fields, mask=is_null)


def _column(found: pa.Array, column: Column) -> pa.Array:
    match column.kind:
        case Kind.STRUCT:
            return _struct(found, column.inside, None)
        case Kind.LIST:
            taken = listed(found)
            return as_list(taken, _column(taken.items, column.inside[0]), column)
        case Kind.MAP:
            taken = listed(found)
            keys, values = (pc.struct_field(taken.items, [index]) for index in (0, 1))
            return as_map(taken, keys, _column(values, column.inside[1]), column)
    return found.cast(arrow_type(column))
