"""A second put for an outlier: a shorter tail of a bucket's latencies for a few requests more.

Most puts of a bucket take about as long as each other, and one in some dozens takes several times
that. Every batch of its chunk waits for it, and so does the commit of every chunk behind it. A put
that is as slow as that is made once more, under the same key and with the same bytes, beside the
first one. Whichever is stored first is the object: `ObjectStore.put` is put-if-absent and takes
the same bytes for its own.

Slow is a put that takes longer than 98 of 100 of about its size did, and twice their median. Who
has seen too few of a size knows neither, and waits. A bucket that becomes slow as a whole makes
every put slow: only a share of all puts gets a second one, whatever happens.

Invariants:

- `put` returns or raises when nothing reads the body any more: it has aborted the other attempt and
  waited for its end.
- It returns when one attempt is stored, and raises when all have failed: that an outcome is
  unknown, where that is true of one of them.
"""

import asyncio
from collections import deque
from typing import Final

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, OutcomeUnknown
from wal.stores.object_store import ObjectBody, ObjectStore

SEEN_MAX: Final = 256
"""Puts of a size by which the next are judged."""
SEEN_MIN: Final = 50
"""Below that a 98th percentile means nothing."""
_SLOW_SHARE: Final = 0.98
_SLOW_MEDIANS: Final = 2
_JUDGED_AGAIN_AFTER: Final = 16
"""Puts of a size."""
_SAVED_MAX: Final = 4.0
"""Second puts that a calm time saves for a bad one."""


class _Seen:
    """How long puts of about one size took, the last ones."""

    __slots__ = ("_seconds", "_until_judged", "slow_s")

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SEEN_MAX)
        self._until_judged = SEEN_MIN
        self.slow_s: float | None = None

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._until_judged -= 1
        if not self._until_judged:
            self._until_judged = _JUDGED_AGAIN_AFTER
            ordered = sorted(self._seconds)
            median = ordered[len(ordered) // 2]
            self.slow_s = max(ordered[int(len(ordered) * _SLOW_SHARE)], _SLOW_MEDIANS * median)


class SecondPuts:
    """`put` of a store, with a second one for outliers."""

    def __init__(self, store: ObjectStore, *, clock: Clock, share: float) -> None:
        """`share` of the puts, at most, is made twice; none with 0."""
        self._store = store
        self._clock = clock
        self._share = share
        self._saved = 0.0
        self._seen: dict[int, _Seen] = {}
        # Counted since the start.
        self.second_puts = 0
        self.second_puts_first = 0
        """Those that were stored before the first attempt."""

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        """See `ObjectStore.put`."""
        if not self._share:
            await self._store.put(key, body)
            return
        seen = self._seen.setdefault(body.length_bytes.bit_length(), _Seen())
        started = self._clock.monotonic()
        self._saved = min(self._saved + self._share, _SAVED_MAX)
        if seen.slow_s is None:
            await self._store.put(key, body)
        else:
            await self._put_again_if_slow(key, body, seen.slow_s)
        seen.add(self._clock.monotonic() - started)

    async def _put_again_if_slow(self, key: ObjectKey, body: ObjectBody, slow_s: float) -> None:
        attempts = [self._attempt(key, body)]
        try:
            await asyncio.wait(attempts, timeout=slow_s)
            if not attempts[0].done() and self._saved >= 1:
                self._saved -= 1
                self.second_puts += 1
                attempts.append(self._attempt(key, body))
            await _first_stored(attempts)
            if len(attempts) == 2 and attempts[1].done() and not attempts[0].done():
                self.second_puts_first += 1
        finally:
            await _end(attempts)

    def _attempt(self, key: ObjectKey, body: ObjectBody) -> "asyncio.Task[None]":
        return asyncio.create_task(self._store.put(key, body), name=f"put {key}")


async def _first_stored(attempts: "list[asyncio.Task[None]]") -> None:
    """Return when one of them succeeds. Raises: what they failed with, when all have."""
    pending = set(attempts)
    failures: list[DisklessError] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            try:
                attempt.result()
            except DisklessError as error:
                failures.append(error)
            else:
                return
    raise next((error for error in failures if isinstance(error, OutcomeUnknown)), failures[0])


async def _end(attempts: "list[asyncio.Task[None]]") -> None:
    """Abort what is under way and wait for its end, also when cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    for attempt in attempts:
        attempt.cancel()
    while not all(attempt.done() for attempt in attempts):
        try:
            await asyncio.wait(attempts)
        except asyncio.CancelledError as error:
            cancelled = error
    for attempt in attempts:
        if not attempt.cancelled():
            attempt.exception()  # retrieved, or asyncio would report it as lost
    if cancelled is not None:
        raise cancelled
