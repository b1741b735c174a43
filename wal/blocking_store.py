"""Object stores without an event loop, for Spark tasks: `open_blocking_store(url)`.

The same promises as `wal.object_store` for the operations a task needs, kept by the same code. A
directory is what the broker's own store runs in its threads (`wal.file_store.BlockingFileStore`).
S3 is the broker's `wal.s3_store.S3Store` on an event loop in a thread of its own: a second client
on boto3 would have to repeat how lost answers, checksums and retries are handled, and be tested
again, to save one thread per task. `memory://` is another process's memory here, so it is refused.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from wal.clock import Clock, SystemClock
from wal.coordinates import ObjectKey
from wal.errors import InvalidSettings
from wal.file_store import BlockingFileStore
from wal.object_store import ObjectBody, ObjectStat, ObjectStore
from wal.s3_settings import S3Settings
from wal.store_url import open_store, parse_store_url

_Result = TypeVar("_Result")


class BlockingStore(Protocol):
    """An object store for threads; safe to share between them. Whoever enters it closes it."""

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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_blocking_store(
    url: str,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    sync: bool = True,
    s3_settings: S3Settings | None = None,
) -> BlockingStore:
    """The store that `url` names; enter it with `with` before use.

    A Spark task gets a URL and nothing else from its driver, so it takes the system's clock and
    randomness here unless told otherwise. `endpoint_url`, `region` and `sync` as in
    `wal.store_url.open_store`.
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
    return StoreOnALoop(
        lambda: open_store(
            url,
            clock=clock,
            rng=rng,
            endpoint_url=endpoint_url,
            region=region,
            s3_settings=s3_settings,
        )
    )


class StoreOnALoop:
    """Any `ObjectStore`, run on an event loop in a thread of its own.

    Every call blocks until the store has answered; the store's own deadlines bound it. A caller
    that is interrupted (KeyboardInterrupt, a killed task) cancels what it waited for.
    """

    def __init__(self, make_store: Callable[[], ObjectStore]) -> None:
        self._make_store = make_store
        self._store: ObjectStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return self._opened().url

    def put(self, key: ObjectKey, body: ObjectBody) -> None:
        self._run(self._opened().put(key, body))

    def get(self, key: ObjectKey) -> bytes:
        return self._run(self._opened().get(key))

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return self._run(self._opened().get_range(key, start, length))

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._run(self._opened().head(key))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="blocking-store", daemon=True
        )
        self._thread.start()
        try:
            self._store = self._run(self._open())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._run(self._opened().__aexit__(None, None, None))
        finally:
            self._store = None
            self._stop_loop()

    async def _open(self) -> ObjectStore:
        store = self._make_store()
        return await store.__aenter__()

    def _opened(self) -> ObjectStore:
        if self._store is None:
            raise ValueError("the store is not open; use it in a with statement")
        return self._store

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        assert self._loop is not None
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()  # without effect unless it was this thread that was interrupted
            raise

    def _stop_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._run(_end_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None
        self._thread = None


async def _end_other_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
