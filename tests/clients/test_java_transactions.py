"""Kafka's Java transactional producer: what it commits is read, what it aborts is not."""

import json
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import KafkaTools
from tests.support.clients.stock_clients import create_topic

pytestmark = [pytest.mark.clients, pytest.mark.jvm, pytest.mark.exhaustive]

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}

FENCED: Final = {"ProducerFencedException", "InvalidProducerEpochException"}


@pytest.fixture(autouse=True)
def _topic(topic: str, admin: AdminClient) -> None:
    create_topic(admin, topic, 2)


def scenario(tools: KafkaTools, name: str, broker: LiveBroker, topic: str) -> Any:
    """What the scenario says. What the client complains of is part of it."""
    finished = tools.run("TransactionScenarios", name, broker.bootstrap, topic)
    assert finished.status == 0, finished.stderr
    return json.loads(finished.lines[-1])


def test_readers_of_committed_records_see_no_others(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    committed = ["committed"] * 3 + ["committed again"] * 3
    everything = ["committed"] * 3 + ["aborted"] * 3 + ["committed again"] * 3
    assert scenario(tools, "ends", broker, topic) == {
        "read_committed": [committed, committed],
        "read_uncommitted": [[*everything, "open"], everything],
        "at last": [committed, committed],
    }


def test_offsets_are_committed_with_what_was_written_or_not_at_all(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    assert scenario(tools, "offsets", broker, topic) == [2, 2, ["out 0", "out 1"]]


def test_a_producer_that_was_replaced_is_told_at_whatever_it_does(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    told = scenario(tools, "fenced", broker, topic)
    assert told.pop("read") == ["of its successor"] * len(told)
    assert set(told.values()) <= FENCED


def test_a_transaction_that_is_open_too_long_is_aborted(
    tools: KafkaTools, broker: LiveBroker, topic: str
) -> None:
    told, read = scenario(tools, "timed out", broker, topic)
    assert told in {*FENCED, "InvalidTxnStateException"}
    assert read == []
