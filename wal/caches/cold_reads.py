"""Reads old bytes of objects for consumers that catch up: each byte once, and some of it ahead.

A consumer takes an extent in many small reads, one behind the other. So what was read or is being
read is kept as *runs*, each the answer to one ranged GET. A read takes the runs that have its bytes
and asks for the gaps between them alone. What ends within a batch is there when its rest is asked
for; readers that come one behind the other, or at the same time, share what the first one fetched.

    read(range)   -> the runs that cover it; gaps become runs and are fetched now, the last one
                     with what follows if it is small
    ahead(range)  -> gaps become runs of up to RUN_BYTES, and nobody waits for them

A run that has not begun to be fetched grows: gaps that adjoin it join it. So the extents that the
partitions of one consumer have side by side in an object come by one GET.

Budget: runs take at most `memory_max()` bytes together, from when they are asked for, and what
somebody waits for. Room is made by dropping runs that were read to their ends, the oldest first.
For what somebody waits for, any other run that is there makes room too, the least recently read
first. For what is read ahead only a run that nobody has touched for STALE_S does, and else `ahead`
refuses. A run that nobody has touched for IDLE_S is dropped, wanted or not: the consumer went away.

At most `concurrency` GETs are under way, and at most half of these read ahead: what somebody waits
for is not behind what somebody may want.

Failure cases: a GET that failed is an error to those who wait for it, and is forgotten. A reader
that is cancelled takes its GET along if nobody else waits and it does not read ahead. What was read
ahead in vain, because its reader jumped or left, is dropped as above.

Used on the event loop alone.
"""

import asyncio
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from wal.clock import Clock
from wal.coordinates import ObjectKey

RUN_BYTES: Final = 8 << 20
"""What is read ahead by one GET at most: a usual WAL object."""

GET_BYTES_MIN: Final = 1 << 20
"""What is fetched by one GET at least, where it is of use: less takes hardly less time."""

STALE_S: Final = 10.0
IDLE_S: Final = 60.0

_OVERHEAD_BYTES: Final = 1 << 10
"""What a run weighs besides its bytes, about."""

_LOOKED_AT: Final = 64
"""Runs that are looked at to make room; those on their way are left alone, and are fewer."""

Content = npt.NDArray[np.uint8]
"""The bytes of a run or a block, as something that can be referred to weakly."""


class RangeSource(Protocol):
    """What is needed of an object store; see `ObjectStore.get_range`."""

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes: ...


class Evicted:
    """Counts what is dropped and still in memory, because readers have views of it."""

    def __init__(self) -> None:
        self._contents: list[weakref.ref[Content]] = []

    @property
    def bytes(self) -> int:
        return sum(len(one) for ref in self._contents if (one := ref()) is not None)

    def add(self, content: Content) -> None:
        self._contents = [ref for ref in self._contents if ref() is not None]
        self._contents.append(weakref.ref(content))


class _Run:
    """Bytes [start, end) of an object: the answer to one GET, which may still be under way."""

    __slots__ = (
        "end",
        "is_ahead",
        "is_dropped",
        "is_open",
        "key",
        "start",
        "task",
        "touched_at",
        "used_bytes",
        "used_to",
        "waiters",
    )

    def __init__(self, key: ObjectKey, start: int, end: int, *, is_ahead: bool, now: float) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.is_ahead = is_ahead
        self.is_open = True
        """Whether it may grow: its GET has not begun."""
        self.is_dropped = False
        self.task: asyncio.Task[Content] | None = None
        self.waiters = 0
        self.used_to = start
        self.used_bytes = 0
        self.touched_at = now

    @property
    def is_there(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def is_finished(self) -> bool:
        """Whether somebody has read all of it, for all that is known."""
        return self.used_to >= self.end and self.used_bytes >= self.end - self.start


class ColdReads:
    """Runs of objects; see the module's text."""

    def __init__(
        self,
        store: RangeSource,
        *,
        memory_max: Callable[[], int],
        concurrency: int,
        clock: Clock,
    ) -> None:
        """`memory_max` may say less than before; then `shrink` is called."""
        self._store = store
        self._memory_max = memory_max
        self._gets = asyncio.Semaphore(concurrency)
        self._ahead_max = max(1, concurrency // 2)
        self._clock = clock
        self._runs: dict[ObjectKey, list[_Run]] = {}
        """In order, without overlaps."""
        self._wanted: OrderedDict[_Run, None] = OrderedDict()
        self._finished: OrderedDict[_Run, None] = OrderedDict()
        self._loading: set[asyncio.Task[Content]] = set()
        self._ahead_loading = 0
        self._sweep: asyncio.TimerHandle | None = None
        self.evicted: Final = Evicted()
        self.bytes = 0
        """Of runs that are there or on their way."""
        self.gets = 0
        self.ahead_bytes = 0
        """That were read ahead since the start."""

    async def read(
        self, key: ObjectKey, start: int, length: int, useful_to: int
    ) -> list[memoryview]:
        """Bytes [start, start + length) of an object, as read-only views in order.

        What follows them up to `useful_to` is of use to the same reader.
        Raises what the store raises.
        """
        end = start + length
        runs = self._covering(key, start, end, min(useful_to, start + GET_BYTES_MIN))
        views = []
        left = iter(runs)
        try:
            for run in left:
                content = await self._content(run)
                views.append(content.data[max(start, run.start) - run.start : end - run.start])
                self._touch(run, min(end, run.end), views[-1].nbytes)
        finally:
            for run in left:
                self._leave(run)
        return views

    def ahead(self, key: ObjectKey, start: int, length: int) -> bool:
        """Fetch what is not there of bytes [start, start + length); False: not all, for now."""
        for gap_start, gap_end in [*self._gaps(key, start, start + length)]:
            at = gap_start
            while at < gap_end:
                end = min(gap_end, at + RUN_BYTES)
                if self._ahead_loading >= self._ahead_max or not self._make_room(end - at):
                    return False
                self._ask(key, at, end, is_ahead=True)
                self.ahead_bytes += end - at
                at = end
        return True

    def forget(self, key: ObjectKey) -> None:
        """What is there or on its way of an object is given to nobody from now on."""
        for run in [*self._runs.get(key, ())]:
            self._drop(run)

    def drop_idle(self) -> None:
        """Drop what nobody has touched for IDLE_S."""
        since = self._clock.monotonic() - IDLE_S
        for runs in (self._finished, self._wanted):
            for run in [*runs]:
                if run.touched_at > since:
                    break
                self._drop_if_there(run)

    async def close(self) -> None:
        """Cancel what is under way; readers that still wait are cancelled with it."""
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [*self._loading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for runs in [*self._runs.values()]:
            for run in [*runs]:
                self._drop(run)

    async def _content(self, run: _Run) -> Content:
        """The reader was counted as a waiter, and is none afterwards."""
        assert run.task is not None
        try:
            return await asyncio.shield(run.task)
        finally:
            self._leave(run)

    def _leave(self, run: _Run) -> None:
        run.waiters -= 1
        assert run.task is not None
        if not run.waiters and not run.is_ahead and not run.task.done():
            # A reader that comes before the cancelled task has ended must not join it.
            self._drop(run)
            run.task.cancel()

    def _covering(self, key: ObjectKey, start: int, end: int, useful_to: int) -> list[_Run]:
        """Runs that hold all of it, each with one waiter more."""
        for gap_start, gap_end in [*self._gaps(key, start, max(end, useful_to))]:
            if gap_start < end:
                self._ask(key, gap_start, gap_end, is_ahead=False)
        runs = [*self._between(key, start, end)]
        for run in runs:
            run.waiters += 1
        self.shrink()
        return runs

    def _gaps(self, key: ObjectKey, start: int, end: int) -> Iterator[tuple[int, int]]:
        for run in self._between(key, start, end):
            if run.start > start:
                yield start, run.start
            start = run.end
        if start < end:
            yield start, end

    def _between(self, key: ObjectKey, start: int, end: int) -> Iterator[_Run]:
        """Runs that have any of these bytes, in order."""
        runs = self._runs.get(key, [])
        first = bisect_right(runs, start, key=lambda run: run.end)
        for place in range(first, len(runs)):
            if runs[place].start >= end:
                return
            yield runs[place]

    def _ask(self, key: ObjectKey, start: int, end: int, *, is_ahead: bool) -> None:
        """Have a gap fetched, together with what adjoins it where that has not begun."""
        runs = self._runs.setdefault(key, [])
        place = bisect_right(runs, start, key=lambda run: run.start)
        self.bytes += end - start
        for near in runs[max(place - 1, 0) : place + 1]:
            adjoins = near.end == start or near.start == end
            if adjoins and near.is_open and near.end - near.start + end - start <= RUN_BYTES:
                near.start = min(near.start, start)
                near.end = max(near.end, end)
                near.used_to = near.start
                return
        run = _Run(key, start, end, is_ahead=is_ahead, now=self._clock.monotonic())
        runs.insert(place, run)
        self.bytes += _OVERHEAD_BYTES
        self._wanted[run] = None
        # It begins in a later turn of the loop; until then it grows.
        run.task = task = asyncio.create_task(self._fetch(run), name=f"cold-{key}-{start}")
        self._loading.add(task)
        self._ahead_loading += is_ahead
        task.add_done_callback(lambda done: self._ended(run, done))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._sweep_again)

    async def _fetch(self, run: _Run) -> Content:
        async with self._gets:
            run.is_open = False
            self.gets += 1
            data = await self._store.get_range(run.key, run.start, run.end - run.start)
            return np.frombuffer(data, np.uint8)

    def _ended(self, run: _Run, task: asyncio.Task[Content]) -> None:
        self._loading.discard(task)
        self._ahead_loading -= run.is_ahead
        # Also marks the exception as seen when nobody waits.
        if task.cancelled() or task.exception() is not None:
            self._drop(run)
        self.shrink()

    def _touch(self, run: _Run, end: int, used_bytes: int) -> None:
        """Somebody has read `used_bytes` of it, up to `end`."""
        run.touched_at = self._clock.monotonic()
        run.used_to = max(run.used_to, end)
        run.used_bytes += used_bytes
        if run.is_dropped:
            return
        if run.is_finished:
            self._wanted.pop(run, None)
            self._finished[run] = None
            self._finished.move_to_end(run)
        else:
            self._wanted.move_to_end(run)

    def _make_room(self, length: int) -> bool:
        """For what nobody waits for."""
        stale_at = self._clock.monotonic() - STALE_S
        most = self._memory_max() - length - _OVERHEAD_BYTES
        while self.bytes > most and self._finished:
            self._drop(next(iter(self._finished)))
        if self.bytes > most:
            for run in [*islice(self._wanted, _LOOKED_AT)]:
                if self.bytes <= most or run.touched_at > stale_at:
                    break
                self._drop_if_there(run)
        return self.bytes <= most

    def shrink(self) -> None:
        """Drop what is there beyond the budget."""
        most = self._memory_max()
        while self.bytes > most and self._finished:
            self._drop(next(iter(self._finished)))
        if self.bytes > most:
            for run in [*islice(self._wanted, _LOOKED_AT)]:
                self._drop_if_there(run)
                if self.bytes <= most:
                    return

    def _drop_if_there(self, run: _Run) -> None:
        """What is on its way is left alone: somebody may wait for it."""
        if run.is_there:
            self._drop(run)

    def _drop(self, run: _Run) -> None:
        """Those who have it or wait for it keep it."""
        if run.is_dropped:
            return
        run.is_dropped = True
        run.is_open = False
        self._wanted.pop(run, None)
        self._finished.pop(run, None)
        self.bytes -= run.end - run.start + _OVERHEAD_BYTES
        runs = self._runs[run.key]
        runs.remove(run)
        if not runs:
            del self._runs[run.key]
        task = run.task
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            self.evicted.add(task.result())

    def _sweep_again(self) -> None:
        self.drop_idle()
        self._sweep = None
        if self._runs:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._sweep_again)
