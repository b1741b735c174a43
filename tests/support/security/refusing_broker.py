"""A broker whose authorizer denies what it is told to, and that notes what its APIs call."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

from diskless.authorization import AclOperation, ResourceType
from diskless.fetch.fetch_rows import FetchRows
from diskless.groups import requests
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo
from diskless.transactions.transaction_router import Producer
from metadata.transaction_operations import Transaction, TransactionState
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.transactions.memory_transactions import leading
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE,
    AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE,
)  # fmt: skip
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE

NOT_ASKED = -(2**31)
CLIENT = ClientInfo(1, "client", "127.0.0.1")

Denial = tuple[AclOperation, ResourceType]


class Denying:
    """Denies operations, to topics and such only where they are closed."""

    def __init__(self, *denials: Denial) -> None:
        self.denials: Collection[Denial] = denials
        self.asked: list[tuple[AclOperation, ResourceType, Sequence[str]]] = []
        self.clients: set[str] = set()

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        names = [*names]
        self.asked.append((operation, resource_type, names))
        self.clients.add(client.user)
        if (operation, resource_type) not in self.denials:
            return ()
        if resource_type == CLUSTER:
            assert names == ["kafka-cluster"]
            return names
        return {name for name in names if name.startswith("closed")}

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        self.asked.append((operation, resource_type, []))
        return (operation, resource_type) in self.denials

    def version(self) -> int:
        return id(self.denials)


class ServingGroups:
    """Has all groups that it is asked about; each of them reads both topics."""

    def find(self, group_id: str) -> int | DisklessError:
        return 0

    async def join(self, request: requests.JoinGroup, client: ClientInfo) -> requests.JoinedGroup:
        return requests.JoinedGroup(member_id="m", protocol_type="", protocol_name="")

    async def sync(self, request: requests.SyncGroup) -> requests.SyncedGroup:
        return requests.SyncedGroup()

    def heartbeat(self, request: Any) -> DisklessError | None:
        return None

    async def leave(
        self, group_id: str, members: Sequence[Any]
    ) -> DisklessError | Sequence[DisklessError | None]:
        return [None] * len(members)

    async def commit_offsets(
        self, request: requests.CommitOffsets
    ) -> Sequence[DisklessError | None]:
        return [None] * len(request.offsets)

    async def commit_in_transaction(
        self, request: requests.CommitOffsets, producer: Producer, *, adds: bool = False
    ) -> Sequence[DisklessError | None]:
        return [None] * len(request.offsets)

    async def fetch_offsets(self, request: requests.FetchOffsets) -> requests.FetchedOffsets:
        wanted = request.partitions or [("closed", 0), ("open", 0)]
        return requests.FetchedOffsets(
            offsets=[requests.FetchedOffset(*partition, 5) for partition in wanted]
        )

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DisklessError | Sequence[DisklessError | None]:
        return [None] * len(partitions)

    def match_patterns(self, request: requests.ConsumerHeartbeat) -> Steps[object]:
        yield from ()
        return None

    async def consumer_heartbeat(
        self, request: requests.ConsumerHeartbeat, client: ClientInfo
    ) -> requests.ConsumerHeartbeatAnswer:
        return requests.ConsumerHeartbeatAnswer(member_id="m", member_epoch=1)

    async def describe(self, group_id: str) -> requests.DescribedGroup:
        return requests.DescribedGroup(group_id, state="Stable")

    async def describe_consumer(self, group_id: str) -> requests.DescribedConsumerGroup:
        topic = "closed" if group_id == "reads-closed" else "open"
        assigned = [requests.AssignedTopic(UUID(int=1), topic, [0])]
        member = requests.ConsumerGroupMember(
            "m", None, None, 1, "c", "h", [topic], None, assigned, assigned, False
        )
        return requests.DescribedConsumerGroup(group_id, state="Stable", members=[member])

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Steps[DisklessError | Sequence[requests.ListedGroup]]:
        yield
        return [
            requests.ListedGroup(name, "consumer", "Stable", "classic")
            for name in ("closed", "open")
        ]

    async def delete_group(self, group_id: str) -> DisklessError | None:
        return None


LAYERS = {
    "manager": ("append", "fetch", "bounds", "list_offsets"),
    "topics": (
        "create_topics", "delete_topics", "create_partitions", "alter_configs", "delete_records",
        "allocate_producer_id",
    ),
    "groups": (
        "find", "join", "sync", "heartbeat", "leave", "commit_offsets", "fetch_offsets",
        "delete_offsets", "consumer_heartbeat", "describe", "describe_consumer", "delete_group",
        "commit_in_transaction",
    ),
    "quotas": ("alter_client_quotas",),
    "acls": ("create_acls", "delete_acls"),
    "stored": ("producers", "size_bytes"),
    "transactions": ("init_producer", "add_to_transaction", "end_transaction", "transaction"),
}  # fmt: skip


def watch(layer: Any, names: Iterable[str], calls: list[str]) -> None:
    """Note in `calls` what is called on `layer`, and with what."""

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            calls.append(f"{name}: {[*map(_told, arguments)]} {options}")
            return call(*arguments, **options)

        return noted

    for name in names:
        setattr(layer, name, watched(name, getattr(layer, name)))


def _told(argument: Any) -> str:
    return repr([*argument] if isinstance(argument, FetchRows) else argument)


class Serving(NamedTuple):
    broker: Broker
    client: RawClient
    calls: list[str]
    open_id: UUID
    closed_id: UUID

    def heard_of_closed(self) -> list[str]:
        return [call for call in self.calls if "closed" in call or str(self.closed_id) in call]


@asynccontextmanager
async def serving(authorizer: Denying) -> AsyncIterator[Serving]:
    groups = ServingGroups()
    calls: list[str] = []
    async with running_broker(authorizer=authorizer, coordinated=groups) as broker:
        opened, closed = broker.topics.add("open"), broker.topics.add("closed")
        store = broker.known_transactions
        store.known = two_transactions([opened.topic_id, closed.topic_id])
        own = {"groups": groups, "transactions": store}
        for part, names in LAYERS.items():
            watch(own.get(part) or getattr(broker, part), names, calls)
        client = await RawClient.connect(broker.server.address)
        try:
            async with leading(broker.transactions, store):
                yield Serving(broker, client, calls, opened.topic_id, closed.topic_id)
        finally:
            await client.close()


def two_transactions(topics: Sequence[UUID]) -> dict[str, Transaction]:
    """Both have a partition of each topic in them."""
    partitions = {TopicIdPartition(topic_id, 0): 0 for topic_id in topics}
    return {
        name: Transaction(
            1, name, 7, 0, state=TransactionState.ONGOING, began_ms=5, partitions=partitions
        )
        for name in ("open", "closed")
    }
