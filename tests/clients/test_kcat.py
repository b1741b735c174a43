"""kcat's modes against a whole broker: metadata, offsets, times, groups, and records as JSON.

What it writes and reads of every codec is a part of the matrix of clients.
"""

import itertools
import json
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.clients.kcat import Kcat, kcat_or_skip

pytestmark = pytest.mark.clients

SETTINGS: Final = {"wal.commit.interval.ms": "5", "group.initial.rebalance.delay.ms": "0"}
BASE_MS: Final = 1_700_000_000_000

_names = itertools.count()


@pytest.fixture(scope="module")
def kcat() -> Kcat:
    return kcat_or_skip()


@pytest.fixture
def topic(broker: LiveBroker) -> str:
    """Two partitions with ten records each, a millisecond apart."""
    name = f"topic-{next(_names)}"
    admin = clients.confluent_admin(broker.bootstrap)
    clients.create_topic(admin, name, 2)
    for partition in range(2):
        records = [
            clients.Record(b"k%d" % n, b"%d-%d" % (partition, n), (("h", b"x"),), BASE_MS + n)
            for n in range(10)
        ]
        clients.ConfluentKafka().produce(broker.bootstrap, name, records, partition=partition)
    return name


def test_metadata_is_listed_as_json(broker: LiveBroker, kcat: Kcat, topic: str) -> None:
    listed = json.loads(kcat.run(broker.bootstrap, "-L", "-J", "-t", topic))
    assert [one["name"] for one in listed["brokers"]] == [broker.bootstrap]
    (found,) = listed["topics"]
    assert (found["topic"], [row["partition"] for row in found["partitions"]]) == (topic, [0, 1])
    assert topic in kcat.run(broker.bootstrap, "-L").decode()


def test_offsets_are_queried_by_time(broker: LiveBroker, kcat: Kcat, topic: str) -> None:
    asked = [f"{topic}:1:{moment}" for moment in (-2, BASE_MS + 4, BASE_MS + 99, -1)]
    found = kcat.run(broker.bootstrap, "-Q", *(word for one in asked for word in ("-t", one)))
    # It prints one line per partition and query, of which the last is the answer to all.
    assert f"{topic} [1] offset" in found.decode()
    for moment, expected in ((-2, 0), (BASE_MS + 4, 4), (-1, 10)):
        answer = kcat.run(broker.bootstrap, "-Q", "-t", f"{topic}:1:{moment}").decode()
        assert answer == f"{topic} [1] offset {expected}\n"


def consumed(kcat: Kcat, broker: LiveBroker, topic: str, *more: str) -> list[dict[str, Any]]:
    printed = kcat.run(broker.bootstrap, "-C", "-q", "-J", "-t", topic, *more)
    return [json.loads(line) for line in printed.splitlines()]


def test_records_between_two_times_are_read(broker: LiveBroker, kcat: Kcat, topic: str) -> None:
    between = ("-o", f"s@{BASE_MS + 3}", "-o", f"e@{BASE_MS + 7}")
    found = consumed(kcat, broker, topic, "-p", "0", *between)
    assert [(row["offset"], row["ts"]) for row in found] == [(n, BASE_MS + n) for n in range(3, 7)]


@pytest.mark.parametrize(
    ("start", "expected"), [("beginning", 0), ("4", 4), ("-3", 7)], ids=["all", "from", "last"]
)
def test_a_partition_is_read_from_where_it_is_told_to_its_end(
    broker: LiveBroker, kcat: Kcat, topic: str, start: str, expected: int
) -> None:
    found = consumed(kcat, broker, topic, "-p", "1", "-e", "-o", start)
    assert [row["payload"] for row in found] == [f"1-{n}" for n in range(expected, 10)]
    assert {(row["topic"], row["partition"], row["tstype"]) for row in found} == {
        (topic, 1, "create")
    }
    assert found[0]["headers"] == ["h", "x"]


def test_a_group_is_joined_read_to_the_end_and_gone_on_with(
    broker: LiveBroker, kcat: Kcat, topic: str
) -> None:
    def read() -> list[str]:
        printed = kcat.run(
            broker.bootstrap,
            *("-q", "-e", "-f", "%s\n", "-X", "auto.offset.reset=earliest"),
            *("-G", topic, topic),
        )
        return sorted(printed.decode().split())

    assert read() == sorted(f"{partition}-{n}" for partition in range(2) for n in range(10))
    admin = clients.confluent_consumer(broker.bootstrap, **{"group.id": topic})
    try:
        found = admin.committed([TopicPartition(topic, n) for n in range(2)], clients.TIMEOUT_S)
    finally:
        admin.close()
    assert [place.offset for place in found] == [10, 10]
    clients.ConfluentKafka().produce(broker.bootstrap, topic, [clients.Record(value=b"later")])
    assert read() == ["later"]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_lines_are_written_with_keys_and_headers(broker: LiveBroker, kcat: Kcat, acks: int) -> None:
    topic = f"topic-{next(_names)}"
    admin = clients.confluent_admin(broker.bootstrap)
    clients.create_topic(admin, topic, 1)
    sent = [clients.Record(b"key", b"%d" % n, (("a", b"1"), ("a", b"2"))) for n in range(20)]
    kcat.produce(broker.bootstrap, topic, sent, acks=acks, codec="lz4")
    read = clients.KafkaPython().read(broker.bootstrap, topic, 20)
    assert [found.record._replace(timestamp_ms=0) for found in read] == [
        record._replace(timestamp_ms=0) for record in sent
    ]


def test_an_idempotent_producer_writes_every_line_once(broker: LiveBroker, kcat: Kcat) -> None:
    topic = f"topic-{next(_names)}"
    sent = [clients.Record(None, b"%d" % n) for n in range(1_000)]
    kcat.produce(broker.bootstrap, topic, sent, idempotent=True)
    read = clients.KafkaPython().read(broker.bootstrap, topic, 1_000)
    assert [found.record.value for found in read] == [record.value for record in sent]
