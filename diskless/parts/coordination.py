"""What a broker does for the metadata: it follows or leads each partition, and knows the result.

Beside the metadata partitions and their client stand the parts that only need those: the quotas
that are enforced here, the topic that shows the metadata log, and the consumer groups, whose
coordinators run where their metadata partition is led.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from diskless.cluster.coordinators import Coordinators
from diskless.groups.group_router import GroupRouter
from diskless.groups.group_store import CoordinatorGroupStore
from diskless.groups.offsets import TopicsWith
from diskless.parts.background import run_until_stop
from diskless.parts.foundation import Foundation
from diskless.parts.storage import Storage
from diskless.quotas.quotas import QuotaEnforcer
from diskless.replica.metadata_topic import MetadataTopic
from metadata.clients.coordinator_client import RemoteClient
from metadata.clients.routed_client import RoutedClient
from metadata.clients.wire_client import WireClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import Candidate, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """The metadata partitions, and what is made of them alone."""

    candidate: Candidate
    coordinators: Coordinators
    quotas: QuotaEnforcer
    metadata_topic: MetadataTopic
    groups: GroupRouter

    @property
    def client(self) -> RoutedClient:
        """Asks all coordinators, led here or elsewhere."""
        return self.coordinators.client


async def open_coordination(
    stack: AsyncExitStack, tasks: asyncio.TaskGroup, base: Foundation, storage: Storage
) -> Coordination:
    """Open and run every metadata partition; returns when each has a leader.

    Raises: as `Coordinators`, and what it dies of meanwhile.
    """
    config, clock, rng = base.config, base.clock, base.rng
    host, port = base.advertised
    incarnation, past = storage.data.begin_life(rng)
    candidate = Candidate(
        broker_id=base.node_id,
        host=host,
        port=port,
        incarnation=incarnation,
        past_incarnations=past,
        may_lead=config.coordinator.may_lead,
    )

    def connect(host: str, port: int) -> RemoteClient:
        client_id = f"diskless-broker-{base.node_id}"
        return WireClient(host, port, clock=clock, rng=rng, client_id=client_id)

    def group_worker(coordinator: PartitionCoordinator) -> Worker:
        return groups.led(coordinator.coordinator_id, CoordinatorGroupStore(coordinator))

    coordinators = await stack.enter_async_context(
        Coordinators(
            config,
            data=storage.data,
            store=storage.store,
            cluster_id=storage.cluster_id,
            candidate=lambda: candidate,
            connect=connect,
            owns_prefix=storage.start_problem is None,
            group_worker=group_worker,
            clock=clock,
            rng=rng,
        )
    )
    client = coordinators.client
    metadata_topic = MetadataTopic(coordinators.partitions)
    topics = TopicsWith(client, [metadata_topic.description])
    client.subscribe_topics(topics.changed)
    # `group_worker` needs it once `coordinators` runs and comes to lead.
    groups = GroupRouter(
        coordinators.partitions, topics, settings=config.groups, clock=clock, rng=rng
    )
    running = run_until_stop(stack, tasks, coordinators.run(), "coordinators")
    await _first_of(coordinators.ready(), running)
    return Coordination(
        candidate=candidate,
        coordinators=coordinators,
        quotas=QuotaEnforcer(client.client_quotas, settings=config.quotas, clock=clock),
        metadata_topic=metadata_topic,
        groups=groups,
    )


async def _first_of(wanted: Coroutine[Any, Any, None], running: asyncio.Task[None]) -> None:
    """Wait for `wanted`, unless `running`, which it depends on, ends first."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
