"""A storm: members of one group that join and leave at random, while somebody writes."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from tests.support.clients.stock_clients import QUIET, TIMEOUT_S
from tests.support.groups.storm_members import (
    StormMember,
)

CALM_SESSION_MS: Final = 60_000
"""Where every member that ends leaves: fifty of them share a machine that may be busy."""

SHORTEST_PAUSE_S: Final = 0.02
MEAN_PAUSE_S: Final = 0.4
MISSING_MAX: Final = 15
"""So many members are missing at most."""
RATE: Final = 400
"""Records a second that are written."""


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
