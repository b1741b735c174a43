"""A group's coordinator goes, another broker takes over, and the members go on as they were."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S
from tests.support.groups.group_members import (
    AioKafkaMember,
    ConfluentMember,
    ConsumerProtocolMember,
    KafkaPythonMember,
    Member,
    stop,
)

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "diskless.metadata.log": "object",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.coordinator.lease.ms": "5000",
    "diskless.metadata.follow.interval.ms": "50",
    "broker.session.timeout.ms": "5000",
    "wal.commit.interval.ms": "20",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.heartbeat.interval.ms": "200",
}
SESSION_MS: Final = 60_000
"""Longer than it takes another broker to find out that the leader is gone."""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Two brokers; the first leads all metadata partitions."""
    with ExitStack() as stack:
        brokers = []
        for node_id in (1, 2):
            work = tmp_path / f"work-{node_id}"
            work.mkdir()
            broker = BrokerProcess(
                tmp_path / f"data-{node_id}",
                work,
                {**SETTINGS, "node.id": str(node_id)},
                object_store=f"file://{tmp_path}/bucket",
            )
            brokers.append(stack.enter_context(broker))
            broker.start()
        yield brokers


def produce(broker: BrokerProcess, values: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "logger": QUIET})
    for value in values:
        producer.produce("t", str(value).encode(), partition=value % 4)
    assert producer.flush(TIMEOUT_S) == 0


def values(*members: Member) -> list[int]:
    return sorted(int(value) for member in members for value in member.read)


def coordinator(broker: BrokerProcess) -> int:
    """The node id of the group's coordinator, as clients of this broker are told."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
    return int(admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S).coordinator.id)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param(
            kind,
            how,
            id=f"{kind.__name__}-{how}",
            # Each kind in one way: what a broker does is the same for all of a protocol.
            marks=() if how == first_way else pytest.mark.exhaustive,
        )
        for kind, first_way in {
            ConfluentMember: "kill",
            ConsumerProtocolMember: "kill",
            KafkaPythonMember: "stop",
            AioKafkaMember: "stop",
        }.items()
        for how in ("stop", "kill")
    ],
)
def test_members_go_on_when_their_coordinator_is_gone(
    brokers: list[BrokerProcess], kind: Any, how: str
) -> None:
    first, second = brokers
    members: list[Member] = []
    # Of KIP-848 members the broker says how long; it is longer than this by default.
    times = {} if kind is ConsumerProtocolMember else {"session_timeout_ms": SESSION_MS}

    def start(bootstrap: str) -> Member:
        members.append(kind(bootstrap, "g", "t", **times))
        return members[-1]

    try:
        produce(first, range(40))
        group = [start(f"{first.bootstrap},{second.bootstrap}") for _ in range(2)]
        until(lambda: {*values(*group)} == {*range(40)}, "the first records")
        until(lambda: all(len(member.assigned) == 2 for member in group), "a fair share for both")
        assert coordinator(second) == 1
        before = [(member.rebalances, member.assigned) for member in group]
        getattr(first, how)()
        produce(second, range(40, 80))
        until(lambda: {*values(*group)} == {*range(80)}, "the later records")
        assert [(member.rebalances, member.assigned) for member in group] == before
        # Committing and leaving are the new coordinator's business.
        stop(*group)
        assert coordinator(second) == 2
        produce(second, range(80, 84))
        heir = start(second.bootstrap)
        until(lambda: len(heir.read) >= 4, "what nobody has read")
        stop(heir)
        assert values(heir) == [*range(80, 84)]
    finally:
        for member in members:
            member.abandon()
