"""Consumer groups through stock clients: sharing, rebalancing, committing, going on where one was.

Each client library is a `Member` behind one face; it subscribes, polls in its own thread until it
is told to stop, leaves or vanishes, and says what it has and what it read.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support.live_broker import LiveBroker, until
from tests.support.stock_clients import QUIET, TIMEOUT_S, KafkaConsumer

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
}
SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 200

_names = itertools.count()


class Member(Protocol):
    """One consumer of a group, polling in a thread of its own."""

    assigned: set[int]
    """Partitions it has now."""
    read: list[bytes]

    def stop(self) -> None:
        """Commit what was read, leave the group, and end."""
        ...


class _Threaded:
    """What the members have in common: a thread, and the reason if it died."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.assigned: set[int] = set()
        self.read: list[bytes] = []
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, args=(bootstrap, group, topic))
        self._thread.start()

    def _guarded(self, *where: str) -> None:
        try:
            self._run(*where)
        except BaseException as failure:
            self._failure = failure

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure


class ConfluentMember(_Threaded):
    """librdkafka."""

    extra: ClassVar[dict[str, Any]] = {}

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "logger": QUIET,
                **self.extra,
            }
        )
        consumer.subscribe([topic])
        while not self._stopping.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.read.append(message.value() or b"")
            self.assigned = {place.partition for place in consumer.assignment()}
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() != "_NO_OFFSET":
                raise
        consumer.close()
        self.assigned = set()


class CooperativeMember(ConfluentMember):
    """librdkafka with incremental rebalances."""

    extra: ClassVar[dict[str, Any]] = {"partition.assignment.strategy": "cooperative-sticky"}


class KafkaPythonMember(_Threaded):
    """kafka-python."""

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        while not self._stopping.is_set():
            for messages in consumer.poll(timeout_ms=50).values():
                self.read += [message.value for message in messages]
            self.assigned = {place.partition for place in consumer.assignment()}
        consumer.commit()
        consumer.close(autocommit=False)
        self.assigned = set()


class AioKafkaMember(_Threaded):
    """aiokafka."""

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        asyncio.run(self._consume(bootstrap, group, topic))

    async def _consume(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        await consumer.start()
        while not self._stopping.is_set():
            for messages in (await consumer.getmany(timeout_ms=50)).values():
                self.read += [message.value for message in messages]
            self.assigned = {place.partition for place in consumer.assignment()}
        await consumer.commit()
        await consumer.stop()
        self.assigned = set()


StartMember = Callable[[str, str, str], Member]
MEMBERS: Final[list[StartMember]] = [
    ConfluentMember,
    CooperativeMember,
    KafkaPythonMember,
    AioKafkaMember,
]

each_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda kind: kind.__name__)


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"


@pytest.fixture(params=["1", "3"], ids=["1 coordinator", "3 coordinators"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**SETTINGS, "diskless.metadata.topic.num.partitions": request.param}


@pytest.fixture
def broker(tmp_path: Path, settings: dict[str, str]) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


def produce(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "logger": QUIET})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % 4)
    assert producer.flush(TIMEOUT_S) == 0


def values(*members: Member) -> list[int]:
    return sorted(int(value) for member in members for value in member.read)


@each_member
def test_a_group_goes_on_where_it_was_after_the_broker_restarted(
    tmp_path: Path, settings: dict[str, str], topic: str, member: StartMember
) -> None:
    with LiveBroker(tmp_path / "data", settings) as broker:
        produce(broker.bootstrap, topic, range(100))
        first = member(broker.bootstrap, "readers", topic)
        until(lambda: len(first.read) == 100, "all records")
        first.stop()
    with LiveBroker(tmp_path / "data", settings) as broker:
        produce(broker.bootstrap, topic, range(100, 120))
        second = member(broker.bootstrap, "readers", topic)
        until(lambda: len(second.read) == 20, "the new records")
        second.stop()
    assert values(first) == [*range(100)]
    assert values(second) == [*range(100, 120)]


@each_member
def test_two_members_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    broker: LiveBroker, topic: str, member: StartMember
) -> None:
    produce(broker.bootstrap, topic, range(4))
    first = member(broker.bootstrap, "readers", topic)
    until(lambda: first.assigned == {0, 1, 2, 3}, "the only member to have all partitions")
    second = member(broker.bootstrap, "readers", topic)
    until(
        lambda: (
            len(first.assigned) == len(second.assigned) == 2
            and first.assigned | second.assigned == {0, 1, 2, 3}
        ),
        "two members to share the partitions",
    )
    first.stop()
    until(lambda: second.assigned == {0, 1, 2, 3}, "the one who stayed to have all partitions")
    second.stop()
