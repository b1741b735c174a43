"""docs/formats.md, and a reader of records and notes that knows nothing but the page."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from wal.wire.fields import FieldReader

PAGE: Final = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


class Field(NamedTuple):
    name: str
    type: str
    tag: int | None
    children: Sequence["Field"]


_FIELD: Final = re.compile(r"^( *)(?:tag (\d+) )?(\w+) (\S+)$")


def parse_fields(lines: Sequence[str], indent: int) -> list[Field]:
    """The fields that start at `indent`, with what is indented below each."""
    fields: list[Field] = []
    number = 0
    while number < len(lines):
        match = _FIELD.match(lines[number])
        assert match is not None, lines[number]
        assert len(match[1]) == indent, lines[number]
        end = number + 1
        while end < len(lines) and lines[end].startswith(" " * (indent + 2)):
            end += 1
        children = parse_fields(lines[number + 1 : end], indent + 2)
        fields.append(Field(match[3], match[4], int(match[2]) if match[2] else None, children))
        number = end
    return fields


def layouts() -> dict[str, list[Field]]:
    """`100 PartitionCreated` and its like, with their fields."""
    found = {}
    for block in re.findall(r"```text\n(\d.*?)```", PAGE, re.DOTALL):
        for layout in block.strip("\n").split("\n\n"):
            title, *lines = layout.split("\n")
            found[title] = parse_fields(lines, 2)
    return found


LAYOUTS: Final = layouts()


def read_column_as_told(reader: FieldReader) -> list[int]:
    count, width = reader.uvarint() - 1, reader.raw(1)[0]
    smallest = shift = 0
    while (byte := reader.raw(1)[0]) >= 0x80:
        smallest |= (byte & 0x7F) << shift
        shift += 7
    smallest |= byte << shift
    smallest = smallest >> 1 ^ -(smallest & 1)
    return [smallest + int.from_bytes(reader.raw(width), "little") for _ in range(count)]


_READ: Final[dict[str, Callable[[FieldReader], Any]]] = {
    "int8": FieldReader.int8,
    "int16": FieldReader.int16,
    "int32": FieldReader.int32,
    "int64": FieldReader.int64,
    "uint32": FieldReader.uint32,
    "float64": FieldReader.float64,
    "uuid": FieldReader.uuid,
    "string": FieldReader.compact_string,
    "string?": FieldReader.nullable_string,
    "bytes": lambda reader: reader.raw(reader.uvarint() - 1),
    "16s": lambda reader: reader.raw(16),
    "uvarint": FieldReader.uvarint,
    "column": read_column_as_told,
}


def read_value(reader: FieldReader, field: Field) -> Any:
    if field.type == "[]":
        return [read_structure(reader, field.children) for _ in range(reader.array_count())]
    if field.type.startswith("[]"):
        read = _READ[field.type.removeprefix("[]")]
        return [read(reader) for _ in range(reader.array_count())]
    return _READ[field.type](reader)


def read_structure(reader: FieldReader, fields: Sequence[Field]) -> dict[str, Any]:
    values = {field.name: read_value(reader, field) for field in fields if field.tag is None}
    by_tag = {field.tag: field for field in fields}
    for tag, content in reader.tags():
        field = by_tag[tag]  # A tag that the page does not have is a KeyError.
        values[field.name] = read_value(content, field)
        content.finish()
    return values


def read_as_told(title: str, data: bytes) -> dict[str, Any]:
    reader = FieldReader(data, title)
    values = read_structure(reader, LAYOUTS[title])
    reader.finish()
    return values
