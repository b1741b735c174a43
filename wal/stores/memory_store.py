"""Objects in memory: for tests, and for a broker that may forget everything.

`memory://name` names a bucket of this process: all who open the same name see the same objects, for
as long as the process lives, so a broker can be stopped and started again on it.

Keeps the whole contract of `wal.stores.object_store`; nothing can fail or be slow here (tests wrap
it). Stored bytes are immutable. A bucket has no size limit: it is not meant to hold more than a
test.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Self

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectExists, ObjectNotFound
from wal.stores.object_store import (
    ObjectBody,
    ObjectStat,
    StoreCounters,
    StoreStatistics,
    check_object_key,
)


class _Object(NamedTuple):
    data: bytes
    last_modified_ms: int


class _Bucket:
    """Objects by key, and their keys in order."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.keys: list[str] = []


_buckets: Final[dict[str, _Bucket]] = {}


def forget_bucket(name: str) -> None:
    """Drop `memory://name` and all it holds; stores that are open on it keep their view."""
    _buckets.pop(name, None)


class MemoryStore:
    """The object store `memory://<name>`; its contract is `wal.stores.object_store.ObjectStore`."""

    def __init__(self, name: str = "", *, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        # The empty name is private: nobody can open it a second time by URL.
        self._bucket = _buckets.setdefault(name, _Bucket()) if name else _Bucket()
        self._counters = StoreCounters()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def statistics(self) -> StoreStatistics:
        return self._counters.snapshot()

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        check_object_key(key)
        self._counters.puts += 1
        collected = bytearray()
        for fragment in body.fragments():
            collected += fragment  # now: the next fragment may come in the same buffer
        data = bytes(collected)
        if len(data) != body.length_bytes:
            self._counters.errors += 1
            raise CorruptObject(
                f"{key}: the body is {len(data)} bytes long and says {body.length_bytes}"
            )
        stored = self._bucket.objects.get(key)
        if stored is None:
            self._bucket.objects[key] = _Object(data, self._clock.now_ms())
            insort(self._bucket.keys, key)
        elif stored.data != data:
            self._counters.errors += 1
            raise ObjectExists(f"{self.url}: {key}")
        self._counters.put_bytes += len(data)

    async def get(self, key: ObjectKey) -> bytes:
        self._counters.gets += 1
        data = self._find(key).data
        self._counters.get_bytes += len(data)
        return data

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        self._counters.gets += 1
        data = self._find(key).data[start : start + length]
        if start < 0 or len(data) != length:
            self._counters.errors += 1
            raise CorruptObject(
                f"{self.url}: {key}: no bytes [{start}, {start + length}):"
                f" it has {len(self._find(key).data)}"
            )
        self._counters.get_bytes += length
        return data

    async def head(self, key: ObjectKey) -> ObjectStat:
        self._counters.heads += 1
        return self._stat(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        self._counters.lists += 1
        # By key, not by position: puts and deletes may happen between two steps of the caller.
        keys = self._bucket.keys
        position = max(bisect_left(keys, prefix), bisect_right(keys, start_after))
        while position < len(keys) and (key := keys[position]).startswith(prefix):
            yield self._stat(ObjectKey(key))
            position = bisect_right(keys, key)

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        self._counters.deletes += 1
        for key in keys:
            if self._bucket.objects.pop(key, None) is not None:
                del self._bucket.keys[bisect_left(self._bucket.keys, key)]
        return tuple(keys)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close: the bucket outlives its stores."""

    def _find(self, key: ObjectKey) -> _Object:
        found = self._bucket.objects.get(key)
        if found is None:
            self._counters.errors += 1
            raise ObjectNotFound(f"{self.url}: {key}")
        return found

    def _stat(self, key: ObjectKey) -> ObjectStat:
        found = self._find(key)
        return ObjectStat(key, len(found.data), found.last_modified_ms)
