"""Members of consumer groups: each stock client in a thread of its own, behind one face.

A member subscribes, polls until it is told to leave, and says what it has and what it read. It
commits only when it is told to.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import (
    QUIET,
    TIMEOUT_S,
    KafkaConsumer,
    RebalanceInProgressError,
)

TIMES: Final = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 200}


class Member:
    """One consumer of a group, polling in a thread from the start."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        """`settings` are of the client, `_` for `.` in their names."""
        self.read: list[bytes] = []
        self.rebalances = 0
        """How often it was given partitions, where the client tells."""
        self._assigned: set[int] = set()
        self._settings = settings
        self._leaving = threading.Event()
        self._must_commit = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, args=(bootstrap, group, topic))
        self._thread.start()

    @property
    def assigned(self) -> set[int]:
        """Partitions it has now. Raises what it died of, if it did."""
        if self._failure is not None:
            raise self._failure
        return self._assigned

    def commit(self) -> None:
        """Commit what was read. Raises what it died of."""
        self._must_commit.set()
        until(lambda: not self._must_commit.is_set() or self._failure is not None, "the commit")

    def leave(self) -> None:
        """Leave the group, and end. Raises what it died of."""
        self.abandon()
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """End, whatever state it is in; for the end of a test that failed."""
        self._leaving.set()
        self._thread.join(TIMEOUT_S)

    def _guarded(self, *where: str) -> None:
        try:
            self._run(*where)
        except BaseException as failure:
            self._failure = failure
        self._assigned = set()

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        raise NotImplementedError


def stop(*members: Member) -> None:
    """All commit, then all leave: a commit in the rebalance after a departure would be refused."""
    for member in members:
        member.commit()
    for member in members:
        member.leave()


class ConfluentMember(Member):
    """librdkafka."""

    times: ClassVar[dict[str, int]] = TIMES
    extra: ClassVar[dict[str, Any]] = {}

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {name.replace("_", "."): value for name, value in self._settings.items()}
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "logger": QUIET,
                **{name.replace("_", "."): value for name, value in self.times.items()},
                **self.extra,
                **settings,
            }
        )
        consumer.subscribe([topic], on_assign=self._count)
        try:
            while not self._leaving.is_set():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self.read.append(message.value() or b"")
                self._assigned = {place.partition for place in consumer.assignment()}
                if self._must_commit.is_set() and self._commits(consumer):
                    self._must_commit.clear()
        finally:
            consumer.close()

    def _count(self, *_: object) -> None:
        self.rebalances += 1

    def _commits(self, consumer: Consumer) -> bool:
        """Whether it is committed; in a rebalance it is refused, and to be repeated after it."""
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            name = error.args[0].name()
            if name in ("ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"):
                return False
            if name != "_NO_OFFSET":
                raise
        return True


class CooperativeMember(ConfluentMember):
    """librdkafka with incremental rebalances."""

    extra: ClassVar[dict[str, Any]] = {"partition.assignment.strategy": "cooperative-sticky"}


class ConsumerProtocolMember(ConfluentMember):
    """librdkafka with KIP-848, where the broker says how often and how long."""

    times: ClassVar[dict[str, int]] = {}
    extra: ClassVar[dict[str, Any]] = {"group.protocol": "consumer"}


class KafkaPythonMember(Member):
    """kafka-python."""

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **{**TIMES, **self._settings},
        )
        try:
            while not self._leaving.is_set():
                for messages in consumer.poll(timeout_ms=50).values():
                    self.read += [message.value for message in messages]
                self._assigned = {place.partition for place in consumer.assignment()}
                if self._must_commit.is_set():
                    try:
                        consumer.commit()
                    except RebalanceInProgressError:
                        continue  # it is about to join again, and commits then
                    self._must_commit.clear()
        finally:
            consumer.close(autocommit=False)


class AioKafkaMember(Member):
    """aiokafka."""

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        asyncio.run(self._consume(bootstrap, group, topic))

    async def _consume(self, bootstrap: str, group: str, topic: str) -> None:
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **{**TIMES, **self._settings},
        ) as consumer:
            while not self._leaving.is_set():
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    self.read += [message.value for message in messages]
                self._assigned = {place.partition for place in consumer.assignment()}
                if self._must_commit.is_set():
                    await consumer.commit()
                    self._must_commit.clear()


StartMember = Callable[..., Member]
MEMBERS: Final[list[StartMember]] = [
    ConfluentMember,
    CooperativeMember,
    KafkaPythonMember,
    AioKafkaMember,
]


class Group(list[Member]):
    """The members that a test has started."""

    def start(
        self,
        broker: LiveBroker,
        topic: str,
        kind: StartMember = ConsumerProtocolMember,
        *,
        group: str = "g",
        **more: Any,
    ) -> Member:
        member = kind(broker.bootstrap, group, topic, **more)
        self.append(member)
        return member

    def abandon(self) -> None:
        for member in self:
            member.abandon()


def produce(broker: LiveBroker, topic: str, values: range) -> None:
    """Numbers, each to the partition that it is modulo four."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "logger": QUIET})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % 4)
    assert producer.flush(TIMEOUT_S) == 0


def values(*members: Member) -> list[int]:
    """What they have read."""
    return sorted(int(value) for member in members for value in member.read)
