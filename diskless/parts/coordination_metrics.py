"""The metrics of metadata partitions, and of transactions, read from what is at work on them."""

import math
from collections.abc import Callable, Mapping, Sequence

from diskless.metrics import Kind, MetricsOf, MetricSource, Samples
from diskless.parts.coordination import Coordination
from diskless.parts.leader_workers import LeaderWorkers
from diskless.transactions.transaction_router import TransactionRouter
from metadata.coordinator.metadata_partition import MetadataPartition


def transaction_metrics(router: Callable[[], TransactionRouter]) -> Sequence[MetricSource]:
    """Each broker tells of the transactional ids that it coordinates."""
    transactions = MetricsOf(lambda: router().statistics())
    return [
        transactions.gauge(
            "diskless_transactional_ids",
            "Transactional ids that are known to the coordinators here",
            lambda it: it.ids,
        ),
        transactions.gauge(
            "diskless_transactions_ongoing",
            "Transactions that began and are not decided",
            lambda it: it.ongoing,
        ),
        transactions.gauge(
            "diskless_transactions_oldest_seconds",
            "Since the oldest of these began; 0 when there is none",
            lambda it: it.oldest_s,
        ),
        transactions.gauge(
            "diskless_transactions_ending",
            "Transactions that are decided, and of which not every coordinator has heard",
            lambda it: it.ending,
        ),
        transactions.counters(
            "diskless_transactions_ended",
            "outcome",
            "Transactions that were decided here, by outcome",
            lambda it: it.ended,
        ),
    ]


def partition_metrics(
    coordination: Callable[[], Coordination], monotonic: Callable[[], float]
) -> Sequence[MetricSource]:
    """Metrics of metadata partitions: who leads, what was read, what was cleaned up.

    All have the label `partition`, a metadata partition. What workers of a leader count begins anew
    whenever this broker comes to lead, and stays at its last value afterwards: a restart like any.
    """

    def partition(
        name: str, meaning: str, read: Callable[[MetadataPartition], float | None]
    ) -> MetricSource:
        def samples() -> Samples:
            found = ((one.index, read(one)) for one in coordination().partitions)
            return {(str(index),): value for index, value in found if value is not None}

        return MetricSource(name, "gauge", meaning, ("partition",), samples)

    def workers(
        name: str,
        kind: Kind,
        label: str,
        meaning: str,
        read: Callable[[LeaderWorkers], Mapping[str, float]],
    ) -> MetricSource:
        def samples() -> Samples:
            # A copy, because leadership changes on the event loop's thread meanwhile.
            return {
                (str(index), what): value
                for index, at_work in tuple(coordination().workers_at_work.items())
                for what, value in read(at_work).items()
            }

        return MetricSource(name, kind, meaning, ("partition", label), samples)

    def lease_left_s(of: MetadataPartition) -> float | None:
        expires_at = of.log.lease_expires_at
        if expires_at is None or math.isinf(expires_at):
            return None
        return max(expires_at - monotonic(), 0.0)

    return [
        partition(
            "diskless_metadata_leading",
            "Whether this broker leads the metadata partition",
            lambda it: float(it.coordinator is not None),
        ),
        partition(
            "diskless_metadata_leader",
            "Node id of the leader as this broker has read; -1: none",
            lambda it: -1 if it.leader is None else it.leader.broker_id,
        ),
        partition(
            "diskless_metadata_leader_epoch",
            "How often the leader changed",
            lambda it: 0 if it.replica.leader is None else it.replica.leader.leader_epoch,
        ),
        partition(
            "diskless_metadata_lease_seconds",
            "What is left of this leader's lease; only where others could lead",
            lease_left_s,
        ),
        partition(
            "diskless_metadata_fed",
            "Whether the leader feeds this broker, where it follows",
            lambda it: None if it.coordinator is not None else float(it.is_fed),
        ),
        partition(
            "diskless_metadata_log_start_offset",
            "First offset that the metadata log still has",
            lambda it: it.log.start_offset,
        ),
        partition(
            "diskless_metadata_log_end_offset",
            "End of the metadata log, as far as this broker has seen it",
            lambda it: it.log.end_offset,
        ),
        partition(
            "diskless_metadata_lag_records",
            "Records of the metadata log that are seen and not applied yet",
            lambda it: max(it.log.end_offset - it.replica.applied_offset, 0),
        ),
        workers(
            "diskless_metadata_snapshots",
            "counter",
            "result",
            "Snapshots of the metadata, by result",
            lambda it: {"taken": it.snapshots.taken, "failed": it.snapshots.failures},
        ),
        workers(
            "diskless_wal_files_retired",
            "counter",
            "outcome",
            "WAL objects whose last batch here is gone, by what became of them",
            lambda it: {
                "deleted": it.files.objects_deleted,
                "handed_over": it.files.handed_over,
                "taken_over": it.files.taken_over,
                "tombstoned": it.files.tombstoned,
                "forgotten": it.files.forgotten,
            },
        ),
        MetricSource(
            "diskless_table_segments_given_up",
            "counter",
            "Segments deleted although snapshots of their table may still name them, by cause",
            ("partition", "cause"),
            lambda: {
                (str(index), hold.name.lower()): count
                for index, at_work in tuple(coordination().workers_at_work.items())
                for hold, count in tuple(at_work.files.given_up_deleted.items())
            },
        ),
        workers(
            "diskless_worker_success_age_seconds",
            "gauge",
            "worker",
            "Since a background worker got through a pass",
            _success_ages,
        ),
        workers(
            "diskless_metadata_rows_deleted",
            "counter",
            "cause",
            "Rows of the metadata (runs of batches, segments) deleted, by cause",
            lambda it: {"retention": it.retention.rows_deleted},
        ),
        workers(
            "diskless_tier_lag_bytes",
            "gauge",
            "topic",
            "Committed bytes that are in no segment yet",
            lambda it: it.tier_lag.bytes_by_topic(),
        ),
        workers(
            "diskless_tier_lag_seconds",
            "gauge",
            "topic",
            "Since the oldest of these bytes were committed",
            lambda it: it.tier_lag.seconds_by_topic(),
        ),
        workers(
            "diskless_table_lag_seconds",
            "gauge",
            "topic",
            "Since the oldest change of segments that the table of their topic does not show",
            lambda it: it.tier_lag.table_seconds_by_topic(),
        ),
        workers(
            "diskless_orphan_scan_objects",
            "counter",
            "result",
            "Objects that the orphan scan looked at, by what it found",
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
