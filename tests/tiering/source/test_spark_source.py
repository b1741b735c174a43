"""`format("diskless")` in a Spark session: batch reads, streams that fail and are started again."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from metadata.operations import DeleteRecords
from tests.support.brokers.live_broker import LiveBroker
from tests.support.profiles import seeds
from tests.support.tiers.flights import (
    PARTITIONS,
    TIME_MS,
    TOPIC,
    Flight,
    consumed_flights,
    produce_flights,
)
from tests.support.tiers.rolled import roll_everything
from tiering.coordinator_client import CoordinatorClient
from tiering.source import DisklessDataSource, register
from tiering.spark.roller import SparkRoller
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidSettings

DEADLINE_S = 120
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


STRING = {"type": "string"}


class Topic(NamedTuple):
    broker: LiveBroker
    consumed: Mapping[int, Sequence[Flight]]

    def options(self, **more: str) -> dict[str, str]:
        return {"bootstrap": self.broker.bootstrap, "topic": TOPIC, **more}


@pytest.fixture(scope="module")
def spark(spark_roller: SparkRoller) -> SparkSession:
    session = spark_roller.session
    register(session)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    settings = {"num.partitions": str(PARTITIONS)}
    with LiveBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        produce_flights(broker, 0, 1_000)
        roll_everything(broker)
        produce_flights(broker, 1_000, 500)
        yield Topic(broker, consumed_flights(broker, 1_500))


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("diskless").options(**options).load()


def flights(frame: DataFrame) -> list[Flight]:
    rows = frame.selectExpr(
        "partition", "offset", "unix_millis(timestamp) as ms", "key", "value", "headers"
    ).collect()
    return sorted(
        Flight(
            row.partition,
            row.offset,
            row.ms,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple((key, None if value is None else bytes(value)) for key, value in row.headers),
        )
        for row in rows
    )


@pytest.mark.spark
def test_a_topic_is_one_table_over_both_tiers_byte_for_byte(
    spark: SparkSession, topic: Topic
) -> None:
    frame = load(spark, topic.options())
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert flights(frame) == sorted(topic.consumed[0]) + sorted(topic.consumed[1])
    others = frame.select("topic", "timestampType").distinct().collect()
    assert [tuple(row) for row in others] == [(TOPIC, 0)]


@pytest.mark.spark
def test_columns_are_chosen_by_name_or_by_schema(spark: SparkSession, topic: Topic) -> None:
    named = load(spark, topic.options(columns="offset,producer_id"))
    assert named.dtypes == [("offset", "bigint"), ("producer_id", "bigint")]
    given = (
        spark.read.format("diskless")
        .options(**topic.options())
        .schema("offset bigint, value binary")
        .load()
    )
    assert given.selectExpr("count(*)", "sum(length(value))", "max(offset)").collect() == [
        (
            1_500,
            sum(len(flight.value or b"") for some in topic.consumed.values() for flight in some),
            749,
        )
    ]
    with pytest.raises(AnalysisException, match="there is no column 'vaule'"):
        load(spark, topic.options(columns="vaule"))
    with pytest.raises(Exception, match="column offset is bigint, not int"):
        spark.read.format("diskless").options(**topic.options()).schema("offset int").load().count()


@pytest.mark.spark
def test_ranges_are_given_by_options_or_by_filters(spark: SparkSession, topic: Topic) -> None:
    ranged = load(
        spark,
        topic.options(
            partitions="1",
            startingTimestamp=str(TIME_MS + 301),
            endingOffsets='{"flights": {"1": 700}}',
        ),
    )
    assert flights(ranged) == topic.consumed[1][150:700]
    asked = (
        "partition = 1 and offset >= 400 and offset < 720"
        f" and timestamp >= timestamp_millis({TIME_MS + 1_001})"
    )
    plain = load(spark, topic.options()).where(asked)
    spark.conf.set(PUSHDOWN, "true")
    try:
        pruned = load(spark, topic.options(pushdown="true")).where(asked)
        assert flights(pruned) == flights(plain) == topic.consumed[1][500:720]
        tasks = pruned.rdd.getNumPartitions()
        none = load(spark, topic.options(pushdown="true")).where("offset > 99999")
        assert none.count() == 0
    finally:
        spark.conf.unset(PUSHDOWN)
    assert tasks < plain.rdd.getNumPartitions()


@pytest.mark.spark
def test_the_newest_record_of_each_key_is_an_option(spark: SparkSession, topic: Topic) -> None:
    # All keys are different, and those whose last value is null are gone.
    alive = [
        flight
        for number in range(PARTITIONS)
        for flight in topic.consumed[number]
        if flight.key is None or flight.value is not None
    ]
    frame = load(spark, topic.options(latest="true"))
    assert flights(frame) == sorted(alive)
    spark.conf.set(PUSHDOWN, "true")
    try:
        pruned = load(spark, topic.options(latest="true", pushdown="true"))
        some = [flight for flight in alive if 300 <= flight.offset < 600]
        assert flights(pruned.where("offset >= 300 and offset < 600")) == sorted(some)
    finally:
        spark.conf.unset(PUSHDOWN)
    source = DisklessDataSource(topic.options(latest="true"))
    with pytest.raises(InvalidSettings, match=r"option latest is for spark\.read"):
        source.streamReader(source.schema())


SCHEMA = {
    "type": "object",
    "properties": {
        "carrier": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "legs": {"type": "array", "items": {"type": "object", "properties": {"to": STRING}}},
        "seats": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}


@pytest.mark.spark
def test_typed_columns_are_read_by_name(spark: SparkSession, topic: Topic) -> None:
    admin = AdminClient({"bootstrap.servers": topic.broker.bootstrap})
    config = {"value.schema.format": "json", "value.schema": json.dumps(SCHEMA)}
    admin.create_topics([NewTopic("typed", 1, config=config)])["typed"].result(DEADLINE_S)
    flight = {"carrier": "UA", "at": "2013-05-01T00:00:00Z", "legs": [{"to": "IAH"}]}
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap})
    producer.produce("typed", json.dumps(flight | {"seats": {"all": 150}}), partition=0)
    producer.produce("typed", b"{", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    frame = load(spark, topic.options(columns="data,data_error") | {"topic": "typed"})
    assert frame.dtypes == [
        (
            "data",
            "struct<carrier:string,at:timestamp,legs:array<struct<to:string>>,seats:map<string,bigint>>",
        ),
        ("data_error", "tinyint"),
    ]
    rows = frame.selectExpr(
        "data.carrier", "year(data.at)", "data.legs[0].to", "data.seats['all']", "data_error"
    ).collect()
    assert sorted(map(tuple, rows), key=str) == [
        ("UA", 2013, "IAH", 150, None),
        (None, None, None, None, 3),
    ]


@pytest.mark.spark
def test_options_that_make_no_sense_are_told_when_the_table_is_loaded(
    spark: SparkSession, topic: Topic
) -> None:
    with pytest.raises(AnalysisException, match="option startingofsets: there is none"):
        load(spark, topic.options(startingOfsets="latest"))
    with pytest.raises(Exception, match="there is no topic 'fligths'"):
        load(spark, topic.options() | {"topic": "fligths"}).count()


class Killed(Exception):
    """What a sink raises in the middle of its work."""


class Sink:
    """Keeps the rows of each micro-batch by its number, as an idempotent sink does.

    It fails in some of them, before or after it has kept the rows. What comes again under the same
    number must be the same.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.batches: dict[int, list[tuple[int, int, bytes | None]]] = {}
        self.repeated = 0
        self.may_fail = True

    def __call__(self, frame: DataFrame, number: int) -> None:
        when = self._rng.choice(["before", "after", "never", "never"]) if self.may_fail else ""
        if when == "before":
            raise Killed
        rows = sorted(
            (row.partition, row.offset, None if row.value is None else bytes(row.value))
            for row in frame.select("partition", "offset", "value").collect()
        )
        if number in self.batches:
            self.repeated += 1
            assert self.batches[number] == rows
        self.batches[number] = rows
        if when == "after":
            raise Killed


def run_stream(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, sink: Any
) -> bool:
    """Reads what is there; whether the query came to its end."""
    query = (
        spark.readStream.format("diskless")
        .options(**options)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        return bool(query.awaitTermination(DEADLINE_S))
    except StreamingQueryException as error:
        if "Killed" not in str(error):
            raise
        return False
    finally:
        query.stop()


@pytest.mark.spark
def test_a_stream_that_is_killed_again_and_again_gives_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(5)
    sink = Sink(rng)
    settings = {"num.partitions": str(PARTITIONS)}
    with LiveBroker(tmp_path / "data", settings) as broker:
        produced = 0
        options = {
            "bootstrap": broker.bootstrap,
            "topic": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "80",
        }
        for run in seeds(3):
            produce_flights(broker, produced, 120)
            produced += 120
            if run % 2:
                roll_everything(broker)
            run_stream(spark, options, tmp_path / "checkpoint", sink)
        sink.may_fail = False
        assert run_stream(spark, options, tmp_path / "checkpoint", sink)
        consumed = consumed_flights(broker, produced)
    assert sink.repeated, "nothing was killed after its rows were kept"
    assert list(sink.batches) == [*range(len(sink.batches))]
    assert max(map(len, sink.batches.values())) <= 80
    rows = sorted(row for batch in sink.batches.values() for row in batch)
    assert rows == [
        (flight.partition, flight.offset, flight.value)
        for number in range(PARTITIONS)
        for flight in consumed[number]
    ]


@pytest.mark.spark
def test_records_deleted_before_they_were_read_end_a_stream_unless_it_is_told_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink(random.Random(0))
    sink.may_fail = False
    with LiveBroker(tmp_path / "data", {"num.partitions": str(PARTITIONS)}) as broker:
        options = {"bootstrap": broker.bootstrap, "topic": TOPIC, "startingOffsets": "earliest"}
        produce_flights(broker, 0, 20)
        assert run_stream(spark, options, tmp_path / "checkpoint", sink)
        produce_flights(broker, 20, 40)
        topic_id = CoordinatorClient(broker.bootstrap).read_topic(TOPIC).topic_id
        deletion = DeleteRecords(TopicIdPartition(topic_id, 0), 25)
        broker.run(broker.broker.coordination.client.delete_records([deletion]))
        with pytest.raises(StreamingQueryException, match="failOnDataLoss=false"):
            run_stream(spark, options, tmp_path / "checkpoint", sink)
        lenient = options | {"failOnDataLoss": "false"}
        assert run_stream(spark, lenient, tmp_path / "checkpoint", sink)
    offsets = [offset for partition, offset, _ in sink.batches[1] if partition == 0]
    assert offsets == [25, 26, 27, 28, 29]


def read_values(spark: SparkSession, broker: LiveBroker, topic: str) -> list[tuple[Any, ...]]:
    frame = load(spark, {"bootstrap": broker.bootstrap, "topic": topic})
    rows = frame.selectExpr(
        "cast(key as string)", "cast(value as string)", "partition", "headers[0].key"
    ).collect()
    return sorted(map(tuple, rows), key=str)


@pytest.mark.spark
def test_rows_are_written_as_records_in_batches_and_streams(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    broker = topic.broker
    sink = {"bootstrap": broker.bootstrap, "topic": "made"}
    made = spark.range(50).selectExpr(
        "cast(id as string) as key",
        "if(id = 7, null, concat('value ', id)) as value",
        "cast(id % 2 as int) as partition",
        "array(named_struct('key', 'n', 'value', cast('1' as binary))) as headers",
    )
    made.write.format("diskless").options(**sink).mode("append").save()
    rows = read_values(spark, broker, "made")
    assert rows == sorted(
        (
            (str(number), None if number == 7 else f"value {number}", number % 2, "n")
            for number in range(50)
        ),
        key=str,
    )
    query = (
        spark.readStream.format("diskless")
        .options(bootstrap=broker.bootstrap, topic="made", startingOffsets="earliest")
        .load()
        .writeStream.format("diskless")
        .options(bootstrap=broker.bootstrap, topic="copied")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    assert read_values(spark, broker, "copied") == rows


@pytest.mark.spark
def test_what_cannot_be_written_is_refused_before_a_task_runs(
    spark: SparkSession, topic: Topic
) -> None:
    sink = {"bootstrap": topic.broker.bootstrap, "topic": "made"}
    for columns, mode, complaint in (
        ("id as number", "append", "there is no column value among number"),
        ("id as value", "append", "column value is bigint; it must be binary or string"),
        ("cast(id as string) as value", "overwrite", "records are added to a topic"),
    ):
        frame = spark.range(1).selectExpr(columns)
        with pytest.raises(AnalysisException, match=complaint):
            frame.write.format("diskless").options(**sink).mode(mode).save()
