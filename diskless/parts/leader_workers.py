"""The background workers that run beside a coordinator as long as it leads."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from diskless.cluster.ended_brokers import EndedBrokers
from diskless.parts.foundation import Foundation
from diskless.parts.peers import Peers
from diskless.parts.storage import Storage
from diskless.topics.noted_facts import NotedFacts
from metadata.clients.routed_client import RoutedClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.end_notes import EndNotes
from metadata.coordinator.metadata_partition import MetadataPartition, Worker
from metadata.coordinator.placement import PlacementFixing
from metadata.operations import CATALOGUE
from metadata.records.segment_identity import SEGMENTS_PREFIX
from metadata.replica.replica import Replica
from metadata.table_operations import TABLES_PREFIX
from metadata.workers.catalogue_sweep import CatalogueSweep
from metadata.workers.deposed_broker import DeposedBroker
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.notes_sweep import NotesSweep
from metadata.workers.orphan_scan import OrphanScan
from metadata.workers.producer_expiry import ProducerExpiry
from metadata.workers.retention import RetentionWorker
from metadata.workers.row_sweeper import RowSweeper
from metadata.workers.snapshot_keeper import SnapshotKeeper
from metadata.workers.sweeps.bucket_sweep import BucketSweep
from metadata.workers.sweeps.segments_sweep import SegmentsSweep
from metadata.workers.sweeps.tables_sweep import TablesSweep
from metadata.workers.tier_lag import TierLag
from wal.chunks.kept_notes import NOTES_PREFIX
from wal.chunks.object_notes import long_schemas, schema_reference
from wal.coordinates import TopicIdPartition


class LeaderWorkers(NamedTuple):
    """Those workers of a leader that count something, for the metrics."""

    files: FileWorkers
    retention: RetentionWorker
    snapshots: SnapshotKeeper
    tier_lag: TierLag
    orphans: OrphanScan | None
    """Only with the catalogue."""


def leader_workers(
    coordinator: PartitionCoordinator,
    base: Foundation,
    storage: Storage,
    partitions: Sequence[MetadataPartition],
    client: RoutedClient,
    peers: Peers,
) -> tuple[LeaderWorkers, Sequence[Worker]]:
    """Those that count, and all that run beside `coordinator`, which leads one of `partitions`."""
    config, clock, rng, store = base.config, base.clock, base.rng, storage.store
    index = coordinator.coordinator_id
    partition = partitions[index]
    snapshots = partition.replica.snapshots
    assert snapshots is not None
    facts = NotedFacts(client)
    keeper = NoteKeeper(store, clock=clock, rng=rng, floors=facts.floor, topics=facts.topic)
    file_workers = FileWorkers(
        coordinator,
        store,
        client,
        coordinator_id=index,
        settings=config.coordinator,
        clock=clock,
        rng=rng,
        notes=keeper,
    )
    retention = RetentionWorker(coordinator, settings=config.retention, clock=clock)
    snapshot_keeper = SnapshotKeeper(
        partition.replica.state,
        partition.log,
        snapshots,
        settings=config.snapshots,
        clock=clock,
        rng=rng,
        is_leading=lambda: partition.coordinator is coordinator,
        applied_bytes=lambda: partition.replica.applied_bytes,
    )
    orphans: OrphanScan | None = None
    others: list[Worker] = [
        coordinator.sink_notes,
        EndNotes(coordinator.replica, store, clock=clock, rng=rng),
        RowSweeper(coordinator, settings=config.retention),
        ProducerExpiry(
            coordinator,
            expiration_ms=config.coordinator.producer_expiration_ms,
            settings=config.retention,
        ),
    ]
    if index == CATALOGUE:
        others += [coordinator.sessions, PlacementFixing(coordinator.pipeline, len(partitions))]
        if (feeds := partition.feeds) is not None:
            ended = EndedBrokers(
                coordinator.replica.brokers,
                fed=feeds.fed_brokers,
                is_refused=peers.is_refused,
                unregister=coordinator.unregister_brokers,
            )
            others.append(ended)
        # Else objects that no coordinator knows may be those of another cluster.
        if storage.start_problem is None:
            orphans = OrphanScan(
                store,
                client,
                partial(_coordinator_ids, coordinator, len(partitions)),
                settings=config.coordinator,
                clock=clock,
                rng=rng,
                notes=keeper,
            )
            notes = NotesSweep(
                store,
                topics=facts.topic,
                log_began_ms=lambda: coordinator.replica.log_began_ms,
                steady_ms=lambda: coordinator.steady_ms,
                rolled_end=partial(_rolled_end, partitions),
                schemas=partial(schema_references, coordinator.replica),
                settings=config.coordinator,
                rng=rng,
            )
            tables = TablesSweep(
                store,
                has_topic=lambda topic_id: coordinator.replica.topic_by_id(topic_id) is not None,
                log_began_ms=lambda: coordinator.replica.log_began_ms,
                settings=config.coordinator,
                clock=clock,
            )
            segments = SegmentsSweep(
                store,
                coordinator.replica,
                [one.replica for one in partitions],
                confirm_leadership=coordinator.lease.confirm,
                settings=config.coordinator,
                clock=clock,
            )
            sweeps = (
                (NOTES_PREFIX, notes.next_pass),
                (TABLES_PREFIX, tables.sweep_once),
                (SEGMENTS_PREFIX, segments.sweep_once),
            )
            others.append(orphans)
            others += [
                BucketSweep(prefix, sweep_once, settings=config.coordinator, rng=rng)
                for prefix, sweep_once in sweeps
            ]
    else:
        catalogue = partitions[CATALOGUE]
        sweep = CatalogueSweep(
            coordinator,
            have=coordinator.replica.topic_ids,
            catalogue_has=lambda topic_id: catalogue.replica.topic_by_id(topic_id) is not None,
            is_catalogue_followed=lambda: catalogue.leader is not None,
            clock=clock,
        )
        others.append(sweep)
        if (deposed := coordinator.deposed) is not None:
            others.append(DeposedBroker(deposed, catalogue.replica.brokers, client.register_broker))
    tier_lag = TierLag(coordinator.replica, coordinator_id=index, clock=clock)
    counting = LeaderWorkers(file_workers, retention, snapshot_keeper, tier_lag, orphans)
    return counting, [file_workers, retention, snapshot_keeper, tier_lag, *others]


def _rolled_end(partitions: Sequence[MetadataPartition], partition: TopicIdPartition) -> int | None:
    ends = (one.replica.rolled_end(partition) for one in partitions)
    return next((end for end in ends if end is not None), None)


def schema_references(catalogue: Replica) -> Collection[str]:
    """References to the schemas of all topics that are noted by reference."""
    return {
        schema_reference(text)
        for topic in catalogue.topics().values()
        for text in long_schemas(topic.configs.items())
    }


async def _coordinator_ids(catalogue: PartitionCoordinator, count: int) -> Sequence[int]:
    """All coordinators that anything was ever assigned to, as of now; at least `count`.

    Another broker may have been configured with more of them. Raises: NotCoordinator.
    """
    await catalogue.lease.confirm()
    assigned = [
        coordinator
        for topic in catalogue.replica.topics().values()
        for coordinator in topic.assignments.values()
    ]
    return range(max(count, max(assigned, default=CATALOGUE) + 1))
