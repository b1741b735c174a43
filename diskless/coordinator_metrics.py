"""Metrics of the metadata partitions of a broker: who leads, what was read, what was cleaned up.

Every metric has the label `partition`, a metadata partition. What workers of a leader count begins
anew whenever this broker comes to lead, and stays at its last value when it does not lead any more;
for counters that is a restart like any other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from diskless.metrics import Kind, MetricSource, Samples
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.workers.file_workers import FileWorkers
from metadata.workers.orphan_scan import OrphanScan
from metadata.workers.retention import RetentionWorker
from metadata.workers.snapshot_keeper import SnapshotKeeper


class LeaderWorkers(NamedTuple):
    """Those workers of a leader that count something."""

    files: FileWorkers
    retention: RetentionWorker
    snapshots: SnapshotKeeper
    orphans: OrphanScan | None
    """Only with the catalogue."""


class CoordinatedPartitions(Protocol):
    """What is measured; `diskless.cluster.coordinators.Coordinators` is one."""

    @property
    def partitions(self) -> Sequence[MetadataPartition]: ...

    @property
    def workers_at_work(self) -> Mapping[int, LeaderWorkers]:
        """By metadata partition, of those that are or were led here."""
        ...


def coordinator_metrics(
    coordinators: Callable[[], CoordinatedPartitions], monotonic: Callable[[], float]
) -> Sequence[MetricSource]:
    """Both are only called at a scrape; `monotonic` is the clock that leases are measured with."""

    def of_partitions(
        name: str, help_text: str, read: Callable[[MetadataPartition], float | None]
    ) -> MetricSource:
        def samples() -> Samples:
            found = ((one.index, read(one)) for one in coordinators().partitions)
            return {(str(index),): value for index, value in found if value is not None}

        return MetricSource(name, "gauge", help_text, ("partition",), samples)

    def of_workers(
        name: str,
        kind: Kind,
        help_text: str,
        label: str,
        read: Callable[[LeaderWorkers], Mapping[str, float]],
    ) -> MetricSource:
        def samples() -> Samples:
            # A copy, because leadership changes on the event loop's thread meanwhile.
            return {
                (str(index), what): value
                for index, workers in tuple(coordinators().workers_at_work.items())
                for what, value in read(workers).items()
            }

        return MetricSource(name, kind, help_text, ("partition", label), samples)

    def lease_left_s(partition: MetadataPartition) -> float | None:
        expires_at = partition.log.lease_expires_at
        if expires_at is None or math.isinf(expires_at):
            return None
        return max(expires_at - monotonic(), 0.0)

    return [
        of_partitions(
            "diskless_metadata_leading",
            "Whether this broker leads the metadata partition",
            lambda partition: float(partition.coordinator is not None),
        ),
        of_partitions(
            "diskless_metadata_leader",
            "Node id of the leader as this broker has read; -1: none",
            lambda partition: -1 if partition.leader is None else partition.leader.broker_id,
        ),
        of_partitions(
            "diskless_metadata_leader_epoch",
            "How often the leader changed",
            lambda partition: (
                0 if partition.replica.leader is None else partition.replica.leader.leader_epoch
            ),
        ),
        of_partitions(
            "diskless_metadata_lease_seconds",
            "What is left of this leader's lease; only where others could lead",
            lease_left_s,
        ),
        of_partitions(
            "diskless_metadata_log_start_offset",
            "First offset that the metadata log still has",
            lambda partition: partition.log.start_offset,
        ),
        of_partitions(
            "diskless_metadata_log_end_offset",
            "End of the metadata log, as far as this broker has seen it",
            lambda partition: partition.log.end_offset,
        ),
        of_partitions(
            "diskless_metadata_lag_records",
            "Records of the metadata log that are seen and not applied yet",
            lambda partition: max(partition.log.end_offset - partition.replica.applied_offset, 0),
        ),
        of_workers(
            "diskless_metadata_snapshots",
            "counter",
            "Snapshots of the metadata, by result",
            "result",
            lambda workers: {
                "taken": workers.snapshots.taken,
                "failed": workers.snapshots.failures,
            },
        ),
        of_workers(
            "diskless_wal_files_retired",
            "counter",
            "WAL objects whose last batch here is gone, by what became of them",
            "outcome",
            lambda workers: {
                "deleted": workers.files.objects_deleted,
                "handed_over": workers.files.handed_over,
                "taken_over": workers.files.taken_over,
                "tombstoned": workers.files.tombstoned,
                "forgotten": workers.files.forgotten,
            },
        ),
        of_workers(
            "diskless_worker_success_age_seconds",
            "gauge",
            "Since a background worker got through a pass",
            "worker",
            _success_ages,
        ),
        of_workers(
            "diskless_metadata_rows_deleted",
            "counter",
            "Rows of the metadata (runs of batches, segments) deleted, by cause",
            "cause",
            lambda workers: {"retention": workers.retention.rows_deleted},
        ),
        of_workers(
            "diskless_orphan_scan_objects",
            "counter",
            "Objects that the orphan scan looked at, by what it found",
            "result",
            _orphan_results,
        ),
    ]


def _success_ages(workers: LeaderWorkers) -> Mapping[str, float]:
    ages = {"files": workers.files.last_success_age_s}
    if workers.orphans is not None:
        ages["orphan_scan"] = workers.orphans.last_success_age_s
    return ages


def _orphan_results(workers: LeaderWorkers) -> Mapping[str, float]:
    scan = workers.orphans
    if scan is None:
        return {}
    return {
        "seen": scan.objects_seen,
        "known": scan.known,
        "foreign": scan.foreign_names,
        "deferred": scan.deferred,
        "tombstoned": scan.tombstoned,
        "deleted": scan.orphans_deleted,
    }
