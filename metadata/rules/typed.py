"""Typed columns of topics: which configs they are made of, and how they are replaced.

A tiering job makes columns of a topic's schema, and this coordinator keeps them: it gives them to
the plans of segments and hands them to one job at a time. What they say is not read here. Columns
have a version, and new ones replace only those that the job has seen, so that of two jobs one wins
and the ids of columns are given once.

Until the columns of a topic are made of the configs that it has, nothing of it is planned: a
segment is never typed anew. That is a matter of a round trip of the job that plans.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final
from uuid import UUID

from metadata.operations import SetTopicColumns, TopicColumns, TopicSchemas
from metadata.records.records import MetadataRecord, TopicColumnsRecord
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import DisklessError, Rejected, UnknownTopicId

SCHEMA_CONFIGS: Final = (
    "key.schema",
    "key.schema.format",
    "key.schema.source",
    "value.schema",
    "value.schema.format",
    "value.schema.source",
)

COLUMNS_BYTES_MAX: Final = 1 << 20

SCHEMAS_BYTES_MAX: Final = 4 << 20
"""Of an answer; a job hears of the others when it has looked after these."""


def schema_basis(configs: Mapping[str, str]) -> bytes:
    """Tells configs with other schemas apart; empty where nothing is typed."""
    if all(configs.get(f"{side}.schema.format", "none") == "none" for side in ("key", "value")):
        return b""
    digest = blake2b(digest_size=16)
    for name in SCHEMA_CONFIGS:
        digest.update(f"{name}={configs.get(name, '')}\0".encode("utf-8", "surrogatepass"))
    return digest.digest()


def has_stale_columns(configs: Mapping[str, str], columns: TopicColumns) -> bool:
    """Whether a topic with these configs needs other columns before it is planned."""
    basis = schema_basis(configs)
    return bool(basis) and basis != columns.basis


def schemas_to_look_after(
    topics: Iterable[tuple[UUID, str, Mapping[str, str], TopicColumns]],
) -> Iterator[TopicSchemas]:
    """Those whose columns are stale or whose schema is in a registry, as many as an answer takes.

    Stale ones come first: the others do not wait for them.
    """
    found = []
    for topic_id, name, configs, columns in topics:
        basis = schema_basis(configs)
        own = {key: configs[key] for key in SCHEMA_CONFIGS if key in configs}
        in_registry = any(
            own.get(f"{side}.schema.source", "").startswith("registry:")
            for side in ("key", "value")
        )
        if basis and (in_registry or basis != columns.basis):
            found.append(TopicSchemas(topic_id, name, own, basis, *columns))
    found.sort(key=lambda one: (one.basis == one.columns_basis, one.name))
    size_bytes = 0
    for schemas in found:
        size_bytes += len(schemas.columns) + sum(map(len, schemas.configs.values()))
        if size_bytes > SCHEMAS_BYTES_MAX:
            return
        yield schemas


def decide_set_topic_columns(
    view: SpeculativeView, requests: Sequence[SetTopicColumns]
) -> Decision[Sequence[DisklessError | None]]:
    """Each topic that has the version before gets the new columns; a repeated request is fine."""
    records: list[MetadataRecord] = []
    answer: list[DisklessError | None] = []
    for topic_id, version, basis, encoded in requests:
        columns = TopicColumns(version, basis, encoded)
        topic = view.stored_topic(topic_id)
        if topic is None:
            answer.append(UnknownTopicId(f"no topic has the id {topic_id}"))
        elif topic.columns == columns:
            answer.append(None)
        elif columns.version != topic.columns.version + 1:
            answer.append(
                Rejected(
                    f"topic {topic.description.name} has typed columns {topic.columns.version}, "
                    f"none that {columns.version} could replace"
                )
            )
        elif len(columns.columns) > COLUMNS_BYTES_MAX:
            answer.append(Rejected(f"typed columns of {len(columns.columns)} bytes"))
        else:
            view.put_topic(topic._replace(columns=columns))
            records.append(
                TopicColumnsRecord(
                    topic_id=topic_id,
                    version=columns.version,
                    basis=columns.basis,
                    columns=columns.columns,
                )
            )
            answer.append(None)
    return Decision(records, answer)
