"""A task of the Spark source without Spark: rows of WAL objects and segments, on a live broker."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from metadata.operations import DeleteRecords
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.tiers.flights import (
    PARTITIONS,
    TIME_MS,
    TOPIC,
    Flight,
    consumed_flights,
    produce_flights,
)
from tests.support.tiers.rolled import roll_everything
from tiering.segment_columns import SEGMENT_SCHEMA
from tiering.source.planning import Share, shares
from tiering.source.rows.share_rows import RecordsGone, Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptSegment, ObjectNotFound, UnknownPartition
from wal.stores.blocking_store import MeteredStore, open_blocking_store

WHOLE = Wanted(columns=SEGMENT_SCHEMA.names)
OFFSETS = Wanted(columns=["offset", "timestamp"])


class Topic(NamedTuple):
    """A topic of which the older half is in segments, and what a consumer reads of it."""

    broker: LiveBroker
    log: TopicLog
    consumed: Mapping[int, Sequence[Flight]]
    rolled: Mapping[int, int]
    """How many records of each partition are in segments."""


def never(seconds: float) -> None:
    raise AssertionError(f"has to wait for {seconds} s")


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    settings = {"num.partitions": str(PARTITIONS), "diskless.file.delete.grace.ms": "0"}
    with LiveBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        produce_flights(broker, 0, 2_000)
        roll_everything(broker)
        produce_flights(broker, 2_000, 1_000)
        roll_everything(broker)
        produce_flights(broker, 3_000, 1_000)
        log = TopicLog(broker.bootstrap, TOPIC, sleep=never)
        rolled = dict.fromkeys(range(PARTITIONS), 1_500)
        yield Topic(broker, log, consumed_flights(broker, 4_000), rolled)


def of(topic: Topic, number: int) -> TopicIdPartition:
    return TopicIdPartition(topic.log.topic().topic_id, number)


def open_store(topic: Topic) -> Any:
    return open_blocking_store(topic.log.topic().object_store_url)


def read(topic: Topic, share: Share, wanted: Wanted = WHOLE) -> pa.Table:
    with open_store(topic) as store:
        tables = [*share_tables(topic.log, of(topic, share.partition), share, store, wanted)]
    schema = pa.schema([SEGMENT_SCHEMA.field(name) for name in wanted.columns])
    return pa.concat_tables([schema.empty_table(), *tables])


def records(number: int, rows: pa.Table) -> Sequence[Flight]:
    return [
        Flight(
            number,
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in rows.to_pylist()
    ]


def test_the_rows_of_both_tiers_are_what_a_consumer_reads(topic: Topic) -> None:
    for number, consumed in topic.consumed.items():
        rows = read(topic, Share(number, 0, len(consumed)))
        assert records(number, rows) == consumed


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (999, 1_001), (1_234, 1_235), (1_499, 1_501), (700, 1_900), (1_999, 2_000)],
)
def test_a_share_has_the_offsets_of_its_range_and_no_other(
    topic: Topic, start: int, end: int
) -> None:
    assert records(1, read(topic, Share(1, start, end))) == topic.consumed[1][start:end]


def test_extents_are_looked_up_page_by_page(topic: Topic) -> None:
    whole = [*topic.log.extents(of(topic, 0), 0, 2_000)]
    assert [*topic.log.extents(of(topic, 0), 0, 2_000, page=1)] == whole
    assert len(whole) >= 3
    assert [*shares(0, 0, 2_000, whole, share_extents=1)][-1].end == 2_000


def test_few_columns_are_few_bytes_and_one_time_is_few_row_groups(topic: Topic) -> None:
    least = dict(topic.rolled)[0]
    share = Share(0, 0, least)

    def taken(wanted: Wanted) -> tuple[int, int]:
        with MeteredStore(open_store(topic)) as store:
            rows = [*share_tables(topic.log, of(topic, 0), share, store, wanted)]
            return store.get_bytes, sum(table.num_rows for table in rows)

    whole, narrow = taken(WHOLE), taken(OFFSETS)
    assert whole[1] == narrow[1] == least
    assert narrow[0] < whole[0]
    # The younger of the two segments; nothing of the other one is asked for.
    young = taken(Wanted(columns=WHOLE.columns, timestamp_min_ms=TIME_MS + 2_000))
    assert young[1] == 500
    assert young[0] < whole[0] * 0.7
    # Of the other one the footer alone shows that it begins too late.
    old = taken(Wanted(columns=WHOLE.columns, timestamp_max_ms=TIME_MS - 1))
    assert old[1] == 0
    assert 0 < old[0] < whole[0]


def test_an_unknown_topic_is_named(topic: Topic) -> None:
    with pytest.raises(UnknownPartition, match="there is no topic 'fligths'"):
        TopicLog(topic.broker.bootstrap, "fligths", sleep=never).topic()


class GoneOnce:
    """A store that has lost an object, until somebody asks a second time or for ever."""

    def __init__(self, store: Any, *, for_ever: bool) -> None:
        self._store = store
        self._for_ever = for_ever
        self.refused = 0

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if self._for_ever or not self.refused:
            self.refused += 1
            raise ObjectNotFound(key)
        data: bytes = self._store.get_range(key, start, length)
        return data


def test_an_object_that_is_gone_is_looked_up_anew_and_else_named_with_what_keeps_it(
    topic: Topic,
) -> None:
    partition, share = of(topic, 0), Share(0, 1_200, 1_700)
    with open_store(topic) as store:
        once: Any = GoneOnce(store, for_ever=False)
        rows = pa.concat_tables(share_tables(topic.log, partition, share, once, WHOLE))
        assert once.refused == 1
        assert records(0, rows) == topic.consumed[0][1_200:1_700]
        gone: Any = GoneOnce(store, for_ever=True)
        with pytest.raises(ObjectNotFound, match=r"raise diskless\.file\.delete\.grace\.ms"):
            [*share_tables(topic.log, partition, share, gone, WHOLE)]


class Damaged(GoneOnce):
    """Flips a bit in every range."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = bytearray(self._store.get_range(key, start, length))
        data[len(data) // 2] ^= 4
        return bytes(data)


def test_damage_is_an_error_that_names_the_object(topic: Topic) -> None:
    with open_store(topic) as store:
        damaged: Any = Damaged(store, for_ever=False)
        with pytest.raises(CorruptSegment, match="segments/topic=flights"):
            [*share_tables(topic.log, of(topic, 0), Share(0, 0, 10), damaged, WHOLE)]


def test_records_that_were_deleted_are_an_error_or_left_out(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", {"num.partitions": str(PARTITIONS)}) as broker:
        produce_flights(broker, 0, 200)
        log = TopicLog(broker.bootstrap, TOPIC, sleep=never)
        partition = TopicIdPartition(log.topic().topic_id, 0)
        (deleted,) = broker.run(
            broker.broker.coordination.client.delete_records([DeleteRecords(partition, 40)])
        )
        assert deleted.error is None
        with open_blocking_store(log.topic().object_store_url) as store:
            with pytest.raises(RecordsGone, match=r"10 \.\. 39 .* failOnDataLoss=false"):
                [*share_tables(log, partition, Share(0, 10, 60), store, OFFSETS)]
            lenient = Wanted(columns=OFFSETS.columns, fail_on_data_loss=False)
            rows = [*share_tables(log, partition, Share(0, 10, 60), store, lenient)]
            assert pa.concat_tables(rows).column("offset").to_pylist() == [*range(40, 60)]
            assert not [*share_tables(log, partition, Share(0, 10, 30), store, lenient)]


def until_it_knows_the_topic(broker: LiveBroker) -> None:
    client = broker.broker.coordination.client
    until(lambda: TOPIC in client.topics(), "a broker that knows the topic")


def test_any_broker_of_a_cluster_tells_where_records_lie_at_once(tmp_path: Path) -> None:
    """Leaders of partitions are on both brokers, and each follows the other."""
    settings = {
        "num.partitions": str(PARTITIONS),
        "object.store.url": (tmp_path / "bucket").as_uri(),
        "diskless.metadata.log": "object",
        "diskless.metadata.topic.num.partitions": "3",
    }
    with (
        LiveBroker(tmp_path / "one", {**settings, "node.id": "1"}) as one,
        LiveBroker(tmp_path / "two", {**settings, "node.id": "2"}) as two,
    ):
        produced = 0
        for producing in (one, two, one):
            produce_flights(producing, produced, 100)
            produced += 100
            for broker in (one, two):
                until_it_knows_the_topic(broker)
                log = TopicLog(broker.bootstrap, TOPIC, sleep=time.sleep)
                topic_id = log.topic().topic_id
                partitions = [TopicIdPartition(topic_id, number) for number in range(PARTITIONS)]
                ends = log.ends(partitions)
                assert sum(ends.values()) == produced
                with open_blocking_store(log.topic().object_store_url) as store:
                    for partition in partitions:
                        share = Share(partition.partition, 0, ends[partition.partition])
                        tables = [*share_tables(log, partition, share, store, OFFSETS)]
                        offsets = pa.concat_tables(tables).column("offset").to_pylist()
                        assert offsets == [*range(share.end)]
