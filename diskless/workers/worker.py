"""A worker as a process: from its birth in the spawner to its end.

It begins with what the head handed over, says hello, hears the news, builds its parts, and serves
until the head tells it to stop or SIGTERM does; then it finishes what it has, as a broker does. It
ends at once where the head is gone (`diskless.workers.head_line`).

SIGINT and SIGHUP reach every process of a group; they are the head's to understand.
"""

import asyncio
import random
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry

from diskless.config import Config
from diskless.metrics import MetricsPage
from diskless.parts.storage import StoreOpener
from diskless.shared.shared_descriptors import SharedDescriptors
from diskless.workers.birth_facts import BirthFacts
from diskless.workers.divided_settings import share_of
from diskless.workers.doors import Doors
from diskless.workers.head_line import HeadLine, end_with
from diskless.workers.spawner import Birth
from diskless.workers.worker_parts import open_ground, open_worker
from wal.clock import SystemClock
from wal.disk import SYSTEM_DISK
from wal.errors import DisklessError
from wal.stores.store_url import open_store

log = structlog.get_logger(__name__)


def live(
    birth: Birth,
    config: Config,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    settled: Callable[[], None],
    opener: StoreOpener = open_store,
) -> int:
    """The life of a worker; its exit status. `settled` is called when everything was built."""
    facts = BirthFacts.decode(birth.facts)
    shared_count = len(SharedDescriptors._fields)
    shared = SharedDescriptors(*birth.descriptors[:shared_count])
    descriptors = birth.descriptors[shared_count:]
    line_end, doors_end, accepted = [socket.socket(fileno=one) for one in descriptors]
    end_with(doors_end)
    structlog.contextvars.bind_contextvars(worker=facts.number)
    threading.current_thread().name = f"worker-{facts.number}"
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(
            _live(
                share_of(config, facts.count),
                facts,
                line_end,
                doors_end,
                accepted,
                shared,
                settled,
                opener,
            )
        )


async def _live(
    config: Config,
    facts: BirthFacts,
    line_end: socket.socket,
    doors_end: socket.socket,
    accepted: socket.socket,
    shared: SharedDescriptors,
    settled: Callable[[], None],
    opener: StoreOpener,
) -> int:
    rng = random.Random(secrets.randbits(256))
    line: HeadLine | None = None
    why = ""
    try:
        async with AsyncExitStack() as stack:
            registry = CollectorRegistry()
            metrics_page = MetricsPage(registry, clock=SystemClock())

            async def page() -> bytes:
                _, text = await metrics_page.render("")
                return text

            line = HeadLine(
                line_end,
                metadata_partitions=config.coordinator.metadata_partitions,
                page=page,
            )
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, line.stopping.set)
            line.hello()
            await line.told.wait()
            base = open_ground(
                config,
                facts,
                line,
                registry=registry,
                metrics_page=metrics_page,
                clock=SystemClock(),
                rng=rng,
            )
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await open_worker(
                stack,
                tasks,
                base,
                line,
                Doors(doors_end),
                accepted,
                shared,
                opener=opener,
                disk=SYSTEM_DISK,
            )
            settled()
            line.ready()
            await line.stopping.wait()
    except* (DisklessError, OSError) as group:
        why = "; ".join(f"{type(one).__name__}: {one}" for one in _leaves(group))
        log.error("worker stopped", error=why)
        if line is not None:
            line.failed(why)
    return int(bool(why))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
