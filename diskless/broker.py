"""A broker: build the parts, wire them, run them until told to stop.

    store ── uploader ── write loop ── replica manager ── server
      └── object cache ── batch reader ──┘     │
    metadata log ── coordinator ───────────────┘

Each step makes a part (`diskless.parts`) of those that are there already. Health checks are
answered first and last (`diskless.broker_http`).
Start: the metadata log and SQLite first, then the chunks that an earlier process left (they are
uploaded and committed again, under their old keys, before anything new), then the listener. Stop is
the reverse, but that others lead first what is led here: no new connections, answer what is under
way, seal and upload what is queued, close.

Every long-running part is a task of one group: if one dies, the broker stops with its error, and a
restart recovers. Nothing is served half-alive.
"""

import asyncio
import functools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from diskless.broker_metrics import broker_metrics
from diskless.config import Config
from diskless.health.store_watch import StoreWatch
from diskless.iceberg.served_tables import ReplicaTables
from diskless.loop.loop_watch import LoopWatch
from diskless.parts.background import run_until_stop
from diskless.parts.broker_parts import BrokerParts
from diskless.parts.coordination import open_coordination
from diskless.parts.foundation import Foundation
from diskless.parts.read_path import ReadPath
from diskless.parts.service import open_rights, serve
from diskless.parts.storage import Storage, StoreOpener, open_storage
from diskless.parts.tokens import open_tokens
from diskless.parts.web import open_web
from diskless.parts.write_path import WritePath, commit_left_chunks
from diskless.request_metrics import LoopLag
from diskless.storage.cluster_identity import encode_identity
from diskless.storage.directory_watch import DirectoryWatch
from diskless.workers.head_parts import open_workers
from diskless.workers.spawner import Spawner
from metadata.operations import CATALOGUE
from wal.clock import Clock
from wal.disk import SYSTEM_DISK, Disk
from wal.stores.store_url import open_store


@asynccontextmanager
async def running_broker(
    config: Config,
    *,
    data: Path,
    clock: Clock,
    rng: random.Random,
    disk: Disk = SYSTEM_DISK,
    opener: StoreOpener = open_store,
    spawner: Spawner | None = None,
) -> AsyncIterator[BrokerParts]:
    """Build, recover, listen; on leaving, stop in reverse. Raises what a part died of.

    `disk` is the chunks' alone; metadata log and SQLite write to the machine's. A `spawner` makes
    the workers, of which there are more than one then; this process is their head.
    """
    async with AsyncExitStack() as stack:
        base = Foundation(stack, config, data=data, clock=clock, rng=rng)
        storage = await open_storage(stack, base, opener)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        await _watch(stack, tasks, base, storage)
        tokens = await open_tokens(stack, tasks, base)
        coordination = await open_coordination(stack, tasks, base, storage)
        writes = WritePath(base, storage, coordination, disk)
        recovered = await writes.recover(stack)
        reads = ReadPath(base, storage, coordination, writes)
        await reads.open(stack, coordination)
        await writes.run(stack, tasks, recovered)
        await commit_left_chunks(
            stack,
            tasks,
            base,
            storage,
            coordination,
            workers=0 if spawner is None else config.broker.workers,
            journal=writes.journal,
        )
        rights = open_rights(base, coordination)
        workers = None
        if spawner is not None:
            workers = functools.partial(
                open_workers, stack, tasks, base, storage, coordination, reads, spawner
            )
        server = await serve(
            stack, tasks, base, storage, coordination, writes, reads, tokens, rights, workers
        )
        await open_web(stack, base, coordination, tokens, rights.authorizer)
        parts = BrokerParts(
            base=base,
            storage=storage,
            coordination=coordination,
            writes=writes,
            reads=reads,
            tokens=tokens,
            server=server,
        )
        _show_tables(parts)
        _be_ready(stack, parts)
        yield parts


async def _watch(
    stack: AsyncExitStack, tasks: asyncio.TaskGroup, base: Foundation, storage: Storage
) -> None:
    """Watch the event loop, the data directory and the store, before a start that may be long.

    Such a start asks for little of the store, and must not find it forgotten.
    """
    loop = LoopWatch(base.config.loop, clock=base.clock, metrics=LoopLag(base.registry))
    await stack.enter_async_context(loop)
    run_until_stop(stack, tasks, loop.run(), "loop-watch")
    places = DirectoryWatch(base.data.path, base.lock)
    run_until_stop(stack, tasks, places.run(), "directory-watch")
    if base.tls.keys:
        run_until_stop(stack, tasks, base.tls.run(), "tls-keys")
    store = StoreWatch(
        storage.store,
        storage.reach,
        settings=base.config.health,
        identity=encode_identity(storage.cluster_id, base.config.broker.metadata_log),
    )
    run_until_stop(stack, tasks, store.run(), "store-watch")


def _show_tables(parts: BrokerParts) -> None:
    """The catalogue shows what this broker's replica knows."""
    if parts.base.catalogue is not None:
        replica = parts.coordination.partitions[CATALOGUE].replica
        loop = asyncio.get_running_loop()
        parts.base.catalogue.open(ReplicaTables(replica, parts.storage.store, loop))


def _be_ready(stack: AsyncExitStack, parts: BrokerParts) -> None:
    """Clients may be sent here, until the stop begins."""
    parts.base.metrics_page.add(broker_metrics(parts))
    partitions = parts.coordination.partitions
    parts.base.health.started(lambda: [one.index for one in partitions if one.leader is None])
    stack.callback(parts.base.health.stopping)
