"""Where micro-batches begin and end, asked of the stream reader itself: no Spark runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from metadata.operations import DeleteRecords
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.tiers.flights import PARTITIONS, TIME_MS, TOPIC, produce_flights
from tests.support.tiers.rolled import roll_everything
from tiering.source.batch import BatchReader
from tiering.source.columns import schema_of
from tiering.source.options import parse_options
from tiering.source.reading import ShareOfTopic
from tiering.source.rows.share_rows import RecordsGone
from tiering.source.stream import StreamReader
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidSettings

TYPED = StructType().add("data", StructType())
OF_KAFKA_PYTHON = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker"), {"num.partitions": "2"}) as live:
        produce_flights(live, 0, 200)
        roll_everything(live)
        produce_flights(live, 200, 100)
        yield live


def reader(broker: LiveBroker, **options: str) -> StreamReader:
    given = {"bootstrap": broker.bootstrap, "topic": TOPIC, **options}
    return StreamReader(parse_options(given), schema_of(None))


def at(position: Any) -> list[int]:
    return list(position[TOPIC]["offsets"].values())


def moved(position: Any, *offsets: int) -> Any:
    numbered = {str(number): offset for number, offset in enumerate(offsets)}
    return {TOPIC: position[TOPIC] | {"offsets": numbered}}


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({}, [150, 150]),
        ({"startingOffsets": "earliest"}, [0, 0]),
        ({"startingOffsets": '{"flights": {"0": 7, "1": -1}}'}, [7, 150]),
        ({"startingTimestamp": str(TIME_MS + 51)}, [26, 25]),
        ({"startingTimestamp": str(TIME_MS + 251)}, [126, 125]),
        ({"startingTimestamp": str(TIME_MS + 9_999)}, [150, 150]),
    ],
)
def test_a_query_begins_where_its_options_say(
    broker: LiveBroker, options: dict[str, str], offsets: list[int]
) -> None:
    assert at(reader(broker, **options).initialOffset()) == offsets


def test_offsets_must_be_given_for_each_partition_that_is_read(broker: LiveBroker) -> None:
    with pytest.raises(InvalidSettings, match="startingOffsets has no offset for partition 1"):
        reader(broker, startingOffsets='{"0": 7}').initialOffset()
    one = reader(broker, startingOffsets='{"0": 7}', partitions="0")
    assert one.initialOffset()[TOPIC]["offsets"] == {"0": 7}
    with pytest.raises(InvalidSettings, match="flights has no partition 2"):
        reader(broker, partitions="0-2").initialOffset()


def test_limits_end_a_micro_batch_and_what_has_no_limit_is_taken_whole(broker: LiveBroker) -> None:
    free = reader(broker, startingOffsets="earliest")
    start = free.initialOffset()
    assert at(free.latestOffset(start, free.getDefaultReadLimit())) == [150, 150]
    few = reader(broker, maxOffsetsPerTrigger="90")
    assert few.getDefaultReadLimit() == ReadMaxRows(90)
    assert at(few.latestOffset(start, ReadMaxRows(90))) == [45, 45]
    assert at(few.latestOffset(moved(start, 140, 0), ReadMaxRows(90))) == [146, 84]
    assert at(few.latestOffset(start, ReadAllAvailable())) == [150, 150], "Trigger.Once"
    small = reader(broker, maxBytesPerTrigger="1")
    assert small.getDefaultReadLimit() == ReadMaxBytes(1)
    assert at(small.latestOffset(start, ReadMaxBytes(1))) == [1, 1]
    both = reader(broker, maxBytesPerTrigger="1", maxOffsetsPerTrigger="90")
    assert at(both.latestOffset(start, both.getDefaultReadLimit())) == [1, 1]
    large = reader(broker, maxBytesPerTrigger=str(1 << 30))
    assert at(large.latestOffset(start, large.getDefaultReadLimit())) == [150, 150]


def test_a_position_is_written_alike_whenever_it_is_the_same(broker: LiveBroker) -> None:
    one = reader(broker)
    end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert list(end[TOPIC]["offsets"]) == ["0", "1"]
    assert end == one.latestOffset(end, ReadAllAvailable()) == one.reportLatestOffset()
    assert list(one.partitions(end, end)) == []


def test_shares_are_the_range_between_two_positions(broker: LiveBroker) -> None:
    one = reader(broker, startingOffsets="earliest")
    start = one.initialOffset()
    tasks = one.partitions(moved(start, 5, 150), moved(start, 140, 150))
    shares = [task.share for task in tasks if isinstance(task, ShareOfTopic)]
    assert (shares[0].partition, shares[0].start, shares[-1].end) == (0, 5, 140)


def test_a_query_of_what_is_available_ends_where_it_began_to_look(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": "2"}) as broker:
        produce_flights(broker, 0, 20)
        one = reader(broker, startingOffsets="earliest")
        start = one.initialOffset()
        one.prepareForTriggerAvailableNow()
        produce_flights(broker, 20, 20)
        assert at(one.latestOffset(start, ReadAllAvailable())) == [10, 10]


def test_a_new_partition_is_read_from_its_beginning_and_a_new_topic_is_no_old_one(
    tmp_path: Path,
) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": "2"}) as broker:
        produce_flights(broker, 0, 20)
        strict = reader(broker)
        lenient = reader(broker, failOnDataLoss="false")
        start = strict.initialOffset()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(TOPIC, 3)])[TOPIC].result(30)
        until(
            lambda: at(strict.latestOffset(start, ReadAllAvailable())) == [10, 10, 0],
            "the third partition is known",
        )
        # Deleted before they were read.
        topic_id = UUID(start[TOPIC]["id"])
        deletion = DeleteRecords(TopicIdPartition(topic_id, 0), 8)
        broker.run(broker.broker.coordination.client.delete_records([deletion]))
        early, end = moved(start, 3, 10), moved(start, 10, 10)
        with pytest.raises(RecordsGone, match=r"3 \.\. 7 were deleted .* failOnDataLoss=false"):
            strict.partitions(early, end)
        (task,) = lenient.partitions(early, end)
        assert isinstance(task, ShareOfTopic)
        assert (task.share.start, task.share.end) == (8, 10)
        # A checkpoint that is ahead of the log.
        ahead = moved(start, 11, 10)
        with pytest.raises(RecordsGone, match="flights-0 ends at 10, the checkpoint has read up"):
            strict.latestOffset(ahead, ReadAllAvailable())
        assert at(lenient.latestOffset(ahead, ReadAllAvailable())) == [10, 10, 0]
        # Another topic of the same name.
        admin.delete_topics([TOPIC])[TOPIC].result(30)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
        produce_flights(broker, 0, 6)
        with pytest.raises(RecordsGone, match="was deleted and made again"):
            strict.latestOffset(start, ReadAllAvailable())
        again = lenient.latestOffset(start, ReadAllAvailable())
        assert at(again) == [3, 3]
        tasks = lenient.partitions(start, again)
        assert sum(task.share.end for task in tasks if isinstance(task, ShareOfTopic)) == 6


@OF_KAFKA_PYTHON
def test_several_topics_are_one_stream_and_one_that_is_new_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": "1"}) as broker:
        where = {"bootstrap": broker.bootstrap, "startingOffsets": "earliest"}
        producer = Producer({"bootstrap.servers": broker.bootstrap})

        def produce(topic: str, count: int) -> None:
            for number in range(count):
                producer.produce(topic, b"value %d" % number, partition=0)
            assert producer.flush(60) == 0

        def offsets(position: Any) -> dict[str, int]:
            return {name: of["offsets"]["0"] for name, of in position.items()}

        def stream(**options: str) -> StreamReader:
            return StreamReader(parse_options({**where, **options}), schema_of(None))

        for topic, count in (("log-a", 30), ("log-b", 10), ("else", 5)):
            produce(topic, count)
        named = stream(subscribe="log-b,log-a")
        matched = stream(subscribePattern="log-.")
        start = named.initialOffset()
        assert offsets(start) == offsets(matched.initialOffset()) == {"log-a": 0, "log-b": 0}
        end = matched.latestOffset(start, ReadAllAvailable())
        assert offsets(end) == {"log-a": 30, "log-b": 10}
        limited = stream(topic="log-a,log-b", maxOffsetsPerTrigger="20")
        assert offsets(limited.latestOffset(start, ReadMaxRows(20))) == {"log-a": 15, "log-b": 5}
        small = stream(topic="log-a,log-b", maxBytesPerTrigger="1")
        assert offsets(small.latestOffset(start, ReadMaxBytes(1))) == {"log-a": 1, "log-b": 1}

        produce("log-c", 7)
        until(
            lambda: offsets(matched.latestOffset(end, ReadAllAvailable())).get("log-c") == 7,
            "the new topic is known",
        )
        later = matched.latestOffset(end, ReadAllAvailable())
        tasks = [task for task in matched.partitions(end, later) if isinstance(task, ShareOfTopic)]
        assert [(task.topic, *task.share) for task in tasks] == [("log-c", 0, 0, 7)]
        rows = pa.Table.from_batches([batch for task in tasks for batch in matched.read(task)])
        assert rows["topic"].to_pylist() == ["log-c"] * 7
        assert rows["value"][6].as_py() == b"value 6"

        # One that is not among those of the options any more.
        with pytest.raises(RecordsGone, match="log-c has been read, and is not a topic of the"):
            named.latestOffset(later, ReadAllAvailable())
        lenient = stream(subscribe="log-b,log-a", failOnDataLoss="false")
        assert offsets(lenient.latestOffset(later, ReadAllAvailable())) == offsets(end)
        with pytest.raises(InvalidSettings, match="typed columns are of one topic"):
            StreamReader(parse_options({**where, "topic": "log-a,log-b"}), TYPED)


@OF_KAFKA_PYTHON
def test_a_batch_reads_several_topics_and_the_partitions_that_are_assigned(
    broker: LiveBroker,
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce("weather", b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0

    def counts(**options: str) -> dict[tuple[str, int], int]:
        reader = BatchReader(
            parse_options({"bootstrap": broker.bootstrap, **options}), schema_of(["*"])
        )
        found: dict[tuple[str, int], int] = {}
        for task in reader.partitions():
            for batch in reader.read(task):
                (name,), (number,) = (set(batch[at].to_pylist()) for at in ("topic", "partition"))
                found[name, number] = found.get((name, number), 0) + batch.num_rows
        return found

    assert counts(subscribePattern="flights|weather") == {
        ("flights", 0): 150,
        ("flights", 1): 150,
        ("weather", 0): 10,
        ("weather", 1): 10,
    }
    assert counts(
        assign='{"flights": [1], "weather": [0]}',
        startingOffsets='{"flights": {"1": 40}, "weather": {"0": -2}}',
        endingOffsets='{"flights": {"1": 100}, "weather": {"0": -1}}',
    ) == {("flights", 1): 60, ("weather", 0): 10}
    with pytest.raises(InvalidSettings, match="flights has no partition 5"):
        counts(assign='{"flights": [5]}')
