"""What any client writes, in any codec, to a broker of any age, every client reads equal.

Every client writes a topic per codec, and one with append time, to the broker as it is and to the
broker as old as certain releases of Kafka. Then every client reads all of these topics in every way
it has: assigned, and in a group of every protocol it speaks, at every age again.

`make test` does all of it with the broker as it is. With an older one it leaves the codecs in
between out, and the reading without a group: what is older there is the versions of requests, and
these are the same in every codec. `make test-all` does everything.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.client_matrix import (
    CONSUMER_GROUP_HEARTBEAT,
    OWN,
    RELEASES,
    Reader,
    as_old_as,
    readers,
    serves,
)
from tests.support.clients.java_client import JavaKafka
from tests.support.clients.jvm import KAFKA_VERSIONS, JvmUnavailable, kafka_tools
from tests.support.clients.kafkajs import KafkaJs, node_process
from tests.support.clients.kcat import Kcat, kcat_or_skip
from tests.support.clients.stock_clients import (
    CODECS,
    STOCK_CLIENTS,
    TIMEOUT_S,
    ConfluentKafka,
    Record,
    StockClient,
    StoredRecord,
    confluent_admin,
)
from tests.support.exhaustive import IS_EXHAUSTIVE

pytestmark = [pytest.mark.clients, pytest.mark.jvm]

# kafka-python looks up its topics within 100 ms of subscribing, and until then assigns nothing.
SETTINGS: Final = {"wal.commit.interval.ms": "5", "group.initial.rebalance.delay.ms": "300"}
APPEND_TIME: Final = "append-time"
APPEND_TIME_CODEC: Final = "gzip"
BASE_MS: Final = 1_600_000_000_123
NO_ZSTD: Final = ("0.11",)
KINDS: Final = (*CODECS, APPEND_TIME)
OLD_KINDS: Final = KINDS if IS_EXHAUSTIVE else ("none", "zstd")
"""What is written to a broker of the past, and read from it."""
JAVA: Final = tuple(f"java-{version}" for version in KAFKA_VERSIONS)


def understand(client: str, release: str) -> bool:
    """Java's 4.x speak to no broker before 2.1."""
    return not (client.startswith("java-4") and release == "0.11")


def the_records() -> list[Record]:
    """Everything in which implementations differ, in a few records."""
    return [
        Record(),
        Record(key=b"", value=b""),
        Record(key=b"a key", value=None),
        Record(key=None, value=None),
        Record(key=bytes(range(256)), value=b"binary key"),
        Record(value=bytes(range(255, -1, -1)) * 16, timestamp_ms=BASE_MS + 5),
        Record(key=b"large", value=b"".join(b"%d;" % n for n in range(12_000))),
        Record(value="ünïcödé \N{HOT BEVERAGE}".encode(), timestamp_ms=BASE_MS),
        Record(key=b"early", timestamp_ms=1),
        Record(headers=(("same", b"1"), ("same", b"2"), ("other", b"x"), ("same", b"1"))),
        Record(headers=(("grouped", b"2"), ("grouped", b"1"), ("zzz", b"x"), ("aaa", b"y"))),
        Record(headers=(("empty", b""), ("null", None))),
        Record(headers=(("empty", b""), ("ünïcödé", "\N{HOT BEVERAGE}".encode()))),
        *(Record(str(n).encode(), b"x" * n, (), BASE_MS + n % 7) for n in range(12)),
    ]


class Written(NamedTuple):
    """One topic of the matrix."""

    topic: str
    client: str
    kind: str
    records: list[StoredRecord]


def kinds(release: str) -> list[str]:
    """Of topics with which a broker of that age has to do; 0.11 has not heard of zstd."""
    return [
        kind
        for kind in (KINDS if release == OWN else OLD_KINDS)
        if not (release in NO_ZSTD and kind == "zstd")
    ]


@pytest.fixture(scope="module")
def kafkajs() -> Iterator[KafkaJs | None]:
    """None where it cannot be had: the others go without it."""
    with ExitStack() as stack:
        try:
            node = stack.enter_context(node_process())
        except pytest.skip.Exception:
            yield None
        else:
            yield KafkaJs(node)


@pytest.fixture(scope="module")
def kcat() -> Kcat | None:
    try:
        return kcat_or_skip()
    except pytest.skip.Exception:
        return None


@pytest.fixture(scope="module")
def java() -> Iterator[list[JavaKafka]]:
    """None where it cannot be had: the others go without it."""
    with ExitStack() as stack:
        try:
            found = [JavaKafka(stack.enter_context(kafka_tools(each))) for each in KAFKA_VERSIONS]
        except JvmUnavailable:
            found = []
        yield found


@pytest.fixture(scope="module")
def written(
    broker: LiveBroker, kafkajs: KafkaJs | None, kcat: Kcat | None, java: list[JavaKafka]
) -> dict[str, Written]:
    """Every client's topics."""
    clients = [*STOCK_CLIENTS, *(one for one in (kafkajs, kcat) if one is not None), *java]
    topics = {
        f"{release}-{client.name}-{kind}": (release, client, kind)
        for release in RELEASES
        for client in clients
        for kind in kinds(release)
        if understand(client.name, release)
    }
    admin = confluent_admin(broker.bootstrap)
    config = {"message.timestamp.type": "LogAppendTime"}
    created = admin.create_topics(
        [
            NewTopic(name, 1, config=config if kind == APPEND_TIME else {})
            for name, (_, _, kind) in topics.items()
        ]
    )
    for future in created.values():
        future.result(TIMEOUT_S)
    return {
        name: write(broker, name, release, client, kind, kafkajs)
        for name, (release, client, kind) in topics.items()
    }


def write(
    broker: LiveBroker,
    topic: str,
    release: str,
    client: StockClient,
    kind: str,
    kafkajs: KafkaJs | None,
) -> Written:
    """Let a client write a topic; what is to be read there."""
    codec = APPEND_TIME_CODEC if kind == APPEND_TIME else kind
    records = [record for record in the_records() if client.can_send(record)]
    before_ms = time.time_ns() // 1_000_000
    with as_old_as(broker, release):
        offsets = client.produce(broker.bootstrap, topic, records, codec=codec)
        if client is kafkajs:
            kafkajs.forget(broker.bootstrap)
    after_ms = time.time_ns() // 1_000_000
    expected = [StoredRecord(offset, record) for offset, record in enumerate(records)]
    if client.name == "kcat" or kind == APPEND_TIME:
        # The time is not the client's to say: it is what the first reader is told, within bounds.
        read = ConfluentKafka().read(broker.bootstrap, topic, len(records))
        times = [found.record.timestamp_ms for found in read]
        assert all(before_ms <= moment <= after_ms for moment in times), topic
        expected = [
            StoredRecord(offset, record._replace(timestamp_ms=moment))
            for (offset, record), moment in zip(expected, times, strict=True)
        ]
    if client.name != "kcat":
        assert offsets == list(range(len(records))), topic
    return Written(topic, client.name, kind, expected)


PROTOCOLS: Final = {
    "confluent-kafka": ("assign", "classic", "consumer"),
    "kafka-python": ("assign", "classic"),
    "aiokafka": ("assign", "classic"),
    "kafkajs": ("classic",),
    "kcat": ("assign", "classic"),
    **dict.fromkeys(JAVA, ("assign", "classic", "consumer")),
}
WAYS: Final = [
    pytest.param(
        *(client, protocol, release),
        marks=pytest.mark.exhaustive
        if release != OWN and protocol == "assign" and "classic" in protocols
        else (),
    )
    for client, protocols in PROTOCOLS.items()
    for protocol in protocols
    for release in RELEASES
    # The releases of the past had no groups of that protocol.
    if protocol != "consumer" or RELEASES[release] is None
    if understand(client, release)
]


@pytest.mark.parametrize(("client", "protocol", "release"), WAYS)
def test_a_client_reads_equal_what_every_client_wrote(
    broker: LiveBroker,
    kafkajs: KafkaJs | None,
    kcat: Kcat | None,
    java: list[JavaKafka],
    written: dict[str, Written],
    client: str,
    protocol: str,
    release: str,
) -> None:
    reader = reader_of(client, protocol, kafkajs, kcat, java)
    topics = {name: one for name, one in written.items() if one.kind in kinds(release)}
    with as_old_as(broker, release):
        if protocol == "consumer":
            assert serves(broker, CONSUMER_GROUP_HEARTBEAT)
        found = reader.read_all(
            broker.bootstrap, {name: len(one.records) for name, one in topics.items()}
        )
    for name, one in topics.items():
        expected = [StoredRecord(offset, reader.shows(record)) for offset, record in one.records]
        assert found[name] == expected, name


def reader_of(
    client: str, protocol: str, kafkajs: KafkaJs | None, kcat: Kcat | None, java: list[JavaKafka]
) -> Reader:
    """Skips where it is not there."""
    for reader in readers(kafkajs, kcat, java):
        if (reader.client, reader.protocol) == (client, protocol):
            return reader
    pytest.skip(f"{client} is not there")
