"""Follows the log of a metadata partition that another process leads, until it is time to stand.

A follower asks the leader for what comes next (metadata/coordinator/feeding), or where it does not
answer looks into the store again and again, and applies what it reads to its replica. So it serves
reads that may be stale: by a round trip, or by the interval.

When it may stand, judged by the monotonic clock from when it was fed last, or *saw* the last entry,
which is later than the leader's lease began: after `lease * 1.1` plus a random share, so that
candidates rarely collide, plus a tenth of a lease for each broker that ranks before this one. At
once when there never was a leader, when the last one resigned to this broker or to nobody, or when
the last one was an earlier life of this broker: its data directory is locked, so that life is over.
Where the last one resigned to another broker, after SUCCESSOR_COMES_S.

Failure case: a store that cannot be reached keeps a follower following, since it must not overtake
what it cannot see.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from typing import Final

from metadata.coordinator.candidate import Candidate, current_leader
from metadata.coordinator.feeding.feed import NOT_FED, Feed, Polled
from metadata.log.log import LEASE_MARGIN, MetadataLog
from metadata.records.control import NO_BROKER
from metadata.replica.replica import Replica
from wal.clock import Clock, Sleep
from wal.errors import Retriable

LOOKS_PER_REFRESH: Final = 20
"""A follower only looks whether the next entry is there. Now and then it lists the log: what it
waits for may have come and been pruned while the store could not be reached."""

SUCCESSOR_COMES_S: Final = 2.0
"""How long all others wait for the successor that a leader named when it resigned."""

_JITTER_OF_LEASE: Final = 0.2
_RANK_OF_LEASE: Final = 0.1

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
        is_led: Callable[[], None],
        clock: Clock,
        rng: random.Random,
        interval_ms: int,
        lease_ms: int,
        feed: Feed | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`rank` is that of this process when the broker with that id is silent.

        `is_led` is called whenever the log was read to its end and has a leader. `feed` None: the
        store alone tells what others append.
        """
        self._replica = replica
        self._log = log
        self._candidate = candidate
        self._rank = rank
        self._is_led = is_led
        self._clock = clock
        self._rng = rng
        self._interval_s = interval_ms / 1000
        self._lease_ms = lease_ms
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
        seen_at = self._clock.monotonic()
        patience_s = self._patience_s()
        looks = itertools.count()
        while True:
            polled = NOT_FED if self._feed is None else await self._feed.poll()
            try:
                await self._look(polled, looks)
                if self._replica.applied_offset < self._log.end_offset:
                    seen_at = self._clock.monotonic()
                    await self._replica.catch_up(self._log)
                elif polled.is_fed:
                    seen_at = self._clock.monotonic()
                elif self._may_stand(self._clock.monotonic() - seen_at, patience_s):
                    return
            except Retriable as error:
                self._cannot_read(error)
            else:
                if current_leader(self._replica) is not None:
                    self._is_led()
            if not polled.is_fed or polled.is_early:
                await self._sleep(self._interval_s)

    async def _look(self, polled: Polled, looks: Iterator[int]) -> None:
        """Look at the store for what comes next, unless the leader says it.

        Raises: CorruptLog, StorageFailed.
        """
        if polled.is_fed and not polled.is_behind:
            assert self._feed is not None
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

    def _patience_s(self) -> float:
        jitter = self._rng.random() * _JITTER_OF_LEASE
        return self._lease_ms / 1000 * (LEASE_MARGIN + jitter)

    def _may_stand(self, silent_s: float, patience_s: float) -> bool:
        candidate = self._candidate()
        last = self._replica.leader
        if not candidate.may_lead:
            return False
        if last is None:
            return True
        if last.broker_id == NO_BROKER:
            is_named = last.successor_id in (NO_BROKER, candidate.broker_id)
            return is_named or silent_s >= SUCCESSOR_COMES_S
        if last.incarnation in (candidate.incarnation, *candidate.past_incarnations):
            return True
        rank_s = self._rank(last.broker_id) * _RANK_OF_LEASE * self._lease_ms / 1000
        return silent_s >= patience_s + rank_s
