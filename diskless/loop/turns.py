"""Gives clients turns on the event loop, so that what one of them sent does not hold up the rest.

How it works. A connection does its work in *turns*: it answers what is ready and starts what it has
received until `Turn.is_over`, and says whether anything is left. A turn ends after TURN_STEPS
steps, after TURN_S seconds, or after TURN_TASKS new tasks, whichever comes first. So eight thousand
pipelined requests are some hundred turns, and between them everybody else has theirs.

There are three queues. What asks for a turn is *fresh*, unless its last turn left something
behind: then it is *busy*. Who says that it has a backlog is in a queue of its own. In each
iteration of the loop the fresh are served for SERVED_S seconds, then the busy, then those with a
backlog, for what is left of that time, but at least one of each, so that no queue starves. So a new
request, or an answer that just became ready, is served before those who always have more. Within a
queue it is first come, first served.

While others are served, those with a backlog get BACKLOG_SHARE of the time, all together, and the
loop rests meanwhile. What the others asked for is done by threads for the most part, and a thread
waits for the interpreter's lock as long as the loop is always busy: a Produce changes between
threads and the loop some fifty times. Others are those without a backlog who asked for something,
or were answered, less than OTHERS_S ago. Alone, those with a backlog get all the time there is.

Who has received something and is not queued may take its turn at once (`begin`), without the way
through the queue (which costs a large batch that is received piece by piece more than its turns),
as long as all who do so in one iteration need less than SERVED_S, and with a backlog only as long
as nobody else with one waits and they do not rest: the loop calls
one connection after the other when a thousand of them send at the same moment, and timers and
answers wait meanwhile. Beyond that they queue up as fresh.

A handler that is a coroutine only starts in the turn; its work is done by a task later, where no
clock of ours sees it. Therefore tasks are counted: SERVED_TASKS are started in an iteration, and
half as many, down to one, after each iteration that took longer than LAG_S beside our turns.

The order of one connection's requests and answers does not depend on any of this: its turns follow
each other, and each goes on where the one before ended.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from wal.clock import Clock

TURN_STEPS: Final = 32
TURN_S: Final = 300e-6
"""64 clients that always have more cost a fresh one 20 ms at the worst."""
TURN_TASKS: Final = 4

SERVED_S: Final = 5e-4
"""Of an iteration, for each of: turns taken at once, and turns taken from the queues."""
SERVED_TASKS: Final = 16
BACKLOG_SHARE: Final = 0.35
"""Of the time, for turns of those with a backlog while others are served."""
BACKLOG_AHEAD_S: Final = 1e-3
"""How far they may exceed their share before they rest: no timer is set for shorter."""
OTHERS_S: Final = 0.5
"""Longer than most requests take: a Produce waits for its commit and is no turn meanwhile."""
LAG_S: Final = 5e-3
"""How long an iteration may take, without our turns, before fewer tasks are started."""


class Turn:
    """How much its taker may still do. Made by `Turns`, which hands out the same one again."""

    __slots__ = ("_clock", "_ends_at", "_steps", "tasks")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._steps = 0
        self.tasks = 0
        """The number of tasks that may still be started."""

    def start(self, now: float, tasks: int) -> None:
        """Begin again, for somebody who may start at most `tasks` tasks."""
        self._ends_at = now + TURN_S
        self._steps = TURN_STEPS
        self.tasks = tasks

    def is_over(self) -> bool:
        """To be asked before each step."""
        if self._steps <= 0 or self.tasks <= 0:
            return True
        self._steps -= 1
        return self._clock.monotonic() >= self._ends_at

    def task_started(self) -> None:
        """A step made a task, whose work comes later."""
        self.tasks -= 1


class TurnTaker(Protocol):
    """Somebody with work for the event loop, a little at a time."""

    def take_turn(self, turn: Turn) -> bool:
        """Work until nothing is left or the turn is over; whether something is left.

        Must not raise.
        """
        ...

    def has_backlog(self) -> bool:
        """Whether it has asked for so much that others come first."""
        ...


class Turns:
    """The queues of one server; used on its event loop alone."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._turn = Turn(clock)
        self._fresh: deque[TurnTaker] = deque()
        self._busy: deque[TurnTaker] = deque()
        self._backlogged: deque[TurnTaker] = deque()
        self._queued: set[TurnTaker] = set()
        self._taking: TurnTaker | None = None
        self._is_wanted_again = False
        """By the taker whose turn it is now."""
        self._is_due = False
        self._rest: asyncio.TimerHandle | None = None
        """The end of the rest of those with a backlog, while nobody else waits for a turn."""
        self._rested_at = 0.0
        """When those with a backlog will have rested for what they had."""
        self._others: dict[TurnTaker, float] = {}
        """When each of the others was last served; the latest last."""
        self._at_once_s = 0.0
        """What turns taken at once needed in this iteration."""
        self._tasks_max = SERVED_TASKS
        self._tasks_left = SERVED_TASKS
        """How many may still be started in this iteration."""
        self._left_at: float | None = None
        """When the last iteration's turns ended, where some were left for the next."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def queued(self) -> int:
        """The number of those that wait for their turn."""
        return len(self._queued)

    async def empty(self) -> None:
        """Wait until nobody waits for a turn."""
        await self._empty.wait()

    @property
    def are_others_served(self) -> bool:
        """Whether somebody without a backlog was served lately."""
        earliest = self._clock.monotonic() - OTHERS_S
        while self._others:
            taker = next(iter(self._others))
            if self._others[taker] >= earliest:
                return True
            del self._others[taker]
        return False

    def served(self, taker: TurnTaker, now: float) -> None:
        """`taker` asked for something, or was answered."""
        self._others.pop(taker, None)
        if not taker.has_backlog():
            self._others[taker] = now

    def forget(self, taker: TurnTaker) -> None:
        """`taker` asks for nothing any more."""
        self._others.pop(taker, None)

    def enqueue(self, taker: TurnTaker) -> None:
        """There is work for `taker`; it is queued once, however often this is called."""
        if taker is self._taking:
            self._is_wanted_again = True
        elif taker not in self._queued:
            self._queue(taker, self._backlogged if taker.has_backlog() else self._fresh)

    def begin(self, taker: TurnTaker) -> bool:
        """As `enqueue`, but the turn may be taken before this returns.

        Returns whether it was taken and left nothing behind.
        """
        if taker in self._queued:
            return False
        is_late = self._at_once_s >= SERVED_S or self._tasks_left <= 0
        started_at = self._clock.monotonic()
        has_backlog = taker.has_backlog()
        is_behind = has_backlog and (bool(self._backlogged) or self._rests(started_at))
        if is_late or is_behind or self._taking is not None:
            self.enqueue(taker)
            return False
        more = self._give(taker, started_at)
        ended_at = self._clock.monotonic()
        self._at_once_s += ended_at - started_at
        if has_backlog:
            self._charge(started_at, ended_at)
        if more:
            self._queue_again(taker)
        self._be_due()
        return not more

    def _serve(self) -> None:
        now = self._clock.monotonic()
        if self._left_at is not None:
            is_slow = now - self._left_at - self._at_once_s > LAG_S
            self._tasks_max = (
                max(self._tasks_max // 2, 1) if is_slow else min(self._tasks_max + 1, SERVED_TASKS)
            )
        self._at_once_s = 0.0
        self._tasks_left = self._tasks_max
        ends_at = now + SERVED_S
        try:
            while self._fresh and now < ends_at and self._tasks_left > 0:
                now = self._take_first_of(self._fresh, now)
            while self._busy:
                now = self._take_first_of(self._busy, now)
                if now >= ends_at or self._tasks_left <= 0:
                    break
            now = self._serve_backlogged(now, ends_at)
        finally:
            # Only here: what is queued on the way is for later.
            self._is_due = False
            if not self._queued:
                self._left_at = None
                self._empty.set()
            elif self._fresh or self._busy or not self._rests(now):
                self._left_at = now
                self._be_due()
            else:
                rest_s = self._rested_at - now
                self._left_at = now + rest_s
                if self._rest is None:
                    self._rest = self._loop.call_later(rest_s, self._has_rested)

    def _serve_backlogged(self, now: float, ends_at: float) -> float:
        """At least one of them, unless they rest; gives the time at its end."""
        if not self._backlogged or self._rests(now):
            return now
        started_at = now
        while self._backlogged:
            now = self._take_first_of(self._backlogged, now)
            if now >= ends_at or self._tasks_left <= 0:
                break
        self._charge(started_at, now)
        return now

    def _charge(self, started_at: float, ended_at: float) -> None:
        """Those with a backlog had a turn."""
        used_s = ended_at - started_at
        self._rested_at = max(self._rested_at, started_at) + used_s / BACKLOG_SHARE

    def _rests(self, now: float) -> bool:
        """Whether those with a backlog have had their share, and others are served."""
        has_more = self._rest is not None or self._rested_at - now > BACKLOG_AHEAD_S
        return has_more and self.are_others_served

    def _has_rested(self) -> None:
        self._rest = None
        self._be_due()

    def _take_first_of(self, queue: deque[TurnTaker], now: float) -> float:
        """Gives the time at its end."""
        taker = queue.popleft()
        self._queued.discard(taker)
        if self._give(taker, now):
            self._queue_again(taker)
        return self._clock.monotonic()

    def _give(self, taker: TurnTaker, now: float) -> bool:
        self._taking = taker
        self._is_wanted_again = False
        tasks = min(max(self._tasks_left, 1), TURN_TASKS)
        self._turn.start(now, tasks)
        try:
            more = taker.take_turn(self._turn)
        finally:
            self._taking = None
        self._tasks_left -= tasks - self._turn.tasks
        return more or self._is_wanted_again

    def _queue_again(self, taker: TurnTaker) -> None:
        """Its turn left something behind."""
        self._queue(taker, self._backlogged if taker.has_backlog() else self._busy)

    def _queue(self, taker: TurnTaker, queue: deque[TurnTaker]) -> None:
        self._queued.add(taker)
        queue.append(taker)
        self._empty.clear()
        if queue is not self._backlogged or self._rest is None:
            self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._serve)
