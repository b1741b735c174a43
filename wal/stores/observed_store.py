"""Watches whether an object store can be reached, by the outcomes of real operations.

    reach = StoreReach(url, clock=clock)
    store = ObservedStore(opened_store, reach)     # the same contract, and it takes notes
    reach.unreached_s(), reach.writes_failing_s()

An answer is an answer whatever it says: ObjectNotFound and ObjectExists come from a store that is
reached. ObjectStoreUnavailable and UploadOutcomeUnknown do not. Anything else, a cancellation or an
error of the caller's body, says nothing.

Puts are counted apart: a store that can be read and not written acknowledges nothing, and the reads
of consumers would hide that. One failed put is no outage, since each was repeated already by the
store itself within its deadline; what counts is for how long none has succeeded.

The notes are written on the event loop of the store's user; any thread may read them.
"""

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import (
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.object_store import (
    ObjectBody,
    ObjectStat,
    ObjectStore,
    StoreStatistics,
    ThreadPuts,
)


class StoreReach:
    """What is known of a store from the operations that ended; times are monotonic seconds."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        """The time before the first operation counts as if the store had just been reached."""
        self.url = url
        self._clock = clock
        self._reached_at = clock.monotonic()
        self._writes_failing_since: float | None = None
        self.last_error = ""
        """What the latest operation that did not reach the store said."""
        self.write_outcomes = 0
        """How many puts ended in a way that says something."""

    def answered(self, *, wrote: bool = False) -> None:
        """The store has answered, or a put has succeeded."""
        self._reached_at = self._clock.monotonic()
        if wrote:
            self.write_outcomes += 1
            self._writes_failing_since = None

    def failed(self, error: BaseException, *, wrote: bool = False) -> None:
        """The store did not answer, or did not take what was put."""
        self.last_error = str(error)
        if wrote:
            self.write_outcomes += 1
            if self._writes_failing_since is None:
                self._writes_failing_since = self._clock.monotonic()

    def unreached_s(self) -> float:
        """Seconds since the store last answered."""
        return self._clock.monotonic() - self._reached_at

    def writes_failing_s(self) -> float:
        """Seconds since the first of the puts that failed in a row; 0 when the last one did not."""
        since = self._writes_failing_since
        return 0.0 if since is None else self._clock.monotonic() - since


class ObservedStore:
    """Passes everything on to a store, and notes in a `StoreReach` what came of it."""

    def __init__(self, store: ObjectStore, reach: StoreReach) -> None:
        self._store = store
        self._thread_puts = store if isinstance(store, ThreadPuts) else None
        self._reach = reach

    @property
    def url(self) -> str:
        return self._store.url

    def statistics(self) -> StoreStatistics:
        return self._store.statistics()

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        with self._noted(wrote=True):
            await self._store.put(key, body)

    @property
    def thread_puts(self) -> ThreadPuts | None:
        """This store, if the one behind it takes puts in a thread."""
        return None if self._thread_puts is None else self

    def put_in_thread(
        self,
        key: ObjectKey,
        body: ObjectBody,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """See `ThreadPuts`."""
        assert self._thread_puts is not None
        self._thread_puts.put_in_thread(key, body, abandoned, meanwhile)

    def put_noted(self, length_bytes: int) -> None:
        """See `ThreadPuts`."""
        assert self._thread_puts is not None
        self._thread_puts.put_noted(length_bytes)
        self._reach.answered(wrote=True)

    async def get(self, key: ObjectKey) -> bytes:
        with self._noted():
            return await self._store.get(key)

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        with self._noted():
            return await self._store.get_range(key, start, length)

    async def head(self, key: ObjectKey) -> ObjectStat:
        with self._noted():
            return await self._store.head(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        listed = self._store.list(prefix, start_after)
        while True:
            with self._noted():
                try:
                    stat = await anext(listed)
                except StopAsyncIteration:
                    break
            yield stat
        self._reach.answered()

    async def delete(self, keys: Sequence[ObjectKey]) -> builtins.list[ObjectKey]:
        with self._noted():
            return [*await self._store.delete(keys)]

    @contextmanager
    def _noted(self, *, wrote: bool = False) -> Iterator[None]:
        try:
            yield
        except (ObjectNotFound, ObjectExists):
            self._reach.answered(wrote=wrote)
            raise
        except (ObjectStoreUnavailable, UploadOutcomeUnknown) as error:
            self._reach.failed(error, wrote=wrote)
            raise
        else:
            self._reach.answered(wrote=wrote)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._store.__aexit__(*error)
