"""Stock producers with a transactional id: what they commit is read, what they abort is not.

And what administrators see of it, kafka-python's and Kafka's own tools.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from diskless.transactions.transaction_router import TransactionRouter
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.jvm import KafkaTools
from tests.support.clients.kafka_commands import KafkaCommands, table
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    AIOKafkaProducer,
    KafkaAdminClient,
    KafkaProducer,
    PythonTopicPartition,
    confluent_consumer,
    confluent_producer,
    create_topic,
    value_of,
)

pytestmark = pytest.mark.clients

SETTINGS: Final = {"wal.commit.interval.ms": "5", "group.initial.rebalance.delay.ms": "0"}
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Plan = Sequence[tuple[Sequence[bytes], bool]]
"""What each transaction writes, and whether it commits."""


def confluent_writes(bootstrap: str, name: str, topic: str, plan: Plan) -> None:
    producer = confluent_producer(bootstrap, transactional_id=name)
    producer.init_transactions(TIMEOUT_S)
    for values, is_commit in plan:
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        # Else what is aborted would not be sent at all.
        assert producer.flush(TIMEOUT_S) == 0
        if is_commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def kafka_python_writes(bootstrap: str, name: str, topic: str, plan: Plan) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)) as producer:
        producer.init_transactions()
        for values, is_commit in plan:
            producer.begin_transaction()
            sent = [
                producer.send(topic, value, partition=number % 2)
                for number, value in enumerate(values)
            ]
            for one in sent:
                one.get(TIMEOUT_S)
            if is_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def aiokafka_writes(bootstrap: str, name: str, topic: str, plan: Plan) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        try:
            for values, is_commit in plan:
                await producer.begin_transaction()
                for number, value in enumerate(values):
                    await producer.send_and_wait(topic, value, partition=number % 2)
                if is_commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(write())


def read(bootstrap: str, topic: str, isolation: str) -> Sequence[bytes]:
    """Both partitions to their ends; sorted."""
    consumer = confluent_consumer(
        bootstrap, isolation_level=isolation, enable_partition_eof=True, fetch_wait_max_ms=10
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(2)])
    found = []
    ends = 0
    while ends < 2:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, found
        error = message.error()
        if error is None:
            found.append(value_of(message))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ends += 1
    consumer.close()
    return sorted(found)


PLAN: Final[Plan] = [
    ([b"a0", b"a1", b"a2"], True),
    ([b"b0", b"b1", b"b2"], False),
    ([b"c0"], True),
    ([], True),
    ([b"d0", b"d1"], True),
]
ALL: Final = sorted(value for values, _ in PLAN for value in values)
KEPT: Final = sorted(value for values, is_commit in PLAN if is_commit for value in values)


@pytest.mark.parametrize("writes", [confluent_writes, kafka_python_writes, aiokafka_writes])
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    broker: LiveBroker,
    admin: AdminClient,
    topic: str,
    writes: Callable[[str, str, str, Plan], None],
) -> None:
    create_topic(admin, topic, 2)
    writes(broker.bootstrap, f"id-{topic}", topic, PLAN)
    assert read(broker.bootstrap, topic, COMMITTED) == KEPT
    assert read(broker.bootstrap, topic, UNCOMMITTED) == ALL


@contextmanager
def opened(broker: LiveBroker, topic: str, name: str) -> Iterator[Any]:
    """A producer with an open transaction, of three records in partition 0."""
    producer = confluent_producer(broker.bootstrap, transactional_id=name)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in (b"x", b"y", b"z"):
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    yield producer


def test_a_second_producer_fences_the_first_and_aborts_what_it_left_open(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2)
    name = f"id-{topic}"
    with opened(broker, topic, name) as first:
        assert read(broker.bootstrap, topic, COMMITTED) == []
        confluent_writes(broker.bootstrap, name, topic, [([b"second"], True)])
        with pytest.raises(KafkaException) as raised:
            first.commit_transaction(TIMEOUT_S)
        assert raised.value.args[0].fatal()
        assert raised.value.args[0].code() == KafkaError._FENCED
    assert read(broker.bootstrap, topic, COMMITTED) == [b"second"]


def test_administrators_see_what_is_open(
    broker: LiveBroker, admin: AdminClient, python_admin: KafkaAdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2)
    name, place = f"id-{topic}", PythonTopicPartition(topic, 0)

    def active() -> tuple[int, int]:
        (producer,) = python_admin.describe_producers([place])[place].active_producers
        return producer.current_transaction_start_offset, producer.coordinator_epoch

    with opened(broker, topic, name) as producer:
        assert active()[0] == 0
        found = python_admin.list_transactions(state_filters=["Ongoing"])
        (listed,) = [one for rows in found.values() for one in rows if one.transactional_id == name]
        described = python_admin.describe_transactions([name])[name]
        assert described.producer_id == listed.producer_id
        assert [*described.topic_partitions] == [place]
        producer.commit_transaction(TIMEOUT_S)
    until(lambda: active()[0] == -1, "the partition's end of the transaction")
    assert active()[1] >= 0


# -- Java


@pytest.mark.jvm
def test_a_java_producer_commits_aborts_and_is_fenced(
    tools: KafkaTools, broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2)
    finished = tools.run("ClientScenarios", "transactions", broker.bootstrap, topic)
    assert finished.status == 0, finished.stderr
    found: Mapping[str, str] = json.loads(finished.lines[-1])
    assert found == {
        "committed": "committed",
        "aborted": "aborted",
        "second": "committed",
        # With version 2 it is its batch that is refused, not its wish to add a partition.
        "first again": (
            "InvalidProducerEpochException" if tools.is_4 else "ProducerFencedException"
        ),
    }
    assert read(broker.bootstrap, topic, COMMITTED) == [b"committed", b"second"]
    assert read(broker.bootstrap, topic, UNCOMMITTED) == [b"aborted", b"committed", b"second"]


@pytest.mark.jvm
@pytest.mark.exhaustive
def test_kafkas_tool_lists_describes_and_finds_what_hangs(
    tools: KafkaTools, broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2)
    kafka, name = KafkaCommands(tools, broker.bootstrap), f"id-{topic}"
    place = ("--topic", topic, "--partition", "0")
    with opened(broker, topic, name) as producer:
        rows = table(kafka("TransactionsCommand", "list"))
        (row,) = [row for row in rows if row["TransactionalId"] == name]
        assert row["TransactionState"] == "Ongoing"
        (described,) = table(kafka("TransactionsCommand", "describe", "--transactional-id", name))
        assert described["TransactionState"] == "Ongoing"
        assert described["TopicPartitions"] == f"{topic}-0"
        (active,) = table(kafka("TransactionsCommand", "describe-producers", *place))
        assert active["CurrentTransactionStartOffset"] == "0"
        assert active["ProducerId"] == row["ProducerId"]
        # Its transaction is known to its coordinator, so it does not hang however long it takes.
        for where in (("--topic", topic), ("--broker-id", "0")):
            hanging = ("find-hanging", *where, "--max-transaction-timeout", "0")
            assert topic not in "\n".join(kafka("TransactionsCommand", *hanging).lines)
        # A marker is nothing that a client can write here.
        refused = kafka.refused("TransactionsCommand", "abort", *place, "--start-offset", "0")
        assert "Failed to abort transaction" in refused
        producer.commit_transaction(TIMEOUT_S)
    assert read(broker.bootstrap, topic, COMMITTED) == [b"x", b"y", b"z"]
    if tools.is_4:
        # What it has instead: whoever has the id is fenced, and what is open is aborted.
        with opened(broker, topic, name) as producer:
            ended = ("forceTerminateTransaction", "--transactionalId", name)
            kafka("TransactionsCommand", *ended)
            with pytest.raises(KafkaException) as raised:
                producer.commit_transaction(TIMEOUT_S)
            assert raised.value.args[0].code() == KafkaError._FENCED
        assert read(broker.bootstrap, topic, COMMITTED) == [b"x", b"y", b"z"]


@pytest.mark.jvm
@pytest.mark.exhaustive
def test_kafkas_tool_finds_an_open_transaction_that_no_coordinator_has(
    tools: KafkaTools,
    broker: LiveBroker,
    admin: AdminClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is none in this broker, so its coordinators are kept from showing theirs."""
    create_topic(admin, topic, 2)
    kafka, name = KafkaCommands(tools, broker.bootstrap), f"id-{topic}"
    find = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    with opened(broker, topic, name) as producer:
        (row,) = [
            row for row in table(kafka("TransactionsCommand", "list")) if name in row.values()
        ]
        monkeypatch.setattr(TransactionRouter, "list", lambda _: iter(()))
        (hanging,) = table(kafka("TransactionsCommand", *find))
        assert (hanging["Topic"], hanging["Partition"]) == (topic, "0")
        assert hanging["ProducerId"] == row["ProducerId"]
        assert hanging["StartOffset"] == "0"
        producer.abort_transaction(TIMEOUT_S)
    assert topic not in "\n".join(kafka("TransactionsCommand", *find).lines)
