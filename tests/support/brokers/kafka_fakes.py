"""In-memory stand-ins for what the API handlers call, good enough for stock clients."""

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

from diskless.api.catalogue import kafka_apis
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, AllowEverything, Authorizer, ResourceType
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.groups.group_router import GroupRouter
from diskless.groups.offsets import TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.listeners.listeners import Listener
from diskless.ports import (
    ActiveProducer,
    BrokerConfigEntry,
    BrokerEndpoint,
    ClientInfo,
)
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.quotas import QuotaEnforcer
from diskless.sasl.login import LoginRules
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_settings import ServerSettings
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import TransactionRouter
from metadata import operations as ops
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from tests.support.brokers.fake_logs import FakeReplicaManager, FakeTopics
from tests.support.brokers.listeners import plain_listener
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.transactions.held_numbers import HeldNumbers
from tests.support.transactions.memory_transactions import (
    MemoryTransactions,
    transactions_elsewhere,
)
from wal import errors
from wal.chunks.buffer import BufferPool
from wal.clock import Clock, ManualClock, SystemClock
from wal.coordinates import TopicIdPartition


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

    def add_metadata_topic(self) -> None:
        self.topics.known[ops.METADATA_TOPIC] = ops.TopicDescription(
            topic_id=ops.METADATA_TOPIC_ID, name=ops.METADATA_TOPIC, partition_count=1
        )

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
    listener: Listener | None = None,
    logins: Mapping[str, LoginRules] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A broker on a free port; `settings` are fields of ServerSettings, `configs` it shows.

    `coordinated` are its consumer groups; without them it sends their members elsewhere. With
    `acls`, or an authorizer, it serves the APIs for rules, which without one are disabled.
    Without a `listener` it has a plain one; `logins` are the rules of those where one must log in.
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
        [listener or plain_listener()],
        apis=registry,
        settings=ServerSettings(**{"stop_timeout_ms": 2_000, **settings}),
        pool=pool,
        clock=clock,
        metrics=metrics,
        limits=enforcer,
        logins=logins,
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
