"""Lists a broker's metrics: every name, its meaning, and the statistics it is read from."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from diskless.metrics import MetricsOf, MetricSource
from diskless.parts.broker_parts import BrokerParts
from diskless.parts.coordination_metrics import partition_metrics, transaction_metrics
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage
from diskless.parts.write_path import WritePath
from diskless.quotas.quotas import QuotaEnforcer
from diskless.security_metrics import security_metrics
from diskless.server.server import KafkaServer
from wal.caches.object_cache import ObjectCacheStatistics
from wal.stores.object_store import StoreStatistics


class ProcessParts(Protocol):
    """What moves records, in any process of a broker."""

    @property
    def storage(self) -> Storage: ...
    @property
    def writes(self) -> WritePath: ...
    @property
    def reads(self) -> ReadPath: ...
    @property
    def quotas(self) -> QuotaEnforcer: ...
    @property
    def server(self) -> KafkaServer: ...


def broker_metrics(parts: BrokerParts) -> Sequence[MetricSource]:
    """Every metric that is read from a component's statistics."""
    broker = MetricsOf(lambda: parts)
    sinks = MetricsOf(lambda: parts.coordination.sinks)
    return [
        sinks.counters(
            "diskless_sink_commits", "result", "Commits of sinks, by result", lambda it: it.commits
        ),
        sinks.counters(
            "diskless_sink_refusals",
            "cause",
            "Commits of sinks that were refused, by cause",
            lambda it: it.refusals,
        ),
        sinks.counter(
            "diskless_sink_bytes", "In objects that sinks committed", lambda it: it.committed_bytes
        ),
        broker.gauge(
            "diskless_ready",
            "Whether /readyz says so: 1 or 0",
            lambda it: 0 if it.base.health.problems() else 1,
        ),
        broker.gauge(
            "diskless_insecure_listeners",
            "Listeners that other machines reach, and that ask nobody who they are",
            lambda it: len(it.base.insecure),
        ),
        *security_metrics(parts),
        *transaction_metrics(lambda: parts.coordination.transactions),
        *process_metrics(parts),
        *partition_metrics(lambda: parts.coordination, lambda: parts.base.clock.monotonic()),
    ]


def process_metrics(parts: ProcessParts) -> Sequence[MetricSource]:
    """Those of what every process of a broker has."""
    process = MetricsOf(lambda: parts)
    store = MetricsOf(lambda: parts.storage.store.statistics())
    reader = MetricsOf(lambda: parts.reads.reader.statistics())
    replicas = MetricsOf(lambda: parts.reads.replicas)
    uploader = MetricsOf(lambda: parts.writes.uploader)
    server = MetricsOf(lambda: parts.server.statistics())
    chunks = MetricsOf(lambda: parts.writes.directory.statistics())
    lane = MetricsOf(lambda: parts.writes.lane)
    quotas = MetricsOf(lambda: parts.quotas.statistics())
    sessions = MetricsOf(lambda: parts.reads.fetch_sessions)
    cache = MetricsOf(lambda: parts.reads.cache.statistics())
    descriptors = MetricsOf(lambda: parts.storage.fd_cache.statistics())
    return [
        store.counters(
            "diskless_object_store_requests",
            "op",
            "Requests to the object store, retries included, by operation",
            _store_requests,
        ),
        store.counters(
            "diskless_object_store_bytes",
            "op",
            "Bytes of object bodies, by operation",
            lambda it: {"put": it.put_bytes, "get": it.get_bytes},
        ),
        store.counter(
            "diskless_object_store_retries",
            "Requests that repeated a failed one",
            lambda it: it.retries,
        ),
        store.counter("diskless_object_store_errors", "Requests that failed", lambda it: it.errors),
        process.gauge(
            "diskless_object_store_unreached_seconds",
            "Since the object store last answered anything",
            lambda it: it.storage.reach.unreached_s(),
        ),
        process.gauge(
            "diskless_object_store_writes_failing_seconds",
            "Since the first of the puts that failed in a row; 0 when the last one did not",
            lambda it: it.storage.reach.writes_failing_s(),
        ),
        cache.gauges(
            "diskless_object_cache_memory_bytes",
            "state",
            "Memory of cached blocks; cold: of old data; evicted: dropped, and still in answers",
            lambda it: {
                "cached": it.memory_bytes,
                "cold": it.cold_bytes,
                "evicted": it.evicted_bytes,
            },
        ),
        cache.counter(
            "diskless_read_ahead_bytes",
            "Bytes asked of the object store before anybody waited for them",
            lambda it: it.ahead_bytes,
        ),
        cache.counters(
            "diskless_object_cache_requests",
            "result",
            "Block look-ups in the object cache; joined: met a request in flight; cold: past it",
            _cache_requests,
        ),
        reader.counters(
            "diskless_fetch_bytes",
            "source",
            "Bytes of batches handed to consumers, by where they came from",
            lambda it: {
                "chunk": it.chunk_bytes,
                "object": it.object_bytes,
                "segment": it.segment_bytes,
                "marker": it.marker_bytes,
            },
        ),
        reader.counter(
            "diskless_segment_reads",
            "Reads answered from Parquet segments",
            lambda it: it.segment_reads,
        ),
        process.counter(
            "diskless_segment_row_groups_decoded",
            "Row groups turned back into batches",
            lambda it: it.reads.segments.statistics().row_groups_decoded,
        ),
        replicas.counter(
            "diskless_batches_appended",
            "Batches accepted into the write queue",
            lambda it: it.batches_appended,
        ),
        replicas.counter(
            "diskless_batches_repeated",
            "Batches that were sent again before they had an outcome, and not stored twice",
            lambda it: it.batches_repeated,
        ),
        replicas.counter(
            "diskless_batches_rejected", "Batches that broke a rule", lambda it: it.batches_rejected
        ),
        lane.counters(
            "diskless_batches_committed",
            "result",
            "Batches by the coordinator's verdict",
            lambda it: {
                "committed": it.batches_committed,
                "duplicate": it.batches_duplicate,
                "refused": it.batches_refused,
            },
        ),
        lane.counter(
            "diskless_wal_objects_committed", "WAL objects committed", lambda it: it.files_committed
        ),
        lane.gauge(
            "diskless_commit_age_seconds",
            "Since the last commit of a WAL object succeeded; -1 before the first",
            lambda it: it.last_commit_age_s(),
        ),
        process.gauge(
            "diskless_inflation_bytes",
            "Reserved now for records that the broker opens",
            lambda it: it.reads.inflation.reserved_bytes,
        ),
        process.gauge(
            "diskless_inflation_waiting",
            "Batches that wait for such memory",
            lambda it: it.reads.inflation.waiting,
        ),
        process.gauge(
            "diskless_batches_waiting_for_preparation",
            "Produced batches that have to be opened, packed anew or summed, and wait for a thread",
            lambda it: it.reads.lanes.waiting,
        ),
        process.counter(
            "diskless_batches_prepared",
            "Produced batches that were opened, packed anew or summed in a thread",
            lambda it: it.reads.lanes.batches_prepared,
        ),
        process.gauge(
            "diskless_append_queue_bytes",
            "Bytes waiting for the write loop",
            lambda it: it.writes.write_loop.statistics().queued_bytes,
        ),
        uploader.gauge(
            "diskless_upload_waiting_chunks",
            "Sealed chunks that are being uploaded or wait for it or for their commit",
            lambda it: it.waiting_chunks,
        ),
        uploader.gauge(
            "diskless_upload_waiting_bytes",
            "Bytes of these chunks as wal.buffer.max.bytes counts them, 1 KiB per batch included",
            lambda it: it.waiting_bytes,
        ),
        uploader.gauge(
            "diskless_upload_waiting_seconds",
            "How long the oldest of these chunks has waited; 0 when there is none",
            lambda it: it.oldest_waiting_s,
        ),
        uploader.counter(
            "diskless_upload_retries",
            "Uploads of a chunk that repeated a failed one",
            lambda it: it.upload_retries,
        ),
        uploader.counter(
            "diskless_second_puts",
            "Puts of a WAL object that were made beside one that took too long",
            lambda it: it.puts.second_puts,
        ),
        uploader.counter(
            "diskless_second_puts_first",
            "Those of them that were stored before the one they were made beside",
            lambda it: it.puts.second_puts_first,
        ),
        uploader.counter(
            "diskless_commit_retries",
            "Commits of a chunk that repeated a failed one",
            lambda it: it.commit_retries,
        ),
        MetricSource(
            "diskless_connections",
            "gauge",
            "Connections of clients, by listener and state",
            ("listener", "state"),
            lambda: {**parts.server.statistics().by_state},
        ),
        server.gauge(
            "diskless_request_memory_bytes",
            "Memory held by requests: receive buffers, and what unanswered requests keep",
            lambda it: it.request_bytes_held,
        ),
        server.gauge(
            "diskless_connections_waiting_for_memory",
            "Connections not read from because requests hold all the memory they may",
            lambda it: it.connections_waiting,
        ),
        server.gauges(
            "diskless_response_memory_bytes",
            "state",
            "Memory of answers; reserved: being read or built; unsent: handed to the socket",
            lambda it: {"reserved": it.reserved_bytes, "unsent": it.unsent_bytes},
        ),
        chunks.gauge(
            "diskless_chunk_uncommitted_bytes",
            "Bytes in sealed chunks that are not committed",
            lambda it: it.uncommitted_bytes,
        ),
        chunks.gauge(
            "diskless_chunk_cached_bytes",
            "Bytes of committed chunks kept for tail reads",
            lambda it: it.cached_bytes,
        ),
        chunks.counter(
            "diskless_chunks_quarantined", "Chunks found damaged", lambda it: it.quarantined
        ),
        descriptors.counters(
            "diskless_fd_cache_requests",
            "result",
            "Look-ups in the FD cache",
            lambda it: {"hit": it.hits, "miss": it.misses},
        ),
        process.gauges(
            "diskless_purgatory_operations",
            "purgatory",
            "Delayed operations waiting now",
            lambda it: {
                "produce": it.reads.replicas.produce_purgatory.statistics().watched,
                "fetch": it.reads.replicas.fetcher.purgatory.statistics().watched,
            },
        ),
        quotas.counters(
            "diskless_throttled_requests",
            "api",
            "Requests of clients that were over their quota, by API",
            lambda it: {api: one.requests for api, one in it.items()},
        ),
        quotas.counters(
            "diskless_throttle_seconds",
            "api",
            "Waits imposed on clients over their quota, by API; those in flight together overlap",
            lambda it: {api: one.seconds for api, one in it.items()},
        ),
        quotas.gauges(
            "diskless_quota_rates",
            "api",
            "Clients whose rate is measured because they have a quota, by API",
            lambda it: {api: one.rates for api, one in it.items()},
        ),
        sessions.gauge(
            "diskless_fetch_sessions", "Consumers that have a fetch session (KIP-227)", len
        ),
        sessions.gauge(
            "diskless_fetch_session_partitions",
            "Partitions in all fetch sessions",
            lambda it: it.row_count,
        ),
        sessions.counter(
            "diskless_fetch_session_evictions",
            "Fetch sessions that had to make room for others",
            lambda it: it.evicted_count,
        ),
        process.counter(
            "diskless_produce_timeouts",
            "Produce requests whose outcome was not known in time",
            lambda it: it.reads.replicas.produce_purgatory.statistics().expired,
        ),
    ]


def _store_requests(store: StoreStatistics) -> Mapping[str, float]:
    return {
        "put": store.puts,
        "get": store.gets,
        "head": store.heads,
        "list": store.lists,
        "delete": store.deletes,
    }


def _cache_requests(cache: ObjectCacheStatistics) -> Mapping[str, float]:
    return {
        "hit": cache.memory_hits + cache.disk_hits,
        "miss": cache.misses,
        "joined": cache.joined,
        "cold": cache.cold_reads,
    }
