"""The head's part in workers: what they are served with, and how they are watched.

A head is a broker that accepts nothing itself. Its server has the connections that workers relay
for their clients; beside it stands one that answers the workers' own calls, from all coordinators
of the cluster (`RoutedClient`), and not only from those that are led here.
"""

import asyncio
import functools
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from diskless.api import RunningOperations, coordinator_apis
from diskless.authorization import AllowEverything
from diskless.config import Config
from diskless.listeners.listeners import plan_listeners
from diskless.parts.background import run_until_stop
from diskless.parts.coordination import Coordination
from diskless.parts.foundation import Foundation
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_metrics import Unmeasured
from diskless.shared.shared_descriptors import SharedDescriptors
from diskless.workers.birth_facts import BirthFacts
from diskless.workers.doors import CALLS, Note
from diskless.workers.group import WorkerGroup
from diskless.workers.head_news import HeadNews
from diskless.workers.relay import RelayedApi
from diskless.workers.spawner import Spawner
from metadata.coordinator.placement import Placement
from metadata.operations import CATALOGUE
from wal.chunks.buffer import BufferPool
from wal.errors import InvalidSettings
from wal.security.security_protocol import SecurityProtocol

_DRAIN_S = 35.0
"""What a worker takes to upload and commit what it has, beyond `server.stop.timeout.ms`."""


def check_workers(config: Config) -> None:
    """Raises InvalidSettings where workers cannot do what is configured."""
    for plan in plan_listeners(config.listeners):
        if plan.protocol != SecurityProtocol.PLAINTEXT:
            raise InvalidSettings(
                f"broker.workers={config.broker.workers}: workers serve PLAINTEXT listeners only, "
                f"and {plan.bind.listener} is {plan.protocol}; write broker.workers=1"
            )
    if config.authorizer.is_on:
        raise InvalidSettings(
            f"broker.workers={config.broker.workers}: workers ask no rules of access, and there is "
            "authorizer=acl; write broker.workers=1"
        )


async def open_workers(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: Foundation,
    storage: Storage,
    coordination: Coordination,
    reads: ReadPath,
    spawner: Spawner,
    server: KafkaServer,
    apis: ApiRegistry,
) -> None:
    """Start them, and keep them until the stop. Raises StorageFailed."""
    count = base.config.broker.workers
    operations = await stack.enter_async_context(RunningOperations())
    for_workers = coordinator_apis(
        coordination.client, reads.search, operations, AllowEverything(), base.audit
    )
    calls = KafkaServer(
        base.listeners,
        apis=ApiRegistry(for_workers),
        settings=base.config.server,
        pool=BufferPool(storage.wal_settings.buffer_pool_max_bytes),
        clock=base.clock,
        metrics=Unmeasured(),
        long_work=reads.long_work,
        accepts=False,
    )
    await stack.enter_async_context(calls)

    def came(note: Note, end: socket.socket) -> None:
        if note.purpose == CALLS:
            calls.take(end, host="", user="", listener="")
        else:
            server.take(end, host=note.host, user=note.user, listener=note.listener)

    placed = Placement(coordination.partitions[CATALOGUE].replica, len(coordination.partitions))
    group = WorkerGroup(
        count,
        spawner,
        facts_of=functools.partial(_facts, base, storage, count, apis),
        listeners=[listener.socket for listener in base.listeners],
        news=HeadNews(coordination.partitions, lambda: placed.coordinators),
        came=came,
        partitions=coordination.partitions,
        shared=SharedDescriptors.make(count, window_count=base.config.quotas.window_count),
        stop_timeout_s=base.config.server.stop_timeout_ms / 1000 + _DRAIN_S,
    )
    stack.push_async_callback(group.stop)
    await group.start()
    run_until_stop(stack, tasks, group.keep(), "workers")
    base.metrics_page.merge_with(group.pages)


def _facts(
    base: Foundation, storage: Storage, count: int, apis: ApiRegistry, number: int
) -> BirthFacts:
    served: Sequence[RelayedApi] = [RelayedApi.of(api) for api in apis]
    return BirthFacts(
        number=number,
        count=count,
        node_id=base.node_id,
        cluster_id=storage.cluster_id,
        data=str(base.data.path),
        apis=served,
    )
