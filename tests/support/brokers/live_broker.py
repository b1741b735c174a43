"""A whole broker in a thread of the test process, on a real socket, for blocking clients.

    with LiveBroker(tmp_path / "data", {"num.partitions": "3"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        ...
        committed = broker.broker.writes.lane.batches_committed

The broker has the event loop of that thread to itself, as in `diskless serve`. Tests may read its
counters from their own thread; what must run on the loop goes through `run`. `disk`, `opener` and
`clock` are the broker's own doors for faults; a `ForwardClock` lets long times pass at once.

A test that asks a broker over and over is given `until`, which has a deadline and says what it
waited for.
"""

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop

from diskless.broker import running_broker
from diskless.config import load_config
from diskless.parts.broker_parts import BrokerParts
from diskless.parts.storage import StoreOpener
from tests.support.loop_holds import LOOP_HELD_MS_MAX
from tests.support.ports import own_port
from wal.clock import Clock, SystemClock
from wal.disk import SYSTEM_DISK, Disk
from wal.stores.store_url import open_store

DEADLINE_S: Final = 120.0
"""How long anything may take here; far beyond what it does take on a loaded machine."""

QUIET: Final = {
    "log.level": "error",
    "audit.log.file": os.devnull,
    "http.listen": "",
    "loop.stall.stop.ms": LOOP_HELD_MS_MAX,
}
"""Nothing but errors is written. A callback that holds the loop too long ends the broker, and with
that the test."""

_Result = TypeVar("_Result")


class ForwardClock(SystemClock):
    """The machine's clocks; a test can put the monotonic one forward."""

    def __init__(self) -> None:
        self._forward_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._forward_s

    def advance(self, seconds: float) -> None:
        self._forward_s += seconds


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
        clock: Clock | None = None,
    ) -> None:
        """`seed` None: keys and ids that differ between lives, as they must on one directory."""
        listening = {"listeners": f"PLAINTEXT://127.0.0.1:{port or own_port()}"}
        self._config = load_config(overrides={**QUIET, **listening, **(settings or {})})
        self._data = data
        self._rng = random.Random(seed)
        self._disk = disk
        self._opener = opener
        self._clock = clock or SystemClock()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live-broker")
        self.broker: BrokerParts

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return self.broker.base.port

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `work` on the broker's loop; its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        """A clean stop. Raises what the broker died of, if it did."""
        if self._thread.is_alive() and self._failure is None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the broker does not stop"
        gc.collect()  # a broker is one cycle, with its buffers
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S), "the broker does not start"
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
        if self._thread.is_alive() or (self._failure is not None and error is None):
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
        running = running_broker(
            self._config,
            data=self._data,
            clock=self._clock,
            rng=self._rng,
            disk=self._disk,
            opener=self._opener,
        )
        async with running as self.broker:
            self._ready.set()
            await self._stopping.wait()


def until(is_so: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Ask again and again until it is so. Fails, saying `what` was waited for, at the deadline."""
    ends_at = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < ends_at, f"waited {deadline_s:.0f} s for {what}"
        time.sleep(0.005)


def until_nothing_waits(broker: LiveBroker) -> None:
    """Wait until the uploader is done with every chunk.

    A producer has its answer a moment before the chunk leaves the uploader; a test that then waits
    for its own chunk to arrive would take the old one for it.
    """
    uploader = broker.broker.writes.uploader
    until(lambda: uploader.waiting_chunks == 0, "an uploader without chunks")
