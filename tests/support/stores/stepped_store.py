"""An object store whose every request waits for a decision: what becomes of it, and when.

    steps = Steps()
    log = await ObjectMetadataLog.open(SteppedStore(MemoryStore(clock=clock), steps), ...)
    steps.puts.extend([Fate.LOST])            # the next put; without a plan requests just work
    steps.held = True                         # or: all requests wait in `steps.waiting` ...
    steps.waiting[0].decide(Fate.OK)          # ... until told

Several stepped stores may share one `Steps` or have their own, over one real store.

With `steps.listings` set, a listing that waits for its fate shows what was there all the time that
it waited, and of what came and went meanwhile whatever that generator draws: no more than
`ObjectStore.list` promises.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from tests.support.stores.faulty_store import StoreInFront
from wal.coordinates import ObjectKey
from wal.errors import ObjectExists, ObjectStoreUnavailable, UploadOutcomeUnknown
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStat, ObjectStore

_Result = TypeVar("_Result")


class Fate(Enum):
    """What becomes of a request."""

    OK = "it works"
    LOST = "it is applied; the answer is lost"
    LATE = "no answer; it is applied when the zombie is told to land, or never"
    AWAY = "it is not applied, and the answer says so"


@dataclass(eq=False)
class Waiting:
    """A request that waits for its fate."""

    kind: str
    key: str
    fate: asyncio.Future[Fate] = field(repr=False)

    def decide(self, fate: Fate) -> None:
        self.fate.set_result(fate)


class Zombie:
    """A put that its sender has given up."""

    def __init__(self, store: ObjectStore, key: ObjectKey, data: bytes) -> None:
        self._store = store
        self.key = key
        self._data = data

    async def land(self) -> bool:
        """Whether its bytes are there now: stored by it, or by another attempt before."""
        try:
            await self._store.put(self.key, BytesBody(self._data))
        except ObjectExists:
            return False
        return True


class Steps:
    """What is decided for the requests of some stores."""

    def __init__(self) -> None:
        self.held = False
        """Every request waits."""
        self.waiting: list[Waiting] = []
        self.puts: deque[Fate] = deque()
        """The fates of the next puts, unless held."""
        self.others: deque[Fate] = deque()
        """The fates of the next requests of other kinds, unless held."""
        self.before_answer: Callable[[str, str], Awaitable[None]] | None = None
        """Called with kind and key when a request was applied, before its answer arrives."""
        self.listings: random.Random | None = None
        """Draws what listings show of what came and went meanwhile; None: what there is now."""
        self.zombies: list[Zombie] = []
        self.made: list[tuple[str, str]] = []
        """(kind, key) of every request."""

    async def fate(self, kind: str, key: str) -> Fate:
        self.made.append((kind, key))
        if self.held:
            waiting = Waiting(kind, key, asyncio.get_running_loop().create_future())
            self.waiting.append(waiting)
            try:
                return await waiting.fate
            finally:
                self.waiting.remove(waiting)
        plan = self.puts if kind == "put" else self.others
        return plan.popleft() if plan else Fate.OK

    def shown(
        self, before: Sequence[ObjectStat], after: Sequence[ObjectStat]
    ) -> Sequence[ObjectStat]:
        """What a listing shows that began and ended with these objects."""
        rng = self.listings
        if rng is None:
            return after
        always = set(before) & set(after)
        some = dict.fromkeys(stat for stat in (*before, *after) if stat not in always)
        # All or nothing as often as anything between: holes are where both meet.
        share = rng.choice([0.0, 0.5, 1.0])
        drawn = {stat.key: stat for stat in (*always, *(s for s in some if rng.random() < share))}
        return [drawn[key] for key in sorted(drawn)]

    def count(self, kind: str) -> int:
        return sum(made == kind for made, _ in self.made)


class SteppedStore(StoreInFront):
    """An `ObjectStore`: a real one behind `steps`."""

    def __init__(self, store: ObjectStore, steps: Steps) -> None:
        super().__init__(store)
        self._steps = steps

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        data = b"".join(bytes(fragment) for fragment in body.fragments())
        fate = await self._steps.fate("put", key)
        if fate is Fate.AWAY:
            raise ObjectStoreUnavailable(f"{key}: away")
        if fate is Fate.LATE:
            self._steps.zombies.append(Zombie(self._store, key, data))
            raise UploadOutcomeUnknown(f"{key}: no answer")
        await self._store.put(key, BytesBody(data))
        await self._answer("put", key)
        if fate is Fate.LOST:
            raise UploadOutcomeUnknown(f"{key}: the answer was lost")

    async def get(self, key: ObjectKey) -> bytes:
        return await self._read("get", key, lambda: self._store.get(key))

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return await self._read("get", key, lambda: self._store.get_range(key, start, length))

    async def head(self, key: ObjectKey) -> ObjectStat:
        return await self._read("head", key, lambda: self._store.head(key))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async def now() -> Sequence[ObjectStat]:
            return [stat async for stat in self._store.list(prefix, start_after)]

        before = await now()

        async def whole() -> Sequence[ObjectStat]:
            return self._steps.shown(before, await now())

        for stat in await self._read("list", prefix, whole):
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        return await self._read("delete", keys[0], lambda: self._store.delete(keys))

    async def _read(
        self, kind: str, key: str, request: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        fate = await self._steps.fate(kind, key)
        if fate is Fate.AWAY:
            raise ObjectStoreUnavailable(f"{key}: away")
        result = await request()
        await self._answer(kind, key)
        if fate is not Fate.OK:
            raise ObjectStoreUnavailable(f"{key}: the answer was lost")
        return result

    async def _answer(self, kind: str, key: str) -> None:
        if self._steps.before_answer is not None:
            await self._steps.before_answer(kind, key)
