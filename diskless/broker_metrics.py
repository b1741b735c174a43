"""Which metrics a broker has: every name, its meaning, and the statistics it is read from."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from diskless.coordinator_metrics import CoordinatedPartitions, coordinator_metrics
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.metrics import NO_LABELS, MetricSource, Samples, plain
from diskless.quotas.quotas import QuotaEnforcer
from diskless.replica.batch_reader import BatchReader
from diskless.replica.commit_lane import CommitLane
from diskless.replica.replica_manager import ReplicaManager
from diskless.server.server import KafkaServer
from tiering.segment_reader import SegmentReader
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.uploader import Uploader
from wal.chunks.write_loop import WriteLoop
from wal.clock import Clock
from wal.fd_cache import FdCache
from wal.stores.object_cache import ObjectCache
from wal.stores.object_store import ObjectStore

_LATENCY_BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class RequestMetrics:
    """`diskless.ports.ServerMetrics` on Prometheus's own types: they need a histogram."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._connections = Gauge(
            "diskless_connections", "Open client connections", registry=registry
        )
        self._refused = Counter(
            "diskless_connections_refused",
            "Connections closed before anything was read, by limit",
            ["reason"],
            registry=registry,
        )
        self._cut = Counter(
            "diskless_connections_cut",
            "Connections closed by the broker, by reason",
            ["reason"],
            registry=registry,
        )
        self._received = Counter(
            "diskless_request_bytes", "Bytes of requests, by API", ["api"], registry=registry
        )
        self._sent = Counter(
            "diskless_response_bytes", "Bytes of responses, by API", ["api"], registry=registry
        )
        self._seconds = Histogram(
            "diskless_request_seconds",
            "From the last byte of a request to its answer, by API",
            ["api"],
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._received_by_api: dict[str, Counter] = {}
        self._answered_by_api: dict[str, tuple[Counter, Histogram]] = {}

    def connection_opened(self) -> None:
        self._connections.inc()

    def connection_closed(self) -> None:
        self._connections.dec()

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def connection_cut(self, reason: str) -> None:
        self._cut.labels(reason).inc()

    def request_received(self, api: str, size_bytes: int) -> None:
        counter = self._received_by_api.get(api)
        if counter is None:
            counter = self._received_by_api[api] = self._received.labels(api)
        counter.inc(size_bytes)

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        metrics = self._answered_by_api.get(api)
        if metrics is None:
            metrics = (self._sent.labels(api), self._seconds.labels(api))
            self._answered_by_api[api] = metrics
        sent, histogram = metrics
        sent.inc(size_bytes)
        histogram.observe(seconds)


class BrokerParts(Protocol):
    """The components whose statistics are shown; a running broker has them all."""

    store: ObjectStore
    pool: BufferPool
    fd_cache: FdCache
    cache: ObjectCache
    segments: SegmentReader
    directory: ChunkDirectory
    write_loop: WriteLoop
    uploader: Uploader
    lane: CommitLane
    reader: BatchReader
    replicas: ReplicaManager
    fetch_sessions: FetchSessions
    server: KafkaServer
    quotas: QuotaEnforcer
    clock: Clock

    @property
    def coordinators(self) -> CoordinatedPartitions: ...


def broker_metrics(parts: BrokerParts) -> Sequence[MetricSource]:
    """Every metric that is read from a component's statistics."""
    return [
        MetricSource(
            "diskless_object_store_requests",
            "counter",
            "Requests to the object store, retries included, by operation",
            ("op",),
            lambda: _store_requests(parts),
        ),
        MetricSource(
            "diskless_object_store_bytes",
            "counter",
            "Bytes of object bodies, by operation",
            ("op",),
            lambda: {
                ("put",): parts.store.statistics().put_bytes,
                ("get",): parts.store.statistics().get_bytes,
            },
        ),
        _counter(
            "diskless_object_store_retries",
            "Requests that repeated a failed one",
            lambda: parts.store.statistics().retries,
        ),
        _counter(
            "diskless_object_store_errors",
            "Requests that failed",
            lambda: parts.store.statistics().errors,
        ),
        MetricSource(
            "diskless_object_cache_requests",
            "counter",
            "Block look-ups in the object cache; joined: met a request in flight; cold: past it",
            ("result",),
            lambda: _cache_requests(parts),
        ),
        MetricSource(
            "diskless_fetch_bytes",
            "counter",
            "Bytes of batches handed to consumers, by where they came from",
            ("source",),
            lambda: {
                ("chunk",): parts.reader.statistics().chunk_bytes,
                ("object",): parts.reader.statistics().object_bytes,
                ("segment",): parts.reader.statistics().segment_bytes,
            },
        ),
        _counter(
            "diskless_segment_reads",
            "Reads answered from Parquet segments",
            lambda: parts.reader.statistics().segment_reads,
        ),
        _counter(
            "diskless_segment_row_groups_decoded",
            "Row groups turned back into batches",
            lambda: parts.segments.statistics().row_groups_decoded,
        ),
        _counter(
            "diskless_batches_appended",
            "Batches accepted into the write queue",
            lambda: parts.replicas.statistics().batches_appended,
        ),
        _counter(
            "diskless_batches_rejected",
            "Batches that broke a rule",
            lambda: parts.replicas.statistics().batches_rejected,
        ),
        MetricSource(
            "diskless_batches_committed",
            "counter",
            "Batches by the coordinator's verdict",
            ("result",),
            lambda: {
                ("committed",): parts.lane.batches_committed,
                ("duplicate",): parts.lane.batches_duplicate,
                ("refused",): parts.lane.batches_refused,
            },
        ),
        _counter(
            "diskless_wal_objects_committed",
            "WAL objects committed",
            lambda: parts.lane.files_committed,
        ),
        plain(
            "diskless_commit_age_seconds",
            "gauge",
            "Since the last commit of a WAL object succeeded; -1 before the first",
            lambda: parts.lane.last_commit_age_s(),
        ),
        plain(
            "diskless_append_queue_bytes",
            "gauge",
            "Bytes waiting for the write loop",
            lambda: parts.write_loop.statistics().queued_bytes,
        ),
        plain(
            "diskless_upload_waiting_chunks",
            "gauge",
            "Sealed chunks that are being uploaded or wait for it or for their commit",
            lambda: parts.uploader.statistics().waiting_chunks,
        ),
        plain(
            "diskless_upload_waiting_bytes",
            "gauge",
            "Bytes of these chunks as wal.chunks.buffer.max.bytes counts them, 1 KiB per batch included",
            lambda: parts.uploader.statistics().waiting_bytes,
        ),
        plain(
            "diskless_upload_waiting_seconds",
            "gauge",
            "How long the oldest of these chunks has waited; 0 when there is none",
            lambda: parts.uploader.statistics().oldest_waiting_s,
        ),
        _counter(
            "diskless_upload_retries",
            "Uploads of a chunk that repeated a failed one",
            lambda: parts.uploader.statistics().upload_retries,
        ),
        _counter(
            "diskless_commit_retries",
            "Commits of a chunk that repeated a failed one",
            lambda: parts.uploader.statistics().commit_retries,
        ),
        plain(
            "diskless_request_memory_bytes",
            "gauge",
            "Memory held by requests: receive buffers, and what unanswered requests keep",
            lambda: parts.server.statistics().request_bytes_held,
        ),
        plain(
            "diskless_connections_waiting_for_memory",
            "gauge",
            "Connections not read from because requests hold all the memory they may",
            lambda: parts.server.statistics().connections_waiting,
        ),
        MetricSource(
            "diskless_response_memory_bytes",
            "gauge",
            "Memory of answers; reserved: being read or built; unsent: handed to the socket",
            ("state",),
            lambda: {
                ("reserved",): parts.server.statistics().reserved_bytes,
                ("unsent",): parts.server.statistics().unsent_bytes,
            },
        ),
        plain(
            "diskless_chunk_uncommitted_bytes",
            "gauge",
            "Bytes in sealed chunks that are not committed",
            lambda: parts.directory.statistics().uncommitted_bytes,
        ),
        plain(
            "diskless_chunk_cached_bytes",
            "gauge",
            "Bytes of committed chunks kept for tail reads",
            lambda: parts.directory.statistics().cached_bytes,
        ),
        _counter(
            "diskless_chunks_quarantined",
            "Chunks found damaged",
            lambda: parts.directory.statistics().quarantined,
        ),
        MetricSource(
            "diskless_fd_cache_requests",
            "counter",
            "Look-ups in the FD cache",
            ("result",),
            lambda: {
                ("hit",): parts.fd_cache.statistics().hits,
                ("miss",): parts.fd_cache.statistics().misses,
            },
        ),
        MetricSource(
            "diskless_purgatory_operations",
            "gauge",
            "Delayed operations waiting now",
            ("purgatory",),
            lambda: {
                ("produce",): parts.replicas.produce_purgatory.statistics().watched,
                ("fetch",): parts.replicas.fetch_purgatory.statistics().watched,
            },
        ),
        MetricSource(
            "diskless_throttled_requests",
            "counter",
            "Requests of clients that were over their quota, by API",
            ("api",),
            lambda: {(api,): one.requests for api, one in parts.quotas.statistics().items()},
        ),
        MetricSource(
            "diskless_throttle_seconds",
            "counter",
            "Waits imposed on clients over their quota, by API; those in flight together overlap",
            ("api",),
            lambda: {(api,): one.seconds for api, one in parts.quotas.statistics().items()},
        ),
        MetricSource(
            "diskless_quota_rates",
            "gauge",
            "Clients whose rate is measured because they have a quota, by API",
            ("api",),
            lambda: {(api,): one.rates for api, one in parts.quotas.statistics().items()},
        ),
        plain(
            "diskless_fetch_sessions",
            "gauge",
            "Consumers that have a fetch session (KIP-227)",
            lambda: len(parts.fetch_sessions),
        ),
        plain(
            "diskless_fetch_session_partitions",
            "gauge",
            "Partitions in all fetch sessions",
            lambda: parts.fetch_sessions.row_count,
        ),
        _counter(
            "diskless_fetch_session_evictions",
            "Fetch sessions that had to make room for others",
            lambda: parts.fetch_sessions.evicted_count,
        ),
        _counter(
            "diskless_produce_timeouts",
            "Produce requests whose outcome was not known in time",
            lambda: parts.replicas.produce_purgatory.statistics().expired,
        ),
        *coordinator_metrics(lambda: parts.coordinators, lambda: parts.clock.monotonic()),
    ]


def _counter(name: str, help_text: str, read: Callable[[], float]) -> MetricSource:
    return MetricSource(name, "counter", help_text, NO_LABELS, lambda: {NO_LABELS: read()})


def _cache_requests(parts: BrokerParts) -> Samples:
    statistics = parts.cache.statistics()
    return {
        ("hit",): statistics.memory_hits + statistics.disk_hits,
        ("miss",): statistics.misses,
        ("joined",): statistics.joined,
        ("cold",): statistics.cold_reads,
    }


def _store_requests(parts: BrokerParts) -> Samples:
    statistics = parts.store.statistics()
    return {
        ("put",): statistics.puts,
        ("get",): statistics.gets,
        ("head",): statistics.heads,
        ("list",): statistics.lists,
        ("delete",): statistics.deletes,
    }
