"""Makes the columns of a topic follow the schemas that its configs name.

Called by the driver of a tiering job for each topic that a coordinator lists
(metadata/rules/typed.py); what comes back is offered to the coordinator, and is in the plans from
then on. A plain function but for the registry that it asks.

No schema stops a roll. One that gives no columns leaves the topic's keys, or values, as bytes only,
and is a line of the job's report until it is mended; the columns that there were keep their ids.
When the registry does not answer, a topic keeps the columns it has. One that was never typed gets
none, so that it is rolled as bytes: what is rolled meanwhile has no types for ever, which is less
than records that pile up behind somebody else's outage. One that was typed and has new configs
waits, for it would lose the types that its readers know.

With a registry the columns follow each version of the subject once, in their order, so that a
record of an older version has its columns too. A version that gives no columns ends that for the
pass, and what came before it counts.

Failure cases: RegistryUnavailable, for a topic that was typed before.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from metadata.operations import TopicColumns, TopicSchemas
from tiering.types.columns import (
    ENCODED_BYTES_MAX,
    UNTYPED,
    Columns,
    Side,
    decode_columns,
    encode_columns,
    follow,
)
from tiering.types.registry import Registry, RegistryUnavailable
from tiering.types.schema_configs import (
    AVRO,
    INLINE,
    REGISTRY_ID,
    SIDES,
    SchemaConfig,
    parse_schema,
    schema_config,
)
from tiering.types.shapes import SchemaError

NO_REGISTRY: Final = "its schema is in a registry, and the job was given none"


class Followed(NamedTuple):
    """The columns of a topic now, and why some of its records are not typed."""

    columns: TopicColumns
    """Of the next version; of the same one when nothing changed."""
    problems: Mapping[str, str]
    """By `key` and `value`."""


def followed(schemas: TopicSchemas, registry: Registry | None) -> Followed:
    """Returns the columns that follow the topic's schemas.

    Raises: RegistryUnavailable, when the topic has columns already.
    """
    before = schemas.has
    columns = decode_columns(before.columns) if before.columns else Columns()
    sides: dict[str, Side] = {"key": columns.key, "value": columns.value}
    next_id = columns.next_id
    problems: dict[str, str] = {}
    for name in SIDES:
        config = schema_config(schemas.configs, name)
        try:
            sides[name], next_id = _followed_side(
                sides[name], config, f"{schemas.name}-{name}", next_id, registry
            )
        except SchemaError as error:
            problems[name] = str(error)
            # What versions before that gave is kept by id; the bytes are there in any case.
            sides[name] = replace(sides[name], format="")
        except RegistryUnavailable as error:
            if before.version:
                raise
            problems[name] = str(error)
    after = encode_columns(Columns(key=sides["key"], value=sides["value"], next_id=next_id))
    if len(after) > ENCODED_BYTES_MAX:
        problems["value"] = f"columns of {len(after)} bytes"
        untyped = (replace(side, format="") for side in (columns.key, columns.value))
        key, value = untyped
        after = encode_columns(Columns(key=key, value=value, next_id=columns.next_id))
    if (schemas.basis, after) == (before.basis, before.columns):
        return Followed(before, problems)
    return Followed(TopicColumns(before.version + 1, schemas.basis, after), problems)


def _followed_side(
    side: Side, config: SchemaConfig, subject: str, next_id: int, registry: Registry | None
) -> tuple[Side, int]:
    """Raises: SchemaError, RegistryUnavailable."""
    if not config.is_typed:
        return replace(side, format=""), next_id
    if config.source == INLINE:
        return _after(side, config.format, config.text, next_id)
    if registry is None:
        raise SchemaError(subject, NO_REGISTRY)
    versions = registry.versions(subject)
    if not versions:
        raise SchemaError(subject, "the registry has no schema of this subject")
    # Another kind of source, or of format, begins with all versions again: most are followed.
    is_same = (side.format, side.registry_version > 0) == (config.format, True)
    for version in versions:
        if is_same and version <= side.registry_version:
            continue
        found = registry.registered(subject, version)
        if found.format != config.format:
            raise SchemaError(subject, f"version {version} is of format {found.format!r}")
        side, next_id = _after(side, config.format, found.text, next_id)
        side = replace(side, registry_version=version)
        is_same = True
    is_framed = config.source == REGISTRY_ID
    if not is_framed and config.format == AVRO and not side.writer:
        text = registry.registered(subject, versions[-1]).text
        side = replace(side, writer=text)
    return replace(side, is_framed=is_framed, writer="" if is_framed else side.writer), next_id


def _after(side: Side, form: str, text: str, next_id: int) -> tuple[Side, int]:
    """`side` for values of this schema without a frame. Raises: SchemaError."""
    parsed = parse_schema(form, text)
    columns, next_id = follow(side.columns, parsed.shape, next_id)
    return (
        replace(
            UNTYPED,
            format=form,
            is_wrapped=parsed.is_wrapped,
            writer=text if form == AVRO else "",
            columns=columns,
        ),
        next_id,
    )
