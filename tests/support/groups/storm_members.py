"""Members of a group that join and leave in a storm, one class per client library."""

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaConnectionError as AioKafkaConnectionError
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.clients.stock_clients import (
    QUIET,
    TIMEOUT_S,
    KafkaConsumer,
    PythonTopicPartition,
)

with warnings.catch_warnings():
    # As in tests/support/clients/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener as PythonRebalanceListener
    from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRangeAssignor
    from kafka.errors import KafkaConnectionError as PythonConnectionError
    from kafka.errors import KafkaError as PythonKafkaError
    from kafka.structs import OffsetAndMetadata
from tests.support.groups.storm_ledger import SESSION_MS, Ledger

HEARTBEAT_MS: Final = 300
POLL_S: Final = 0.2
COMMIT_EVERY: Final = 50
"""Records that a member reads between two commits."""
NO_MEMBER_ANY_MORE: Final = ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")
"""What a member is told whose session has ended, be it while it gives partitions up."""


class StormMember(ABC):
    """One consumer in a thread, from `start` until `leave`."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        ledger: Ledger,
        *,
        session_timeout_ms: int = SESSION_MS,
    ) -> None:
        self.name = name
        self._session_timeout_ms = session_timeout_ms
        self.failure: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._ledger = ledger
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Ask it to; `join` waits."""
        self._leaving.set()

    def join(self) -> None:
        """Raises what it died of."""
        self._thread.join(TIMEOUT_S * 2)
        assert not self._thread.is_alive(), f"{self.name} does not leave"
        if self.failure is not None:
            raise self.failure

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as failure:
            self.failure = failure

    @abstractmethod
    def _run(self) -> None:
        """Read as a member of the group until `_leaving` is set."""


class ConfluentStormMember(StormMember):
    """librdkafka. It begins where its group has committed, so there is an offset of each partition.

    Were it to ask where a log begins, an answer that comes late, when it has given the partition up
    and has it again, would take it back there: librdkafka 2.16 asks once more instead of dropping
    such an answer. So it never asks, and an offset that the broker has not is an error, too.
    """

    def __init__(
        self, name: str, bootstrap: str, topic: str, ledger: Ledger, **settings: Any
    ) -> None:
        """`settings` of the client, `_` for `.`: what kind of member it is."""
        super().__init__(name, bootstrap, topic, ledger)
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}
        self._is_closing = False
        self._given_too_late: set[int] = set()

    def _run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "storm",
                "client.id": self.name,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "fetch.wait.max.ms": 200,
                "logger": QUIET,
                **self._settings,
            }
        )
        consumer.subscribe(
            [self._topic], on_assign=self._given, on_revoke=self._revoked, on_lost=self._lost
        )
        unsaved = 0
        try:
            while not self._leaving.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                        raise KafkaException(error)
                    continue
                self._ledger.read(
                    self.name,
                    message.partition() or 0,
                    message.offset() or 0,
                    message.value() or b"-1",
                )
                unsaved += 1
                if unsaved >= COMMIT_EVERY:
                    unsaved = 0
                    self._commit(consumer, [place.partition for place in consumer.assignment()])
        finally:
            self._is_closing = True
            consumer.close()
            self._ledger.gone(self.name)

    def _given(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = [place.partition for place in places]
        if self._is_closing:
            # It may be given something while it closes, reads none of it, and need not be told
            # when that ends.
            self._given_too_late.update(partitions)
        else:
            self._ledger.assigned(self.name, partitions)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = self._held(places)
        refusal = self._commit(consumer, partitions)
        self._ledger.ended(self.name, partitions, was_lost=refusal in NO_MEMBER_ANY_MORE)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._ledger.ended(self.name, self._held(places), was_lost=True)

    def _held(self, places: Sequence[TopicPartition]) -> list[int]:
        return [one.partition for one in places if one.partition not in self._given_too_late]

    def _commit(self, consumer: Consumer, partitions: Sequence[int]) -> str | None:
        """The name of the error with which the commit was refused, if it was."""
        positions = self._ledger.positions(self.name, partitions)
        if not positions:
            return None
        places = [TopicPartition(self._topic, *position) for position in positions.items()]
        try:
            answers = consumer.commit(offsets=places, asynchronous=False)
            errors = [place.error for place in answers if place.error is not None]
        except KafkaException as error:
            errors = [error.args[0]]
        if not errors:
            self._ledger.committed(self.name, positions)
            return None
        refusal: str = errors[0].name()
        self._ledger.refused(self.name, refusal)
        return refusal


class KafkaPythonStormMember(StormMember):
    """kafka-python."""

    def _run(self) -> None:
        while True:
            try:
                consumer = KafkaConsumer(
                    bootstrap_servers=self._bootstrap,
                    group_id="storm",
                    client_id=self.name,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    session_timeout_ms=self._session_timeout_ms,
                    heartbeat_interval_ms=HEARTBEAT_MS,
                    fetch_max_wait_ms=200,
                    partition_assignment_strategy=[PythonRangeAssignor],
                )
            except PythonKafkaError:
                if self._leaving.wait(POLL_S):
                    return
            else:
                break
        ledger, name, topic = self._ledger, self.name, self._topic
        mine: set[int] = set()
        is_closing = False

        def commit() -> None:
            positions = ledger.positions(name, mine)
            if not positions:
                return
            places = {
                PythonTopicPartition(topic, one): OffsetAndMetadata(at, "", -1)
                for one, at in positions.items()
            }
            try:
                consumer.commit(places)
            except PythonKafkaError as error:
                ledger.refused(name, type(error).__name__)
            else:
                ledger.committed(name, positions)

        class Listener(PythonRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: set[PythonTopicPartition]) -> None:
                # Nothing that blocks may be called from here, and so no commit.
                ended({place.partition for place in revoked})

            def on_partitions_lost(self, lost: set[PythonTopicPartition]) -> None:
                ended({place.partition for place in lost}, was_lost=True)

            def on_partitions_assigned(self, assigned: set[PythonTopicPartition]) -> None:
                if not is_closing:
                    given = {place.partition for place in assigned}
                    mine.update(given)
                    ledger.assigned(name, given)

        def ended(partitions: set[int], *, was_lost: bool = False) -> None:
            held = partitions & mine
            mine.difference_update(held)
            ledger.ended(name, held, was_lost=was_lost)

        consumer.subscribe([topic], listener=Listener())
        try:
            while not self._leaving.is_set():
                try:
                    found = consumer.poll(timeout_ms=int(POLL_S * 1000))
                except PythonConnectionError:
                    # While no broker answers, it says so instead of waiting.
                    self._leaving.wait(POLL_S)
                    continue
                for place, messages in found.items():
                    for message in messages:
                        ledger.read(name, place.partition, message.offset, message.value)
                commit()
        finally:
            is_closing = True
            consumer.close(autocommit=False)
            ended(set(mine))


class AioStormMember(StormMember):
    """aiokafka."""

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id="storm",
            client_id=self.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=200,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        ledger, name, topic = self._ledger, self.name, self._topic
        mine: set[int] = set()
        has_left = False

        async def commit() -> None:
            positions = ledger.positions(name, mine)
            if not positions:
                return
            places = {AioTopicPartition(topic, one): at for one, at in positions.items()}
            try:
                await consumer.commit(places)
            except AioKafkaError as error:
                ledger.refused(name, type(error).__name__)
            else:
                ledger.committed(name, positions)

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: set[AioTopicPartition]) -> None:
                if has_left:
                    return
                await commit()
                # It may have left meanwhile, and given up what it had.
                if not has_left:
                    mine.clear()
                    ledger.ended(name, [place.partition for place in revoked])

            async def on_partitions_assigned(self, assigned: set[AioTopicPartition]) -> None:
                if has_left:
                    return
                mine.update(place.partition for place in assigned)
                ledger.assigned(name, mine)

        async def read() -> None:
            unsaved = 0
            while True:
                found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                for place, messages in found.items():
                    # What it had fetched before the revocation may come after it.
                    if place.partition in mine:
                        for message in messages:
                            ledger.read(name, place.partition, message.offset, message.value)
                        unsaved += len(messages)
                if unsaved >= COMMIT_EVERY:
                    unsaved = 0
                    await commit()

        while True:
            try:
                await consumer.start()
            except AioKafkaConnectionError:
                # It gives up at once where the others try again: the broker is not there just now.
                if self._leaving.is_set():
                    await consumer.stop()
                    return
                await asyncio.sleep(POLL_S)
            else:
                break
        consumer.subscribe([topic], listener=Listener())
        # `getmany` waits for an assignment, however long that takes.
        reading = asyncio.create_task(read())
        leaving = asyncio.create_task(asyncio.to_thread(self._leaving.wait))
        try:
            await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
            reading.cancel()
            await asyncio.wait([reading])
            await commit()
            # From here on it reads nothing, though a rebalance may still give it something.
            has_left = True
            ledger.ended(name, mine)
        finally:
            self._leaving.set()
            await leaving
            await consumer.stop()
            ledger.gone(name)
