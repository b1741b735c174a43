"""A class whose bytes follow from its fields: `layout` compiles a writer and a reader from it.

    class Registered(NamedTuple):               int32, compact string, uuid, tag section
        broker_id: Int32
        host: str
        incarnation: UUID

    layout(Registered).write(value) -> bytes    layout(Registered).read(reader) -> Registered

Dataclasses and NamedTuples are written field by field in the order of declaration, or in that of
the names that `layout` is given; a field that is not named is not written and has a default.

| annotation | bytes (wal/wire/fields.py) |
|---|---|
| `int`, `Int8` … `UInt32` | int64, or as the name says |
| `float`, `bool`, `UUID` | float64, int8, 16 bytes |
| `UUID or None` | 16 bytes; zeros are None |
| `str`, `str or None` | compact string; the latter may be null |
| `EmptyIsNone` | compact string, empty for None |
| `SizedBytes`, `CompactBytes` | uvarint length, or length + 1, then the bytes |
| `Sequence[X]`, `tuple[X, ...]` | compact array; read as a tuple |
| `Mapping[K, V]` | compact array of key, value, tag section, by key; a key is there once |
| a class | its fields; in an array, and by itself, with a tag section behind them |
| `Annotated[X, Field(...)]` | what two functions write and read |

Unknown tagged fields are skipped. Writing raises struct.error or ValueError for a value that its
field cannot hold, reading nothing but the reader's error. A count is compared with the bytes that
are left, and each element of an array takes at least as many as its fields do when they are empty.

The functions are compiled from source, as dataclasses does it, so that they are as fast as those
that one writes by hand: neighbours of fixed size are one `struct.Struct`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog, DisklessError
from wal.wire.fields import (
    NO_TAGS,
    NO_UUID,
    FieldReader,
    compact_bytes,
    compact_string,
    nullable_string,
    sized,
    uvarint,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Layout(Generic[Value]):
    """How values of one class are written and read, their tag section included."""

    write: Callable[[Value], bytes]
    read: Callable[[FieldReader], Value]
    bytes_min: int
    """No value takes fewer."""

    def decode(
        self, data: bytes, what: str, error: Callable[[str], DisklessError] = CorruptLog
    ) -> Value:
        """The value whose bytes are all of `data`. Raises: `error`."""
        reader = FieldReader(data, what, error)
        value = self.read(reader)
        reader.finish()
        return value


class Field(NamedTuple):
    """A kind of field, for `Annotated`: the functions that write and read it."""

    write: Callable[[Any], bytes]
    read: Callable[[Any], Any]
    """Given the reader, which is a FieldReader or a subclass of one that the field needs."""
    bytes_min: int = 1


class Fixed(NamedTuple):
    """A kind of field of fixed size."""

    code: str
    """Of `struct`."""
    packed: str = "{0}"
    """Source of what is packed; {0} is the value."""
    value: str = "{0}"
    """Source of the value; {0} was unpacked."""

    @property
    def bytes_min(self) -> int:
        return struct.calcsize(f">{self.code}")


Int8 = Annotated[int, Fixed("b")]
Int16 = Annotated[int, Fixed("h")]
Int32 = Annotated[int, Fixed("i")]
UInt32 = Annotated[int, Fixed("I")]
SizedBytes = Annotated[bytes, Field(sized, FieldReader.sized)]
CompactBytes = Annotated[bytes, Field(compact_bytes, FieldReader.compact_bytes)]
EmptyIsNone = Annotated[
    str | None,
    Field(lambda text: compact_string(text or ""), lambda reader: reader.compact_string() or None),
]

_SCALARS: Final[Mapping[Any, Field | Fixed]] = {
    int: Fixed("q"),
    float: Fixed("d"),
    bool: Fixed("?"),
    UUID: Fixed("16s", "{0}.bytes", "UUID(bytes={0})"),
    str: Field(compact_string, FieldReader.compact_string),
}
_NULLABLE: Final[Mapping[Any, Field | Fixed]] = {
    UUID: Fixed("16s", "({0} or NO_UUID).bytes", "(UUID(bytes={0}) if any({0}) else None)"),
    str: Field(nullable_string, FieldReader.nullable_string),
}
_HINTS: Final[Mapping[Any, Mapping[str, Any]]] = {
    TopicIdPartition: {"topic_id": UUID, "partition": Int32}
}
"""Of classes that stand below this module."""


def layout(kind: type[Value], *names: str, **fields: Field) -> Layout[Value]:
    """Compiles how `kind` is written and read by itself, and in arrays.

    `names`: which of its fields, and in which order, if not all as declared; `fields`: of those
    whose annotation does not say how they are written.
    """
    any_kind: Any = kind
    found: Layout[Value] = _compiled(any_kind, names, tuple(fields.items()))
    return found


def fields_of(kind: type[Value], *names: str, **fields: Field) -> Field:
    """The same without a tag section behind it: what goes on has more fields."""
    any_kind: Any = kind
    of = _compiled(any_kind, names, tuple(fields.items()), is_closed=False)
    return Field(of.write, of.read, of.bytes_min)


def closed(of: Field) -> Layout[Any]:
    """A structure of one field."""
    source = _Source()
    return source.compiled(source.add("value", Annotated[Any, of]), "a field")


def array(of: "Layout[Any] | Field") -> Field:
    """A compact array for `Annotated`, whose items have a layout of their own."""
    write, read, bytes_min = of.write, of.read, of.bytes_min
    return Field(
        lambda values: uvarint(len(values) + 1) + b"".join(map(write, values)),
        lambda reader: tuple([read(reader) for _ in reader.entries(bytes_min)]),
    )


@cache
def _compiled(
    kind: Any,
    names: tuple[str, ...] = (),
    fields: tuple[tuple[str, Field], ...] = (),
    *,
    is_closed: bool = True,
) -> Layout[Any]:
    source = _Source(dict(fields))
    result = source.add("value", kind, names)
    return source.compiled(result, kind.__name__, is_closed=is_closed)


class _Source:
    """The statements of a writer and a reader, as they come to be."""

    def __init__(self, fields: Mapping[str, Field] | None = None) -> None:
        self._fields = fields or {}
        self._names: dict[str, Any] = {
            "NO_TAGS": NO_TAGS,
            "NO_UUID": NO_UUID,
            "UUID": UUID,
            "new": tuple.__new__,
        }
        self._opened: list[str] = []
        self._written: list[str] = []
        self._read: list[str] = []
        self._codes = ""
        self._packed: list[str] = []
        self._unpacked: list[str] = []
        self._count = 0
        self._bytes_min = 0

    def add(self, value: str, hint: Any, names: Sequence[str] = ()) -> str:
        """Adds what `value` stands for; the source of it when it is read again."""
        hint = _plain(hint)
        if not _is_class(hint):
            return self._add_field(value, _field_of(hint))
        hints = _HINTS.get(hint) or get_type_hints(hint, include_extras=True)
        given = {name: Annotated[Any, of] for name, of in self._fields.items()}
        hints = {name: given.get(name, annotation) for name, annotation in hints.items()}
        if hasattr(hint, "_fields"):
            return self._add_tuple(value, hint, {name: hints[name] for name in names or hints})
        again = [f"{name}={self.add(f'{value}.{name}', hints[name])}" for name in names or hints]
        return f"{self._name(hint)}({', '.join(again)})"

    def _add_tuple(self, value: str, kind: Any, hints: Mapping[str, Any]) -> str:
        """A NamedTuple is taken apart and made at once, at half the cost of names."""
        parts = {name: self._name(None) for name in kind._fields}
        self._opened.append(f"{', '.join(parts.values())}, = {value}")
        again = {name: self.add(parts[name], hint) for name, hint in hints.items()}
        for name in kind._fields:
            if name not in again:
                again[name] = self._name(kind._field_defaults[name])
        return f"new({self._name(kind)}, ({''.join(f'{again[name]}, ' for name in parts)}))"

    def compiled(self, result: str, title: str, *, is_closed: bool = True) -> Layout[Any]:
        """The functions; `is_closed`: a tag section is behind all that was added."""
        self._flush("x" if is_closed else "")
        if is_closed:
            self._read.append("reader.skip_tags()")
            self._bytes_min += len(NO_TAGS)
        parts = ", ".join(self._written)
        joined = f'b"".join(({parts}))' if len(self._written) > 1 else parts
        lines = ["def write(value):"]
        lines += [f"    {line}" for line in (*self._opened, f"return {joined}")]
        lines.append("def read(reader):")
        lines += [f"    {line}" for line in (*self._read, f"return {result}")]
        exec(compile("\n".join(lines), f"<layout of {title}>", "exec"), self._names)
        return Layout(self._names["write"], self._names["read"], self._bytes_min)

    def _add_field(self, value: str, item: Field | Fixed) -> str:
        self._bytes_min += item.bytes_min
        self._count += 1
        name = f"field_{self._count}"
        if isinstance(item, Fixed):
            self._codes += item.code
            self._packed.append(item.packed.format(value))
            self._unpacked.append(name)
            return item.value.format(name)
        self._flush()
        self._written.append(f"{self._name(item.write)}({value})")
        self._read.append(f"{name} = {self._name(item.read)}(reader)")
        return name

    def _flush(self, closing: str = "") -> None:
        """Ends a run of fields of fixed size; `closing` is a byte 0 behind it."""
        if self._codes:
            packing = self._name(struct.Struct(f">{self._codes}{closing}").pack)
            unpacking = self._name(struct.Struct(f">{self._codes}"))
            self._written.append(f"{packing}({', '.join(self._packed)})")
            self._read.append(f"{', '.join(self._unpacked)}, = reader.unpack({unpacking})")
            self._codes = ""
            self._packed.clear()
            self._unpacked.clear()
        elif closing:
            self._written.append("NO_TAGS")

    def _name(self, tool: Any) -> str:
        name = f"tool_{len(self._names)}"
        self._names[name] = tool
        return name


def _plain(hint: Any) -> Any:
    """Without NewTypes."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _is_class(hint: Any) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_fields")


def _field_of(hint: Any) -> Field | Fixed:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marks = [mark for mark in hint.__metadata__ if isinstance(mark, Field | Fixed)]
        return marks[0] if marks else _field_of(_plain(arguments[0]))
    if origin in (Union, UnionType):
        (inner,) = (_plain(choice) for choice in arguments if choice is not NoneType)
        return _NULLABLE[inner]
    if origin is Mapping or (origin is not None and issubclass(origin, Mapping)):
        return mapping(*arguments)
    if origin is not None and issubclass(origin, Sequence):
        return _array(_plain(arguments[0]))
    return _SCALARS[hint]


def _array(item: Any) -> Field:
    of: Field | Fixed | Layout[Any] = _compiled(item) if _is_class(item) else _field_of(item)
    if isinstance(of, Fixed):
        if of.packed == of.value:
            return _numbers(of.code, of.bytes_min)
        source = _Source()
        of = source.compiled(source.add("value", item), "an item", is_closed=False)
    return array(of)


def _numbers(code: str, size: int) -> Field:
    def write(values: Sequence[int]) -> bytes:
        return uvarint(len(values) + 1) + struct.pack(f">{len(values)}{code}", *values)

    def read(reader: FieldReader) -> tuple[int, ...]:
        count = reader.array_count(size)
        return struct.unpack_from(f">{count}{code}", reader.data, reader.skip(count * size))

    return Field(write, read)


def mapping(key: Any, value: Any) -> Field:
    """A compact array of keys and values, by key."""
    source = _Source()
    pair = f"({source.add('value[0]', key)}, {source.add('value[1]', value)})"
    of: Layout[tuple[Any, Any]] = source.compiled(pair, "a pair")

    def write(values: Mapping[Any, Any]) -> bytes:
        # By key, so that equal values are equal bytes.
        return uvarint(len(values) + 1) + b"".join(map(of.write, sorted(values.items())))

    def read(reader: FieldReader) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for _ in reader.entries(of.bytes_min):
            name, content = of.read(reader)
            if name in values:
                raise reader.corrupt(f"{name!r} is there twice")
            values[name] = content
        return values

    return Field(write, read)
