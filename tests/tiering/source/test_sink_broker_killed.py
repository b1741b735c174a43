"""A broker that is killed at each step of a batch that several metadata logs have a part in."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from demo.broker_process import BrokerProcess, run_diskless
from tiering.source.options import parse_sink_options
from tiering.source.writing.exactly_once import ExactlyOnceStreamSink
from wal.failpoint import ENVIRONMENT_VARIABLE

TOPIC = "t"
COORDINATORS = 3
SCHEMA = StructType().add("value", "binary").add("partition", "integer")
# At the start of its term each of the three leaders applies its first record and notes its last
# batch anew: behind that come the appends of the batch, which are the decision with the home's own
# objects, two shares, and the completion, and the notes of the two shares, and of the batch.
AT_START = COORDINATORS
POINTS = [
    "sink.after_decision",
    "sink.after_share",
    "sink.before_completion",
    f"sink.before_note:{AT_START + 1}",
    f"sink.after_note:{AT_START + 1}",
    "commit.after_log:1",
    "commit.after_log:4",
    f"commit.after_apply:{AT_START + 1}",
    f"commit.after_apply:{AT_START + 2}",
    f"commit.after_apply:{AT_START + 4}",
]


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    """Each value to the partition of its place."""
    places = pa.array([place % COORDINATORS for place in range(len(values))], pa.int32())
    yield pa.record_batch({"value": pa.array(values, pa.binary()), "partition": places})


def sink(broker: BrokerProcess) -> ExactlyOnceStreamSink:
    given = {"bootstrap": broker.bootstrap, "topic": TOPIC, "sink.id": "killed"}
    return ExactlyOnceStreamSink(parse_sink_options(given), SCHEMA)


def values(broker: BrokerProcess, isolation: str) -> Sequence[bytes | None]:
    """Of all records, with a stock client."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g"}
    consumer = Consumer({**settings, "isolation.level": isolation})
    found = []
    try:
        for index in range(COORDINATORS):
            place = TopicPartition(TOPIC, index, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=60)
            consumer.assign([place])
            for _ in range(end):
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                found.append(message.value())
    finally:
        consumer.close()
    return sorted(found, key=str)


@pytest.mark.crash
@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_is_everywhere_or_nowhere_wherever_the_broker_is_killed(
    tmp_path: Path, point: str
) -> None:
    settings = {"diskless.metadata.topic.num.partitions": str(COORDINATORS)}
    data = tmp_path / "data"
    with BrokerProcess(data, tmp_path, settings) as broker:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, COORDINATORS)])[TOPIC].result(60)
        first = sink(broker)
        first.commit([first.write(rows(b"a", b"b", b"c"))], 0)
        broker.stop()

        name, _, count = point.partition(":")
        broker.start({ENVIRONMENT_VARIABLE: f"{name}=kill:{count or 1}"})
        driver = sink(broker)
        staged = [driver.write(rows(b"d", b"e", b"f"))]
        committing = Thread(target=driver.commit, args=(staged, 1), daemon=True)
        committing.start()
        broker.wait_for_death()
        broker.start()
        # Another driver, with the batch staged anew; the first one asks still.
        again = sink(broker)
        again.commit([again.write(rows(b"d", b"e", b"f"))], 1)
        committing.join(120)
        assert not committing.is_alive()
        wanted = [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert values(broker, "read_committed") == wanted
        assert values(broker, "read_uncommitted") == wanted
        again.commit([again.write(rows(b"g"))], 2)
        assert values(broker, "read_committed") == [*wanted, b"g"]
        broker.stop()
    assert run_diskless(["verify", "--data", data], tmp_path / "verify.log", 120) == 0, (
        tmp_path / "verify.log"
    ).read_text()
