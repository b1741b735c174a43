"""What one follower of a metadata partition gets from its leader instead of from the store.

`poll` asks the leader that the replica knows and waits for its answer, `WAIT_MS` at most when there
is nothing new. Between two polls the feed is *open*: the leader was heard of, and is asked again.
It closes with the first poll that fails, and the follower reads the store as if there were no feed;
the leader is asked again after `RETRY_S`, another leader at once.

What the feed says is believed as far as it links (metadata/log/shared_tail.py), and once in
`JUDGE_INTERVAL_S`, and when the feed has closed, the store is looked at all the same. So a store
that cannot be reached shows before it is needed, a follower whose leader was deposed without
knowing it finds the next one, and nobody comes to lead behind what the store does not have.

Failure cases, each of which closes the feed: no connection, no answer in time (`SILENCE_S`), a
refusal, objects that do not continue what is here.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from metadata.feed_operations import FedObjects, FollowLog
from metadata.leadership.candidate import Candidate, current_leader
from metadata.log.shared_tail import SharedTail
from metadata.operations import Leader
from metadata.replica.replica import Replica
from wal.clock import Clock
from wal.errors import CommitFailed, DisklessError

WAIT_MS: Final = 500
SILENCE_S: Final = 1.0
"""A leader that has said nothing for longer may be gone."""
RETRY_S: Final = 5.0
JUDGE_INTERVAL_S: Final = 60.0
JUDGEMENTS_PER_REFRESH: Final = 10
"""A judgement looks for the next object alone, which may have come and been pruned."""

_logger = logging.getLogger(__name__)


class AskLeader(Protocol):
    """Asks a leader, which may be anywhere, about one metadata partition.

    Raises: DisklessError, also when there is no answer within `timeout_ms`.
    """

    def __call__(
        self, leader: Leader, coordinator: int, asked: FollowLog, *, timeout_ms: int
    ) -> Awaitable[FedObjects]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Whether a follower hears of its leader."""

    heard_at: float | None = None
    """When the leader answered last, in monotonic seconds; None: it never did."""
    is_open: bool = False
    """Whether the last poll was answered."""

    def is_fed(self, now: float) -> bool:
        """Whether the leader lives, as far as one can know."""
        return self.is_open and self.heard_at is not None and now - self.heard_at < SILENCE_S


class Polled(NamedTuple):
    """What became of one poll."""

    is_fed: bool = False
    is_behind: bool = False
    """The leader has more, which must be read from the store."""
    is_early: bool = False
    """The answer came before the time was up, and with nothing to take."""


NOT_FED: Final = Polled()


class Feed:
    """The feed of one replica, whose log ends in `tail`."""

    def __init__(
        self,
        replica: Replica,
        tail: SharedTail,
        ask: AskLeader,
        *,
        candidate: Callable[[], Candidate],
        clock: Clock,
    ) -> None:
        self._replica = replica
        self._tail = tail
        self._ask = ask
        self._candidate = candidate
        self._clock = clock
        self._asked_leader: Leader | None = None
        self._retry_at = clock.monotonic()
        self._judged_at = clock.monotonic()
        self._judgements = 0
        self.state = FeedState()
        self.objects_fed = 0

    async def poll(self) -> Polled:
        """Ask the leader and take what it sends; at once where there is no leader to ask."""
        leader = current_leader(self._replica)
        candidate = self._candidate()
        if leader is None or leader.incarnation == candidate.incarnation:
            self.close()
            return NOT_FED
        if leader != self._asked_leader:
            self._asked_leader, self._retry_at = leader, self._clock.monotonic()
        if self._clock.monotonic() < self._retry_at:
            return NOT_FED
        asked_at = self._clock.monotonic()
        asked = FollowLog(
            candidate.broker_id, self._tail.end_offset, self._tail.last_put_id, WAIT_MS
        )
        try:
            fed = await self._ask(
                leader, self._replica.coordinator_id, asked, timeout_ms=round(SILENCE_S * 1000)
            )
            if fed.error is not None:
                raise fed.error
            if not await self._tail.take(asked.offset, fed.objects):
                raise CommitFailed("what it sends does not continue what was read")
        except DisklessError as error:
            self._close(leader, error)
            return NOT_FED
        self.state = FeedState(heard_at=self._clock.monotonic(), is_open=True)
        self.objects_fed += len(fed.objects)
        if fed.objects:
            return Polled(is_fed=True)
        return Polled(
            is_fed=True,
            is_behind=fed.end_offset > self._tail.end_offset,
            is_early=self._clock.monotonic() - asked_at < WAIT_MS / 2000,
        )

    def close(self) -> None:
        """Nobody is followed now."""
        self.state = FeedState(heard_at=self.state.heard_at)

    def _close(self, leader: Leader, error: DisklessError) -> None:
        number = self._replica.coordinator_id
        level = logging.INFO if self.state.is_open else logging.DEBUG
        _logger.log(
            level,
            "metadata partition %d is not fed by broker %d: %s",
            number,
            leader.broker_id,
            error,
        )
        self.close()
        self._retry_at = self._clock.monotonic() + RETRY_S

    @property
    def is_judged(self) -> bool:
        """Whether the store was seen to have all that was fed."""
        return self._tail.is_judged

    async def judge_in_time(self) -> bool:
        """`judge` if it is time to; False if it is not. Raises as `judge`."""
        if self._clock.monotonic() - self._judged_at < JUDGE_INTERVAL_S:
            return False
        return await self.judge()

    async def judge(self) -> bool:
        """Look at the store; whether it may have more than was fed.

        Raises: CorruptLog (the store has something else), StorageFailed, NotCoordinator (closed).
        """
        self._judged_at = self._clock.monotonic()
        self._judgements += 1
        has_more = await self._tail.judge()
        return has_more or self._judgements % JUDGEMENTS_PER_REFRESH == 0
