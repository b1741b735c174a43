"""Kafka's Java producer, consumer and admin client, of both lines in use, against a whole broker.

What Kafka's own tools show already is in test_java_tools; this is what they do not. Skipped where
Java, its compiler or Maven are missing, or the jars cannot be had.
"""

import itertools
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.java_client import JavaKafka, scenario
from tests.support.clients.jvm import KafkaTools
from tests.support.clients.kafka_commands import check_quiet
from tests.support.clients.stock_clients import (
    CODECS,
    STOCK_CLIENTS,
    ConfluentKafka,
    Record,
    StoredRecord,
    create_topic,
)

pytestmark = [pytest.mark.clients, pytest.mark.jvm]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.session.timeout.ms": "20000",
}

each_protocol = pytest.mark.parametrize("protocol", ["classic", "consumer"])

COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


@pytest.fixture
def client(tools: KafkaTools) -> JavaKafka:
    return JavaKafka(tools)


# Records


def samples() -> list[Record]:
    early = 1_600_000_000_123
    return [
        Record(),
        Record(key=b"", value=b""),
        Record(key=b"a key", value=None),
        Record(key=None, value=None),
        Record(headers=(("same", b"1"), ("same", b"2"), ("other", b"x"), ("same", b"1"))),
        Record(headers=(("empty", b""), ("", b"no name"))),
        Record(headers=(("null", None),)),
        Record(value=bytes(range(256)) * 40, timestamp_ms=early + 5),
        Record(value="ünïcödé \N{HOT BEVERAGE}".encode(), timestamp_ms=1),
        *(Record(str(n).encode(), b"x" * n, timestamp_ms=early + n % 7) for n in range(100)),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_java_writes_every_client_reads_equal(
    broker: LiveBroker, topic: str, client: JavaKafka, codec: str
) -> None:
    sent = samples()
    offsets = client.produce(broker.bootstrap, topic, sent, codec=codec, idempotent=True)
    assert offsets == list(range(len(sent)))
    expected = [StoredRecord(offset, record) for offset, record in enumerate(sent)]
    for reader in (client, *STOCK_CLIENTS):
        assert reader.read(broker.bootstrap, topic, len(sent)) == expected, reader.name


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_equal_what_every_client_writes(
    broker: LiveBroker, topic: str, client: JavaKafka, codec: str
) -> None:
    for partition, writer in enumerate(STOCK_CLIENTS):
        sent = [record for record in samples() if writer.can_send(record)]
        writer.produce(broker.bootstrap, topic, sent, codec=codec, partition=partition)
        expected = [StoredRecord(offset, record) for offset, record in enumerate(sent)]
        read = client.read(broker.bootstrap, topic, len(sent), partition=partition)
        assert read == expected, writer.name


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_stores_the_records_in_order(
    broker: LiveBroker, topic: str, client: JavaKafka, admin: AdminClient, acks: int
) -> None:
    create_topic(admin, topic)
    sent = [Record(value=str(number).encode()) for number in range(500)]
    offsets = client.produce(broker.bootstrap, topic, sent, acks=acks)
    assert acks == 0 or offsets == list(range(500))
    assert [record for _, record in client.read(broker.bootstrap, topic, 500)] == sent


def test_read_committed_and_small_fetches_read_the_same(
    broker: LiveBroker, topic: str, client: JavaKafka
) -> None:
    sent = [Record(value=bytes([number % 256]) * 3000) for number in range(200)]
    client.produce(broker.bootstrap, topic, sent, codec="lz4")
    small = {"max_partition_fetch_bytes": "1000", "fetch_max_bytes": "1000"}
    read = client.read(broker.bootstrap, topic, 200, isolation_level="read_committed", **small)
    assert [record for _, record in read] == sent


def test_offsets_are_found_by_position_and_time(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 2)
    times = [1000, 3000, 2000, 5000, 4000]
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(timestamp_ms=t) for t in times])
    found = scenario(tools, "positions", broker.bootstrap, topic, "0", "0", "2001", "5001")
    assert found == {
        "beginning": 0,
        "end": 5,
        "times": [[0, 1000, 0], [1, 3000, 0], None],
        "position at the end": 5,
        "position at the beginning": 0,
        "reset": True,
        "partitions": [0, 1],
    }


def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 2)
    for partition, count in ((0, 100), (1, 50)):
        ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * count, partition=partition)
    found = scenario(tools, "pause", broker.bootstrap, topic)
    assert found == {"while paused": {"0": 100}, "when resumed": {"0": 100, "1": 50}}


def test_a_consumer_of_many_partitions_reads_each_record_once_whatever_it_pauses_or_gives_up(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 200)
    assert scenario(tools, "sessions", broker.bootstrap, topic, "200") == [
        [200, [1]],
        [100, [1]],  # half of them paused
        [100, [1]],  # and resumed
        [100, [1]],  # half of them given up
        [100, [1]],  # and taken back
        [3],
    ]


def test_a_producer_and_a_consumer_go_on_with_a_topic_that_is_created_again(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    finished = tools.run("ClientScenarios", "recreated", broker.bootstrap, topic)
    assert finished.status == 0, finished.stderr
    assert json.loads(finished.lines[-1]) == [[20, 20], [10, 10], [5, 5]]


def test_a_refused_record_has_its_own_exception_and_the_producer_goes_on(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, max_message_bytes="2000")
    finished = tools.run("ClientScenarios", "refusals", broker.bootstrap, topic)
    assert finished.status == 0, finished.stderr
    assert json.loads(finished.lines[-1]) == {
        "too large": "RecordTooLargeException",
        "in between": "written at 0",
        "bad name": "InvalidTopicException",
        "no such partition": "TimeoutException",
        "far future": "InvalidTimestampException",
        "after all": "written at 1",
    }


# Groups


@each_protocol
def test_offsets_are_committed_with_their_metadata(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient, protocol: str
) -> None:
    create_topic(admin, topic, 2)
    ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 10)
    arguments = ("commits", broker.bootstrap, f"group-{topic}", topic)
    finished = tools.run("ClientScenarios", *arguments, f"group.protocol={protocol}")
    assert finished.status == 0, finished.stderr
    found = json.loads(finished.lines[-1])
    assert found == {
        "synchronous": [4, "four", 0],
        "asynchronous": ["done", [6, "six", -1]],
        "too much metadata": "OffsetMetadataTooLarge",
        "nobody's": None,
        "goes on at": 6,
        "without membership": [9, "", -1],
    }


@each_protocol
def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient, protocol: str
) -> None:
    create_topic(admin, topic, 4)
    arguments = ("static", broker.bootstrap, f"group-{topic}", topic)
    finished = tools.run("ClientScenarios", *arguments, f"group.protocol={protocol}")
    assert finished.status == 0, finished.stderr
    found = json.loads(finished.lines[-1])
    assert found["same partitions"]
    assert found["generation after the return"] == found["generation"]
    assert found["first was not disturbed"]
    fenced = {
        "classic": "holder: FencedInstanceIdException",
        "consumer": "other: UnreleasedInstanceIdException",
    }
    assert found["another of the same name"] == fenced[protocol]


@each_protocol
def test_cooperative_members_give_up_only_what_others_get(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient, protocol: str
) -> None:
    create_topic(admin, topic, 4)
    for partition in range(4):
        ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 20, partition=partition)
    settings = {"group_protocol": protocol}
    if protocol == "classic":
        settings["partition_assignment_strategy"] = COOPERATIVE
    found = scenario(tools, "cooperative", broker.bootstrap, f"g-{topic}", topic, **settings)
    first, second = found["first"], found["second"]
    # Java tells of an empty assignment too, before it has found out the names of the topics.
    at_first, *later = [places for places in first["assigned"] if places]
    assert at_first == [0, 1, 2, 3]
    (given,) = [places for places in first["revoked"] if places]
    assert len(given) == 2
    assert second["owned"] == given
    assert first["lost"] == second["lost"] == []
    assert sorted(itertools.chain(*later)) == given


@each_protocol
def test_a_pattern_finds_topics_that_come_later(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient, protocol: str
) -> None:
    create_topic(admin, f"{topic}-a")
    create_topic(admin, f"other-{topic}")
    arguments = (f"group-{topic}", f"{topic}-.*", "2")
    with tools.start(
        *("ClientScenarios", "pattern", broker.bootstrap, *arguments),
        f"group.protocol={protocol}",
    ) as member:
        create_topic(admin, f"{topic}-b")
        finished = member.finish()
    assert finished.status == 0, finished.stderr
    check_quiet(finished.stderr)
    assert json.loads(finished.lines[-1]) == [f"{topic}-a", f"{topic}-b"]


def test_the_broker_finds_the_topics_of_a_pattern_that_come_later(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    if not tools.is_4:
        pytest.skip("the clients of 3.9 look at patterns themselves")
    create_topic(admin, f"{topic}-a", 2)
    create_topic(admin, f"other-{topic}")
    arguments = (f"group-{topic}", f"{topic}-[a-z]+", "2")
    settings = ("group.protocol=consumer", "group.remote.assignor=range")
    with tools.start(
        *("ClientScenarios", "broker's pattern", broker.bootstrap, *arguments, *settings)
    ) as member:
        create_topic(admin, f"{topic}-b")
        finished = member.finish()
    assert finished.status == 0, finished.stderr
    check_quiet(finished.stderr)
    assert json.loads(finished.lines[-1]) == [f"{topic}-a", f"{topic}-b"]


def test_a_group_goes_over_to_the_new_protocol_and_back_member_by_member(
    tools: KafkaTools, broker: LiveBroker, topic: str, admin: AdminClient
) -> None:
    create_topic(admin, topic, 4)
    steps = scenario(tools, "migration", broker.bootstrap, f"group-{topic}", topic)
    assert steps == [
        ["classic", 1, "Classic"],
        ["classic", 2, "Classic"],
        ["consumer", 2, "Consumer"],
        ["consumer", 2, "Consumer"],
        ["classic", 2, "Consumer"],
        ["classic", 2, "Classic"],
    ]


@each_protocol
def test_a_producer_and_a_member_go_on_when_the_broker_comes_back(
    tools: KafkaTools, topic: str, tmp_path: Path, protocol: str
) -> None:
    """The second half is sent while there is no broker, for less than a session lasts."""
    arguments = [f"group-{topic}", topic, "400", f"group.protocol={protocol}"]
    if protocol == "classic":
        arguments.append("session.timeout.ms=60000")
    settings = {**SETTINGS, "group.consumer.session.timeout.ms": "60000"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        port = broker.port
        with tools.start("ClientScenarios", "through", broker.bootstrap, *arguments) as process:
            process.wait_for(lambda line: line == '"half"')
            broker.stop()
            process.write("\n")
            with LiveBroker(tmp_path / "data", settings, port=port):
                finished = process.finish()
    assert finished.status == 0, finished.stderr
    assert json.loads(finished.lines[-1]) == {
        "acknowledged places": 400,
        "read": 400,
        "read places": 400,
    }


def test_a_producer_and_a_member_go_on_at_another_broker_when_theirs_is_killed(
    tools: KafkaTools, topic: str, tmp_path: Path
) -> None:
    """It was the group's coordinator and the leader of all metadata as well."""
    settings = {
        **SETTINGS,
        "diskless.metadata.log": "object",
        "diskless.coordinator.lease.ms": "5000",
        "diskless.metadata.follow.interval.ms": "50",
        "broker.session.timeout.ms": "5000",
        "group.consumer.session.timeout.ms": "60000",
    }
    with ExitStack() as stack:
        brokers = []
        for node_id in (1, 2):
            (work := tmp_path / f"work-{node_id}").mkdir()
            broker = BrokerProcess(
                tmp_path / f"data-{node_id}",
                work,
                {**settings, "node.id": str(node_id)},
                object_store=f"file://{tmp_path}/bucket",
            )
            brokers.append(stack.enter_context(broker))
            broker.start()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        protocol = ("consumer",) if tools.is_4 else ("classic", "session.timeout.ms=60000")
        process = stack.enter_context(
            tools.start(
                *("ClientScenarios", "through", bootstrap, f"group-{topic}", topic, "400"),
                *(f"group.protocol={protocol[0]}", *protocol[1:]),
            )
        )
        process.wait_for(lambda line: line == '"half"')
        brokers[0].kill()
        process.write("\n")
        finished = process.finish()
    assert finished.status == 0, finished.stderr
    found = json.loads(finished.lines[-1])
    assert (found["acknowledged places"], found["read places"]) == (400, 400)
