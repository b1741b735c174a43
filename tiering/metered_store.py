"""Counts what a roll reads of an object store, for the job's report.

Calls are counted, not the requests that a retry adds. Threads of the roll share it.
"""

from threading import Lock
from typing import Self

from wal.coordinates import ObjectKey
from wal.stores.blocking_store import BlockingStore
from wal.stores.object_store import ObjectBody, ObjectStat


class MeteredStore:
    """A `BlockingStore` around another one, which it enters and leaves."""

    def __init__(self, store: BlockingStore) -> None:
        self._store = store
        self._lock = Lock()
        self.gets = 0
        self.get_bytes = 0

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, key: ObjectKey, body: ObjectBody) -> None:
        self._store.put(key, body)

    def get(self, key: ObjectKey) -> bytes:
        return self._counted(self._store.get(key))

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return self._counted(self._store.get_range(key, start, length))

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._store.head(key)

    def _counted(self, data: bytes) -> bytes:
        with self._lock:
            self.gets += 1
            self.get_bytes += len(data)
        return data

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._store.__exit__(*error)
