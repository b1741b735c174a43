"""A broker as a process: `diskless serve`.

Runs one broker in the foreground until SIGTERM or SIGINT, prints where it is reached when it is
ready, and ends with a status and a line that tell what became of it. Whatever keeps it from
starting is raised, for the command line to say in one line; what ends it later is logged.

A signal during the start ends the start: it may take long (a store that does not answer, a metadata
partition without leader), and what is half built is taken down like the whole. SIGHUP looks at the
files of keys and certificates.
"""

import asyncio
import contextlib
import gc
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from diskless.broker import running_broker
from diskless.config import Config
from diskless.descriptors import fit_descriptors
from diskless.listeners.endpoints import shown_address
from diskless.logs import configure_logs
from diskless.parts.broker_parts import BrokerParts
from diskless.tls_memory import available_memory, fit_tls_memory
from diskless.workers.spawner import Birth, Spawner
from diskless.workers.worker import live
from wal.clock import SystemClock
from wal.errors import DisklessError, InvalidSettings
from wal.failpoint import arm_from_environment
from wal.security.security_protocol import SecurityProtocol

log = structlog.get_logger(__name__)

_SWITCH_INTERVAL_S: Final = 0.001
"""How long a thread that computes may keep the event loop from going on; Python's 5 ms are too long
when records are checked in threads: each turn of the loop would wait for that."""

_GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""The middle generation has some thirty thousand objects at most, which is 2 to 3 ms of walking."""


def serve(config: Config, *, data: Path) -> int:
    """Run a broker in the foreground until SIGTERM or SIGINT; the exit status.

    Raises: what kept it from starting; InvalidSettings also later, when it shows only on the way.
    """
    arm_from_environment()
    configure_logs(log_format=config.broker.log_format, level=config.broker.log_level)
    config = fit_descriptors(fit_tls_memory(_with_workers(config), available_memory()))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    process = _Process(_spawner(config))
    failures: list[DisklessError | OSError] = []
    with contextlib.ExitStack() as stack:
        if process.spawner is not None:
            stack.callback(process.spawner.close)
        runner = stack.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
        try:
            runner.run(process.run(config, data))
        except* (DisklessError, OSError) as group:
            failures += _leaves(group)
    if not failures:
        return 0
    first = next((error for error in failures if isinstance(error, InvalidSettings)), failures[0])
    is_start = not process.is_ready or isinstance(first, InvalidSettings)
    for error in failures:
        if error is not first or not is_start:
            log.error("broker stopped", error=f"{type(error).__name__}: {error}")
    if is_start:
        raise first
    return 1


class _Process:
    """One life of a broker, and how far it came."""

    def __init__(self, spawner: Spawner | None) -> None:
        self.is_ready = False
        self.spawner = spawner
        self._looks: set[asyncio.Task[None]] = set()

    async def run(self, config: Config, data: Path) -> None:
        """Returns when a signal has ended it. Raises what the broker dies of."""
        stop = asyncio.Event()
        starting = asyncio.current_task()
        assert starting is not None

        def signalled() -> None:
            stop.set()
            if not self.is_ready:
                starting.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled)
        # Keys are read later than this anyway.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        running = running_broker(
            config, data=data, clock=SystemClock(), rng=_system_rng(), spawner=self.spawner
        )
        try:
            async with running as broker:
                self.is_ready = True
                _settle_garbage_collector()
                loop.add_signal_handler(signal.SIGHUP, self._look_at_keys, broker)
                _print_ready(broker)
                await stop.wait()
                log.info("stopping")
        except asyncio.CancelledError:
            if not stop.is_set() or self.is_ready:
                raise
            log.info("stopped before it was ready")

    def _look_at_keys(self, broker: BrokerParts) -> None:
        look = asyncio.ensure_future(broker.base.tls.reload())
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)


def _with_workers(config: Config) -> Config:
    """Returns `config` with the number of workers there are."""
    workers = config.broker.workers or os.cpu_count() or 1
    return replace(config, broker=replace(config.broker, workers=workers))


def _spawner(config: Config) -> Spawner | None:
    """Who forks the workers, if there are any; made while this process has one thread."""
    if config.broker.workers == 1:
        return None

    def worker(birth: Birth) -> int:
        return live(birth, config, loop_factory=_loop_factory(), settled=_settle_garbage_collector)

    return Spawner(worker)


def _settle_garbage_collector() -> None:
    """What was built lives as long as the process: the collector need not look at it again.

    Requests leave next to no cycles, but many values that live until their commit; looking for
    cycles among them every 700 allocations took a tenth of the event loop's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _print_ready(broker: BrokerParts) -> None:
    """The first lines a user sees: what runs where, and what to type next."""
    base, storage = broker.base, broker.storage
    address = shown_address(base.host, base.port)
    print(f"diskless broker {base.node_id} of cluster {storage.cluster_id}")
    print(f"  data         {base.data.path}")
    print(f"  object store {storage.store.url}")
    ready = f"ready on {address}"
    if base.http is not None:
        ready += f", health and metrics on http://{base.http.host}:{base.http.port}"
    if storage.start_problem is not None:
        ready += (
            ", but the object store cannot be reached, and nothing is acknowledged until it can: "
            + storage.start_problem
        )
    print(ready, flush=True)
    kcat, command = f"kcat -b {address}", f"diskless topic list --bootstrap {address}"
    if base.listeners[0].protocol is not SecurityProtocol.PLAINTEXT:
        # With what a client has to know: the same file for both.
        kcat, command = f"kcat -F FILE -b {address}", f"{command} --command-config FILE"
    print("next:", flush=True)
    print(f"  {kcat} -L                        what is there")
    print(f"  {kcat} -t first -P               type lines, ctrl-D sends them")
    print(f"  {kcat} -t first -C -e            read them back")
    print(f"  {command}", flush=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop, or the standard loop where there is none."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _system_rng() -> random.Random:
    """Seeded by the operating system: object keys and producer ids must differ between runs."""
    return random.Random(secrets.randbits(256))


def _leaves(
    group: BaseExceptionGroup[DisklessError | OSError],
) -> Iterator[DisklessError | OSError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
