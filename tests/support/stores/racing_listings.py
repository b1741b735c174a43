"""An object store whose listings race with what else happens, and show as little as they may.

store = RacingListings(clock=clock)
store.meanwhile.append(put_three_objects)     # during the next listing
store.shows = {third_key}                     # of what it changes, only this one

A listing begins, `meanwhile` happens, the listing ends. It shows what was there all the time, and
of what came or went only the keys in `shows`: what `ObjectStore.list` promises, and no more.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from wal.clock import Clock
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectStat


class RacingListings(MemoryStore):
    """See the module; a private bucket."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.meanwhile: deque[Callable[[], Awaitable[None]]] = deque()
        """What happens during each of the next listings."""
        self.shows: set[str] = set()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        before = {stat async for stat in super().list(prefix, start_after)}
        if self.meanwhile:
            await self.meanwhile.popleft()()
        after = {stat async for stat in super().list(prefix, start_after)}
        shown = (before & after) | {stat for stat in before ^ after if stat.key in self.shows}
        for stat in sorted(shown):
            yield stat
