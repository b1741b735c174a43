"""`sink.id` in Spark: batches are there once, however a query ends and begins again."""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from diskless.cli.cli import main
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.profiles import seeds
from tests.support.tiers.flights import PARTITIONS, TOPIC, produce_flights
from tests.support.tiers.rolled import roll_everything
from tests.support.transactions.committed_values import CommittedValues
from tiering.source import register
from tiering.spark.roller import SparkRoller

DEADLINE_S = 600
REPOSITORY = Path(__file__).resolve().parents[3]
COPIED = "copied"
COORDINATORS = 3
SETTINGS = {
    "num.partitions": str(PARTITIONS),
    # The records are years old by their timestamps, and this may take minutes.
    "log.retention.ms": "-1",
    "diskless.metadata.topic.num.partitions": str(COORDINATORS),
}


@pytest.fixture(scope="module")
def spark(spark_roller: SparkRoller) -> SparkSession:
    register(spark_roller.session)
    return spark_roller.session


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as live:
        create(live, COPIED, "made")
        produce_flights(live, 0, 60)
        yield live


def create(broker: LiveBroker, *names: str) -> None:
    """Topics whose partitions live at as many coordinators."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, COORDINATORS) for name in names]).values():
        future.result(30)
    client = broker.broker.coordination.client
    until(lambda: {*names} <= {*client.topics()}, "the topics are there")
    for name in names:
        assert len({*client.topics()[name].assignments.values()}) >= COORDINATORS - 1


def values(broker: LiveBroker, topic: str) -> Sequence[tuple[bytes | None, bytes | None]]:
    """(key, value) of every record, sorted, with a stock client."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "nobody"})
    found = []
    try:
        for partition in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=60)
            consumer.assign([place])
            at = 0
            while at < end:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                found.append((message.key(), message.value()))
                at = message.offset() + 1
    finally:
        consumer.close()
    return sorted(found, key=str)


def copy(spark: SparkSession, broker: LiveBroker, checkpoint: Path, sink_id: str) -> None:
    query = (
        spark.readStream.format("diskless")
        .options(bootstrap=broker.bootstrap, topic=TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "36")  # two batches
        .load()
        .selectExpr("key", "value", "headers")
        .writeStream.format("diskless")
        .options(bootstrap=broker.bootstrap, topic=COPIED)
        .option("sink.id", sink_id)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)


@pytest.mark.spark
def test_a_stream_that_forgot_its_last_batch_writes_it_once(
    spark: SparkSession, broker: LiveBroker, tmp_path: Path
) -> None:
    """What a driver leaves that is killed behind its commit: the batch, and no note of it."""
    checkpoint = tmp_path / "checkpoint"
    copy(spark, broker, checkpoint, "copies")
    wanted = values(broker, TOPIC)
    assert values(broker, COPIED) == wanted
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    copy(spark, broker, checkpoint, "copies")
    assert values(broker, COPIED) == wanted
    # Its first batch would be a repetition if there were no other behind it.
    with pytest.raises(StreamingQueryException, match="sink copies: batch 0"):
        copy(spark, broker, tmp_path / "another", "copies")
    assert values(broker, COPIED) == wanted


@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_batch_write_with_an_id_is_there_once(spark: SparkSession, broker: LiveBroker) -> None:
    rows = spark.range(500).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    options = {"bootstrap": broker.bootstrap, "topic": "made", "sink.id": "made-once"}
    for division in (1, 3):
        frame = rows.repartition(division)
        writer = frame.write.format("diskless").options(**options).option("sink.batch.id", "4")
        writer.mode("append").save()
    numbers = [str(number).encode() for number in range(500)]
    assert values(broker, "made") == sorted(zip(numbers, numbers, strict=True), key=str)


@pytest.mark.spark
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_what_was_committed_is_copied_once(
    spark: SparkSession, broker: LiveBroker, tmp_path: Path, rounds: int
) -> None:
    """From a topic with transactions to another topic, while the first one rolls."""
    written, copied = f"written-{rounds}", f"copied-{rounds}"
    create(broker, written, copied)
    writer = CommittedValues(broker.bootstrap, written, COORDINATORS, random.Random(rounds))
    for number in range(rounds):
        writer.write(4)
        writer.begin()
        query = (
            spark.readStream.format("diskless")
            .options(bootstrap=broker.bootstrap, topic=written, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("diskless")
            .options(bootstrap=broker.bootstrap, topic=copied)
            .option("sink.id", copied)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
        found = sorted(int(value or b"") for _, value in values(broker, copied))
        assert found == writer.committed
        if number % 2:
            roll_everything(broker)
        writer.end(is_commit=True)
    assert writer.aborted


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")
def test_the_example_of_the_page_runs(
    spark: SparkSession, broker: LiveBroker, tmp_path: Path
) -> None:
    page = (REPOSITORY / "docs" / "tables.md").read_text("utf-8")
    (example,) = [
        block
        for block in (part.split("```")[0] for part in page.split("```python\n")[1:])
        if '"shouting")' in block
    ]
    (command,) = re.findall("^diskless (topic create shouted .*)", page, re.MULTILINE)
    assert main([*command.split(), "--bootstrap", broker.bootstrap]) == 0
    example = example.replace("localhost:9092", broker.bootstrap)
    exec(example.replace("/data/checkpoints", str(tmp_path)), {"spark": spark})
    wanted = [(key, value and value.upper()) for key, value in values(broker, TOPIC)]
    assert values(broker, "shouted") == sorted(wanted, key=str)


QUERY = """
import sys
from tiering.source import register
from tiering.spark.roller import SparkRoller

bootstrap, topic, copied, checkpoint = sys.argv[1:]
with SparkRoller("local[2]") as roller:
    register(roller.session)
    (
        roller.session.readStream.format("diskless")
        .options(bootstrap=bootstrap, topic=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "50")
        .load()
        .selectExpr("key", "value", "headers")
        .writeStream.format("diskless")
        .options(bootstrap=bootstrap, topic=copied)
        .option("sink.id", "killed")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
"""


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", seeds(2))
def test_a_driver_that_is_killed_anywhere_writes_each_record_once(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "query.log"
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        create(broker, COPIED)
        produce_flights(broker, 0, 400)

        def start(failpoints: str) -> subprocess.Popen[bytes]:
            with log.open("a") as output:
                return subprocess.Popen(
                    [sys.executable, "-c", QUERY, broker.bootstrap, TOPIC, COPIED, str(checkpoint)],
                    cwd=REPOSITORY,
                    env={**os.environ, "DISKLESS_FAILPOINTS": failpoints},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )

        def end(process: subprocess.Popen[bytes]) -> None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        for point in ("before_commit", "after_commit"):
            # The process of the commit is killed; Spark fails the query.
            process = start(f"sink.{point}=kill")
            try:
                assert process.wait(DEADLINE_S) != 0
            finally:
                end(process)
        for _ in range(3):
            noted = len([*(checkpoint / "offsets").glob("[0-9]*")])
            process = start("")
            try:
                until(
                    lambda noted=noted, process=process: (
                        len([*(checkpoint / "offsets").glob("[0-9]*")]) > noted
                        or process.poll() is not None
                    ),
                    "a micro-batch is begun",
                )
                until(
                    lambda process=process: rng.random() < 0.3 or process.poll() is not None,
                    "chance",
                )
            finally:
                end(process)
        process = start("")
        try:
            assert process.wait(DEADLINE_S) == 0, log.read_text()
        finally:
            end(process)
        assert values(broker, COPIED) == values(broker, TOPIC)
