"""In-memory stand-ins for what the API handlers call, good enough for stock clients."""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from diskless.api.catalogue import kafka_apis
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, AllowEverything, Authorizer, ResourceType
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.groups.group_router import GroupRouter
from diskless.groups.offsets import TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps
from diskless.ports import (
    AT_ONCE,
    ActiveProducer,
    AppendBatch,
    BrokerConfigEntry,
    BrokerEndpoint,
    ClientInfo,
    FetchPartition,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsResult,
)
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_settings import ServerSettings
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import TransactionRouter
from metadata import operations as ops
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from tests.support.held_numbers import HeldNumbers
from tests.support.kafka_raw_client import RawClient
from tests.support.listeners import plain_listener
from tests.support.memory_transactions import MemoryTransactions, transactions_elsewhere
from wal import errors
from wal.chunks.buffer import BufferPool, FragmentChain
from wal.clock import Clock, ManualClock, SystemClock
from wal.coordinates import TopicIdPartition
from wal.records.record_batch import assign_offsets, parse_header

HIGH_WATERMARK: Final = 7


@dataclass
class FakeTopics:
    """`TopicAdmin` and `ProducerIds` in two dictionaries."""

    auto_create_enabled: bool = True
    default_partition_count: int = 1
    max_partition_count: int = 1_000
    known: dict[str, ops.TopicDescription] = field(default_factory=dict)
    randomness: random.Random = field(default_factory=lambda: random.Random(7))
    failure: errors.DisklessError | None = None
    next_producer_id: int = 1_000
    deletions: list[ops.DeleteRecords] = field(default_factory=list)
    """All that were asked for; each partition's high watermark counts as HIGH_WATERMARK."""

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        return self.known

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return next((t for t in self.known.values() if t.topic_id == topic_id), None)

    def add(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> ops.TopicDescription:
        topic = ops.TopicDescription(
            topic_id=UUID(int=self.randomness.getrandbits(128)),
            name=name,
            partition_count=partitions,
            configs=configs or {},
        )
        self.known[name] = topic
        return topic

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | errors.DisklessError]:
        if self.failure is not None:
            raise self.failure
        return [
            errors.TopicExists(topic.name)
            if topic.name in self.known
            else self.add(topic.name, topic.partition_count, dict(topic.configs))
            for topic in topics
        ]

    async def delete_topics(
        self, topic_ids: Sequence[UUID]
    ) -> Sequence[errors.DisklessError | None]:
        results: list[errors.DisklessError | None] = []
        for topic_id in topic_ids:
            topic = self.topic_by_id(topic_id)
            if topic is None:
                results.append(errors.UnknownTopicId(str(topic_id)))
            else:
                del self.known[topic.name]
                results.append(None)
        return results

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions]
    ) -> Sequence[errors.DisklessError | None]:
        if self.failure is not None:
            raise self.failure
        for topic in topics:
            self.known[topic.name] = replace(
                self.known[topic.name], partition_count=topic.partition_count
            )
        return [None] * len(topics)

    async def alter_configs(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        if self.failure is not None:
            raise self.failure
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise errors.UnknownTopicId(str(topic_id))
        self.known[topic.name] = replace(topic, configs=dict(change(topic.configs)))

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords]
    ) -> Sequence[ops.DeletedRecords]:
        if self.failure is not None:
            raise self.failure
        self.deletions += requests
        return [
            ops.DeletedRecords(5, errors.OffsetOutOfRange(str(offset)))
            if offset > HIGH_WATERMARK
            else ops.DeletedRecords(HIGH_WATERMARK if offset == -1 else offset)
            for _, offset in requests
        ]

    async def allocate_producer_id(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.next_producer_id += 1
        return self.next_producer_id


@dataclass
class FakeLog:
    """One partition: batches with their offsets assigned."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(base offset, next offset, bytes)"""
    next_offset: int = 0


class FakeReplicaManager:
    """Commits at once, unless `hold` is set; keeps the records of each append in arrival order."""

    def __init__(self, topics: FakeTopics) -> None:
        self._topics = topics
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.appended: list[bytes] = []
        self.hold = False
        self.held: list[asyncio.Future[Sequence[ops.BatchCommit]]] = []
        self.keeps_memory = False
        """Whether a held append also holds its records, as a full write queue does."""
        self.kept: deque[FragmentChain] = deque()
        self.raises: Exception | None = None
        self.append_error: errors.DisklessError | None = None
        self.clients: list[ClientInfo] = []
        self.transactional_ids: list[str | None] = []
        """Of each append."""
        self.fetches_running = 0
        self.fetches_cancelled = 0
        self.fetch_records: Sequence[bytes] | None = None
        """When set, every Fetch gives these, once `fetch_gate` is open."""
        self.fetch_gate = asyncio.Event()
        self.fetch_gate.set()
        self.fetches_granted: list[tuple[int, int]] = []
        """What each of them wanted to read, and how much of it was granted."""
        self._arrived = asyncio.Event()

    def append(
        self,
        batches: Sequence[AppendBatch],
        *,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
        transactional_id: str | None = None,
    ) -> Steps[asyncio.Future[Sequence[ops.BatchCommit]]]:
        yield
        self.clients.append(client)
        self.transactional_ids.append(transactional_id)
        if self.raises is not None:
            for batch in batches:
                if batch.records is not None:
                    batch.records.release()
            raise self.raises
        results = [self._append_one(batch) for batch in batches]
        future: asyncio.Future[Sequence[ops.BatchCommit]] = (
            asyncio.get_running_loop().create_future()
        )
        if self.hold:
            self.held.append(future)
            future.results = results  # type: ignore[attr-defined]
        else:
            future.set_result(results)
        self._wake_fetches()
        return future

    def release_held(self, index: int = 0) -> None:
        future = self.held.pop(index)
        if self.kept:
            self.kept.popleft().release()
        future.set_result(future.results)  # type: ignore[attr-defined]

    def _append_one(self, batch: AppendBatch) -> ops.BatchCommit:
        records = batch.records
        if self.append_error is not None:
            if records is not None:
                records.release()
            return ops.BatchCommit(error=self.append_error)
        if records is None:
            return ops.BatchCommit(error=errors.InvalidRecord("null"))
        data = b"".join(records.views())
        if self.hold and self.keeps_memory:
            self.kept.append(records)
        else:
            records.release()
        self.appended.append(data)
        if batch.topic_id is not None:
            topic = self._topics.topic_by_id(batch.topic_id)
            if topic is None:
                return ops.BatchCommit(error=errors.UnknownTopicId(f"no {batch.topic_id}"))
        else:
            topic = self._topics.known.get(batch.topic_name)
        if topic is None or not 0 <= batch.partition < topic.partition_count:
            return ops.BatchCommit(error=errors.UnknownPartition(f"no {batch.topic_name}"))
        log = self.logs.setdefault((topic.name, batch.partition), FakeLog())
        count = parse_header(data).record_count
        base = log.next_offset
        stored = bytearray(data)
        assign_offsets(stored, 0, base)
        log.next_offset += count
        log.batches.append((base, log.next_offset, bytes(stored)))
        return ops.BatchCommit(base, -1, 0)

    async def fetch(
        self,
        requests: Sequence[FetchPartition],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: int,
        client: ClientInfo,
        wake: EarlyEnd,
        reserve: Callable[[int], int],
        read_turn: AbstractAsyncContextManager[None] = AT_ONCE,
    ) -> Sequence[FetchResult]:
        if self.raises is not None:
            raise self.raises
        if self.fetch_records is not None:
            wanted = min(max_bytes, sum(map(len, self.fetch_records)) * len(requests))
            self.fetches_granted.append((wanted, reserve(wanted)))
            await self.fetch_gate.wait()
            return [FetchResult(None, 5, 0, self.fetch_records, 5) for _ in requests]
        self.fetches_running += 1
        ended = asyncio.Event()
        wake.listen(ended.set)
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                while not ended.is_set():
                    results = [self._fetch_one(request, max_bytes) for request in requests]
                    ready = sum(len(part) for result in results for part in result.records)
                    if ready >= min_bytes or any(r.error for r in results):
                        return results
                    self._arrived.clear()
                    waits = [
                        asyncio.ensure_future(event.wait()) for event in (ended, self._arrived)
                    ]
                    try:
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for waiting in waits:
                            waiting.cancel()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.fetches_cancelled += 1
            raise
        finally:
            wake.listen(None)
            self.fetches_running -= 1
        return [self._fetch_one(request, max_bytes) for request in requests]

    async def bounds(self, requests: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        return [self._fetch_one(request, 0)._replace(records=()) for request in requests]

    def _wake_fetches(self) -> None:
        self._arrived.set()

    def _fetch_one(self, request: FetchPartition, max_bytes: int) -> FetchResult:
        name = request.topic_name
        if request.topic_id is not None:
            topic = self._topics.topic_by_id(request.topic_id)
            if topic is None:
                return FetchResult(error=errors.UnknownTopicId("no such id"))
            name = topic.name
        if name not in self._topics.known:
            return FetchResult(error=errors.UnknownPartition("no such topic"))
        log = self.logs.get((name, request.partition), FakeLog())
        if not 0 <= request.offset <= log.next_offset:
            return FetchResult(error=errors.OffsetOutOfRange(str(request.offset)))
        records: list[bytes] = []
        for _, end, data in log.batches:
            if end <= request.offset:
                continue
            if records and sum(map(len, records)) + len(data) > max_bytes:
                break
            records.append(data)
        return FetchResult(None, log.next_offset, 0, records, log.next_offset)

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        if isinstance(self.raises, errors.DisklessError):
            raise self.raises
        results = []
        for request in requests:
            log = self.logs.get((request.topic_name, request.partition), FakeLog())
            if request.topic_name not in self._topics.known:
                results.append(ListOffsetsResult(error=errors.UnknownPartition("no such topic")))
            elif request.timestamp == -1:
                results.append(ListOffsetsResult(None, log.next_offset))
            elif request.timestamp == -2:
                results.append(ListOffsetsResult(None, 0))
            else:
                results.append(ListOffsetsResult())
        return results


@dataclass
class FakeCluster:
    """One broker, wherever the server came to listen."""

    endpoint: BrokerEndpoint
    cluster_id: str = "a-cluster"
    gateways: Sequence[int] = ()
    readers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By other racks: the broker that serves readers of each partition there."""
    others: Sequence[BrokerEndpoint] = ()

    @property
    def node_id(self) -> int:
        return self.endpoint.node_id

    @property
    def controller_id(self) -> int:
        return self.endpoint.node_id

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        return [self.endpoint, *self.others]

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        return self.endpoint.node_id

    def replicas_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> Sequence[int]:
        return (self.endpoint.node_id, *(readers[partition] for readers in self.readers.values()))

    def is_another_rack(self, rack: str, client: ClientInfo) -> bool:
        return rack in self.readers

    def reader_in(self, rack: str, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        return self.readers[rack][partition]

    def preferred_produce_brokers(
        self, topic_id: UUID, partition: int, client: ClientInfo
    ) -> Sequence[int]:
        return self.gateways


@dataclass
class FakeStored:
    """`StoredPartitions` in two dictionaries."""

    sizes: dict[TopicIdPartition, int] = field(default_factory=dict)
    active: dict[TopicIdPartition, Sequence[ActiveProducer]] = field(default_factory=dict)
    store_url: str = "memory://fake"

    def size_bytes(self, partition: TopicIdPartition) -> int | None:
        return self.sizes.get(partition)

    async def producers(
        self, partition: TopicIdPartition, *, limit: int
    ) -> Sequence[ActiveProducer]:
        return self.active.get(partition, ())[:limit]


class Elsewhere:
    """The one metadata partition, led by another broker, at this one's address."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    @property
    def leader(self) -> ops.Leader:
        endpoint = self._cluster.endpoint
        return ops.Leader(1, endpoint.node_id, endpoint.host, endpoint.port, UUID(int=0))


def groups_elsewhere(cluster: FakeCluster, topics: FakeTopics) -> GroupRouter:
    """The groups of a broker that coordinates none and sends everybody elsewhere."""
    return GroupRouter(
        [Elsewhere(cluster)],
        TopicsWith(topics, ()),
        settings=GroupSettings(),
        clock=ManualClock(),
        rng=random.Random(1),
        numbers=HeldNumbers(),
        placed=lambda _: 0,
    )


@dataclass
class FakeConfigs:
    more: Sequence[BrokerConfigEntry] = ()

    def entries(self) -> Sequence[BrokerConfigEntry]:
        return [
            BrokerConfigEntry("num.partitions", "3", "1", "how many", int),
            BrokerConfigEntry("auto.create.topics.enable", "true", "true", "whether", bool),
            *self.more,
        ]


class DenyEverything:
    """An `Authorizer` that lets nobody do anything."""

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        return {*names}

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return True

    def version(self) -> int:
        return 0


class FakeMetrics:
    """`ServerMetrics` in counters."""

    def __init__(self) -> None:
        self.handshakes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def handshake_ended(self, listener: str, result: str) -> None:
        self.handshakes[result] += 1

    def connection_refused(self, reason: str) -> None:
        self.refused[reason] += 1

    def connection_cut(self, reason: str) -> None:
        self.cut[reason] += 1

    def request_received(self, api: str, size_bytes: int) -> None:
        self.received[api] += 1

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        self.answered[api] += 1


class FakeQuotas:
    """Quotas in a dictionary."""

    def __init__(self) -> None:
        self.known: Mapping[ops.QuotaEntity, Mapping[str, float]] = {}
        self.error: errors.DisklessError | None = None
        self.altered: list[ops.AlterClientQuotas] = []

    def set(self, entity: ops.QuotaEntity, **quotas: float) -> None:
        known = {**self.known, entity: quotas}
        self.known = {name: values for name, values in known.items() if values}

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        return self.known

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas]
    ) -> Sequence[errors.DisklessError | None]:
        if self.error is not None:
            raise self.error
        self.altered += requests
        for request in requests:
            after = {**self.known.get(request.entity, {}), **request.changes}
            self.set(request.entity, **{key: v for key, v in after.items() if v is not None})
        return [None] * len(requests)


class FakeAcls:
    """Rules of access control in a set."""

    def __init__(self) -> None:
        self.known: frozenset[AclBinding] = frozenset()
        self.error: errors.DisklessError | None = None
        self.calls: list[Sequence[AclBinding | AclFilter]] = []

    def acls(self) -> frozenset[AclBinding]:
        return self.known

    async def create_acls(
        self, rules: Sequence[AclBinding]
    ) -> Sequence[errors.DisklessError | None]:
        if self.error is not None:
            raise self.error
        self.calls.append(rules)
        self.known |= {*rules}
        return [None] * len(rules)

    async def delete_acls(
        self, filters: Sequence[AclFilter]
    ) -> Sequence[DeletedAcls | errors.DisklessError]:
        if self.error is not None:
            raise self.error
        self.calls.append(filters)
        answer = []
        for wanted in filters:
            gone = sorted(filter(wanted.finds, self.known))
            self.known -= {*gone}
            answer.append(DeletedAcls(tuple(gone)))
        return answer


class FakeUsers:
    """SCRAM credentials in a dictionary."""

    def __init__(self) -> None:
        self.known: ops.ScramCredentials = {}
        self.error: errors.DisklessError | None = None

    def scram_credentials(self) -> ops.ScramCredentials:
        return self.known

    async def alter_scram_credentials(
        self, requests: Sequence[ops.AlterScramCredential]
    ) -> Sequence[errors.DisklessError | None]:
        if self.error is not None:
            raise self.error
        known = {**self.known, **{(row.user, row.mechanism): row.credential for row in requests}}
        self.known = {key: value for key, value in known.items() if value is not None}
        return [None] * len(requests)


@dataclass
class Broker:
    """A server over fakes."""

    server: KafkaServer
    apis: ApiRegistry
    topics: FakeTopics
    manager: FakeReplicaManager
    cluster: FakeCluster
    pool: BufferPool
    metrics: FakeMetrics
    stored: FakeStored
    quotas: FakeQuotas
    acls: FakeAcls
    users: FakeUsers
    transactions: TransactionRouter
    known_transactions: MemoryTransactions
    """What the broker coordinates, when it does (`leading`)."""
    clients: list[RawClient] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    @property
    def open_connections(self) -> int:
        return self.server.statistics().connections

    async def connect(self, local_host: str | None = None) -> RawClient:
        """A client that is closed before the server stops."""
        self.clients.append(await RawClient.connect(self.server.address, local_host))
        return self.clients[-1]


@asynccontextmanager
async def running_broker(
    *,
    clock: Clock | None = None,
    apis: ApiRegistry | None = None,
    configs: Sequence[BrokerConfigEntry] = (),
    coordinated: GroupRouter | None = None,
    quota_settings: QuotaSettings | None = None,
    authorizer: Authorizer | None = None,
    acls: FakeAcls | None = None,
    audit: Audit | None = None,
    processor_time: Callable[[], float] = time.thread_time,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A broker on a free port; `settings` are fields of ServerSettings, `configs` it shows.

    `coordinated` are its consumer groups; without them it sends their members elsewhere. With
    `acls`, or an authorizer, it serves the APIs for rules, which without one are disabled.
    """
    topics = FakeTopics()
    stored = FakeStored()
    manager = FakeReplicaManager(topics)
    cluster = FakeCluster(BrokerEndpoint(0, "127.0.0.1", 0, "rack-a"))
    quotas, users = FakeQuotas(), FakeUsers()
    rules = FakeAcls() if acls is None else acls
    clock = clock or SystemClock()
    transactions = transactions_elsewhere(topics, topics)
    known_transactions = MemoryTransactions()
    numbers = TransactionNumbers(
        known_transactions.join,
        lambda name: 0,
        add=known_transactions.add,
        kept_ms=60_000,
        clock=clock,
    )
    enforcer = QuotaEnforcer(
        quotas.client_quotas, settings=quota_settings or QuotaSettings(), clock=clock
    )
    registry = kafka_apis(
        manager=manager,
        cluster=cluster,
        groups=coordinated or groups_elsewhere(cluster, topics),
        transactions=transactions,
        transaction_numbers=numbers,
        topics=topics,
        producer_ids=topics,
        broker_configs=FakeConfigs(configs),
        stored=stored,
        quotas=enforcer,
        quota_admin=quotas,
        scram_admin=users,
        fetch_sessions=FetchSessions(slots=10, clock=ManualClock(), rng=random.Random(1)),
        authorizer=authorizer or AllowEverything(),
        audit=audit or UNNOTED,
        acl_admin=rules if acls is not None or authorizer is not None else None,
        now_ms=clock.now_ms,
    )
    for api in apis or ():
        registry.add(api)
    pool = BufferPool(64 << 20)
    metrics = FakeMetrics()
    server = KafkaServer(
        [plain_listener()],
        apis=registry,
        settings=ServerSettings(**{"stop_timeout_ms": 2_000, **settings}),
        pool=pool,
        clock=clock,
        metrics=metrics,
        limits=enforcer,
        processor_time=processor_time,
    )
    async with numbers, server:
        host, port = server.address
        cluster.endpoint = BrokerEndpoint(0, host, port, "rack-a")
        broker = Broker(
            server,
            registry,
            topics,
            manager,
            cluster,
            pool,
            metrics,
            stored,
            quotas,
            rules,
            users,
            transactions,
            known_transactions,
        )
        yield broker
        for client in broker.clients:
            await client.close()


@asynccontextmanager
async def connected(
    *, partitions: int = 0, **settings: Any
) -> AsyncIterator[tuple[Broker, RawClient]]:
    """A broker and a client; `partitions`: of a topic "t", if there is to be one."""
    async with running_broker(**settings) as broker:
        if partitions:
            broker.topics.add("t", partitions)
        yield broker, await broker.connect()
