"""A whole broker in a thread of the test process, on a real socket, for blocking clients.

    with LiveBroker(tmp_path / "data", {"num.partitions": "3"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        ...
        committed = broker.broker.lane.batches_committed

The broker has the event loop of that thread to itself, as in `diskless serve`. Tests may read its
counters from their own thread; what must run on the loop goes through `run`. `disk` and `opener`
are the broker's own doors for faults.

A test that asks a broker over and over is given `until`, which has a deadline and says what it
waited for.
"""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop

from diskless.broker import Broker, StoreOpener
from diskless.config import load_config
from wal.clock import SystemClock
from wal.disk import SYSTEM_DISK, Disk
from wal.stores.store_url import open_store

DEADLINE_S: Final = 30.0
"""How long anything may take here; far beyond what it does take on a loaded machine."""

QUIET: Final = {"log.level": "error", "metrics.listen": ""}

_Result = TypeVar("_Result")


class LiveBroker:
    """One life of a broker; the same `data` can be given to the next one."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        seed: int | None = None,
        disk: Disk = SYSTEM_DISK,
        opener: StoreOpener = open_store,
    ) -> None:
        """`seed` None: keys and ids that differ between lives, as they must on one directory."""
        self._config = load_config(overrides={**QUIET, **(settings or {})})
        self._data = data
        self._port = port
        self._rng = random.Random(seed)
        self._disk = disk
        self._opener = opener
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-broker")
        self.broker: Broker

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self.broker.port

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the broker's loop; its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        """A clean stop. Raises what the broker died of, if it did."""
        if self._thread.is_alive() and self._failure is None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(DEADLINE_S * 2)
        assert not self._thread.is_alive(), "the broker does not stop"
        # The broker put itself out of the collector's reach; a test process has many of them.
        gc.unfreeze()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(DEADLINE_S)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.broker = Broker(
            self._config,
            data=self._data,
            host="127.0.0.1",
            port=self._port,
            clock=SystemClock(),
            rng=self._rng,
            disk=self._disk,
            opener=self._opener,
        )
        async with self.broker.running():
            self._ready.set()
            await self._stopping.wait()


def until(is_so: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Ask again and again until it is so. Fails, saying `what` was waited for, at the deadline."""
    ends_at = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < ends_at, f"waited {deadline_s:.0f} s for {what}"
        time.sleep(0.005)
