"""Consumers cross holes that end answers: fifty answers in a row that hold no record at all.

Each of the segments in the middle lost all of its batches, and an answer reads one segment.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.clients.java_client import JavaKafka
from tests.support.clients.jvm import KafkaTools
from tests.support.tiers.rolled import roll_everything
from tiering import raw_batches
from wal.records.record_batch import EncodedBatch

pytestmark = pytest.mark.clients

SETTINGS: Final = {"wal.commit.interval.ms": "1"}
HOLES: Final = range(1, 51)
SEGMENTS: Final = len(HOLES) + 2


class Holed:
    """A topic of one record a segment, the WAL's last; those at HOLES are not there any more."""

    def __init__(self, broker: LiveBroker) -> None:
        self.bootstrap = broker.bootstrap
        admin = clients.confluent_admin(broker.bootstrap)
        clients.create_topic(admin, "holed", segment_bytes="1")
        records = [clients.Record(value=b"%d" % number) for number in range(SEGMENTS)]
        for record in records:
            clients.ConfluentKafka().produce(broker.bootstrap, "holed", [record])
        assert len(roll_everything(broker)) == SEGMENTS
        tail = clients.Record(value=b"tail")
        clients.ConfluentKafka().produce(broker.bootstrap, "holed", [tail])
        self.expected = [
            clients.StoredRecord(0, records[0]),
            clients.StoredRecord(SEGMENTS - 1, records[-1]),
            clients.StoredRecord(SEGMENTS, tail),
        ]


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holed]:
    served = raw_batches.served_batches

    def but_holes(key: str, rows: pa.Table, *, leader_epoch: int) -> list[EncodedBatch]:
        batches = served(key, rows, leader_epoch=leader_epoch)
        return [batch for batch in batches if batch.base_offset not in HOLES]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(raw_batches, "served_batches", but_holes)
        with LiveBroker(tmp_path_factory.mktemp("holes") / "data", SETTINGS) as broker:
            yield Holed(broker)


@pytest.mark.parametrize("reader", clients.STOCK_CLIENTS, ids=lambda client: client.name)
def test_a_consumer_crosses_fifty_answers_without_a_record(
    holed: Holed, reader: clients.StockClient
) -> None:
    assert reader.read(holed.bootstrap, "holed", 3) == holed.expected


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_librdkafka_crosses_them_with_the_smallest_answers(holed: Holed, isolation: str) -> None:
    """One that doubled its fetch size at each of them would ask for more than it may."""
    consumer = clients.confluent_consumer(
        holed.bootstrap,
        isolation_level=isolation,
        fetch_message_max_bytes=100,
        fetch_max_bytes=1_000,
        message_max_bytes=1_000,
        receive_message_max_bytes=10_000,
    )
    try:
        consumer.assign([TopicPartition("holed", 0, 0)])
        messages = consumer.consume(3, timeout=clients.TIMEOUT_S)
        assert [message.error() for message in messages] == [None] * 3
        assert [clients.stored(message) for message in messages] == holed.expected
    finally:
        consumer.close()


@pytest.mark.parametrize("offset", [1, 25, 50])
def test_a_consumer_may_start_within_a_hole(holed: Holed, offset: int) -> None:
    for reader in clients.STOCK_CLIENTS:
        assert reader.read(holed.bootstrap, "holed", 2, offset=offset) == holed.expected[1:]


@pytest.mark.exhaustive
@pytest.mark.jvm
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_java_crosses_them(holed: Holed, tools: KafkaTools, isolation: str) -> None:
    read = JavaKafka(tools).read(holed.bootstrap, "holed", 3, isolation_level=isolation)
    assert read == holed.expected
