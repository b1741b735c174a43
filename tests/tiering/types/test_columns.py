"""How columns follow schemas: what stays in place, what is renamed, and ids that never move."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiering.segment_columns import FIELD_ID
from tiering.types import columns as columns_module
from tiering.types.arrow_types import struct_type
from tiering.types.columns import (
    FIRST_ID,
    Column,
    Columns,
    Side,
    decode_columns,
    encode_columns,
    follow,
    walk,
)
from tiering.types.shapes import (
    Field,
    Kind,
    SchemaError,
    Shape,
    list_of,
    map_of,
    simple,
    struct_of,
    union_of,
)


def _decimal(precision: int, scale: int) -> Shape:
    return Shape(kind=Kind.DECIMAL, precision=precision, scale=scale)


def _struct(**fields: Shape) -> Shape:
    return struct_of(Field(name, shape) for name, shape in fields.items())


def _union(**fields: Shape) -> Shape:
    return union_of(Field(name, shape) for name, shape in fields.items())


def _followed(*schemas: Shape) -> tuple[Column, ...]:
    found: tuple[Column, ...] = ()
    next_id = FIRST_ID
    for schema in schemas:
        found, next_id = follow(found, schema, next_id)
    return found


def _named(found: tuple[Column, ...]) -> dict[str, tuple[int, str]]:
    return {column.name: (column.id, column.kind.value) for column in found}


INT, LONG, STRING = simple(Kind.INT), simple(Kind.LONG), simple(Kind.STRING)
FLOAT, DOUBLE = simple(Kind.FLOAT), simple(Kind.DOUBLE)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        (INT, LONG, LONG),
        (LONG, INT, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (DOUBLE, FLOAT, DOUBLE),
        (_decimal(5, 2), _decimal(9, 2), _decimal(9, 2)),
        (_decimal(9, 2), _decimal(5, 2), _decimal(9, 2)),
        (list_of(INT), list_of(LONG), list_of(LONG)),
        (map_of(FLOAT), map_of(DOUBLE), map_of(DOUBLE)),
        (list_of(_struct(a=INT)), list_of(_struct(a=LONG)), list_of(_struct(a=LONG))),
        (_union(int=INT), _union(string=STRING, int=LONG), _union(int=LONG, string=STRING)),
        (_union(int=INT, string=STRING), _union(int=INT), _union(int=INT, string=STRING)),
    ],
)
def test_a_wider_type_is_taken_in_place(before: Shape, after: Shape, kept: Shape) -> None:
    found = _followed(_struct(x=before), _struct(x=after))
    (expected,) = _followed(_struct(x=kept))
    assert found == (expected,)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (INT, STRING),
        (INT, DOUBLE),
        (LONG, FLOAT),
        (STRING, simple(Kind.JSON)),
        (_decimal(5, 2), _decimal(9, 3)),
        (simple(Kind.DATE), simple(Kind.TIMESTAMP)),
        (_struct(a=INT), INT),
        (INT, _union(int=INT, string=STRING)),
        (_union(int=INT, string=STRING), INT),
        (_struct(int=INT), _union(int=INT, string=STRING)),
        (list_of(INT), list_of(_union(int=INT, string=STRING))),
        (list_of(INT), list_of(STRING)),
        (map_of(INT), map_of(STRING)),
        (list_of(INT), map_of(INT)),
        (list_of(list_of(INT)), list_of(list_of(STRING))),
    ],
)
def test_another_type_renames_the_column_and_gives_a_new_id(before: Shape, after: Shape) -> None:
    first = _followed(_struct(x=before))
    then = _followed(_struct(x=before), _struct(x=after))
    old, new = then
    assert (old.name, old.was, old.id, old.inside) == ("x_v1", "x", first[0].id, first[0].inside)
    assert (new.name, new.was, new.kind) == ("x", "", after.kind)
    assert new.id > max(column.id for column in walk(first))
    back = _followed(_struct(x=before), _struct(x=after), _struct(x=before))
    assert [column.name for column in back] == ["x_v1", "x_v2", "x"]


def test_a_column_stays_when_its_field_goes_and_is_there_again_when_it_comes_back() -> None:
    there, gone = _struct(a=INT, b=STRING), _struct(b=STRING)
    assert _followed(there, gone) == _followed(there)
    assert _followed(there, gone, there) == _followed(there)


def test_new_fields_come_behind_the_others_also_inside() -> None:
    found = _followed(_struct(a=_struct(x=INT), b=INT), _struct(c=INT, a=_struct(y=INT, x=INT)))
    assert _named(found) == {
        "a": (110, "struct"),
        "b": (112, "int"),
        "c": (114, "int"),
    }
    assert _named(found[0].inside) == {"x": (111, "int"), "y": (113, "int")}


def test_a_field_inside_is_renamed_inside() -> None:
    found = _followed(_struct(a=list_of(_struct(x=INT))), _struct(a=list_of(_struct(x=STRING))))
    (column,) = found
    assert [inner.name for inner in column.inside[0].inside] == ["x_v1", "x"]


def test_a_type_that_changes_within_several_is_renamed_there() -> None:
    first, then = _union(long=LONG, R=_struct(a=INT)), _union(long=STRING, R=_struct(a=STRING))
    (column,) = _followed(_struct(x=first), _struct(x=then))
    assert [inner.name for inner in column.inside] == ["long_v1", "R", "long"]
    assert [inner.name for inner in column.inside[1].inside] == ["a_v1", "a"]


def test_names_that_others_have_are_given_up() -> None:
    found = _followed(_struct(x=INT), _struct(x=STRING), _struct(x=STRING, x_v1=LONG))
    assert [(column.name, column.was) for column in found] == [
        ("x_v2", "x"),
        ("x", ""),
        ("x_v1", ""),
    ]
    other_case = _followed(_struct(a=INT), _struct(A=INT))
    assert [(column.name, column.was) for column in other_case] == [("a_v1", "a"), ("A", "")]


def test_columns_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "COLUMNS_MAX", 3)
    found = _followed(_struct(x=INT), _struct(x=STRING), _struct(x=INT))
    with pytest.raises(SchemaError, match="more than 3 columns"):
        follow(found, _struct(x=STRING), 200)


_NAMES = st.sampled_from(["a", "b", "A", "x", "x_v1", "x_V2", "é"])
_SHAPES = st.recursive(
    st.sampled_from([INT, LONG, STRING, FLOAT, DOUBLE, _decimal(5, 2), _decimal(9, 2)]),
    lambda inner: st.one_of(
        inner.map(list_of),
        inner.map(map_of),
        st.dictionaries(_NAMES, inner, min_size=1, max_size=3).map(lambda one: _unclashing(one)),
    ),
    max_leaves=5,
)


def _unclashing(fields: dict[str, Shape]) -> Shape:
    kept = {name.casefold(): (name, shape) for name, shape in fields.items()}
    return struct_of(Field(*pair) for pair in kept.values())


_STRUCTS = st.dictionaries(_NAMES, _SHAPES, min_size=1, max_size=4).map(_unclashing)


def _by_id(found: tuple[Column, ...]) -> dict[int, Column]:
    return {column.id: column for column in walk(found)}


def _check_level(found: tuple[Column, ...]) -> None:
    names = [column.name.casefold() for column in found]
    assert len(set(names)) == len(names)
    for column in found:
        _check_level(column.inside)


def _has(column: Column, shape: Shape) -> bool:
    """Whether the column takes all values of the shape."""
    if shape.kind in (Kind.STRUCT, Kind.LIST, Kind.MAP):
        live = {inner.name: inner for inner in column.inside if inner.is_live}
        return column.kind is shape.kind and all(
            field.name in live and _has(live[field.name], field.shape) for field in shape.fields
        )
    return columns_module.accepts(column, shape)


@given(st.lists(_STRUCTS, min_size=1, max_size=6))
def test_any_series_of_schemas_keeps_ids_and_has_a_column_for_every_field(
    schemas: list[Shape],
) -> None:
    found: tuple[Column, ...] = ()
    next_id = FIRST_ID
    given_ids: set[int] = set()
    for schema in schemas:
        before = _by_id(found)
        found, next_id = follow(found, schema, next_id)
        after = _by_id(found)
        assert len(after) == sum(1 for _ in walk(found))
        # Nothing is taken away, nothing turns into something else, and new ids are new.
        assert before.keys() <= after.keys()
        assert not (after.keys() - before.keys()) & given_ids
        assert all(FIRST_ID <= number < next_id for number in after)
        given_ids |= after.keys()
        for number, old in before.items():
            new = after[number]
            wider = {Kind.INT: Kind.LONG, Kind.FLOAT: Kind.DOUBLE}.get(old.kind)
            assert new.kind in (old.kind, wider)
            assert new.precision >= old.precision
            assert new.scale == old.scale
        _check_level(found)
        live = {column.name: column for column in found if column.is_live}
        assert all(_has(live[field.name], field.shape) for field in schema.fields)
        assert follow(found, schema, next_id) == (found, next_id)
    columns = Columns(value=Side(format="json", columns=found), next_id=next_id)
    assert decode_columns(encode_columns(columns)) == columns


@given(st.binary(max_size=40))
def test_what_is_no_columns_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="columns"):
        decode_columns(data)


def test_cut_off_columns_are_a_value_error() -> None:
    data = encode_columns(Columns(value=Side(format="json", columns=_followed(_struct(a=INT)))))
    with pytest.raises(ValueError, match="columns"):
        decode_columns(data[:-3])


def test_every_field_of_the_arrow_type_has_its_id() -> None:
    shape = _struct(a=INT, m=map_of(list_of(_struct(x=_decimal(9, 2)))))
    found = _followed(shape)

    def ids(data_type: pa.DataType) -> list[int]:
        numbers = []
        for index in range(data_type.num_fields):
            field: Any = data_type.field(index)
            if pa.types.is_map(data_type):
                return [
                    number
                    for inner in (data_type.key_field, data_type.item_field)
                    for number in (int(inner.metadata[FIELD_ID]), *ids(inner.type))
                ]
            numbers += [int(field.metadata[FIELD_ID]), *ids(field.type)]
        return numbers

    assert ids(struct_type(found)) == [column.id for column in walk(found)]
