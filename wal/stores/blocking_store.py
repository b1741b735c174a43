"""Object stores without an event loop, for Spark tasks: `open_blocking_store(url)`.

The same promises as `wal.stores.object_store` for the operations a task needs, kept by the same
code. A directory is what the broker's own store runs in its threads
(`wal.stores.file_store.BlockingFileStore`). S3 is a client on boto3
(`wal.stores.blocking_s3_store`) below the operations that the broker's store runs too
(`wal.stores.s3_operations`). `memory://` is another process's memory here, so it is refused.

boto3 takes a tenth of a second to import, so only an `s3://` URL does it.
"""

import random
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol, Self

from wal.clock import Clock, SystemClock
from wal.coordinates import ObjectKey
from wal.errors import InvalidSettings
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import ObjectBody, ObjectStat
from wal.stores.s3_settings import S3Settings
from wal.stores.store_url import parse_store_url


class BlockingStore(Protocol):
    """An object store for threads; safe to share between them. The one that enters it closes it."""

    @property
    def url(self) -> str: ...

    def put(self, key: ObjectKey, body: ObjectBody) -> None:
        """See `ObjectStore.put`."""
        ...

    def get(self, key: ObjectKey) -> bytes:
        """See `ObjectStore.get`."""
        ...

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        ...

    def head(self, key: ObjectKey) -> ObjectStat:
        """See `ObjectStore.head`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class MeteredStore:
    """Counts what is read of another store, which it enters and leaves.

    Calls are counted, not the requests that a retry adds. Threads may share it.
    """

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


class BlockingBucket(BlockingStore, Protocol):
    """A blocking store that also lists and deletes: what a job's driver may need, no task."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectStat]:
        """See `ObjectStore.list`."""
        ...

    def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        """See `ObjectStore.delete`."""
        ...


def open_blocking_store(
    url: str,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    sync: bool = True,
    s3_settings: S3Settings | None = None,
) -> BlockingBucket:
    """The store that `url` names; enter it with `with` before use.

    A Spark task gets a URL and nothing else from its driver, so it takes the system's clock and
    randomness here unless told otherwise. `endpoint_url`, `region` and `sync` as in
    `wal.stores.store_url.open_store`.
    Raises InvalidSettings saying what is allowed.
    """
    clock = clock or SystemClock()
    rng = rng or random.SystemRandom()
    location = parse_store_url(url)
    if location.scheme == "file":
        return BlockingFileStore(location.place, clock=clock, rng=rng, sync=sync)
    if location.scheme == "memory":
        raise InvalidSettings(
            f"object store {url!r}: a Spark task cannot reach the broker's memory"
        )
    from wal.stores.blocking_s3_store import BlockingS3Store

    return BlockingS3Store(
        location.place,
        location.prefix,
        endpoint_url=location.endpoint_url or endpoint_url,
        region=location.region or region,
        clock=clock,
        rng=rng,
        settings=location.s3_settings(s3_settings),
    )
