"""The columns of a read: names and types as Spark has them, made of the columns of a segment.

Names and types are those of Spark's Kafka source. Beside them there are columns of segments that a
query may ask for by name. WAL rows become segment rows first (`segment_table`), so both tiers give
a record the same values: `timestamp` is null outside the years 1 to 9999, where `timestamp_raw` has
it; a batch that could not be decoded has rows without key and value, and its bytes in `raw_batch`.
The topic's own types make more columns, by name too (`topic_types`).

Whole columns are moved, never a record in Python. Spark wants each batch in exactly the Arrow types
of the schema, whether a column may be null included.

Failure cases: InvalidSettings naming a column that there is not, or has another type.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tiering.segment_columns import SEGMENT_SCHEMA
from tiering.source.rows.typed_by_field import NO_TYPES, TypedRead
from tiering.source.topic_types import TYPED_NAMES, spark_type, wanted_field
from wal.errors import InvalidSettings

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_ARROW_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_ARROW_HEADERS: Final = pa.list_(pa.field("element", _ARROW_HEADER))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


class _Column(NamedTuple):
    """A column of a read; `of` names the segment's columns that it is made of."""

    type: DataType
    arrow: pa.DataType
    of: str | None


_KAFKA: Final[Mapping[str, _Column]] = {
    "key": _Column(BinaryType(), pa.binary(), "key"),
    "value": _Column(BinaryType(), pa.binary(), "value"),
    "topic": _Column(StringType(), pa.string(), None),
    "partition": _Column(IntegerType(), pa.int32(), None),
    "offset": _Column(LongType(), pa.int64(), "offset"),
    "timestamp": _Column(TimestampType(), _TIMESTAMP, "timestamp"),
    "timestampType": _Column(IntegerType(), pa.int32(), "timestamp_type"),
    "headers": _Column(ArrayType(_HEADER), _ARROW_HEADERS, "headers"),
}
_MORE: Final[Mapping[str, _Column]] = {
    "timestamp_raw": _Column(LongType(), pa.int64(), "timestamp_raw"),
    "batch_base_offset": _Column(LongType(), pa.int64(), "batch_base_offset"),
    "producer_id": _Column(LongType(), pa.int64(), "producer_id"),
    "producer_epoch": _Column(ShortType(), pa.int16(), "producer_epoch"),
    "base_sequence": _Column(IntegerType(), pa.int32(), "base_sequence"),
    "raw_batch": _Column(BinaryType(), pa.binary(), "raw_batch"),
}
_COLUMNS: Final = {**_KAFKA, **_MORE}

NO_FIELDS: Final[Mapping[str, pa.Field]] = {}


def schema_of(names: Sequence[str] | None, typed: Mapping[str, pa.Field] = NO_FIELDS) -> StructType:
    """The schema with these columns, in their order; None: those of Spark's Kafka source.

    `*` stands for the latter. `typed` are the topic's own. Raises: InvalidSettings.
    """
    expanded: list[str] = []
    for name in names or ("*",):
        expanded += _KAFKA if name == "*" else (name,)
    fields = [StructField(name, _column(name, typed).type) for name in dict.fromkeys(expanded)]
    return StructType(fields)


def _column(name: str, typed: Mapping[str, pa.Field]) -> _Column:
    if name in typed:
        kind = spark_type(typed[name])
        return _Column(kind, to_arrow_type(kind, timezone="UTC"), name)
    column = _COLUMNS.get(name)
    if column is None:
        untyped = "" if typed else "; typed columns are of topics whose keys or values have schemas"
        raise InvalidSettings(
            f"there is no column {name!r} to be named by option columns or by .schema(); there are"
            f" {', '.join((*_COLUMNS, *typed))}{untyped if name in TYPED_NAMES else ''}"
        )
    return column


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of one read; made by `of`."""

    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    typed: Mapping[str, pa.Field] = field(default_factory=dict)
    """Those of the topic's own types, as the read has them."""
    types: TypedRead = NO_TYPES
    """How tasks make these."""

    @classmethod
    def of(cls, schema: StructType, typed: Mapping[str, pa.Field] = NO_FIELDS) -> "Columns":
        """`typed` are those that the topic has. Raises: InvalidSettings."""
        fields: dict[str, pa.Field] = {}
        for item in schema.fields:
            if item.name in typed:
                fields[item.name] = wanted_field(typed[item.name], item.dataType)
                continue
            wanted = _column(item.name, typed).type.simpleString()
            if item.dataType.simpleString() != wanted:
                raise InvalidSettings(
                    f"column {item.name} is {wanted}, not {item.dataType.simpleString()}, as"
                    " .schema() has it"
                )
        return cls(
            names=tuple(item.name for item in schema.fields),
            nullable=tuple(item.nullable for item in schema.fields),
            typed=fields,
        )

    @property
    def stored(self) -> Sequence[str]:
        """Columns of a segment that must be read, in its order; `offset` always, to count rows."""
        needed = {"offset", *(column.of for column in map(self._column, self.names) if column.of)}
        return [name for name in SEGMENT_SCHEMA.names if name in needed]

    def batches(self, rows: pa.Table, topic: str, partition: int) -> Iterator[pa.RecordBatch]:
        """`rows` with at least the columns `stored`, as Spark is given them."""
        constants = {
            "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows),
            "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows),
        }
        arrays = [self._array(name, rows, constants) for name in self.names]
        fields = [
            pa.field(name, self._column(name).arrow, nullable=nullable)
            for name, nullable in zip(self.names, self.nullable, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        for batch in table.to_batches():
            if batch.num_rows:
                yield batch

    def _column(self, name: str) -> _Column:
        return _column(name, self.typed)

    def _array(
        self, name: str, rows: pa.Table, constants: Mapping[str, Callable[[], pa.Array]]
    ) -> pa.Array | pa.ChunkedArray:
        column = self._column(name)
        if column.of is None:
            return constants[name]()
        values = rows.column(column.of)
        if name == "headers":
            chunks = [_headers(chunk) for chunk in values.chunks]
            return pa.chunked_array(chunks, type=_ARROW_HEADERS)
        return values.cast(column.arrow)


def _headers(headers: pa.ListArray) -> pa.ListArray:
    """The same buffers, with fields that may be null: Spark's types do not say otherwise."""
    pairs = headers.flatten()
    offsets = headers.offsets
    if len(offsets) and offsets[0].as_py():
        offsets = pc.subtract(offsets, offsets[0])
    retyped = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)],
        fields=[_ARROW_HEADER.field(0), _ARROW_HEADER.field(1)],
    )
    return pa.ListArray.from_arrays(offsets, retyped, type=_ARROW_HEADERS)
