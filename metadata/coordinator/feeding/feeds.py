"""The followers of one leader: what they wait for, and which brokers they are.

A follower tells how far it has read and waits. It is answered with the objects behind that as soon
as the log has any, else with nothing when its time is up. The answer is made when it is due, of the
objects in memory (metadata/log/shared_tail.py). So a follower that is slow, or does not come back,
holds nothing back and costs nothing here but its wait, and all followers are sent the same bytes.

Invariants:
- Only objects that the store has are sent.
- A leader whose appends do not get through feeds nobody: somebody else may lead by now, and those
  that follow have to find out.

Failure cases: a follower that is behind what is in memory is told where the log ends, and reads the
store; one that has read more, or something else, is told NotCoordinator. The end of the term ends
all waits with NotCoordinator.
"""

import asyncio
from collections import Counter
from typing import Final

from metadata.feed_operations import FedObjects, FollowLog
from metadata.log.shared_tail import SharedTail
from wal.clock import Clock, Sleep
from wal.errors import NotCoordinator, Overloaded

FED_WITHIN_S: Final = 0.5
"""A broker counts as fed as long as it waits, and for this long after."""
WAITS_MAX: Final = 1_000
"""Followers that wait at the same time."""
WAIT_MAX_MS: Final = 10_000


class Feeds:
    """Feeds the followers of one term of one metadata partition; `close` ends it."""

    def __init__(self, tail: SharedTail, *, clock: Clock, sleep: Sleep = asyncio.sleep) -> None:
        self._tail = tail
        self._clock = clock
        self._sleep = sleep
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_closed = False
        self._waiting: Counter[int] = Counter()
        """Waits by broker."""
        self._left_at: dict[int, float] = {}
        """When the last wait of a broker ended, of those that were fed of late."""
        tail.subscribe(self._wake)

    def close(self) -> None:
        """Tell all that wait that nobody leads here any more."""
        if not self._is_closed:
            self._is_closed = True
            self._tail.unsubscribe(self._wake)
            self._wake()

    def fed_brokers(self) -> frozenset[int]:
        """The brokers that wait, or did a moment ago: they hear of it when this leader ends."""
        self._forget_silent()
        return frozenset(self._waiting) | frozenset(self._left_at)

    async def follow(self, asked: FollowLog) -> FedObjects:
        """What follows behind `asked`, at the latest when its time is up.

        Raises: NotCoordinator, Overloaded.
        """
        if self._waiting.total() >= WAITS_MAX:
            raise Overloaded(f"{WAITS_MAX} followers wait for this metadata partition")
        self._waiting[asked.broker_id] += 1
        try:
            found = self._found(asked)
            if found.end_offset == asked.offset:
                await self._wait(min(max(asked.wait_ms, 0), WAIT_MAX_MS) / 1000)
                found = self._found(asked)
            return found
        finally:
            self._left(asked.broker_id)

    def _found(self, asked: FollowLog) -> FedObjects:
        if self._tail.is_stalled:
            raise NotCoordinator("this leader does not reach the log")
        objects = self._tail.after(asked.offset, asked.put_id)
        if self._is_closed and not objects:
            # What it appended last, its resignation say, is told before.
            raise NotCoordinator("the leader that was followed here leads no more")
        return FedObjects(end_offset=self._tail.end_offset, objects=objects)

    async def _wait(self, seconds: float) -> None:
        """Return at the next append, or when the time is up."""
        pause = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait((pause, self._news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()

    def _wake(self) -> None:
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()

    def _left(self, broker_id: int) -> None:
        self._waiting[broker_id] -= 1
        if not self._waiting[broker_id]:
            del self._waiting[broker_id]
        self._left_at[broker_id] = self._clock.monotonic()
        if len(self._left_at) > WAITS_MAX:
            self._forget_silent()

    def _forget_silent(self) -> None:
        since = self._clock.monotonic() - FED_WITHIN_S
        self._left_at = {broker: at for broker, at in self._left_at.items() if at > since}
