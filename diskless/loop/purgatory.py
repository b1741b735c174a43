"""Keeps delayed operations until their condition holds or their deadline passes.

One generic class serves whatever waits: delayed produce, delayed fetch. It knows nothing of
requests: an operation says when it is satisfied, somebody who changed a key's state says "check the
operations that watch this key", and a deadline ends the wait otherwise.

Invariants:

- An operation completes exactly once, by what comes first: a check, its deadline, or a
  cancellation. `on_complete` runs at that moment and never again.
- No wake-up is lost: the condition is tried, then the operation is watched, then it is tried again.
  A change between the first try and the watch is seen by the second try.
- A completed operation leaves nothing behind: it removes its own watches at once. Its timer entry
  is dropped when its time comes, or earlier, when dead entries outnumber live ones.
- Cost: one loop timer for the whole purgatory; idle operations cost nothing. `check_and_complete`
  touches only the watchers of that key.

Everything runs on the event loop's thread; nothing here awaits.

Source: Kafka's "Purgatory Redesign"; the exactly-once completion and the second try are Kafka's
`DelayedOperation`.
"""

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

_COMPACT_ABOVE: Final = 1024
"""Dead timer entries are swept only when there are more than this many of them."""

K = TypeVar("K", bound=Hashable)


class DelayedOperation(ABC):
    """Work that waits. Subclasses give the condition and what happens at the end."""

    __slots__ = ("_forget", "completed")

    def __init__(self) -> None:
        self.completed = False
        self._forget: tuple[Purgatory[object], tuple[object, ...]] | None = None

    @abstractmethod
    def is_satisfied(self) -> bool:
        """Whether the condition holds now. Must be cheap: it is asked at every change of a key."""

    @abstractmethod
    def on_complete(self) -> None:
        """Answer. Called exactly once, whether satisfied, expired or forced."""

    def on_expiration(self) -> None:  # noqa: B027 - most operations have nothing to add
        """The deadline came first; called just before `on_complete`."""

    def force_complete(self) -> bool:
        """Complete now, whatever the condition says; False when it was completed before."""
        if self.completed:
            return False
        self.completed = True
        if self._forget is not None:
            purgatory, keys = self._forget
            self._forget = None
            purgatory._unwatch(self, keys)
        self.on_complete()
        return True

    def try_complete(self) -> bool:
        """Complete if the condition holds; True when this call did it."""
        return not self.completed and self.is_satisfied() and self.force_complete()


class PurgatoryStatistics(NamedTuple):
    """`watched` operations wait now; `completed` counts all that ended, `expired` those by time."""

    watched: int
    completed: int
    expired: int


class Purgatory(Generic[K]):
    """Delayed operations by the keys whose changes can satisfy them."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.name = name
        self._loop = loop or asyncio.get_running_loop()
        self._watchers: dict[K, dict[DelayedOperation, None]] = {}
        self._timers: list[tuple[float, int, DelayedOperation]] = []
        self._order = count()
        # Not a TimerHandle: uvloop gives a plain one, without its time, when that is now.
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0
        self._watched = 0
        self._completed = 0
        self._expired = 0

    def statistics(self) -> PurgatoryStatistics:
        return PurgatoryStatistics(self._watched, self._completed, self._expired)

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Collection[K], timeout_s: float
    ) -> bool:
        """Complete `operation` now if it can be; otherwise watch `keys` until the deadline.

        Returns whether it was completed. `timeout_s` <= 0 expires it at once. A key may be there
        more than once.
        """
        if operation.completed or operation.try_complete():
            self._completed += 1
            return True
        if timeout_s <= 0:
            self._expire(operation)
            self._completed += 1
            return True
        watched = tuple(dict.fromkeys(keys)) if keys else ()
        for key in watched:
            self._watchers.setdefault(key, {})[operation] = None
        operation._forget = (self, watched)  # type: ignore[assignment]
        self._watched += 1
        # Nothing can have happened since the first try to what watches nothing.
        if watched and operation.try_complete():
            return True
        self._start_timer(operation, self._loop.time() + timeout_s)
        return False

    def check_and_complete(self, key: K) -> int:
        """Something about `key` changed: complete every watcher that is satisfied now."""
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        return sum(operation.try_complete() for operation in tuple(watchers))

    def check_all(self) -> None:
        """Something about every key changed."""
        for key in tuple(self._watchers):
            self.check_and_complete(key)

    def expire_all(self) -> None:
        """Expire whatever still waits; for a clean stop."""
        # The timers and not the watchers: an operation that watches no key waits as well.
        timers, self._timers = self._timers, []
        for _, _, operation in timers:
            self._expire(operation)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _unwatch(self, operation: DelayedOperation, keys: tuple[K, ...]) -> None:
        self._watched -= 1
        self._completed += 1
        for key in keys:
            watchers = self._watchers[key]
            watchers.pop(operation, None)
            if not watchers:
                del self._watchers[key]
        if len(self._timers) - self._watched > max(_COMPACT_ABOVE, self._watched):
            self._timers = [entry for entry in self._timers if not entry[2].completed]
            heapq.heapify(self._timers)

    def _start_timer(self, operation: DelayedOperation, deadline: float) -> None:
        heapq.heappush(self._timers, (deadline, next(self._order), operation))
        if self._alarm is None or deadline < self._alarm_at:
            self._set_alarm(deadline)

    def _set_alarm(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(deadline, self._on_alarm)
        self._alarm_at = deadline

    def _on_alarm(self) -> None:
        self._alarm = None
        now = self._loop.time()
        while self._timers:
            deadline, _, operation = self._timers[0]
            if operation.completed:
                heapq.heappop(self._timers)
            elif deadline <= now:
                heapq.heappop(self._timers)
                self._expire(operation)
            else:
                self._set_alarm(deadline)
                return

    def _expire(self, operation: DelayedOperation) -> None:
        if not operation.completed:
            self._expired += 1
            operation.on_expiration()
            operation.force_complete()
