"""Says which worker has the next connection, how many workers have any, and who gives one up.

Few workers seal few objects, so a broker with little to do uses few of them. A worker is *full*
when it is at work for most of the time, when connections wait for its share of memory, when it has
very many connections, or when it has said nothing for a while. A connection that does much stays
where it is, so a full worker beside one that does less gives one up: between two requests, and its
client connects again.

Invariants: whatever is known, one of those that serve is named. A connection is given up only where
the load moves from more to less, so that moving ends. One at a time, and none before the loads show
what the last one did.

It has no clock and does no work of its own: `look` is called once a second.
"""

import struct
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, Self

MANY_CONNECTIONS: Final = 1_000
SILENT_S: Final = 5.0
"""A worker that has not told its load for so long is full."""
_UNEVEN: Final = 1 / 3
"""Of a full worker's load: loads that differ by less are even."""
SETTLED_S: Final = 4.0
"""From one connection that is given up to the next."""
FULL_LOOKS: Final = 2
"""How often in a row all are full before one more is used."""
IDLE_LOOKS: Final = 60
"""How often in a row one could be spared before it is."""


_LOAD: Final = struct.Struct(">d?")


class Load(NamedTuple):
    """What a worker tells of itself."""

    cores: float
    """Processor seconds a second: of the whole process, lately."""
    is_short: bool
    """Whether connections wait for memory."""

    def encode(self) -> bytes:
        return _LOAD.pack(*self)

    @classmethod
    def decode(cls, data: memoryview) -> Self:
        return cls(*_LOAD.unpack(data))


class GivingUp(NamedTuple):
    """A worker is to give up a connection."""

    number: int
    difference_cores: float
    """By how much its load exceeds that of the one with the least."""


class _Worker:
    def __init__(self, now: float) -> None:
        self.load = Load(0.0, False)
        self.told_at = now

    def is_silent(self, now: float) -> bool:
        return now - self.told_at > SILENT_S

    def is_full(self, connections: int, now: float, full_cores: float) -> bool:
        return (
            self.load.cores >= full_cores
            or self.load.is_short
            or connections >= MANY_CONNECTIONS
            or self.is_silent(now)
        )


class Balance:
    """Of the workers of one broker. Times are of a monotonic clock, connections by worker."""

    def __init__(self, active_min: int, full_cores: float) -> None:
        """At least `active_min` workers are used. A load of `full_cores` makes a worker full."""
        self._active_min = active_min
        self._full_cores = full_cores
        self._uneven_cores = _UNEVEN * full_cores
        self._workers: dict[int, _Worker] = {}
        self._full_looks = 0
        self._idle_looks = 0
        self._next_at = 0.0
        self._taker: int | None = None
        """For whom a connection is given up; the next one is its."""
        self.active = active_min

    @property
    def serving(self) -> Sequence[int]:
        """The workers that there are, by number."""
        return sorted(self._workers)

    def began(self, number: int, now: float) -> None:
        """This worker serves from now on."""
        self._workers[number] = _Worker(now)

    def gone(self, number: int) -> None:
        self._workers.pop(number, None)

    def told(self, number: int, load: Load, now: float) -> None:
        """A worker has told its load."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.load, worker.told_at = load, now

    def stuck(self, number: int) -> None:
        """A worker does not take what it is given; until it tells its load again."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.told_at = -inf

    def order(self, connections: Mapping[int, int], now: float) -> Sequence[int]:
        """Who is to have the next connection; behind it, who is if that one cannot.

        Asked once for each connection.
        """
        active = self._in_use()
        taker, self._taker = self._taker, None

        def rank(number: int) -> tuple[bool, bool, bool, bool, int, int, int]:
            worker, count = self._workers[number], connections.get(number, 0)
            is_full = worker.is_full(count, now, self._full_cores)
            return (
                worker.is_silent(now),
                number != taker,
                is_full,
                not is_full and number not in active,
                int(worker.load.cores / self._uneven_cores),
                count,
                number,
            )

        return sorted(self._workers, key=rank)

    def look(self, connections: Mapping[int, int], now: float) -> GivingUp | None:
        """Once a second: use more workers or fewer; and who is to give up a connection."""
        self._look_for_use(connections, now)
        return self._look_for_uneven(connections, now)

    def _in_use(self) -> Sequence[int]:
        return self.serving[: self.active]

    def _look_for_use(self, connections: Mapping[int, int], now: float) -> None:
        used = self._in_use()
        is_all_full = self.active < len(self._workers) and all(
            self._workers[one].is_full(connections.get(one, 0), now, self._full_cores)
            for one in used
        )
        self._full_looks = self._full_looks + 1 if is_all_full else 0
        self._idle_looks = self._idle_looks + 1 if self._is_one_spare(used, connections) else 0
        if self._full_looks == FULL_LOOKS:
            self.active += 1
            self._full_looks = 0
        elif self._idle_looks == IDLE_LOOKS:
            self.active -= 1
            self._idle_looks = 0

    def _is_one_spare(self, used: Sequence[int], connections: Mapping[int, int]) -> bool:
        """Whether one fewer would have half of what makes them full."""
        rest = len(used) - 1
        if self.active <= self._active_min or rest < 1:
            return False
        loads = [self._workers[one].load for one in used]
        return (
            sum(load.cores for load in loads) <= rest * self._full_cores / 2
            and sum(connections.get(one, 0) for one in used) <= rest * MANY_CONNECTIONS / 2
            and not any(load.is_short for load in loads)
        )

    def _look_for_uneven(self, connections: Mapping[int, int], now: float) -> GivingUp | None:
        workers = self._workers
        loads = {one: worker.load.cores for one, worker in workers.items()}
        takers = [
            one
            for one in self._in_use()
            if not (workers[one].load.is_short or workers[one].is_silent(now))
        ]
        if now < self._next_at or not takers:
            return None
        most, least = max(loads, key=loads.__getitem__), min(takers, key=loads.__getitem__)
        difference = loads[most] - loads[least]
        is_alone = connections.get(most, 0) < 2
        is_even = loads[most] < self._full_cores or difference < self._uneven_cores
        if is_even or is_alone:
            return None
        self._next_at = now + SETTLED_S
        self._taker = least
        return GivingUp(most, difference)
