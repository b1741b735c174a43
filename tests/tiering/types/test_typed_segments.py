"""Topics with schemas, from a stock producer to a Parquet file: columns, poison, exact bytes."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from diskless.cli.cli import _parser, main
from metadata.operations import PlanSegments
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.schema_registry import SchemaRegistry
from tests.support.tiers.typed_topics import Outcomes, TypingRoller, World
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import roll_once
from tiering.types.arrow_types import (
    MALFORMED,
    NO_SCHEMA_ID,
    TYPE_MISMATCH,
    UNKNOWN_SCHEMA_ID,
)
from tiering.types.registry import registry_settings
from tiering.types.typed_roll import roll_as_planned
from wal.chunks.kept_notes import decode_kept_notes, merged
from wal.clock import SystemClock
from wal.stores.blocking_store import open_blocking_store

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"
FLIGHT = {
    "type": "object",
    "properties": {
        "carrier": {"type": "string"},
        "delay": {"type": "integer"},
        "legs": {"type": "array", "items": {"type": "string"}},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("typed")
    with LiveBroker(directory / "data") as broker, SchemaRegistry() as registry:
        yield World(broker, registry, directory)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_json_becomes_columns_and_poison_rows_with_a_code(world: World) -> None:
    topic = world.topic(value__schema__format="json", value__schema=json.dumps(FLIGHT))
    good = _json({"carrier": "UA", "delay": 3, "legs": ["EWR", "IAH"]})
    values = [good, b"{", None, _json({"carrier": 7}), _json({"delay": -1}), b"\xff"]
    world.send(topic, *values)
    report = world.roll(topic)
    assert not report.failures
    assert report.untyped_count == 3
    assert report.schema_problems == {}
    rows = world.rows(topic)
    assert rows["value"].to_pylist() == values
    assert rows["data"].to_pylist() == [
        {"carrier": "UA", "delay": 3, "legs": ["EWR", "IAH"]},
        None,
        None,
        None,
        {"carrier": None, "delay": -1, "legs": None},
        None,
    ]
    assert rows["data_error"].to_pylist() == [
        None,
        MALFORMED,
        None,
        TYPE_MISMATCH,
        None,
        MALFORMED,
    ]
    assert world.consumed(topic, len(values)) == values


def test_columns_follow_a_schema_that_is_altered(world: World) -> None:
    topic = world.topic(value__schema__format="json", value__schema=json.dumps(FLIGHT))
    world.send(topic, _json({"delay": 3}))
    world.roll(topic)
    first = world.rows(topic).schema.field("data").type
    changed = {
        "type": "object",
        "properties": {"delay": {"type": "string"}, "gate": {"type": "integer"}},
    }
    world.alter(topic, value__schema=json.dumps(changed))
    world.send(topic, _json({"delay": "late", "gate": 4}), _json({"delay": 3}))
    assert world.roll(topic).untyped_count == 1
    world.alter(topic, value__schema__format="none")
    world.send(topic, b"anything")
    report = world.roll(topic)
    assert (report.untyped_count, report.failures) == (0, [])
    files = sorted(world._directory.glob(f"**/topic={topic}/**/*.parquet"))
    second, third = (pq.ParquetFile(file).read() for file in files[1:])
    data = second["data"].to_pylist()
    assert data == [
        {"carrier": None, "delay_v1": None, "legs": None, "delay": "late", "gate": 4},
        None,
    ]
    # What was renamed keeps its id, and what took its name has another one.
    ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in second["data"].type}
    before = {field.name: field.metadata[b"PARQUET:field_id"] for field in first}
    assert ids["delay_v1"] == before["delay"]
    assert ids["delay"] not in before.values()
    assert "data" not in third.column_names


def test_keys_have_columns_of_their_own(world: World) -> None:
    topic = world.topic(key__schema__format="avro", key__schema='"long"')
    world.send(topic, b"v", key=b"\x0e")
    world.send(topic, b"v", key=b"")
    world.send(topic, b"v")
    assert world.roll(topic).untyped_count == 1
    rows = world.rows(topic)
    assert rows["key_data"].to_pylist() == [{"value": 7}, None, None]
    assert rows["key_data_error"].to_pylist() == [None, MALFORMED, None]
    assert "data" not in rows.column_names


def test_a_repeated_roll_finds_the_bytes_of_the_first(world: World, tmp_path: Path) -> None:
    topic = world.topic(value__schema__format="json", value__schema=json.dumps(FLIGHT))
    world.send(topic, *(_json({"delay": number}) for number in range(100)))
    seen: list[bytes] = []

    class Twice(TypingRoller):
        def __call__(self, plans: Any, object_store_url: str, done: Any) -> Outcomes:
            with (
                open_blocking_store(object_store_url, sync=False) as store,
                open_blocking_store(f"file://{tmp_path}", sync=False) as other,
            ):
                for plan in plans:
                    for extent in plan.extents:
                        data = store.get_range(
                            extent.object_key, 0, store.head(extent.object_key).length_bytes
                        )
                        (tmp_path / extent.object_key).parent.mkdir(parents=True, exist_ok=True)
                        (tmp_path / extent.object_key).write_bytes(data)
                    roll_as_planned(plan, other, None, SystemClock())
                    seen.append((tmp_path / plan.object_key).read_bytes())
            return super().__call__(plans, object_store_url, done)

    roll_once(
        CoordinatorClient(world.broker.bootstrap),
        Twice(None),
        asked=PlanSegments(include_partial=True, topics=[topic]),
    )
    (file,) = world._directory.glob(f"**/topic={topic}/**/*.parquet")
    assert seen == [file.read_bytes()]


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}


def test_stock_serializers_of_avro_with_a_registry(world: World) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    client = SchemaRegistryClient({"url": world.registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    old = AvroSerializer(client, json.dumps(AVRO))
    values = [old({"carrier": "UA", "delay": 2}, context)]
    newer = {
        **AVRO,
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "delay", "type": ["null", "long"], "default": None},
            {"name": "tail", "type": "string", "default": ""},
        ],
    }
    new = AvroSerializer(client, json.dumps(newer))
    values.append(new({"carrier": "AA", "delay": 1 << 40, "tail": "N1"}, context))
    bodies = [value[5:] for value in values]
    poison = [b"", b"\x01" + values[0][1:], b"\x00\x00\x00\x03\xe7" + bodies[0], values[0] + b"!"]
    world.send(topic, *values, *poison, values[0])
    report = world.roll(topic)
    assert not report.failures
    assert report.untyped_count == len(poison)
    rows = world.rows(topic)
    older = {"carrier": "UA", "delay": 2, "tail": None}
    assert rows["data"].to_pylist() == [
        older,
        {"carrier": "AA", "delay": 1 << 40, "tail": "N1"},
        *[None] * len(poison),
        older,
    ]
    assert rows["data_error"].to_pylist() == [
        None,
        None,
        NO_SCHEMA_ID,
        NO_SCHEMA_ID,
        UNKNOWN_SCHEMA_ID,
        MALFORMED,
        None,
    ]
    assert world.consumed(topic, len(rows)) == [*values, *poison, values[0]]


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")
def test_a_registry_is_used_as_the_page_says(world: World) -> None:
    """But that `diskless tier` would roll on Spark; its options count here."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (block,) = [text for text in blocks if "registry:id" in text]
    topic = world.topic()
    block = block.replace(" flights ", f" {topic} ")
    block = block.replace("http://localhost:8081", world.registry.url)
    alter, tier = (shlex.split(line)[1:] for line in block.splitlines())
    assert main([*alter, "--bootstrap", world.broker.bootstrap]) == 0
    serializer = AvroSerializer(SchemaRegistryClient({"url": world.registry.url}), json.dumps(AVRO))
    context = SerializationContext(topic, MessageField.VALUE)
    world.send(topic, serializer({"carrier": "UA", "delay": 2}, context))
    options = _parser().parse_args(tier)
    registry = registry_settings(options.schema_registry, options.schema_registry_auth, {})
    assert registry is not None
    world.settings = registry
    assert world.roll(topic).segments
    assert world.rows(topic)["data"].to_pylist() == [{"carrier": "UA", "delay": 2}]


def test_stock_serializers_of_json_with_a_registry(world: World) -> None:
    topic = world.topic(value__schema__format="json", value__schema__source="registry:id")
    client = SchemaRegistryClient({"url": world.registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "F", **FLIGHT}
    serializer = JSONSerializer(json.dumps(schema), client)
    value = serializer({"carrier": "UA", "delay": 1, "legs": []}, context)
    sent = [value, b"{}", value[:5] + b"{"]
    world.send(topic, *sent)
    world.roll(topic)
    rows = world.rows(topic)
    assert rows["data"].to_pylist() == [{"carrier": "UA", "delay": 1, "legs": []}, None, None]
    assert rows["data_error"].to_pylist() == [None, NO_SCHEMA_ID, MALFORMED]
    assert world.consumed(topic, len(sent)) == sent


def test_values_without_a_frame_are_of_the_newest_version(world: World) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:latest")
    world.registry.register(f"{topic}-value", '"int"')
    world.registry.register(f"{topic}-value", '"long"')
    world.send(topic, b"\x02")
    world.roll(topic)
    assert world.rows(topic)["data"].to_pylist() == [{"value": 1}]
    # A later version counts for what is planned after a job has seen it.
    world.registry.register(f"{topic}-value", '"string"')
    world.send(topic, b"\x02x")
    world.roll(topic)
    files = sorted(world._directory.glob(f"**/topic={topic}/**/*.parquet"))
    assert pq.ParquetFile(files[1]).read()["data"].to_pylist() == [{"value_v1": None, "value": "x"}]


@pytest.mark.parametrize(
    ("kind", "schema", "why"),
    [
        ("AVRO", '["null"]', "no field that could be a column"),
        ("PROTOBUF", 'syntax = "proto3";', "format 'protobuf'"),
        ("AVRO", "{", "no JSON"),
    ],
)
def test_a_schema_without_columns_leaves_bytes_and_a_line(
    world: World, kind: str, schema: str, why: str
) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    world.registry.register(f"{topic}-value", schema, kind)
    world.send(topic, b"\x00\x00\x00\x00\x01\x02")
    report = world.roll(topic)
    assert not report.failures
    assert why in report.schema_problems[f"{topic}-value"]
    assert "data" not in world.rows(topic).column_names


def test_a_subject_that_turns_bad_keeps_its_ids_for_when_it_is_good_again(world: World) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    subject = f"{topic}-value"
    schema_id = world.registry.register(subject, AVRO)
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02a\x00")
    world.roll(topic)
    world.registry.register(subject, '"null"')
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02b\x00")
    world.roll(topic)
    bad = world.registry.subjects[subject].pop()
    world.registry.register(subject, {**AVRO, "doc": "mended"})
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02c\x00")
    report = world.roll(topic)
    assert report.schema_problems == {}
    assert bad not in world.registry.subjects[subject]
    files = sorted(world._directory.glob(f"**/topic={topic}/**/*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    typed = [table["data"].type for table in tables if "data" in table.column_names]
    assert typed[0].equals(typed[-1], check_metadata=True)
    assert tables[-1]["data"].to_pylist() == [{"carrier": "c", "delay": None}]


def test_a_registry_that_is_away_holds_up_only_what_needs_it(world: World) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    schema_id = world.registry.register(f"{topic}-value", AVRO)
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02a\x00")
    world.registry.fails = True
    report = world.roll(topic)
    assert report.record_count == 1, "it was never typed"
    assert "status 500" in report.schema_problems[f"{topic}-value"]
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02a\x00")
    assert world.roll(topic).record_count == 1
    world.registry.fails = False
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02a\x00")
    assert world.roll(topic).record_count == 1
    # Typed already, and its schema cannot be asked for: the segment is rolled another time.
    world.send(topic, schema_id.to_bytes(5, "big") + b"\x02b\x00")
    world.registry.fails = True
    report = world.roll(topic)
    assert "RegistryUnavailable" in report.failures[0].reason
    world.registry.fails = False
    assert world.roll(topic).record_count == 1
    rows = world.rows(topic)
    assert [one and one["carrier"] for one in rows["data"].to_pylist()] == [None, None, "a", "b"]
    assert rows["data_error"].null_count == 4
    # Typed, with configs that only the registry knows: it keeps the types that it has.
    world.alter(topic, value__schema__source="registry:latest")
    world.send(topic, b"\x02c\x00")
    world.registry.fails = True
    assert world.roll(topic).segments == []
    world.registry.fails = False
    assert world.roll(topic).record_count == 1


def test_a_long_schema_is_noted_in_the_bucket(world: World) -> None:
    """A rebuild has it from there, because objects note its digest alone."""
    created, altered = (json.dumps({**FLIGHT, "title": name * 5_000}) for name in "ca")
    topic = world.topic(value__schema__format="json", value__schema=created)
    world.alter(topic, value__schema=altered)
    files = world._directory.glob("**/notes/*")
    texts = merged(decode_kept_notes(file.read_bytes(), file.name) for file in files).schemas
    assert {created, altered} <= {*texts}


def test_a_schema_that_a_broker_refuses_changes_nothing(world: World) -> None:
    topic = world.topic()
    with pytest.raises(KafkaException, match=r"at #/properties/a/type: 'x' is no type") as error:
        world.alter(
            topic,
            value__schema__format="json",
            value__schema='{"properties":{"a":{"type":"x"}}}',
        )
    assert 'properties":' not in str(error.value)
