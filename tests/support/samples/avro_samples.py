"""Avro schemas with values of them, values as bytes, and what decodes them."""

import io
import json
from typing import Any

import fastavro
from hypothesis import strategies as st

from tests.support.samples.schema_samples import avro_values
from tiering.types.avro.avro_values import AvroDecoder
from tiering.types.avro.lockstep import NARROW
from tiering.types.columns import FIRST_ID, follow
from tiering.types.schema_configs import AVRO, parse_schema


def avro_decoder(schema: Any, *, narrow: int = NARROW) -> AvroDecoder:
    parsed = parse_schema(AVRO, json.dumps(schema))
    assert parsed.writer is not None
    columns, _ = follow((), parsed.shape, FIRST_ID)
    return AvroDecoder(parsed.writer, columns, is_wrapped=parsed.is_wrapped, narrow=narrow)


def avro_bytes(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record_of(**fields: Any) -> Any:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }


def with_values(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return schemas.flatmap(
        lambda one: st.tuples(st.just(one), st.lists(avro_values(one), max_size=6))
    )
