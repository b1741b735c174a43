"""Reads one Avro value after the other, in Python: what `lockstep` has too few values for.

What is read are Python's objects for the same layout: tuples for structs and for keys with their
values. A type that is left as a name, below the levels of columns of a record that contains itself,
becomes text of JSON. That is Avro's own JSON encoding, but that a union of null and one type is
that type, and that decimals, dates and times are written as such. Text has only what columns take:
another enum, or a year beyond 9999, does not fit.

Failure cases: Malformed and Unfit. No value goes deeper than LEVELS_MAX, so none ends the process.
"""

import json
import math
import struct
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any, Final

import numpy as np

from tiering.types.avro.avro_schema import AvroType

LEVELS_MAX: Final = 100
"""Records, arrays and maps within each other, as in Protobuf's readers."""

VARINT_BYTES_MAX: Final = 10
DECIMAL_BYTES: Final = 16
COUNT_MAX: Final = 2**61
"""Elements that take no bytes; the number of two blocks is still a long."""


class Malformed(Exception):
    """The bytes are not of the schema."""


class Unfit(Exception):
    """More than LEVELS_MAX levels, or what text does not take because a column does not."""


class OneValue:
    """Reads on in one value, into Python's objects for the same layout."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end
        self._level = 0

    def read(self, type_: AvroType) -> Any:
        """Raises: Malformed, Unfit."""
        if type_.is_lone_union:
            return (self._long(), self.read_one(type_))
        if type_.null_index is not None and self._branch(2) == type_.null_index:
            return None
        return self.read_one(type_)

    def elements(self, type_: AvroType, left: int) -> list[Any]:
        """Those of an array or a map, of which `left` are left of its block."""
        inner = type_.fields[0].type
        found: list[Any] = []
        while left or (left := self._block_count(self._end - self.at)):
            for _ in range(left):
                if type_.name == "array":
                    found.append(self.read(inner))
                    continue
                key, value = self._text(), self.read(inner)
                found.append((key, value) if inner.has_column else key)
            left = 0
        return found

    def number_of_nothing(self, total: int = 0) -> int:
        """How many elements an array has whose elements take no bytes; `total` were before."""
        while count := self._block_count(COUNT_MAX - total):
            total += count
        return total

    def read_one(self, type_: AvroType) -> Any:
        """`read` of a type that is not in a union, or whose branch has been read."""
        if type_.is_unit:
            for field in type_.fields:
                if not field.type.is_empty:
                    self.read(field.type)
            return True
        match type_.name:
            case "record":
                self._descend()
                parts = []
                for field in type_.fields:
                    if not field.type.is_empty:
                        parts.append(self.read(field.type))
                self._level -= 1
                return tuple(parts)
            case "union":
                return self._union(type_)
            case "array" if type_.fields[0].type.is_empty:
                return self.number_of_nothing()
            case "array" | "map":
                self._descend()
                found = self.elements(type_, 0)
                self._level -= 1
                is_number = type_.name == "array" and not type_.fields[0].type.has_column
                return len(found) if is_number else found
            case "named":
                definition = type_.definitions[type_.full_name]
                return _text_of(definition, self.read_one(definition))
            case "boolean":
                byte = self._piece(1)[0]
                return 2 if byte > 1 else -byte
            case "float":
                return struct.unpack("<f", self._piece(4))[0]
            case "double":
                return struct.unpack("<d", self._piece(8))[0]
            case "string":
                return self._text()
            case "bytes" | "fixed":
                size = type_.size if type_.name == "fixed" else self._long()
                if type_.logical != "decimal":
                    return self._piece(size)
                if size > DECIMAL_BYTES:
                    raise Malformed
                number = int.from_bytes(self._piece(size), "big", signed=True)
                return number.to_bytes(DECIMAL_BYTES, "little", signed=True)
        return self._long()

    def _union(self, type_: AvroType) -> Any:
        branch = self._branch(len(type_.fields))
        if type_.fields[branch].type.name == "null":
            return None
        value = self.read(type_.fields[branch].type)
        return tuple(
            value if index == branch else None
            for index, field in enumerate(type_.fields)
            if field.type.name != "null"
        )

    def _descend(self) -> None:
        self._level += 1
        if self._level > LEVELS_MAX:
            raise Unfit

    def _long(self) -> int:
        found = shift = 0
        while True:
            if self.at >= self._end:
                raise Malformed
            byte = self._data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * VARINT_BYTES_MAX:
                raise Malformed
        if found >> 64:
            raise Malformed
        return (found >> 1) ^ -(found & 1)

    def _branch(self, count: int) -> int:
        branch = self._long()
        if not 0 <= branch < count:
            raise Malformed
        return branch

    def _block_count(self, most: int) -> int:
        count = self._long()
        if count < 0:
            self._long()
            count = -count
        if count > most:
            raise Malformed
        return count

    def _piece(self, length: int) -> bytes:
        if not 0 <= length <= self._end - self.at:
            raise Malformed
        self.at += length
        return self._data[self.at - length : self.at]

    def _text(self) -> str:
        try:
            return self._piece(self._long()).decode()
        except UnicodeDecodeError:
            raise Malformed from None


def _text_of(type_: AvroType, value: Any) -> str:
    """JSON of what `OneValue` read. Raises: Unfit."""
    if type_.is_lone_union:
        branch, value = value
        if branch:
            raise Unfit
    if value is None:
        return "null"
    if type_.is_unit:
        return "true"
    match type_.name:
        case "record":
            fields = [field for field in type_.fields if not field.type.is_empty]
            return _object(
                (field.name, _text_of(field.type, part))
                for field, part in zip(fields, value, strict=True)
                if field.type.has_column
            )
        case "union":
            fields = [field for field in type_.fields if field.type.name != "null"]
            return _object(
                (field.name, _text_of(field.type, part))
                for field, part in zip(fields, value, strict=True)
                if part is not None
            )
        case "array" if type_.fields[0].type.has_column:
            return "[" + ",".join(_text_of(type_.fields[0].type, one) for one in value) + "]"
        case "map" if type_.fields[0].type.has_column:
            if len({key for key, _ in value}) < len(value):
                raise Unfit
            return _object((key, _text_of(type_.fields[0].type, one)) for key, one in value)
        case "named":
            return str(value)
    return _simple_text(type_, value)


def _object(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{_quoted(name)}:{text}" for name, text in pairs) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _simple_text(type_: AvroType, value: Any) -> str:
    match type_.name:
        case "boolean":
            if value not in (0, -1):
                raise Unfit
            return "true" if value else "false"
        case "float" | "double":
            if not math.isfinite(value):
                return (
                    '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
                )
            return str(np.float32(value)) if type_.name == "float" else repr(value)
        case "string":
            return _quoted(value)
        case "enum":
            if not 0 <= value < len(type_.symbols):
                raise Unfit
            return _quoted(type_.symbols[value])
        case "map":
            return "[" + ",".join(map(_quoted, value)) + "]"
    if type_.logical == "decimal":
        return _decimal_text(type_, int.from_bytes(value, "little", signed=True))
    if isinstance(value, bytes):
        return _quoted(value.decode("latin-1"))
    if type_.name == "int" and not -(2**31) <= value < 2**31:
        raise Unfit
    if type_.logical:
        return _moment_text(type_, value)
    return str(value)


def _decimal_text(type_: AvroType, number: int) -> str:
    digits = str(abs(number))
    if len(digits) > type_.precision:
        raise Unfit
    digits = digits.rjust(type_.scale + 1, "0")
    whole, fraction = digits[: len(digits) - type_.scale], digits[len(digits) - type_.scale :]
    return ("-" if number < 0 else "") + whole + (f".{fraction}" if fraction else "")


def _moment_text(type_: AvroType, value: int) -> str:
    """A date or a time, as SQL has them: of the years 1 to 9999."""
    try:
        if type_.logical == "date":
            return _quoted((date(1970, 1, 1) + timedelta(days=value)).isoformat())
        unit = 1_000 if type_.logical.endswith("millis") else 1
        moment = datetime(1970, 1, 1) + timedelta(microseconds=value * unit)  # noqa: DTZ001
    except OverflowError:
        raise Unfit from None
    return _quoted(moment.isoformat() + ("" if type_.logical.startswith("local") else "Z"))
