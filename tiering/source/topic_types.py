"""The typed columns of a topic as columns of a read: which there are, and which of their fields.

`data` and `key_data` are structs with all columns that the topic ever had
(tiering/types/columns.py), as its newest schema makes them. That schema may be newer than the last
pass of the tiering job: its columns get the ids here that the job is going to give them.
`data_error` and `key_data_error` say why a record has none. A user's schema may ask for some fields
of a struct, by name.

Failure cases: InvalidSettings naming the column, or the option that says where the registry is;
RegistryUnavailable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from metadata.operations import ReadableTopic, TopicSchemas
from tiering.source.options import SourceOptions
from tiering.source.rows.typed_by_field import TypedRead
from tiering.types.arrow_types import struct_type, with_id
from tiering.types.columns import UNTYPED, Columns, decode_columns, encode_columns
from tiering.types.following import followed
from tiering.types.registry import Registry, registry_settings
from tiering.types.schema_configs import AVRO, INLINE, SIDES, schema_config
from wal.errors import InvalidSettings

_SIDES: Final = {"data": "value", "key_data": "key"}
_IDS: Final = {"data": 100, "data_error": 101, "key_data": 102, "key_data_error": 103}
TYPED_NAMES: Final = tuple(_IDS)


def newest_columns(topic: ReadableTopic, name: str, registry: Registry | None) -> bytes:
    """The columns of a topic after the schemas that its configs name. Raises: RegistryUnavailable.

    Without a registry those that it has, if its schemas are in one.
    """
    configs = [schema_config(topic.configs, side) for side in SIDES]
    if registry is None and any(one.is_typed and one.source != INLINE for one in configs):
        return topic.columns
    schemas = TopicSchemas(
        topic_id=topic.topic_id,
        name=name,
        configs=topic.configs,
        basis=b"",
        version=0,
        columns_basis=b"",
        columns=topic.columns,
    )
    return followed(schemas, registry).columns.columns


def typed_fields(encoded: bytes) -> Mapping[str, pa.Field]:
    """The typed columns of a topic, by name, with the ids that segments have."""
    columns = decode_columns(encoded) if encoded else Columns()
    fields: dict[str, pa.Field] = {}
    for name, side in (("data", columns.value), ("key_data", columns.key)):
        if side.columns:
            fields[name] = pa.field(name, struct_type(side.columns))
            fields[f"{name}_error"] = pa.field(f"{name}_error", pa.int8())
    return {name: with_id(field, _IDS[name]) for name, field in fields.items()}


def spark_type(field: pa.Field) -> DataType:
    """What Spark calls the type of a column."""
    return from_arrow_type(field.type)


def wanted_field(field: pa.Field, wanted: DataType) -> pa.Field:
    """`field` with those of the fields inside it that `wanted` has. Raises: InvalidSettings."""
    return _wanted(field, wanted, field.name)


def typed_read(
    options: SourceOptions,
    encoded: bytes,
    fields: Sequence[pa.Field],
    environment: Mapping[str, str],
) -> TypedRead:
    """What tasks need to give these columns. Raises: InvalidSettings."""
    if not fields:
        return TypedRead()
    columns = decode_columns(encoded)
    asked = {_SIDES[field.name.removesuffix("_error")] for field in fields}
    value = columns.value if "value" in asked else UNTYPED
    key = columns.key if "key" in asked else UNTYPED
    needs_registry = any(side.is_framed and side.format == AVRO for side in (key, value))
    if needs_registry and not registry_settings(
        options.registry_url, options.registry_auth, environment
    ):
        raise InvalidSettings(
            "option schemaRegistry is missing: records that are not rolled yet name their schemas"
            " in a registry; without typed columns none is needed"
        )
    return TypedRead(
        fields=fields,
        encoded=encode_columns(replace(columns, key=key, value=value)),
        registry_url=options.registry_url,
        registry_auth=options.registry_auth,
    )


def _wanted(field: pa.Field, wanted: DataType, path: str) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind) and isinstance(wanted, StructType):
        inside = []
        for one in wanted.fields:
            index = kind.get_field_index(one.name)
            if index < 0:
                names = ", ".join(inner.name for inner in kind)
                raise InvalidSettings(f"there is no field {path}.{one.name}; there are {names}")
            inside.append(_wanted(kind.field(index), one.dataType, f"{path}.{one.name}"))
        return field.with_type(pa.struct(inside))
    if pa.types.is_list(kind) and isinstance(wanted, ArrayType):
        element = _wanted(kind.value_field, wanted.elementType, f"{path}.element")
        return field.with_type(pa.list_(element))
    if pa.types.is_map(kind) and isinstance(wanted, MapType):
        key = _wanted(kind.key_field, wanted.keyType, f"{path}.key")
        return field.with_type(pa.map_(key, _wanted(kind.item_field, wanted.valueType, path)))
    if from_arrow_type(kind).simpleString() != wanted.simpleString():
        raise InvalidSettings(
            f"column {path} is {from_arrow_type(kind).simpleString()}, not"
            f" {wanted.simpleString()}, as the query has it; if its schema has changed, start the"
            " query again"
        )
    return field
