"""The topic configs that type a topic's keys and values, read and checked.

    value.schema.format   none | json | avro
    value.schema          the schema itself, where value.schema.source is `inline`
    value.schema.source   inline | registry:id | registry:latest

and the same for `key`. Brokers check them when they are set; the tiering job reads them again.

- `inline`: every value is one of this schema, without anything in front.
- `registry:id`: five bytes in front of a value name its schema in a registry, as the serializers
  of Confluent write them. The columns are those of all versions of the subject `<topic>-value`.
- `registry:latest`: nothing is in front; values are of the newest version of that subject.

Failure cases: InvalidConfig naming the config, and the place in the schema.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tiering.types.avro.avro_schema import AvroType, parse_avro_schema
from tiering.types.json_schema import parse_json_schema
from tiering.types.shapes import SchemaError, Shape, root_struct
from wal.errors import InvalidConfig

NO_FORMAT: Final = "none"
JSON: Final = "json"
AVRO: Final = "avro"
FORMATS: Final = (NO_FORMAT, JSON, AVRO)

INLINE: Final = "inline"
REGISTRY_ID: Final = "registry:id"
REGISTRY_LATEST: Final = "registry:latest"
SOURCES: Final = (INLINE, REGISTRY_ID, REGISTRY_LATEST)

SIDES: Final = ("key", "value")


class SchemaConfig(NamedTuple):
    """What a topic says of its keys, or of its values."""

    format: str = NO_FORMAT
    source: str = INLINE
    text: str = ""

    @property
    def is_typed(self) -> bool:
        return self.format != NO_FORMAT


class ParsedSchema(NamedTuple):
    """The columns that a schema asks for; `writer` of an Avro schema."""

    shape: Shape
    is_wrapped: bool
    writer: AvroType | None


def schema_config(configs: Mapping[str, str], side: str) -> SchemaConfig:
    """Reads the configs of a topic that set `configs`; `side` is `key` or `value`."""
    return SchemaConfig(
        configs.get(f"{side}.schema.format", NO_FORMAT),
        configs.get(f"{side}.schema.source", INLINE),
        configs.get(f"{side}.schema", ""),
    )


def parse_schema(form: str, text: str) -> ParsedSchema:
    """Reads a schema of `form` (JSON or AVRO). Raises: SchemaError."""
    writer = parse_avro_schema(text) if form == AVRO else None
    shape = parse_json_schema(text) if writer is None else writer.shape
    root = root_struct(shape)
    return ParsedSchema(root, root is not shape, writer)


def check_schema_configs(configs: Mapping[str, str]) -> None:
    """Raises InvalidConfig unless what a topic sets of these configs can be typed with.

    The schema itself is not shown in the error: it may be as long as a page.
    """
    for side in SIDES:
        config = schema_config(configs, side)
        name = f"{side}.schema"
        if not config.is_typed or config.source != INLINE:
            continue
        if not config.text:
            raise InvalidConfig(
                f"Missing configuration {name}: {name}.format={config.format} with "
                f"{name}.source={INLINE} needs it"
            )
        try:
            parse_schema(config.format, config.text)
        except SchemaError as error:
            raise InvalidConfig(f"Invalid value for configuration {name}: {error}") from error
