"""Members of one group that join and leave at random, and a ledger of what each had and read when.

The ledger is written by the members' own callbacks: a partition is a member's from the moment its
client says so until the callback of its revocation has ended. From these intervals `Ledger` finds
out whether a partition ever had two owners, whether anything was delivered twice or left out within
one interval, and whether an owner went on where the one before it had stopped.

A client may be told too late that it has lost its partitions: the broker gives them to others when
the member's session has ended, which is while the client cannot hear it. Intervals that end so
count as ended one session earlier.
"""

import asyncio
import math
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaConnectionError as AioKafkaConnectionError
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.stock_clients import QUIET, TIMEOUT_S, KafkaConsumer, PythonTopicPartition

with warnings.catch_warnings():
    # As in tests/support/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener as PythonRebalanceListener
    from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRangeAssignor
    from kafka.errors import KafkaConnectionError as PythonConnectionError
    from kafka.errors import KafkaError as PythonKafkaError
    from kafka.structs import OffsetAndMetadata

__all__ = [
    "AioStormMember",
    "ConfluentStormMember",
    "KafkaPythonStormMember",
    "Ledger",
    "Storm",
    "StormMember",
    "Writer",
]

SESSION_MS: Final = 6_000
CALM_SESSION_MS: Final = 60_000
"""Where every member that ends leaves: fifty of them share a machine that may be busy."""
HEARTBEAT_MS: Final = 300
POLL_S: Final = 0.2
COMMIT_EVERY: Final = 50
"""Records that a member reads between two commits."""

SHORTEST_PAUSE_S: Final = 0.02
MEAN_PAUSE_S: Final = 0.4
MISSING_MAX: Final = 15
"""So many members are missing at most."""
RATE: Final = 400
"""Records a second that are written."""


@dataclass(slots=True, eq=False)
class Tenure:
    """One member's time with one partition."""

    member: str
    partition: int
    began: float
    ended: float | None = None
    was_lost: bool = False
    first: int | None = None
    """The first offset it read."""
    next_offset: int | None = None
    """What it would read next."""
    committed: int | None = None

    @property
    def surely_ended(self) -> float:
        """When others may have the partition."""
        if self.ended is None:
            return math.inf
        return self.ended - (SESSION_MS / 1000 if self.was_lost else 0)


@dataclass(slots=True)
class Ledger:
    """What all members say. Its methods may be called from any thread."""

    tenures: dict[int, list[Tenure]] = field(default_factory=dict)
    """By partition, in the order in which they began."""
    delivered: dict[int, set[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What was wrong the moment it happened."""
    refused_commits: list[str] = field(default_factory=list)
    _open: dict[tuple[str, int], Tenure] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                if (member, partition) in self._open:
                    self.faults.append(f"{member} was given {partition} while it had it")
                tenure = Tenure(member, partition, now)
                self._open[member, partition] = tenure
                self.tenures.setdefault(partition, []).append(tenure)

    def ended(self, member: str, partitions: Iterable[int], *, was_lost: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                tenure = self._open.pop((member, partition), None)
                if tenure is None:
                    self.faults.append(f"{member} gave up {partition}, which it did not have")
                else:
                    tenure.ended = now
                    tenure.was_lost = was_lost

    def read(self, member: str, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            tenure = self._open.get((member, partition))
            if tenure is None:
                self.faults.append(f"{member} read {partition}@{offset} without having it")
                return
            if tenure.next_offset is None:
                tenure.first = offset
            elif offset != tenure.next_offset:
                self.faults.append(
                    f"{member} read {partition}@{offset} where {tenure.next_offset} was next"
                )
            tenure.next_offset = offset + 1
            if int(value) != offset:
                self.faults.append(f"{partition}@{offset} is number {int(value)} that was sent")
            self.delivered.setdefault(partition, set()).add(offset)

    def positions(self, member: str, partitions: Iterable[int]) -> dict[int, int]:
        """What a member should commit: where it has read to, and has not committed."""
        with self._lock:
            return {
                partition: tenure.next_offset
                for partition in partitions
                if (tenure := self._open.get((member, partition))) is not None
                and tenure.next_offset is not None
                and tenure.next_offset != tenure.committed
            }

    def committed(self, member: str, positions: Mapping[int, int]) -> None:
        with self._lock:
            for partition, position in positions.items():
                tenure = self._open.get((member, partition))
                if tenure is not None:
                    tenure.committed = position

    def refused(self, member: str, why: object) -> None:
        with self._lock:
            self.refused_commits.append(f"{member}: {why}")

    def gone(self, member: str) -> None:
        """It will say nothing more."""
        with self._lock:
            left = [partition for owner, partition in self._open if owner == member]
            if left:
                self.faults.append(f"{member} is gone and did not give up {left}")

    def owners(self) -> dict[int, list[str]]:
        """Who has which partition now."""
        with self._lock:
            found: dict[int, list[str]] = {}
            for member, partition in self._open:
                found.setdefault(partition, []).append(member)
            return found

    def delivered_count(self) -> int:
        with self._lock:
            return sum(map(len, self.delivered.values()))

    def overlaps(self) -> list[str]:
        """Times at which a partition had two owners. To be asked when all members have left."""
        found = []
        for partition, tenures in self.tenures.items():
            by_start = sorted(tenures, key=lambda one: one.began)
            latest = by_start[0]
            for following in by_start[1:]:
                if following.began < latest.surely_ended:
                    found.append(
                        f"{partition}: {following.member} had it "
                        f"{latest.surely_ended - following.began:.3f} s before "
                        f"{latest.member} had given it up"
                    )
                if following.surely_ended > latest.surely_ended:
                    latest = following
        return found

    def leaps(self) -> list[str]:
        """Owners that began behind what had been read by all before them: records left out."""
        found = []
        for partition, tenures in self.tenures.items():
            reached = 0
            for tenure in tenures:
                if tenure.first is None or tenure.next_offset is None:
                    continue
                if tenure.first > reached:
                    found.append(
                        f"{partition}: {tenure.member} began at {tenure.first}, not {reached}"
                    )
                reached = max(reached, tenure.next_offset)
        return found

    def repeats(self) -> list[str]:
        """Owners that began before what the one before them had committed."""
        found = []
        for partition, tenures in self.tenures.items():
            committed = 0
            for tenure in tenures:
                if tenure.first is not None and tenure.first < committed:
                    found.append(
                        f"{partition}: {tenure.member} began at {tenure.first} though "
                        f"{committed} was committed"
                    )
                if tenure.committed is not None:
                    committed = max(committed, tenure.committed)
        return found

    def rebalances(self) -> int:
        """How often a partition was given to somebody."""
        return sum(map(len, self.tenures.values()))


class StormMember:
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

    def _run(self) -> None:
        raise NotImplementedError


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
        self._commit(consumer, partitions)
        self._ledger.ended(self.name, partitions)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._ledger.ended(self.name, self._held(places), was_lost=True)

    def _held(self, places: Sequence[TopicPartition]) -> list[int]:
        return [one.partition for one in places if one.partition not in self._given_too_late]

    def _commit(self, consumer: Consumer, partitions: Sequence[int]) -> None:
        positions = self._ledger.positions(self.name, partitions)
        if not positions:
            return
        places = [TopicPartition(self._topic, *position) for position in positions.items()]
        try:
            answers = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            self._ledger.refused(self.name, error.args[0].name())
            return
        refused = [place.error for place in answers if place.error is not None]
        if refused:
            self._ledger.refused(self.name, refused[0].name())
        else:
            self._ledger.committed(self.name, positions)


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


class Writer:
    """Numbers the records of every partition from 0 on, in a thread, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acknowledged: dict[int, set[int]] = {one: set() for one in range(partitions)}
        self.failures: list[str] = []
        self._topic = topic
        self._next = dict.fromkeys(range(partitions), 0)
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "reconnect.backoff.max.ms": 500,
                "logger": QUIET,
            }
        )
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """All is acknowledged after this."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not self.failures, self.failures[:5]

    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def _run(self) -> None:
        rng = random.Random(1)
        while not self._stopping.wait(1 / 20):
            for _ in range(RATE // 20):
                partition = rng.randrange(len(self._next))
                number = self._next[partition]
                self._next[partition] = number + 1
                self._producer.produce(
                    self._topic,
                    str(number).encode(),
                    partition=partition,
                    on_delivery=self._delivered(partition),
                )
            self._producer.poll(0)

    def _delivered(self, partition: int) -> Callable[[KafkaError | None, Any], None]:
        def store(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.failures.append(error.name())
            else:
                self.acknowledged[partition].add(message.offset())

        return store


Start = Callable[[str], StormMember]


class Storm:
    """Up to `size` members at once, each place of which is empty or taken at random."""

    def __init__(self, start: Start, size: int, rng: random.Random) -> None:
        """`start` makes a member of that name."""
        self._start = start
        self._places: list[StormMember | None] = [None] * size
        self._gone: list[StormMember] = []
        self._rng = rng
        self._names = 0
        self.joins = 0
        self.leaves = 0

    @property
    def members(self) -> list[StormMember]:
        return [member for member in self._places if member is not None]

    def fill(self) -> None:
        """Somebody in every place."""
        for place, member in enumerate(self._places):
            if member is None:
                self._join(place)

    def rage(self, seconds: float) -> None:
        """Members come and go, at times many at once. Fails as soon as one of them dies."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            for _ in range(self._rng.choice((1, 1, 1, 2, 5))):
                empty = [place for place, member in enumerate(self._places) if member is None]
                # The more are missing, the likelier that somebody comes.
                if len(empty) > self._rng.randrange(MISSING_MAX):
                    self._join(self._rng.choice(empty))
                else:
                    taken = set(range(len(self._places))) - set(empty)
                    self._leave(self._rng.choice(sorted(taken)))
            self._check()
            time.sleep(max(SHORTEST_PAUSE_S, self._rng.expovariate(1 / MEAN_PAUSE_S)))

    def end(self) -> None:
        """All leave."""
        for place, member in enumerate(self._places):
            if member is not None:
                self._leave(place)
        for member in self._gone:
            member.join()

    def abandon(self) -> None:
        """End, whatever state they are in; for the end of a test that failed."""
        for member in [*self.members, *self._gone]:
            member.leave()
            with suppress(BaseException):
                member.join()

    def _join(self, place: int) -> None:
        self._names += 1
        member = self._start(f"member-{self._names}")
        self._places[place] = member
        self.joins += 1
        member.start()

    def _leave(self, place: int) -> None:
        member = self._places[place]
        assert member is not None
        self._places[place] = None
        self._gone.append(member)
        self.leaves += 1
        member.leave()

    def _check(self) -> None:
        for member in [*self.members, *self._gone]:
            if member.failure is not None:
                raise member.failure
