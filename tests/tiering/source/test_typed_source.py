"""Typed columns in the Spark source: a record reads the same before and after its roll.

The classes that Spark is given are called as Spark does, so that no Spark has to start.
"""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.types import LongType, StringType, StructType

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.schema_registry import SchemaRegistry
from tests.support.tiers.typed_topics import World
from tiering.source import DisklessDataSource
from tiering.types.arrow_types import MALFORMED, NO_SCHEMA_ID, TYPE_MISMATCH, UNKNOWN_SCHEMA_ID
from wal.errors import InvalidSettings

FLIGHT = {
    "type": "object",
    "properties": {
        "carrier": {"type": "string"},
        "delay": {"type": "integer", "format": "int32"},
        "at": {"type": "string", "format": "date-time"},
        "legs": {"type": "array", "items": {"type": "string"}},
        "plane": {"type": "object", "properties": {"tail": {"type": "string"}}},
        "seats": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
ALL = "offset,value,data,data_error"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("typed")
    with LiveBroker(directory / "data") as broker, SchemaRegistry() as registry:
        yield World(broker, registry, directory)


def read(
    world: World, topic: str, columns: str = ALL, *, schema: StructType | None = None, **more: str
) -> pa.Table:
    """What Spark would get of tasks."""
    options = {"bootstrap": world.broker.bootstrap, "topic": topic, "columns": columns, **more}
    source = DisklessDataSource(options)
    reader: Any = pickle.loads(pickle.dumps(source.reader(schema or source.schema())))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)])


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_json_reads_the_same_from_wal_and_segments_and_over_changes_of_the_schema(
    world: World,
) -> None:
    topic = world.topic(value__schema__format="json", value__schema=as_json(FLIGHT).decode())
    whole = {
        "carrier": "UA",
        "delay": 3,
        "at": "2026-11-23T06:00:00Z",
        "legs": ["EWR", None],
        "plane": {"tail": "N1"},
        "seats": {"economy": 150, "first": None},
    }
    world.send(topic, as_json(whole), b"{", None, as_json({"carrier": 7}), as_json({"delay": 1}))
    # No job has been there yet.
    before = read(world, topic)
    assert before["data_error"].to_pylist() == [None, MALFORMED, None, TYPE_MISMATCH, None]
    first = before["data"][0].as_py()
    assert first["legs"] == ["EWR", None]
    assert dict(first["seats"]) == {"economy": 150, "first": None}
    world.roll(topic)
    assert read(world, topic) == before
    assert read(world, topic, "offset,data_error") == before.select(["offset", "data_error"])

    wider = json.loads(json.dumps(FLIGHT))
    del wider["properties"]["carrier"]
    wider["properties"]["delay"] = {"type": "integer"}
    wider["properties"]["at"] = {"type": "integer"}
    wider["properties"]["plane"]["properties"]["seats"] = {"type": "integer"}
    world.alter(topic, value__schema=json.dumps(wider))
    world.send(topic, as_json({"delay": 1 << 40, "at": 5, "plane": {"tail": "N2", "seats": 9}}))
    mixed = read(world, topic)
    old, new = (mixed["data"][at].as_py() for at in (0, 5))
    assert (old["carrier"], old["delay"], old["at"]) == ("UA", 3, None)
    assert old["at_v1"] == first["at"]
    assert old["plane"] == {"tail": "N1", "seats": None}
    assert (new["carrier"], new["delay"], new["at"]) == (None, 1 << 40, 5)
    assert new["plane"] == {"tail": "N2", "seats": 9}
    assert mixed["value"][:5] == before["value"]
    world.roll(topic)
    assert read(world, topic) == mixed
    newest = read(world, topic, "offset,data", latest="true")
    assert newest == mixed.select(["offset", "data"])


def test_some_fields_are_asked_for_by_a_schema(world: World) -> None:
    topic = world.topic(value__schema__format="json", value__schema=as_json(FLIGHT).decode())
    flights = [{"carrier": f"C{at}", "plane": {"tail": f"N{at}"}, "delay": at} for at in range(4)]
    world.send(topic, *map(as_json, flights[:2]))
    world.roll(topic)
    world.send(topic, *map(as_json, flights[2:]))
    plane = StructType().add("tail", StringType())
    some = StructType().add("plane", plane).add("carrier", StringType())
    rows = read(world, topic, schema=StructType().add("offset", LongType()).add("data", some))
    assert rows["data"].to_pylist() == [
        {"plane": flight["plane"], "carrier": flight["carrier"]} for flight in flights
    ]
    for name, wrong, complaint in (
        ("data", StructType().add("delay", LongType()), r"column data\.delay is int, not bigint"),
        ("data", StructType().add("late", LongType()), r"there is no field data\.late; there are"),
        ("data", StringType(), "column data is struct<.*, not string"),
        ("key_data", plane, "there is no column 'key_data'"),
    ):
        with pytest.raises(InvalidSettings, match=complaint):
            read(world, topic, schema=StructType().add(name, wrong))


def test_a_topic_without_types_has_no_typed_columns_and_the_error_says_so(world: World) -> None:
    topic = world.topic()
    world.send(topic, b"{}")
    with pytest.raises(InvalidSettings, match="typed columns are of topics whose keys or values"):
        read(world, topic)
    assert read(world, topic, "*,producer_id").column_names == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
        "producer_id",
    ]


def test_rows_of_before_there_was_a_schema_have_no_data(world: World) -> None:
    topic = world.topic()
    world.send(topic, as_json({"carrier": "UA"}))
    world.roll(topic)
    world.alter(topic, value__schema__format="json", value__schema=as_json(FLIGHT).decode())
    world.send(topic, as_json({"carrier": "AA"}))
    rows = read(world, topic, "data,data_error")
    assert [data and data["carrier"] for data in rows["data"].to_pylist()] == [None, "AA"]
    assert rows["data_error"].null_count == 2


def test_avro_of_a_registry_takes_the_registry_for_what_is_not_rolled(world: World) -> None:
    schema = {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}],
    }
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    client = SchemaRegistryClient({"url": world.registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    value = AvroSerializer(client, json.dumps(schema))({"carrier": "UA", "delay": 2}, context)
    poison = [b"x", b"\x00\x00\x00\x03\xe7" + value[5:], value + b"!"]
    world.send(topic, value, *poison)
    world.roll(topic)
    wider = json.loads(json.dumps(schema))
    wider["fields"][1]["type"] = "long"
    wider["fields"].append({"name": "tail", "type": ["null", "string"], "default": None})
    newer = AvroSerializer(client, json.dumps(wider))
    world.send(topic, newer({"carrier": "AA", "delay": 1 << 40, "tail": "N1"}, context), value)
    with pytest.raises(InvalidSettings, match="option schemaRegistry is missing"):
        read(world, topic)
    before = read(world, topic, schemaRegistry=world.registry.url)
    older = {"carrier": "UA", "delay": 2, "tail": None}
    assert before["data"].to_pylist() == [
        *(older, None, None, None),
        *({"carrier": "AA", "delay": 1 << 40, "tail": "N1"}, older),
    ]
    assert before["data_error"].to_pylist() == [
        *(None, NO_SCHEMA_ID, UNKNOWN_SCHEMA_ID, MALFORMED),
        *(None, None),
    ]
    world.roll(topic)
    assert read(world, topic, schemaRegistry=world.registry.url) == before
    # Who asks for no types needs no registry.
    assert read(world, topic, "offset,value") == before.select(["offset", "value"])


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "what",
            "type": [
                "null",
                "string",
                {
                    "type": "record",
                    "name": "Delay",
                    "fields": [{"name": "minutes", "type": "int"}],
                },
                {"type": "record", "name": "Landed", "fields": []},
            ],
        },
        {"name": "then", "type": ["null", "Event"]},
        {"name": "retries", "type": {"type": "array", "items": "null"}},
    ],
}


def test_several_types_and_records_within_themselves_are_read_the_same_when_rolled(
    world: World,
) -> None:
    topic = world.topic(value__schema__format="avro", value__schema__source="registry:id")
    client = SchemaRegistryClient({"url": world.registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    serialize = AvroSerializer(client, json.dumps(EVENT))

    def event(what: Any, then: Any = None, retries: int = 0) -> Any:
        return {"at": 1_764_000_000_000, "what": what, "then": then, "retries": [None] * retries}

    nested = event("last")
    for _ in range(9):
        nested = event(None, nested)
    events = [
        event("boarding", retries=3),
        event(("Delay", {"minutes": 7}), event(("Landed", {}))),
        event(None),
        nested,
    ]
    values = [serialize(one, context) for one in events]
    world.send(topic, *values, values[0][:-1])
    before = read(world, topic, schemaRegistry=world.registry.url)
    assert before["data_error"].to_pylist() == [None] * 4 + [MALFORMED]
    assert before["value"].to_pylist() == [*values, values[0][:-1]]
    data = before["data"].to_pylist()
    assert [one["what"] for one in data[:3]] == [
        {"string": "boarding", "Delay": None, "Landed": None},
        {"string": None, "Delay": {"minutes": 7}, "Landed": None},
        None,
    ]
    assert data[1]["then"]["what"] == {"string": None, "Delay": None, "Landed": True}
    assert [one["retries"] for one in data[:3]] == [3, 0, 0]
    innermost = data[3]
    for _ in range(7):
        innermost = innermost["then"]
    text = json.loads(innermost["then"])
    assert text["then"] == {
        "at": "2025-11-24T16:00:00Z",
        "what": {"string": "last"},
        "then": None,
        "retries": 0,
    }
    world.roll(topic)
    assert read(world, topic, schemaRegistry=world.registry.url) == before
    files = [str(file) for file in world._directory.glob(f"**/topic={topic}/**/*.parquet")]
    (told,) = duckdb.sql(
        "select count(data.what.string), sum(data.what.Delay.minutes),"
        f" count(data.then.what.Landed), sum(data.retries) from read_parquet({files})"
    ).fetchall()
    assert told == (1, 7, 1, 3)

    # One more type is one more field; another kind of type is a column of its own.
    more = json.loads(json.dumps(EVENT))
    more["fields"][1]["type"].insert(1, "long")
    more["fields"][3]["type"] = {"type": "array", "items": ["null", "int"]}
    del more["fields"][2]
    newer = AvroSerializer(client, json.dumps(more))
    last = {"at": 0, "what": 5, "retries": [1, None]}
    world.send(topic, newer(last, context), values[1])
    rows = read(world, topic, schemaRegistry=world.registry.url)["data"].to_pylist()
    assert rows[5]["what"] == {"string": None, "Delay": None, "Landed": None, "long": 5}
    assert (rows[5]["retries"], rows[5]["retries_v1"]) == ([1, None], None)
    assert (rows[0]["retries"], rows[0]["retries_v1"]) == (None, 3)
    assert rows[6]["what"]["Delay"] == {"minutes": 7}
    assert rows[6]["then"]["what"]["Landed"] is True


def test_keys_are_typed_beside_values(world: World) -> None:
    topic = world.topic(
        key__schema__format="avro",
        key__schema='"long"',
        value__schema__format="json",
        value__schema=as_json(FLIGHT).decode(),
    )
    world.send(topic, as_json({"carrier": "UA"}), key=b"\x0e")
    world.roll(topic)
    world.send(topic, b"{}", key=b"")
    rows = read(world, topic, "key_data,key_data_error,data_error")
    assert rows["key_data"].to_pylist() == [{"value": 7}, None]
    assert rows["key_data_error"].to_pylist() == [None, MALFORMED]
    assert rows["data_error"].to_pylist() == [None, None]
