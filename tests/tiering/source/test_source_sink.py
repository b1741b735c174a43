"""A task that writes rows as records: what it answers, and that a refused record fails it."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from tests.support.brokers.live_broker import LiveBroker
from tiering.coordinator_client import CoordinatorClient
from tiering.source.options import parse_sink_options
from tiering.source.writing import at_least_once as sink_module
from tiering.source.writing.at_least_once import Sink, Written
from wal.errors import InvalidSettings

SCHEMA = StructType().add("key", "string").add("value", "binary").add("noise", "double")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with warnings.catch_warnings():
        # Of its own schema files, by a deprecated function.
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka  # noqa: F401
    with LiveBroker(tmp_path_factory.mktemp("broker")) as live:
        small = NewTopic("small", 1, config={"max.message.bytes": "1000"})
        admin = AdminClient({"bootstrap.servers": live.bootstrap})
        admin.create_topics([small])["small"].result(30)
        yield live


def write(broker: LiveBroker, topic: str, *values: bytes | None) -> Any:
    batch = pa.record_batch(
        {
            "key": ["k"] * len(values),
            "value": pa.array(values, pa.binary()),
            "noise": [0.5] * len(values),
        }
    )
    options = parse_sink_options({"bootstrap": broker.bootstrap, "topic": topic})
    return Sink(options, SCHEMA).write(iter([batch, batch]))


def test_a_task_ends_when_all_its_records_are_acknowledged(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "UNACKNOWLEDGED_MAX", 2)
    assert write(broker, "made", b"a", None, b"") == Written(record_count=6)
    reader = CoordinatorClient(broker.bootstrap)
    assert reader.read_topic("made").partition_count >= 1


def test_a_record_that_is_refused_fails_its_task(broker: LiveBroker) -> None:
    with pytest.raises(Exception, match="MessageSizeTooLarge"):
        write(broker, "small", bytes(2_000))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"bootstrap": "127.0.0.1:1"}, "option topic is missing: the topic to write to"),
        ({"bootstrap": "127.0.0.1:1", "topic": "x", "columns": "key"}, "option columns: there is"),
        ({"bootstrap": "nowhere", "topic": "x"}, "bootstrap address 'nowhere'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidSettings, match=complaint):
        parse_sink_options(options)


def test_where_spark_keeps_its_checkpoint_is_no_option_of_ours(tmp_path: Path) -> None:
    given = {"bootstrap": "127.0.0.1:1", "topic": "x", "checkpointLocation": str(tmp_path)}
    assert parse_sink_options(given).topic == "x"
