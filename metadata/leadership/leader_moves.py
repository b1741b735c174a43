"""Moves the leadership of a metadata partition to the broker that should have it.

A leader that should not lead (metadata/leadership/ranks.py) resigns to the broker that should, once
that broker has been registered, in one life and without a break, for `interval_ms`. A broker
registers when its replicas have reached the ends of their logs, and stays registered as long as it
says that it is alive; so who was there for that long has caught up. The resignation is the last
record of this leader and names its successor, which stands at once; all others wait.

The partitions of a process share a `MovePace`: it lets a third of `interval_ms` pass between two of
them, so that clients never find many coordinators on their way at once. One broker that leads four
has given away three when two intervals are over.

A successor that does not come, because it cannot reach the store say, costs a pause of a few
seconds, and this broker may well lead again. From then on it waits twice as long before it tries
the same again, up to PATIENCE_MAX intervals; it starts anew when another broker has led.

Failure cases: a resignation that is refused leaves this broker leading, and is tried again later;
one of unknown outcome ends its leadership, as every append does.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from metadata.leadership.ranks import Ranks
from metadata.operations import Leader
from wal.clock import Clock, Sleep
from wal.errors import CommitFailed, NotCoordinator, Overloaded

LOOKS_PER_INTERVAL: Final = 30
MOVES_PER_INTERVAL: Final = 3
PATIENCE_MAX: Final = 64
"""An hour, where the interval is a minute."""

_logger = logging.getLogger(__name__)


class MovePace:
    """What the metadata partitions of one process know of their moves, over all their terms."""

    def __init__(self, *, clock: Clock, interval_ms: int) -> None:
        self.interval_s: Final = interval_ms / 1000
        self._clock = clock
        self._next_at = -math.inf
        self._given_at: dict[int, int] = {}
        """The leader epoch of the last move of each metadata partition."""
        self._patience: dict[int, int] = {}

    def begin(self, partition: int, leader_epoch: int) -> None:
        """This process has come to lead `partition`, in this epoch."""
        given_at = self._given_at.pop(partition, None)
        if given_at is not None and leader_epoch == given_at + 1:
            # Nobody has led in between.
            patience = self._patience.get(partition, 1)
            self._patience[partition] = min(2 * patience, PATIENCE_MAX)
        else:
            self._patience.pop(partition, None)

    def may_move(self, partition: int, settled_s: float) -> bool:
        """Whether `partition` may move now to a broker that was there for `settled_s`."""
        patience_s = self.interval_s * self._patience.get(partition, 1)
        return settled_s >= patience_s and self._clock.monotonic() >= self._next_at

    def moving(self) -> None:
        """A move begins; the next one waits."""
        self._next_at = self._clock.monotonic() + self.interval_s / MOVES_PER_INTERVAL

    def gave(self, partition: int, leader_epoch: int) -> None:
        """The resignation is in the log, in this epoch."""
        self._given_at[partition] = leader_epoch


class LeaderMoves:
    """The moves of one metadata partition in one term of its leader: a background worker of it."""

    def __init__(
        self,
        partition: int,
        ranks: Ranks,
        pace: MovePace,
        *,
        broker_id: int,
        leader: Callable[[], Leader | None],
        resign: Callable[[int], Awaitable[None]],
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`leader` is what the log says. `resign` raises CommitFailed when it still leads."""
        self._partition = partition
        self._ranks = ranks
        self._pace = pace
        self._broker_id = broker_id
        self._leader = leader
        self._resign = resign
        self._clock = clock
        self._sleep = sleep
        self._seen: tuple[int, UUID] | None = None
        self._seen_at = 0.0

    async def run(self) -> None:
        """Look until cancelled. Raises NotCoordinator once it has resigned."""
        self._pace.begin(self._partition, self._epoch())
        while True:
            successor = self.successor()
            if successor is not None:
                await self._move(successor)
            await self._sleep(self._pace.interval_s / LOOKS_PER_INTERVAL)

    def successor(self) -> int | None:
        """The broker to resign to now; None: nobody, or not yet."""
        wanted = self._ranks.leader(self._partition)
        life = None if wanted is None else self._ranks.life_of(wanted)
        if life is None or wanted == self._broker_id:
            self._seen = None
            return None
        if self._seen != (life.broker_id, life.incarnation):
            self._seen = (life.broker_id, life.incarnation)
            self._seen_at = self._clock.monotonic()
        settled_s = self._clock.monotonic() - self._seen_at
        return wanted if self._pace.may_move(self._partition, settled_s) else None

    async def _move(self, successor: int) -> None:
        self._pace.moving()
        _logger.info("metadata partition %d moves to broker %d", self._partition, successor)
        try:
            await self._resign(successor)
        except (CommitFailed, Overloaded) as error:
            _logger.warning("metadata partition %d does not move: %s", self._partition, error)
            return
        self._pace.gave(self._partition, self._epoch())
        raise NotCoordinator(f"it resigned to broker {successor}")

    def _epoch(self) -> int:
        leader = self._leader()
        return 0 if leader is None else leader.leader_epoch
