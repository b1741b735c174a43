"""A broker's part in the metadata: it follows or leads each partition, and knows the result.

    RoutedClient ──(led here)── LocalClient ── MetadataPartition 0 .. n-1
         └──(led elsewhere)── WireClient          ├── metadata log (local or object)
                                                  ├── Replica (SQLite), from a snapshot if need be
                                                  └── while leading: PartitionCoordinator + workers

With the local log this broker leads all metadata partitions by holding their directories' locks.
With the object log any number of brokers share the logs below one bucket prefix, and each leads
what it was elected for.

Beside the partitions and their client stand the parts that only need those: the quotas that are
enforced here, the topic that shows the metadata log, and the consumer groups and transactional ids,
whose coordinators run where their metadata partition is led.

Failure cases: a partition that cannot go on (its log or state makes no sense) ends the broker;
whatever else happens to a worker it retries itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from diskless.groups.group_router import GroupRouter
from diskless.groups.group_store import CoordinatorGroupStore
from diskless.groups.offsets import TopicsWith
from diskless.parts.background import run_until_stop
from diskless.parts.foundation import Foundation
from diskless.parts.leader_workers import LeaderWorkers, leader_workers
from diskless.parts.peers import Peers, follow_secrets
from diskless.parts.storage import Storage
from diskless.quotas.quotas import QuotaEnforcer
from diskless.replica.metadata_topic import MetadataTopic
from diskless.sasl.broker_secrets import BrokerSecrets
from diskless.sinks.home_asker import home_asker
from diskless.sinks.share_teller import ShareTeller
from diskless.sinks.sink_counts import SinkCounts
from diskless.topics.noted_facts import NotedFacts
from diskless.transactions.transaction_ends import transaction_ends
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import TransactionRouter
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.feed_connections import FeedConnections
from metadata.clients.local_client import LocalClient
from metadata.clients.routed_client import RoutedClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition, SharedFeed, Worker
from metadata.coordinator.placement import Placement
from metadata.coordinator.sink_notes import NotePlace
from metadata.leadership.candidate import Candidate
from metadata.leadership.leader_moves import MovePace
from metadata.leadership.ranks import Ranks
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.messages.codec import Operation
from metadata.messages.shapes import Addressed
from metadata.messages.sinks import COMMIT_SHARES_HERE
from metadata.messages.transactions import ADD_TO_TRANSACTION, END_PARTS, JOIN_TRANSACTIONS
from metadata.operations import CATALOGUE
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from wal.errors import InvalidSettings

_ASKED_WITHIN_MS: Final = 3_000

_Entry = TypeVar("_Entry")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """The metadata partitions, and what is made of them alone."""

    candidate: Candidate
    partitions: Sequence[MetadataPartition]
    workers_at_work: Mapping[int, LeaderWorkers]
    """By metadata partition, of those that are or were led here; for the metrics."""
    local: LocalClient
    """Asks the coordinators that are led here."""
    client: RoutedClient
    """Asks all coordinators, led here or elsewhere."""
    quotas: QuotaEnforcer
    sinks: SinkCounts
    metadata_topic: MetadataTopic
    groups: GroupRouter
    transactions: TransactionRouter
    transaction_numbers: TransactionNumbers
    """Asks the coordinators of transactional ids, led here or elsewhere."""
    secrets: BrokerSecrets | None
    """Brokers log in to each other by these. None where they do not, or where one is alone."""


async def hand_over(partitions: Sequence[MetadataPartition]) -> None:
    """Let other brokers lead what is led here, as far as there are any, before this one stops."""
    await asyncio.gather(*(partition.hand_over() for partition in partitions))


async def open_coordination(
    stack: AsyncExitStack, tasks: asyncio.TaskGroup, base: Foundation, storage: Storage
) -> Coordination:
    """Open and run every metadata partition; returns when each has a leader, here or elsewhere.

    Raises: NotCoordinator (another process has a local log), InvalidSettings (fewer metadata
    partitions than there are already, or the metadata is in a local log), CorruptLog, CorruptState,
    StorageFailed, ObjectStoreUnavailable, and what a partition cannot heal.
    """
    config, clock, rng = base.config, base.clock, base.rng
    _, host, port = base.inter_broker[0].advertised
    incarnation, past = storage.data.begin_life(rng)
    candidate = Candidate(
        broker_id=base.node_id,
        host=host,
        port=port,
        incarnation=incarnation,
        past_incarnations=past,
        may_lead=config.coordinator.may_lead,
    )
    workers_at_work: dict[int, LeaderWorkers] = {}

    def workers(coordinator: PartitionCoordinator) -> Sequence[Worker]:
        # Partitions run, and come to lead, when what follows them here is there.
        index = coordinator.coordinator_id
        coordinator.sinks.unsettled.ask_homes(home_asker(client, timeout_ms=_ASKED_WITHIN_MS))
        counting, all_workers = leader_workers(
            coordinator, base, storage, partitions, client, peers
        )
        workers_at_work[index] = counting
        return [
            *all_workers,
            groups.led(index, CoordinatorGroupStore(coordinator)),
            transactions.led(index, coordinator.transactions, partial(_leader_epoch, coordinator)),
            ShareTeller(coordinator.sinks, index, asker(client, COMMIT_SHARES_HERE)),
        ]

    secrets = await follow_secrets(stack, tasks, base, storage)
    # As with the workers: who leads has a client.
    place = NotePlace(storage.store, lambda topic_id: NotedFacts(client).topic(topic_id))
    peers = Peers(base, secrets, registered=lambda: partitions[CATALOGUE].replica.brokers())
    feeds = await stack.enter_async_context(FeedConnections(peers.connect, peers.address_of))
    partitions = await _open_partitions(stack, base, storage, candidate, workers, place, feeds)
    local = LocalClient(partitions, rng=rng)
    client = await stack.enter_async_context(
        RoutedClient(
            local, connect=peers.connect, address_of=peers.address_of, clock=clock, rng=rng
        )
    )
    local.topics.peers = client
    metadata_topic = MetadataTopic(partitions)
    topics = TopicsWith(client, [metadata_topic.description])
    client.subscribe_topics(topics.changed)
    placed = Placement(partitions[CATALOGUE].replica, len(partitions))
    numbers = TransactionNumbers(
        asker(client, JOIN_TRANSACTIONS),
        placed,
        add=asker(client, ADD_TO_TRANSACTION),
        kept_ms=config.coordinator.transaction_max_timeout_ms,
        clock=clock,
    )
    await stack.enter_async_context(numbers)
    groups = GroupRouter(
        partitions,
        topics,
        settings=config.groups,
        clock=clock,
        rng=rng,
        numbers=numbers,
        placed=placed,
    )
    for partition in partitions:
        partition.replica.subscribe_offsets(partial(groups.offsets_ended, partition.index))
    ends = await stack.enter_async_context(transaction_ends(asker(client, END_PARTS)))
    transactions = TransactionRouter(
        partitions,
        client,
        client.topics,
        ends.ask,
        settings=config.transactions,
        timeout_max_ms=config.coordinator.transaction_max_timeout_ms,
        placed=placed,
        clock=clock,
    )
    running = run_until_stop(stack, tasks, _run(partitions), "coordinators")
    await _first_of(_ready(partitions), running)
    return Coordination(
        candidate=candidate,
        partitions=partitions,
        workers_at_work=workers_at_work,
        local=local,
        client=client,
        # Asked several times a request, so not by way of the client.
        quotas=QuotaEnforcer(local.catalogue.client_quotas, settings=config.quotas, clock=clock),
        sinks=SinkCounts(),
        metadata_topic=metadata_topic,
        groups=groups,
        transactions=transactions,
        transaction_numbers=numbers,
        secrets=secrets,
    )


def asker(
    client: CoordinatorClient, operation: Operation[Addressed[_Entry], _Answer]
) -> Callable[[int, Sequence[_Entry]], Awaitable[Sequence[_Answer]]]:
    """Calls of one coordinator. Another broker may be paused, so none is waited for for long."""

    async def ask(coordinator: int, entries: Sequence[_Entry]) -> Sequence[_Answer]:
        asked = Addressed(coordinator, entries)
        return await client.call(operation, asked, timeout_ms=_ASKED_WITHIN_MS)

    return ask


def _leader_epoch(coordinator: PartitionCoordinator) -> int:
    leader = coordinator.replica.leader
    return 0 if leader is None else leader.leader_epoch


async def _run(partitions: Sequence[MetadataPartition]) -> None:
    """Follow and lead until cancelled. Raises what a partition cannot heal."""
    async with asyncio.TaskGroup() as tasks:
        for partition in partitions:
            tasks.create_task(partition.run(), name=f"metadata-partition-{partition.index}")


async def _ready(partitions: Sequence[MetadataPartition]) -> None:
    for partition in partitions:
        await partition.ready()


async def _first_of(wanted: Coroutine[Any, Any, None], running: asyncio.Task[None]) -> None:
    """Wait for `wanted`, unless `running`, which it depends on, ends first."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])


async def _open_partitions(
    stack: AsyncExitStack,
    base: Foundation,
    storage: Storage,
    candidate: Candidate,
    workers: Callable[[PartitionCoordinator], Sequence[Worker]],
    note_place: NotePlace,
    feeds: FeedConnections,
) -> Sequence[MetadataPartition]:
    """Open every log, and bring every replica to its end.

    Side by side: each asks the store for one thing after the other, and a dozen of them in turn
    would make a start on a slow store wait a dozen times as long.
    """
    config, data = base.config, storage.data
    if base.is_shared and data.has_metadata:
        # The object log is not where this directory's metadata is: it would begin empty.
        raise InvalidSettings(
            f"diskless.metadata.log=object, but {data.path} has a metadata log, and one "
            "is not turned into the other: leave it local, let `diskless rebuild` make one in "
            "the object store, or use another data directory and another prefix"
        )

    def replica(index: int, catalogue: Replica | None) -> Replica:
        return Replica(
            data.metadata_partition(index),
            settings=config.coordinator,
            coordinator_id=index,
            snapshots=SnapshotStore(storage.store, partition=index, cluster_id=storage.cluster_id),
            catalogue=catalogue,
        )

    count = config.coordinator.metadata_partitions
    catalogue = replica(CATALOGUE, None)
    ranks = Ranks(count, catalogue.brokers)
    pace = MovePace(clock=base.clock, interval_ms=config.coordinator.rebalance_interval_ms)
    opened: dict[int, MetadataPartition] = {}

    async def open_one(index: int) -> None:
        log = await _open_log(base, storage, index)
        partition = MetadataPartition(
            catalogue if index == CATALOGUE else replica(index, catalogue),
            log,
            candidate=lambda: candidate,
            workers=workers,
            clock=base.clock,
            rng=base.rng,
            settings=config.coordinator,
            retention=config.retention,
            lease_ms=config.object_log.lease_ms if base.is_shared else 0,
            note_place=note_place,
            ranks=ranks if base.is_shared else None,
            pace=pace if base.is_shared else None,
            shared=SharedFeed(log.tail, feeds.ask) if isinstance(log, ObjectMetadataLog) else None,
        )
        opened[index] = await stack.enter_async_context(partition)

    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(count):
                tasks.create_task(open_one(index), name=f"open-metadata-{index}")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    for topic in catalogue.topics().values():
        highest = max(topic.assignments.values(), default=CATALOGUE)
        if highest >= count:
            raise InvalidSettings(
                f"diskless.metadata.topic.num.partitions={count}, but partitions of "
                f"{topic.name} live at coordinator {highest}: it can only be raised"
            )
    coordinators = Placement(catalogue, count).coordinators
    if coordinators > count:
        raise InvalidSettings(
            f"diskless.metadata.topic.num.partitions={count}, but groups and transactional ids are"
            f" spread over {coordinators}: it can only be raised"
        )
    return [opened[index] for index in range(count)]


async def _open_log(base: Foundation, storage: Storage, index: int) -> MetadataLog:
    config, clock, rng = base.config, base.clock, base.rng
    if base.is_shared:
        return await ObjectMetadataLog.open(
            storage.store, index, clock=clock, rng=rng, settings=config.object_log
        )
    directory = storage.data.metadata_partition(index) / LOG_DIRECTORY
    return await LocalMetadataLog.open(directory, rng=rng, settings=config.metadata_log)
