"""The columns that rows may have to become records: those of Spark's Kafka sink.

`value` (string or binary), and if there are any `key`, `headers` and `partition`. Others are passed
over, so what was read of a topic can be written to another one.

Failure cases: InvalidSettings naming the column.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import StructType

from wal.errors import InvalidSettings

SINK_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}
"""What types each of them may have."""


def check_columns(schema: StructType) -> None:
    """Raises InvalidSettings."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise InvalidSettings(f"there is no column value among {', '.join(types)}")
    for name, allowed in SINK_COLUMNS.items():
        if types.get(name, allowed[0]) not in allowed:
            raise InvalidSettings(
                f"column {name} is {types[name]}; it must be {' or '.join(allowed)}"
            )
