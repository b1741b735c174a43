"""The typed columns of a segment: `data` of values, `key_data` of keys, and why there are none.

| column | field id | |
|---|---|---|
| `data` | 100 | struct of the columns that the topic's value schema asks for |
| `data_error` | 101 | int8: the code of a value that has no data; null for all others |
| `key_data`, `key_data_error` | 102, 103 | the same for keys |

A segment has these columns only of what has a schema. A null value (a
tombstone) has neither data nor a code, and so do rows of a batch that could not be decoded.

`TypedRows` is the `TypedColumns` that a roll is given. It is made of the bytes that are in the
plan, so a repeated roll makes the same columns; a schema of a registry never changes under its id.
It keeps decoders for the schemas it met, and belongs to one thread.

Failure cases: RegistryUnavailable, when a schema could not be asked for: the roll fails and the
next one tries again, as with a store that is away. Whatever is wrong with a value is its code.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiering.segment_columns import RAW_BATCH, rows_of_raw_batches
from tiering.types.arrow_types import (
    NO_SCHEMA_ID,
    UNKNOWN_SCHEMA_ID,
    TypedValues,
    behind_each_other,
    failed,
    struct_type,
    with_id,
)
from tiering.types.avro.avro_values import AvroDecoder
from tiering.types.columns import Column, Columns, Side, decode_columns
from tiering.types.json_values import JsonDecoder
from tiering.types.schema_configs import AVRO, parse_schema
from tiering.types.shapes import SchemaError

FRAME_BYTES: Final = 5
"""In front of a value whose schema is in a registry: a zero, and the id as a big-endian uint32."""

DATA: Final = "data"
DATA_ERROR: Final = "data_error"

_IDS: Final = {"value": (100, 101), "key": (102, 103)}
_Places = np.ndarray[Any, np.dtype[np.int64]]

_DECODERS_MAX: Final = 256
"""Writers' schemas that are kept; who has more of them waits for the registry again."""


class SchemasById(Protocol):
    """A schema registry."""

    def schema(self, schema_id: int) -> str | None:
        """The text of an Avro schema, or None when there is no such one.

        Raises: RegistryUnavailable.
        """
        ...


class TypedRows:
    """Makes the typed columns of rows; a TypedColumns (tiering/typed_columns.py)."""

    def __init__(self, encoded: bytes, registry: SchemasById | None) -> None:
        """`encoded` is of `encode_columns`. Raises: ValueError when it is not."""
        columns: Columns = decode_columns(encoded)
        self.encoded: Final = encoded
        self._sides = [
            _TypedSide(name, side, registry)
            for name, side in (("value", columns.value), ("key", columns.key))
            if side.format
        ]
        self.error_count = 0
        """Keys and values that have no data, so far."""
        self.fields: Sequence[pa.Field] = [field for side in self._sides for field in side.fields]

    def columns(self, rows: pa.Table) -> Sequence[pa.Array]:
        """See TypedColumns."""
        is_raw = None
        if rows.column(RAW_BATCH).null_count < rows.num_rows:
            is_raw = _one_array(rows_of_raw_batches(rows))
        found: list[pa.Array] = []
        for side in self._sides:
            values = _one_array(rows.column(side.name))
            if is_raw is not None:
                values = pc.if_else(is_raw, pa.scalar(None, values.type), values)
            found += side.typed(values)
            self.error_count += len(values) - found[-1].null_count
        return found


class _TypedSide:
    """Keys, or values."""

    def __init__(self, name: str, side: Side, registry: SchemasById | None) -> None:
        self.name = name
        self._side = side
        self._registry = registry
        self._json: JsonDecoder | None = None
        self._avro: dict[int, AvroDecoder | None] = {}
        prefix = "" if name == "value" else f"{name}_"
        data_id, error_id = _IDS[name]
        self.fields = (
            with_id(pa.field(f"{prefix}{DATA}", struct_type(side.columns)), data_id),
            with_id(pa.field(f"{prefix}{DATA_ERROR}", pa.int8()), error_id),
        )

    def typed(self, values: pa.Array) -> Sequence[pa.Array]:
        if self._side.format == AVRO or self._side.is_framed:
            found = self._scattered(values)
        else:
            found = self._of_json(values)
        return found.data, found.errors

    def _of_json(self, values: pa.Array) -> TypedValues:
        if self._json is None:
            self._json = JsonDecoder(self._side.columns, is_wrapped=self._side.is_wrapped)
        return self._json.decode(values)

    def _scattered(self, values: pa.Array) -> TypedValues:
        """Decodes what can be, schema by schema, and puts it in the order of the values."""
        columns = self._side.columns
        parts: list[TypedValues] = [_nothing(1, columns)]
        places = np.zeros(len(values), np.int64)
        next_place = 1
        for where, found in self._by_schema(values):
            places[where] = next_place + np.arange(len(where))
            next_place += len(where)
            parts.append(found)
        found = behind_each_other(parts, columns)
        taken = pa.array(places)
        return TypedValues(pc.take(found.data, taken), pc.take(found.errors, taken))

    def _by_schema(self, values: pa.Array) -> Iterator[tuple[_Places, TypedValues]]:
        columns = self._side.columns
        if not self._side.is_framed:
            there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            yield there, self._of_avro(-1, pc.take(values, pa.array(there)))
            return
        ids = _schema_ids(values)
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        unframed = np.flatnonzero(is_valid & (ids < 0))
        yield unframed, failed(len(unframed), columns, NO_SCHEMA_ID)
        for schema_id in np.unique(ids[is_valid & (ids >= 0)]).tolist():
            where = np.flatnonzero(is_valid & (ids == schema_id))
            bodies = _bodies(pc.take(values, pa.array(where)))
            yield (
                where,
                self._of_avro(schema_id, bodies)
                if self._side.format == AVRO
                else self._of_json(bodies),
            )

    def _of_avro(self, schema_id: int, values: pa.Array) -> TypedValues:
        if schema_id not in self._avro:
            if len(self._avro) >= _DECODERS_MAX:
                self._avro.clear()
            self._avro[schema_id] = self._avro_decoder(schema_id)
        decoder = self._avro[schema_id]
        if decoder is None:
            return failed(len(values), self._side.columns, UNKNOWN_SCHEMA_ID)
        return decoder.decode(values)

    def _avro_decoder(self, schema_id: int) -> AvroDecoder | None:
        text: str | None = self._side.writer
        if schema_id >= 0:
            text = None if self._registry is None else self._registry.schema(schema_id)
        if text is None:
            return None
        try:
            parsed = parse_schema(AVRO, text)
        except SchemaError:
            return None
        assert parsed.writer is not None
        return AvroDecoder(parsed.writer, self._side.columns, is_wrapped=parsed.is_wrapped)


def _schema_ids(values: pa.Array) -> _Places:
    """The ids in front of values; -1 where there is none."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = values.buffers()[2]
    content = np.frombuffer(b"" if data is None else data, np.uint8)
    found = np.full(len(values), -1, np.int64)
    starts = offsets[:-1]
    has_room = np.flatnonzero(np.diff(offsets) >= FRAME_BYTES)
    has_frame = has_room[content[starts[has_room]] == 0]
    first = starts[has_frame] + 1
    found[has_frame] = sum(
        content[first + index].astype(np.int64) << (24 - 8 * index) for index in range(4)
    )
    return found


def _bodies(values: pa.Array) -> pa.Array:
    """What is behind the frames of values that have one; Arrow's kernel for it fails on some."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    is_body = np.ones(len(content), np.bool_)
    is_body[(offsets[:-1, None] + np.arange(FRAME_BYTES)).ravel()] = False
    ends = (offsets - FRAME_BYTES * np.arange(len(offsets))).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(content[is_body])]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _nothing(count: int, columns: Sequence[Column]) -> TypedValues:
    return TypedValues(pa.nulls(count, struct_type(columns)), pa.nulls(count, pa.int8()))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
