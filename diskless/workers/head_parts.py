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

import structlog

from diskless.api import RunningOperations, coordinator_apis
from diskless.authorization import AllowEverything
from diskless.parts.background import run_until_stop
from diskless.parts.coordination import Coordination
from diskless.parts.foundation import Foundation
from diskless.parts.logins import decoys_of
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage
from diskless.sasl.failure_delay import FailureDelay
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_metrics import Unmeasured
from diskless.shared.connection_counts import ConnectionCounts
from diskless.shared.shared_descriptors import SharedDescriptors
from diskless.workers.birth_facts import BirthFacts
from diskless.workers.connections.assigner import Assigner
from diskless.workers.connections.balance import Balance
from diskless.workers.connections.metrics import assigner_metrics
from diskless.workers.doors import CALLS, Note
from diskless.workers.group import WorkerGroup
from diskless.workers.head_news import HeadNews
from diskless.workers.relay import RelayedApi
from diskless.workers.security.head_security import HeadSecurity, cannot_be
from diskless.workers.security.rights_teller import RightsTeller
from diskless.workers.security.security_news import SecretNews
from diskless.workers.spawner import Spawner
from metadata.coordinator.placement import Placement
from metadata.operations import CATALOGUE
from wal.chunks.buffer import BufferPool

log = structlog.get_logger(__name__)

_DRAIN_S = 35.0
"""What a worker takes to upload and commit what it has, beyond `server.stop.timeout.ms`."""


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

    named = {listener.name: listener for listener in base.listeners}

    def came(note: Note, end: socket.socket) -> None:
        if note.purpose == CALLS:
            calls.take(end, host="", user="", listener="")
            return
        why = cannot_be(note, named)
        if why is not None:
            log.error("a worker has named a client that cannot be", why=why)
            end.close()
        else:
            server.take(
                end,
                host=note.host,
                user=note.user,
                listener=note.listener,
                number=note.connection,
            )

    secrets = coordination.secrets
    decoys = await decoys_of(base, secrets)
    placed = Placement(coordination.partitions[CATALOGUE].replica, len(coordination.partitions))
    rights = RightsTeller(
        coordination.partitions[CATALOGUE].replica,
        lambda: SecretNews(decoys, () if secrets is None else secrets.found),
        asks_rules=base.config.authorizer.is_on,
        asks_users=any(listener.protocol.is_sasl for listener in base.listeners),
    )
    news = HeadNews(coordination.partitions, lambda: placed.coordinators, rights)
    shared = SharedDescriptors.make(count, window_count=base.config.quotas.window_count)
    assigner = Assigner(
        [listener.socket for listener in base.listeners if listener.socket is not None],
        ConnectionCounts(shared.connections),
        Balance(
            min(base.config.broker.workers_active_min, count),
            base.config.broker.workers_full_percent / 100,
        ),
        clock=base.clock,
        backlog=base.config.server.backlog,
    )
    group = WorkerGroup(
        count,
        spawner,
        facts_of=functools.partial(_facts, base, storage, count, apis),
        assigner=assigner,
        news=news,
        came=came,
        partitions=coordination.partitions,
        security=HeadSecurity(
            base.audit, FailureDelay(base.config.sasl.failure_delay_ms, base.clock)
        ),
        shared=shared,
        stop_timeout_s=base.config.server.stop_timeout_ms / 1000 + _DRAIN_S,
    )
    stack.push_async_callback(group.stop)
    await group.start()
    if secrets is not None:
        secrets.subscribe(news.secrets_changed)
    base.tls.subscribe(group.look_at_keys)
    run_until_stop(stack, tasks, group.keep(), "workers")
    # Ends first: nobody is given to workers that are about to end.
    stack.callback(assigner.stop)
    assigner.start()
    base.metrics_page.add(assigner_metrics(assigner))
    base.metrics_page.merge_with(group.pages)


def _facts(
    base: Foundation, storage: Storage, count: int, apis: ApiRegistry, number: int, life: int
) -> BirthFacts:
    served: Sequence[RelayedApi] = [RelayedApi.of(api) for api in apis]
    return BirthFacts(
        number=number,
        life=life,
        count=count,
        node_id=base.node_id,
        cluster_id=storage.cluster_id,
        data=str(base.data.path),
        addresses=[listener.address for listener in base.listeners],
        apis=served,
    )
