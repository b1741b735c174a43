"""Segments as data files of an Iceberg table, from their footers: no data is read.

Columns are found by the field ids that the segment format gives them (tiering/segment_columns.py).
`partition` is in no file: readers take it from the partition that the table says a file belongs to.
Ids of our columns are below 100 and those of a topic's typed columns from there on; a column that a
footer has and the table has not is added to the table's schema, and never taken away: readers fill
it with null for older files.

Iceberg's statistics come from those of the row groups. Bounds of long binaries are cut off after 16
bytes, and there are none for `value`, headers and undecoded batches, by which nobody prunes.

Failure cases: CorruptSegment naming the key, ObjectNotFound, ObjectStoreUnavailable.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from metadata.table_operations import LiveSegment
from tiering.segment_columns import SEGMENT_SCHEMA
from tiering.segment_format import footer_length, parse_footer
from wal.errors import CorruptSegment
from wal.stores.blocking_store import BlockingStore

PARTITION_COLUMN: Final = "partition"
PARTITION_ID: Final = 99
"""Field id of `partition`; the segment format uses the ids of its columns from 1 up."""

_PARTITION_FIELD_ID: Final = 1000
"""Iceberg numbers the fields of partition specs from here."""

SPEC: Final = PartitionSpec(
    PartitionField(
        source_id=PARTITION_ID,
        field_id=_PARTITION_FIELD_ID,
        transform=IdentityTransform(),
        name=PARTITION_COLUMN,
    )
)

METRICS_PROPERTIES: Final[Mapping[str, str]] = {
    "write.metadata.metrics.default": "truncate(16)",
    **{
        f"write.metadata.metrics.column.{name}": "none"
        for name in ("value", "headers.element.key", "headers.element.value", "raw_batch")
    },
}

_TAIL_GUESS_BYTES: Final = 64 << 10
READS_AT_ONCE: Final = 8


class SegmentFile(NamedTuple):
    """A live segment and where readers of its table find it."""

    segment: LiveSegment
    location: str
    partition: int


class Footer(NamedTuple):
    """A verified footer, as PyArrow knows it, and the columns that it tells of."""

    file: SegmentFile
    metadata: pq.FileMetaData
    schema: Schema


def segment_schema(columns: pa.Schema = SEGMENT_SCHEMA) -> Schema:
    """The schema of a table whose segments have these columns; all have field ids."""
    fields = pyarrow_to_schema(columns).fields
    partition = NestedField(PARTITION_ID, PARTITION_COLUMN, IntegerType(), required=False)
    return Schema(partition, *fields)


def read_footers(store: BlockingStore, files: Sequence[SegmentFile]) -> list[Footer]:
    """The footers in the order of `files`; one ranged GET each, sometimes two."""
    if not files:
        return []
    with ThreadPoolExecutor(min(READS_AT_ONCE, len(files))) as threads:
        return list(threads.map(lambda file: _read_footer(store, file), files))


def _read_footer(store: BlockingStore, file: SegmentFile) -> Footer:
    key, size = file.segment.object_key, file.segment.object_bytes
    guess = min(_TAIL_GUESS_BYTES, size)
    tail = store.get_range(key, size - guess, guess)
    length = footer_length(key, tail, size)
    if length > guess:
        tail = store.get_range(key, size - length, length)
    footer = parse_footer(key, tail[-length:], size)
    metadata = pq.read_metadata(pa.BufferReader(footer.footer_bytes))
    if metadata.num_rows != file.segment.record_count:
        raise CorruptSegment(
            f"{key}: {metadata.num_rows} rows, committed were {file.segment.record_count}"
        )
    try:
        schema = segment_schema(metadata.schema.to_arrow_schema())
    except ValueError as error:
        raise CorruptSegment(f"{key}: {error}") from error
    return Footer(file, metadata, schema)


def evolved(schema: Schema, footers: Sequence[Footer]) -> Schema:
    """`schema`, or one with all columns of these files too; under a new id where it differs.

    Raises CorruptSegment: a column has a type that no table can read both ways.
    """
    fields = schema.fields
    merged: Schema | None = None
    for footer in footers:
        if merged is not None and footer.schema.fields == merged.fields:
            continue  # nearly all files have the same columns
        merged = footer.schema
        try:
            fields = _merged(fields, merged.fields)
        except ValueError as error:
            raise CorruptSegment(f"{footer.file.segment.object_key}: {error}") from error
    if fields == schema.fields:
        return schema
    return Schema(*fields, schema_id=schema.schema_id + 1)


def _merged(before: Sequence[NestedField], after: Sequence[NestedField]) -> tuple[NestedField, ...]:
    """By field id; what is new goes to the end and is optional."""
    found = {field.field_id: field for field in after}
    names = {field.name: field.field_id for field in before}
    fields = [
        field
        if (other := found.pop(field.field_id, None)) is None
        else NestedField(
            field.field_id,
            # A column that gave its name to another one has the old name in old files.
            other.name if names.get(other.name, field.field_id) == field.field_id else field.name,
            _merged_type(field.field_type, other.field_type, field.name),
            required=field.required and other.required,
        )
        for field in before
    ]
    fields += [
        NestedField(field.field_id, field.name, field.field_type, required=False)
        for field in found.values()
    ]
    return tuple(fields)


def _merged_type(before: IcebergType, after: IcebergType, name: str) -> IcebergType:
    """The type that reads both. Raises ValueError."""
    match before, after:
        case StructType(), StructType():
            return StructType(*_merged(before.fields, after.fields))
        case ListType(), ListType():
            element = _merged_type(before.element_type, after.element_type, f"{name}.element")
            return before.model_copy(update={"element_type": element})
        case MapType(), MapType():
            value = _merged_type(before.value_type, after.value_type, f"{name}.value")
            return before.model_copy(update={"value_type": value})
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return after
        case (LongType(), IntegerType()) | (DoubleType(), FloatType()):
            return before
    if before != after:
        raise ValueError(f"column {name} is {after} and was {before}")
    return before


def data_files(metadata: TableMetadata, footers: Sequence[Footer]) -> list[DataFile]:
    """Files as the manifests of a table have them. The table's schema has all their columns.

    Statistics are of the types and under the names that the file has: those of the table may be
    wider, or others.
    """
    return [
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=footer.file.location,
            file_format=FileFormat.PARQUET,
            partition=Record(footer.file.partition),
            file_size_in_bytes=footer.file.segment.object_bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **data_file_statistics_from_parquet_metadata(
                parquet_metadata=footer.metadata,
                stats_columns=compute_statistics_plan(footer.schema, metadata.properties),
                parquet_column_mapping=parquet_path_to_id_mapping(footer.schema),
            ).to_serialized_dict(),
        )
        for footer in footers
    ]
