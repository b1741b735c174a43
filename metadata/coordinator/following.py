"""Follows the log of a metadata partition that another process leads, until it is time to stand.

A follower asks the leader for what comes next (metadata/coordinator/feeding), or where it does not
answer looks into the store again and again, and applies what it reads to its replica. So it serves
reads that may be stale: by a round trip, or by the interval. metadata/coordinator/standing.py says
when it may stand.

Failure case: a store that cannot be reached keeps a follower following, since it must not overtake
what it cannot see.
"""

import asyncio
import itertools
import logging
import math
import random
from collections.abc import Callable, Iterator
from typing import Final

from metadata.coordinator.feeding.feed import NOT_FED, Feed, Polled
from metadata.coordinator.standing import Standing
from metadata.leadership.candidate import Candidate, current_leader
from metadata.log.log import MetadataLog
from metadata.replica.replica import Replica
from wal.clock import Clock, Sleep
from wal.errors import Retriable

LOOKS_PER_REFRESH: Final = 20
"""A follower only looks whether the next entry is there. Now and then it lists the log: what it
waits for may have come and been pruned while the store could not be reached."""

SUCCESSOR_LOOK_S: Final = 0.05
"""A broker that was named stands at once; what was asked meanwhile waits until it is known here."""

_PAUSE_MIN_S: Final = 0.01

_logger = logging.getLogger(__name__)


class Following:
    """How one process follows one metadata partition."""

    def __init__(
        self,
        replica: Replica,
        log: MetadataLog,
        *,
        candidate: Callable[[], Candidate],
        rank: Callable[[int], int],
        is_registered: Callable[[], bool],
        is_led: Callable[[], None],
        clock: Clock,
        rng: random.Random,
        interval_ms: int,
        lease_ms: int,
        feed: Feed | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`rank` is that of this process when the broker with that id is silent.

        `is_registered`: whether all brokers know that this process is there.
        `is_led` is called whenever the log was read to its end and has a leader. `feed` None: the
        store alone tells what others append.
        """
        self._replica = replica
        self._log = log
        self._candidate = candidate
        self._rank = rank
        self._is_registered = is_registered
        self._is_led = is_led
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._standing = Standing(rng=rng, lease_ms=lease_ms)
        self._feed = feed
        self._sleep = sleep

    @property
    def is_fed(self) -> bool:
        """Whether the leader was heard of a moment ago, and is asked again."""
        return self._feed is not None and self._feed.state.is_fed(self._clock.monotonic())

    async def follow(self) -> None:
        """Apply what others append; returns when it is time to stand.

        Raises: CorruptLog, CorruptState.
        """
        self._standing.begin(self._clock.monotonic())
        looks = itertools.count()
        was_fed = False
        while True:
            wait_s = math.inf
            polled = NOT_FED if self._feed is None else await self._feed.poll()
            if polled.is_fed or was_fed:
                # Also when it has just closed: a leader that lives has to notice that.
                self._standing.heard(self._clock.monotonic())
            was_fed = polled.is_fed
            try:
                await self._look(polled, looks)
                if self._replica.applied_offset < self._log.end_offset:
                    self._standing.heard(self._clock.monotonic())
                    await self._replica.catch_up(self._log)
                elif not polled.is_fed:
                    wait_s = self._wait_s()
                    if not wait_s:
                        return
            except Retriable as error:
                self._cannot_read(error)
            else:
                if current_leader(self._replica) is not None:
                    self._is_led()
            if not polled.is_fed or polled.is_early:
                await self._sleep(min(self._pause_s(), max(wait_s, _PAUSE_MIN_S)))

    def _pause_s(self) -> float:
        """Until the next look at the store, where nobody feeds this process."""
        if self._standing.is_successor_due(self._clock.monotonic(), self._replica.leader):
            return min(self._interval_s, SUCCESSOR_LOOK_S)
        return self._interval_s

    async def _look(self, polled: Polled, looks: Iterator[int]) -> None:
        """Look at the store for what comes next, unless the leader says it.

        Raises: CorruptLog, StorageFailed.
        """
        if polled.is_fed and not polled.is_behind:
            assert self._feed is not None
            if await self._feed.judge_in_time():
                await self._log.refresh()
        elif self._feed is not None and not self._feed.is_judged:
            # Before it stands: a log must not go on behind what the store does not have.
            if await self._feed.judge():
                await self._log.refresh()
        elif polled.is_behind or next(looks) % LOOKS_PER_REFRESH == 0 or await self._log.peek():
            await self._log.refresh()

    async def catch_up(self) -> None:
        """Apply what the log has, however long it takes. Raises: CorruptLog, CorruptState."""
        while True:
            try:
                return await self._replica.catch_up(self._log)
            except Retriable as error:
                self._cannot_read(error)
                await self._sleep(self._interval_s)

    def _cannot_read(self, error: Retriable) -> None:
        number = self._replica.coordinator_id
        _logger.warning("metadata partition %d cannot be read: %s", number, error)

    def _wait_s(self) -> float:
        last = self._replica.leader
        return self._standing.wait_s(
            self._clock.monotonic(),
            candidate=self._candidate(),
            last=last,
            rank=0 if last is None else self._rank(last.broker_id),
            is_registered=self._is_registered(),
        )
