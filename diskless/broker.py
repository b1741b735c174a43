"""A broker: build the parts, wire them, run them until told to stop.

    store ── uploader ── write loop ── replica manager ── server
      └── object cache ── batch reader ──┘     │
    metadata log ── coordinator ───────────────┘

Health checks are answered first and last (`diskless.broker_http`).
Start: the metadata log and SQLite first, then the chunks that an earlier process left (they are
uploaded and committed again, under their old keys, before anything new), then the listener. Stop is
the reverse: no new connections, answer what is under way, seal and upload what is queued, close.

Every long-running part is a task of one group: if one dies, the broker stops with its error, and a
restart recovers. Nothing is served half-alive.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
from prometheus_client import CollectorRegistry

from diskless.addresses import parse_address
from diskless.api import kafka_apis
from diskless.api.access import Access
from diskless.api.coordinator.commit_segments import commit_segments_handler
from diskless.api.coordinator.coordinator_catalogue import coordinator_apis
from diskless.api.coordinator.coordinator_operation import RunningOperations
from diskless.api.coordinator.plan_segments import plan_segments_handler
from diskless.authorization import AllowEverything
from diskless.broker_http import broker_routes, take_http_address
from diskless.broker_metrics import broker_metrics
from diskless.cluster.cluster import (
    ConfiguredValues,
    CoordinatorTopics,
    ReplicaPartitions,
    SingleBroker,
)
from diskless.cluster.coordinators import Coordinators
from diskless.cluster.membership import Membership, SharedCluster
from diskless.config import Config
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.groups.group_router import GroupRouter
from diskless.groups.group_store import CoordinatorGroupStore
from diskless.groups.offsets import TopicsWith
from diskless.health.health import Health, LoopPulse
from diskless.health.http_server import HttpServer
from diskless.health.store_watch import StoreWatch
from diskless.loop.long_work import LongWork
from diskless.loop.loop_watch import LoopWatch
from diskless.metrics import MetricsPage
from diskless.ports import LEADER_EPOCH, BrokerEndpoint, Cluster
from diskless.quotas.quotas import QuotaEnforcer
from diskless.replica.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader
from diskless.replica.commit_lane import CommitLane
from diskless.replica.metadata_topic import MetadataTopic
from diskless.replica.noted_facts import NotedFacts
from diskless.replica.replica_manager import ReplicaManager, append_failed
from diskless.replica.timestamp_search import TimestampSearch
from diskless.request_metrics import LoopLag, RequestMetrics
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer, bind_listener
from diskless.storage.cluster_identity import (
    OBJECT_LOG,
    claim_prefix,
    encode_identity,
    shared_cluster_id,
)
from diskless.storage.data_directory import DataDirectory
from diskless.storage.directory_watch import DirectoryWatch
from diskless.storage.store_rights import check_rights
from diskless.topics.topic_defaults import topic_defaults
from metadata.clients.routed_client import RemoteClient
from metadata.clients.wire_client import WireClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import Candidate, Worker
from metadata.messages.segments import COMMIT_SEGMENTS_KEY, PLAN_SEGMENTS_KEY
from tiering.segment_reader import SegmentReader
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import CommitJournal
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.uploader import Uploader
from wal.chunks.write_loop import WriteLoop
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import (
    InvalidSettings,
    NotCoordinator,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.fd_cache import FdCache
from wal.inflation_budget import InflationBudget
from wal.segmented_log.log_directory import DirectoryLock
from wal.stores.file_store import FileStoreSettings
from wal.stores.object_cache import ObjectCache
from wal.stores.object_store import Buffer, ObjectStore
from wal.stores.observed_store import ObservedStore, StoreReach
from wal.stores.s3_settings import S3Settings
from wal.stores.store_url import open_store

DIRECTORY_COMMIT_INTERVAL_MS: Final = 10
"""`wal.commit.interval.ms` where a PUT is a local file; 250 ms is for stores that bill requests."""

_DRAIN_TIMEOUT_S: Final = 30.0
_READ_THREADS: Final = 4
_GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""The middle generation has some thirty thousand objects at most, which is 2 to 3 ms of walking."""

log = structlog.get_logger(__name__)


class StoreOpener(Protocol):
    """`wal.stores.store_url.open_store`, or a test's that injects faults into what it opens."""

    def __call__(
        self,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        file_settings: FileStoreSettings,
        s3_settings: S3Settings,
    ) -> ObjectStore: ...


class Broker:
    """All parts of one broker; `running()` brings them to life and takes them down."""

    def __init__(
        self,
        config: Config,
        *,
        data: Path,
        host: str,
        port: int,
        clock: Clock,
        rng: random.Random,
        disk: Disk = SYSTEM_DISK,
        opener: StoreOpener = open_store,
    ) -> None:
        """`disk` is the chunks' alone; metadata log and SQLite write to the machine's."""
        self.config = config
        self.host = host
        self.port = port
        self.clock = clock
        self.rng = rng
        self.disk = disk
        self.opener = opener
        self.data = DataDirectory.open(data, node_id=config.broker.node_id, rng=rng)
        self.health = Health(config.health)
        self.registry = CollectorRegistry()
        self.loop_watch = LoopWatch(config.loop, clock=clock, metrics=LoopLag(self.registry))
        self.metrics_page = MetricsPage(self.registry, clock=clock)
        self.http: HttpServer | None = None
        self.cluster_id = self.data.cluster_id
        self.owns_prefix = True
        """Nobody else's objects can be below the store's prefix."""
        self.start_problem: str | None = None
        """Why the object store could not be reached at the start, if it could not."""
        self._drain_deadline = 0.0

    @property
    def node_id(self) -> int:
        return self.data.node_id

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Build, recover, listen; on leaving, stop in reverse. Raises what a part died of."""
        async with AsyncExitStack() as stack:
            self._lock_data_directory(stack)
            self._take_address(stack)
            self._serve_http(stack)
            await self._open_storage(stack)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await self._watch_loop(stack, tasks)
            self._watch_surroundings(stack, tasks)
            await self._open_coordinators(stack, tasks)
            recovered = await self._open_chunks(stack)
            self._build_write_path()
            await self._build_read_path(stack)
            await self._start_write_path(stack, tasks, recovered)
            await self._listen(stack, tasks)
            self._be_ready(stack)
            _settle_garbage_collector()
            yield

    def _lock_data_directory(self, stack: AsyncExitStack) -> None:
        try:
            self.lock = DirectoryLock(self.data.path)
            stack.callback(self.lock.close)
        except BlockingIOError as error:
            raise NotCoordinator(f"{self.data.path} is in use by another broker") from error

    def _serve_http(self, stack: AsyncExitStack) -> None:
        """First and last of all that is served: a start and a stop can be watched, too."""
        listener = take_http_address(self.config)
        if listener is None:
            return
        stack.callback(listener.close)
        pulse = LoopPulse(asyncio.get_running_loop())
        routes = broker_routes(self.health, pulse, self.metrics_page)
        self.http = stack.enter_context(HttpServer(listener, routes))

    async def _watch_loop(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        await stack.enter_async_context(self.loop_watch)
        self._run_until_stop(stack, tasks.create_task(self.loop_watch.run(), name="loop-watch"))

    def _watch_surroundings(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        """Early: a long start asks for little of the store, and must not find it forgotten."""
        places = DirectoryWatch(self.data.path, self.lock)
        self._run_until_stop(stack, tasks.create_task(places.run(), name="directory-watch"))
        watch = StoreWatch(
            self.store,
            self.reach,
            settings=self.config.health,
            identity=encode_identity(self.cluster_id, self.config.broker.metadata_log),
        )
        self._run_until_stop(stack, tasks.create_task(watch.run(), name="store-watch"))

    def _be_ready(self, stack: AsyncExitStack) -> None:
        """Whoever sends clients may send them here, until the stop begins."""
        self.metrics_page.add(broker_metrics(self))
        partitions = self.coordinators.partitions
        self.health.started(lambda: [one.index for one in partitions if one.leader is None])
        stack.callback(self.health.stopping)

    async def _open_storage(self, stack: AsyncExitStack) -> None:
        config, data = self.config, self.data
        url = config.broker.object_store_url or f"file://{data.objects}"
        opened = await stack.enter_async_context(
            self.opener(
                url,
                clock=self.clock,
                rng=self.rng,
                file_settings=config.file_store,
                s3_settings=config.s3,
            )
        )
        self.reach = StoreReach(opened.url, clock=self.clock)
        self.store: ObjectStore = ObservedStore(opened, self.reach)
        self.health.watch_store(self.reach)
        await self._claim_store()
        self.wal_settings = config.wal
        is_remote = url.startswith("s3://")
        if not is_remote and "wal.commit.interval.ms" not in config.explicit:
            self.wal_settings = replace(config.wal, commit_interval_ms=DIRECTORY_COMMIT_INTERVAL_MS)
        self.fd_cache = FdCache(config.read.fd_cache_capacity)
        stack.callback(self.fd_cache.close)
        self.pool = BufferPool(self.wal_settings.buffer_pool_max_bytes)
        self.long_work = LongWork(self.clock.monotonic)
        self.executor = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="read")
        stack.callback(self.executor.shutdown)

    async def _claim_store(self) -> None:
        """Whose prefix it is, and whether the store lets this broker do all that it has to.

        A store that cannot be reached stops only who has the metadata log there: with a local one
        there is something to serve. Raises: ObjectStoreRefused, whatever the log.
        """
        try:
            if self.config.broker.metadata_log == OBJECT_LOG:
                self.cluster_id = await shared_cluster_id(self.store, self.rng)
            else:
                self.data = await claim_prefix(self.store, self.data)
                self.cluster_id = self.data.cluster_id
            await check_rights(self.store)
        except ObjectStoreRefused:
            raise
        except (ObjectStoreUnavailable, UploadOutcomeUnknown) as error:
            if self.config.broker.metadata_log == OBJECT_LOG:
                raise
            self.owns_prefix = False
            self.start_problem = str(error)
            log.warning(
                "the object store cannot be reached; orphans are not deleted before the next start",
                error=str(error),
            )

    def _take_address(self, stack: AsyncExitStack) -> None:
        """Other brokers are told where this one is before it serves anything."""
        self.listener = bind_listener(self.host, self.port)
        stack.callback(self.listener.close)
        self.host, self.port = self.listener.getsockname()[:2]
        advertised = self.config.broker.advertised_listener
        self.advertised = (
            parse_address(advertised, "advertised.listener")
            if advertised
            else (self.host, self.port)
        )
        is_shared = self.config.broker.metadata_log == OBJECT_LOG
        if is_shared and self.advertised[0] in ("0.0.0.0", "::"):
            raise InvalidSettings(
                f"advertised.listener: other brokers cannot reach {self.advertised[0]}; "
                "say under which name or address they and the clients do"
            )

    async def _open_coordinators(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        incarnation, past = self.data.begin_life(self.rng)
        self.candidate = Candidate(
            broker_id=self.node_id,
            host=self.advertised[0],
            port=self.advertised[1],
            incarnation=incarnation,
            past_incarnations=past,
            may_lead=self.config.coordinator.may_lead,
        )
        self.coordinators = await stack.enter_async_context(
            Coordinators(
                self.config,
                data=self.data,
                store=self.store,
                cluster_id=self.cluster_id,
                candidate=lambda: self.candidate,
                connect=self._connect,
                owns_prefix=self.owns_prefix,
                group_worker=self._group_worker,
                clock=self.clock,
                rng=self.rng,
            )
        )
        self.coordinator = self.coordinators.client
        self.quotas = QuotaEnforcer(
            self.coordinator.client_quotas, settings=self.config.quotas, clock=self.clock
        )
        self.metadata_topic = MetadataTopic(self.coordinators.partitions)
        topics = TopicsWith(self.coordinator, [self.metadata_topic.description])
        self.coordinator.subscribe_topics(topics.changed)
        self.groups = GroupRouter(
            self.coordinators.partitions,
            topics,
            settings=self.config.groups,
            clock=self.clock,
            rng=self.rng,
        )
        running = tasks.create_task(self.coordinators.run(), name="coordinators")
        self._run_until_stop(stack, running)
        await _first_of(self.coordinators.ready(), running)

    def _group_worker(
        self, coordinator: PartitionCoordinator, *, certainly_leads: Callable[[], bool]
    ) -> Worker:
        """What coordinates the consumer groups of a metadata partition that is led here."""
        store = CoordinatorGroupStore(coordinator, certainly_leads=certainly_leads)
        return self.groups.led(coordinator.coordinator_id, store)

    def _connect(self, host: str, port: int) -> RemoteClient:
        """How this broker asks another one's coordinators."""
        return WireClient(
            host,
            port,
            clock=self.clock,
            rng=self.rng,
            client_id=f"diskless-broker-{self.node_id}",
        )

    @staticmethod
    def _run_until_stop(stack: AsyncExitStack, task: asyncio.Task[None]) -> None:
        """End `task`, and see it end, when the stack is unwound to here."""

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        stack.push_async_callback(end)

    async def _open_chunks(self, stack: AsyncExitStack) -> Sequence[SealedChunk]:
        """Lock the chunk directory; the chunks that an earlier process left uncommitted."""
        self.journal = CommitJournal()
        facts = NotedFacts(self.coordinator)
        self.directory = ChunkDirectory(
            self.data.chunks,
            settings=self.wal_settings,
            clock=self.clock,
            rng=self.rng,
            fd_cache=self.fd_cache,
            broker_id=self.node_id,
            disk=self.disk,
            topics=facts.topic,
            floors=facts.floor,
            commits=self.journal,
        )
        stack.callback(self.directory.close)
        return await asyncio.to_thread(self.directory.recover)

    def _build_write_path(self) -> None:
        self.lane = CommitLane(
            self.coordinator, broker_id=self.node_id, clock=self.clock, journal=self.journal
        )
        self.uploader = Uploader(
            self.store,
            self.directory,
            settings=self.wal_settings,
            clock=self.clock,
            rng=self.rng,
            committer=self.lane,
        )
        self.write_loop = WriteLoop(
            self.directory,
            settings=self.wal_settings,
            clock=self.clock,
            on_sealed=self.uploader.submit,
            on_failed=append_failed,
            is_behind=self.uploader.is_behind,
        )

    async def _start_write_path(
        self, stack: AsyncExitStack, tasks: asyncio.TaskGroup, recovered: Sequence[SealedChunk]
    ) -> None:
        self._run_until_stop(stack, tasks.create_task(self.uploader.run(), name="uploader"))
        stack.push_async_callback(self._drain)
        for chunk in recovered:
            await self.uploader.submit(chunk)
        if recovered:
            log.info("chunks of an earlier run are being committed", count=len(recovered))
        writing = tasks.create_task(self.write_loop.run(), name="write-loop")

        async def finish_writing() -> None:
            self.write_loop.close()
            self._drain_deadline = self.clock.monotonic() + _DRAIN_TIMEOUT_S
            done, _ = await asyncio.wait([writing], timeout=_DRAIN_TIMEOUT_S)
            if not done:
                # The store is away and the uploader has its fill; the next start finds the chunks.
                writing.cancel()
                await asyncio.wait([writing])

        stack.push_async_callback(finish_writing)

    async def _drain(self) -> None:
        """What is sealed gets its chance to be committed; the next start recovers the rest."""
        await self.uploader.drain(max(self._drain_deadline - self.clock.monotonic(), 0.0))

    async def _build_read_path(self, stack: AsyncExitStack) -> None:
        self.cache = await stack.enter_async_context(
            ObjectCache(self.store, settings=self.config.cache, disk_directory=str(self.data.cache))
        )
        self.segments = SegmentReader(
            self._read_segment_range, settings=self.config.segments, leader_epoch=LEADER_EPOCH
        )
        stack.push_async_exit(self.segments)
        self.reader = BatchReader(
            directory=self.directory,
            cache=self.cache,
            segments=self.segments,
            executor=self.executor,
            clock=self.clock,
            long_work=self.long_work,
            cold_after_ms=self.config.read.cold_after_ms,
        )
        self.inflation = InflationBudget(self.config.inflation.max_bytes)
        self.search = await stack.enter_async_context(
            TimestampSearch(reader=self.reader, segments=self.segments, budget=self.inflation)
        )
        self.lanes = await stack.enter_async_context(BatchLanes(self.pool, self.inflation))
        self.replicas = ReplicaManager(
            coordinator=self.coordinator,
            write_loop=self.write_loop,
            reader=self.reader,
            search=self.search,
            clock=self.clock,
            fetch_max_bytes=self.config.server.fetch_max_bytes,
            metadata_topic=self.metadata_topic,
            topic_defaults=topic_defaults(self.config.values()),
            lanes=self.lanes,
        )
        stack.callback(self.replicas.close)
        self.coordinator.subscribe(self.replicas.committed)
        self.metadata_topic.subscribe(self.replicas.committed)
        self.fetch_sessions = FetchSessions(
            slots=self.config.read.fetch_session_slots, clock=self.clock, rng=self.rng
        )

    async def _read_segment_range(
        self, key: ObjectKey, start: int, length: int, object_length: int
    ) -> Buffer:
        # Row groups are kept decoded by the segment reader; their bytes need not be kept as well.
        return await self.store.get_range(key, start, length)

    def _cluster(self) -> Cluster:
        rack = self.config.broker.rack
        myself = BrokerEndpoint(self.node_id, *self.advertised, rack or None)
        if self.coordinators.is_shared:
            return SharedCluster(self.coordinators, cluster_id=self.cluster_id, myself=myself)
        return SingleBroker(self.cluster_id, myself)

    def _join_cluster(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        """From here on clients of other brokers are sent here too."""
        if not self.coordinators.is_shared:
            return
        membership = Membership(
            self.coordinator,
            candidate=self.candidate,
            rack=self.config.broker.rack,
            session_timeout_ms=self.config.coordinator.session_timeout_ms,
        )
        stack.push_async_callback(membership.leave)
        self._run_until_stop(stack, tasks.create_task(membership.run(), name="membership"))

    async def _listen(self, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        cluster = self._cluster()
        self.operations = await stack.enter_async_context(RunningOperations())
        self.server = KafkaServer(
            host=self.host,
            port=self.port,
            apis=self._apis(cluster),
            settings=self.config.server,
            pool=self.pool,
            clock=self.clock,
            metrics=RequestMetrics(self.registry),
            long_work=self.long_work,
            listener=self.listener,
        )
        await stack.enter_async_context(self.server)
        # Members may wait for minutes; so that the server need not, they are sent elsewhere first.
        stack.callback(self.groups.close)
        self._join_cluster(stack, tasks)

    def _apis(self, cluster: Cluster) -> ApiRegistry:
        authorizer = AllowEverything()
        apis = kafka_apis(
            manager=self.replicas,
            cluster=cluster,
            groups=self.groups,
            topics=CoordinatorTopics(
                self.coordinator,
                self.config.broker,
                metadata_topic=self.metadata_topic.description,
                on_deleted=self.replicas.forget,
            ),
            producer_ids=self.coordinator,
            broker_configs=ConfiguredValues(self.config, self.advertised),
            stored=ReplicaPartitions(self.coordinator, self.store.url),
            quotas=self.quotas,
            quota_admin=self.coordinator,
            fetch_sessions=self.fetch_sessions,
            authorizer=authorizer,
        )
        for api in coordinator_apis(
            self.coordinators.local, self.search, self.operations, authorizer
        ):
            apis.add(api)
        access = Access(authorizer)
        apis.add_raw(
            PLAN_SEGMENTS_KEY,
            "PlanSegments",
            plan_segments_handler(self.coordinator, self.store.url, access),
        )
        apis.add_raw(
            COMMIT_SEGMENTS_KEY, "CommitSegments", commit_segments_handler(self.coordinator, access)
        )
        return apis


async def _first_of(wanted: Coroutine[Any, Any, None], running: asyncio.Task[None]) -> None:
    """Wait for `wanted`, unless `running`, which it depends on, ends first."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])


def _settle_garbage_collector() -> None:
    """What was built lives as long as the process: the collector need not look at it again.

    Requests leave next to no cycles, but many values that live until their commit; looking for
    cycles among them every 700 allocations took a tenth of the event loop's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
