"""What each API asks the authorizer, and what a client sees that is refused.

There are two topics, groups and transactional ids, "open" and "closed", and something is denied of
the closed ones or of the cluster. Every API and every version it has is asked about both of them
over a socket: the closed one has Kafka's error, the open one is served, and nothing behind the API
hears of the closed one.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.api.access import NOTHING_REFUSED, Access, allowed_rows
from diskless.authorization import AclOperation, AllowEverything, ResourceType
from diskless.fetch.fetch_rows import FetchAnswer, FetchRows
from diskless.groups import requests
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo, FetchPartition, FetchResult
from diskless.transactions.transaction_router import Producer
from metadata.transaction_operations import Transaction, TransactionState
from tests.support.kafka_fakes import Broker, running_broker
from tests.support.kafka_raw_client import RawClient, a_batch, produce_frame
from tests.support.memory_transactions import leading
from tests.support.profiles import examples
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, OffsetOutOfRange, Rejected

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


class Case(NamedTuple):
    """One API, what is denied, and what the client then sees in each of some versions."""

    what: str
    key: int
    versions: range
    denied: Sequence[Denial]
    request: Callable[[Serving, int], Mapping[str, Any]]
    seen: Callable[[Any], Any]
    expected: Any
    allowed: Any
    """What is seen when nothing is denied."""
    reaches: bool = True
    """Whether what may be is passed on to something behind the API."""


def codes(*path: str) -> Callable[[Any], Sequence[int]]:
    """The error codes of what is found by following the lists of these names."""

    def of(answer: Any) -> Sequence[int]:
        found = [answer]
        for name in path:
            found = [item for outer in found for item in getattr(outer, name)]
        return [int(item.error_code) for item in found]

    return of


def code(answer: Any) -> int:
    return int(answer.error_code)


def always(**values: Any) -> Callable[[Serving, int], Mapping[str, Any]]:
    return lambda serving, version: values


def both(item: Callable[[str], Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [item("open"), item("closed")]


def named(serving: Serving, *, by_id: bool) -> Sequence[Mapping[str, Any]]:
    """Both topics, named as Produce and Fetch do in any version."""
    if by_id:
        return [{"topic_id": serving.open_id}, {"topic_id": serving.closed_id}]
    return [{"name": name, "topic": name, "topic_id": None} for name in ("open", "closed")]


def produce(serving: Serving, version: int) -> Mapping[str, Any]:
    partitions = [{"index": 0, "records": a_batch()}]
    return {
        "transactional_id": None,
        "acks": -1,
        "topic_data": [
            {**topic, "partition_data": partitions} for topic in named(serving, by_id=version >= 13)
        ],
    }


def produce_to_closed_id(serving: Serving, version: int) -> Mapping[str, Any]:
    return {**produce(serving, version), "transactional_id": "closed"}


def fetch(serving: Serving, version: int) -> Mapping[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    return {
        "session_id": 0,
        "session_epoch": -1,
        "max_bytes": 1_000,
        "forgotten_topics_data": [],
        "topics": [
            {**topic, "partitions": [partition]} for topic in named(serving, by_id=version >= 13)
        ],
    }


def offsets_of_groups(serving: Serving, version: int) -> Mapping[str, Any]:
    if version < 8:
        return {"group_id": "closed", "topics": []}
    return {"groups": both(lambda name: {"group_id": name, "member_id": None, "topics": []})}


def offsets_of_topics(serving: Serving, version: int) -> Mapping[str, Any]:
    topics = both(lambda name: {"name": name, "partition_indexes": [0]})
    if version < 8:
        return {"group_id": "open", "topics": topics}
    return {"groups": [{"group_id": "open", "member_id": None, "topics": topics}]}


def all_offsets(serving: Serving, version: int) -> Mapping[str, Any]:
    if version < 8:
        return {"group_id": "open", "topics": None}
    return {"groups": [{"group_id": "open", "member_id": None, "topics": None}]}


def codes_of_groups(answer: Any) -> Sequence[int]:
    """One code for each group; version 1 has them beside partitions only."""
    return codes("groups")(answer) if hasattr(answer, "groups") else [code(answer)]


def codes_of_offsets(answer: Any) -> Sequence[int]:
    (group,) = answer.groups if hasattr(answer, "groups") else [answer]
    return codes("topics", "partitions")(group)


def names_of_offsets(answer: Any) -> Sequence[str]:
    (group,) = answer.groups if hasattr(answer, "groups") else [answer]
    return [topic.name for topic in group.topics]


def topics_by_id(serving: Serving, version: int) -> Mapping[str, Any]:
    ids = (serving.open_id, serving.closed_id)
    return {"topics": [{"name": None, "topic_id": topic_id} for topic_id in ids]}


def topics_by_name(serving: Serving, version: int) -> Mapping[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": None} for name in ("open", "closed")],
        "topic_names": ["open", "closed"],
    }


def new_topics(serving: Serving, version: int) -> Mapping[str, Any]:
    topics = both(
        lambda name: {
            "name": f"{name}-new",
            "num_partitions": 2,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
    )
    return {"topics": topics, "validate_only": False}


def configs(*kinds: int) -> Callable[[Serving, int], Mapping[str, Any]]:
    """Of open and closed topics or groups, and of the broker."""
    names = {2: ("open", "closed"), 4: ("0",), 32: ("open", "closed")}
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": None,
            "configs": [{"name": "retention.ms", "value": "5", "config_operation": 0}],
        }
        for kind in kinds
        for name in names[kind]
    ]
    return always(resources=resources, validate_only=False)


def names_and_codes(answer: Any) -> Sequence[tuple[str | None, int]]:
    rows = answer.topics if hasattr(answer, "topics") else answer.responses
    return [(row.name or None, int(row.error_code)) for row in rows]


def partitions_of(name: str) -> Callable[[Serving, int], Mapping[str, Any]]:
    return always(
        v3_and_below_transactional_id=name,
        v3_and_below_topics=both(lambda topic: {"name": topic, "partitions": [0]}),
    )


def codes_of_added(answer: Any) -> Sequence[int]:
    return [
        int(row.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]


TOPICS_OF = both(lambda name: {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]})
QUOTA = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}
PARTITIONS = codes("topics", "partitions")
RULE = {
    "resource_type": 2, "resource_name": "closed", "resource_pattern_type": 3,
    "principal": "User:u", "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

CASES = [
    Case("write", 0, range(3, 14), [(WRITE, TOPIC)], produce,
         codes("responses", "partition_responses"), [0, 29], [0, 0]),
    Case("write by id", 0, range(3, 14), [(WRITE, TRANSACTIONAL_ID)],
         produce_to_closed_id,
         codes("responses", "partition_responses"), [53, 53], [0, 0], False),
    Case("read", 1, range(4, 19), [(READ, TOPIC)], fetch,
         codes("responses", "partitions"), [0, 29], [0, 0]),
    Case("offsets", 2, range(1, 10), [(DESCRIBE, TOPIC)],
         always(topics=both(lambda n: {"name": n, "partitions": [{"timestamp": -1}]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("by name", 3, range(14), [(DESCRIBE, TOPIC)], topics_by_name,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)], False),
    Case("by id", 3, range(10, 14), [(DESCRIBE, TOPIC)], topics_by_id,
         names_and_codes, [("open", 0), (None, 29)], [("open", 0), ("closed", 0)], False),
    Case("all", 3, range(1, 14), [(DESCRIBE, TOPIC)], always(topics=None),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("all", 3, range(1), [(DESCRIBE, TOPIC)], always(topics=[]),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("create", 3, range(14), [(CREATE, TOPIC), (CREATE, CLUSTER)],
         always(allow_auto_topic_creation=True,
                topics=both(lambda n: {"name": f"{n}-new", "topic_id": None})),
         names_and_codes, [("open-new", 0), ("closed-new", 29)],
         [("open-new", 0), ("closed-new", 0)]),
    Case("group", 8, range(2, 10), [(READ, GROUP)],
         always(group_id="closed", topics=TOPICS_OF), PARTITIONS, [30, 30], [0, 0], False),
    Case("topic", 8, range(2, 10), [(READ, TOPIC)],
         always(group_id="open", topics=TOPICS_OF), PARTITIONS, [0, 29], [0, 0]),
    Case("group", 9, range(2, 8), [(DESCRIBE, GROUP)], offsets_of_groups,
         codes_of_groups, [30], [0], False),
    Case("groups", 9, range(8, 10), [(DESCRIBE, GROUP)], offsets_of_groups,
         codes_of_groups, [0, 30], [0, 0]),
    Case("topic", 9, range(1, 10), [(DESCRIBE, TOPIC)], offsets_of_topics,
         codes_of_offsets, [0, 29], [0, 0]),
    Case("coordinator", 10, range(4), [(DESCRIBE, GROUP)], always(key="closed", key_type=0),
         code, 30, 0, False),
    Case("coordinators", 10, range(4, 7), [(DESCRIBE, GROUP)],
         always(coordinator_keys=["open", "closed"], key_type=0),
         codes("coordinators"), [0, 30], [0, 0]),
    Case("coordinator of an id", 10, range(1, 4), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(key="closed", key_type=1), code, 53, 0, False),
    Case("coordinators of ids", 10, range(4, 7), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(coordinator_keys=["open", "closed"], key_type=1),
         codes("coordinators"), [0, 53], [0, 0], False),
    Case("group", 11, range(10), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 12, range(5), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 13, range(6), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 14, range(6), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("groups", 15, range(7), [(DESCRIBE, GROUP)], always(groups=["open", "closed"]),
         codes("groups"), [0, 30], [0, 0]),
    Case("groups", 16, range(6), [(DESCRIBE, CLUSTER), (DESCRIBE, GROUP)],
         always(states_filter=[], types_filter=[]),
         lambda answer: [group.group_id for group in answer.groups], ["open"],
         ["closed", "open"], False),
    Case("topic", 19, range(2, 8), [(CREATE, TOPIC), (CREATE, CLUSTER)], new_topics,
         names_and_codes, [("open-new", 0), ("closed-new", 29)],
         [("open-new", 0), ("closed-new", 0)]),
    Case("by name", 20, range(1, 7), [(DELETE, TOPIC), (DELETE, CLUSTER)], topics_by_name,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)]),
    Case("by id", 20, range(6, 7), [(DELETE, TOPIC), (DELETE, CLUSTER)], topics_by_id,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)]),
    Case("hidden by id", 20, range(6, 7),
         [(DELETE, TOPIC), (DESCRIBE, TOPIC), (DELETE, CLUSTER)], topics_by_id,
         names_and_codes, [("open", 0), (None, 29)], [("open", 0), ("closed", 0)]),
    Case("topic", 21, range(3), [(DELETE, TOPIC)], always(topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("id", 22, range(6), [(IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)],
         always(transactional_id=None), code, 31, 0, False),
    Case("transactional id", 22, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", transaction_timeout=timedelta(seconds=1),
                producer_id=-1, producer_epoch=-1), code, 53, 0, False),
    Case("id", 24, range(4), [(WRITE, TRANSACTIONAL_ID)], partitions_of("closed"),
         codes_of_added, [53, 53], [0, 0], False),
    Case("topic", 24, range(4), [(WRITE, TOPIC)], partitions_of("open"),
         codes_of_added, [55, 29], [0, 0], False),
    Case("cluster", 24, range(4, 6), [(CLUSTER_ACTION, CLUSTER)],
         always(transactions=[{"transactional_id": "open", "topics": []}]),
         lambda answer: (code(answer), len(answer.results_by_transaction)), (31, 0), (0, 1), False),
    Case("id", 25, range(5), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", group_id="open"), code, 53, 0, False),
    Case("group", 25, range(5), [(READ, GROUP)],
         always(transactional_id="open", group_id="closed"), code, 30, 0, False),
    Case("id", 26, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed"), code, 53, 0, False),
    Case("topic", 23, range(2, 5), [(DESCRIBE, TOPIC), (CLUSTER_ACTION, CLUSTER)],
         always(topics=both(lambda n: {"topic": n, "partitions": [{"current_leader_epoch": 0}]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("topics", 32, range(1, 5), [(DESCRIBE_CONFIGS, TOPIC)], configs(2, 4, 32),
         codes("results"), [0, 29, 0, 0, 0], [0, 0, 0, 0, 0], False),
    Case("broker", 32, range(1, 5), [(DESCRIBE_CONFIGS, CLUSTER)], configs(2, 4, 32),
         codes("results"), [0, 0, 31, 0, 0], [0, 0, 0, 0, 0], False),
    Case("groups", 32, range(1, 5), [(DESCRIBE_CONFIGS, GROUP)], configs(2, 4, 32),
         codes("results"), [0, 0, 0, 0, 30], [0, 0, 0, 0, 0], False),
    *[
        case
        for key, versions in ((33, range(3)), (44, range(2)))
        for case in (
            Case("topics", key, versions, [(ALTER_CONFIGS, TOPIC)], configs(2),
                 codes("responses"), [0, 29], [0, 0]),
            Case("broker", key, versions, [(ALTER_CONFIGS, CLUSTER)], configs(4),
                 codes("responses"), [31], [42], False),
            Case("groups", key, versions, [(ALTER_CONFIGS, GROUP)], configs(32),
                 codes("responses"), [42, 30], [42, 42], False),
        )
    ],
    Case("topics", 43, range(3), [(ALTER, CLUSTER)],
         always(election_type=0,
                topic_partitions=both(lambda n: {"topic": n, "partitions": [0]})),
         lambda answer: [int(topic.partition_result[0].error_code)
                         for topic in answer.replica_election_results],
         [31, 31], [84, 84], False),
    Case("topics", 45, range(2), [(ALTER, CLUSTER)],
         always(topics=both(lambda n: {"name": n, "partitions": [
             {"partition_index": 0, "replicas": None}]})),
         lambda answer: [int(topic.partitions[0].error_code) for topic in answer.responses],
         [31, 31], [85, 85], False),
    Case("topics", 46, range(1), [(DESCRIBE, CLUSTER)],
         always(topics=both(lambda n: {"name": n, "partition_indexes": [0]})),
         lambda answer: (code(answer), [topic.name for topic in answer.topics]),
         (31, ["open", "closed"]), (0, []), False),
    Case("sizes", 35, range(1, 3), [(DESCRIBE, CLUSTER)], always(topics=None),
         lambda answer: len(answer.results), 0, 1, False),
    Case("sizes", 35, range(3, 5), [(DESCRIBE, CLUSTER)], always(topics=None),
         lambda answer: (code(answer), len(answer.results)), (31, 0), (0, 1), False),
    Case("id", 28, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", group_id="open", topics=TOPICS_OF),
         PARTITIONS, [53, 53], [0, 0], False),
    Case("group", 28, range(6), [(READ, GROUP)],
         always(transactional_id="open", group_id="closed", topics=TOPICS_OF),
         PARTITIONS, [30, 30], [0, 0], False),
    Case("topic", 28, range(6), [(READ, TOPIC)],
         always(transactional_id="open", group_id="open", topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("rules", 29, range(1, 4), [(DESCRIBE, CLUSTER)], always(**ANY_RULE),
         lambda answer: (code(answer), answer.resources), (31, ()), (0, ()), False),
    Case("rules", 30, range(1, 4), [(ALTER, CLUSTER)], always(creations=[RULE, RULE]),
         codes("results"), [31, 31], [0, 0], False),
    Case("rules", 31, range(1, 4), [(ALTER, CLUSTER)], always(filters=[ANY_RULE]),
         codes("filter_results"), [31], [0], False),
    Case("topic", 37, range(4), [(ALTER, TOPIC)],
         always(topics=both(lambda n: {"name": n, "count": 2, "assignments": None}),
                validate_only=False),
         codes("results"), [0, 29], [0, 0]),
    Case("group", 42, range(3), [(DELETE, GROUP)], always(groups_names=["open", "closed"]),
         codes("results"), [0, 30], [0, 0]),
    Case("group", 47, range(1), [(DELETE, GROUP)], always(group_id="closed", topics=TOPICS_OF),
         lambda answer: (code(answer), len(answer.topics)), (30, 0), (0, 2), False),
    Case("topic", 47, range(1), [(READ, TOPIC)], always(group_id="open", topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("quotas", 48, range(2), [(DESCRIBE_CONFIGS, CLUSTER)], always(components=[]),
         lambda answer: (code(answer), answer.entries), (31, None), (0, ()), False),
    Case("quotas", 49, range(2), [(ALTER_CONFIGS, CLUSTER)],
         always(entries=[QUOTA, QUOTA], validate_only=False),
         codes("entries"), [31, 31], [42, 42], False),
    Case("users", 50, range(1), [(DESCRIBE, CLUSTER)], always(users=None),
         lambda answer: (code(answer), answer.results), (31, ()), (0, ()), False),
    Case("users", 51, range(1), [(ALTER, CLUSTER)],
         always(deletions=[{"name": "ann", "mechanism": 1}, {"name": "bob", "mechanism": 3}],
                upsertions=[]),
         codes("results"), [31, 31], [91, 33], False),
    Case("operations", 60, range(2), [(DESCRIBE, CLUSTER)],
         always(include_cluster_authorized_operations=True, endpoint_type=1),
         lambda answer: (code(answer), answer.cluster_authorized_operations),
         (0, 0), (0, 0b1111110100000), False),
    Case("producers", 61, range(1), [(READ, TOPIC)],
         always(topics=both(lambda n: {"name": n, "partition_indexes": [0]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("ids", 65, range(1), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(transactional_ids=["open", "closed"]),
         codes("transaction_states"), [0, 53], [0, 0]),
    Case("topics", 65, range(1), [(DESCRIBE, TOPIC)], always(transactional_ids=["open"]),
         lambda answer: [topic.topic for topic in answer.transaction_states[0].topics],
         ["open"], ["closed", "open"]),
    Case("ids", 66, range(3), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(state_filters=[], producer_id_filters=[], duration_filter=-1),
         lambda answer: sorted(row.transactional_id for row in answer.transaction_states),
         ["open"], ["closed", "open"], False),
    Case("group", 68, range(2), [(READ, GROUP)],
         always(group_id="closed", subscribed_topic_names=["open"]), code, 30, 0, False),
    Case("topic", 68, range(2), [(DESCRIBE, TOPIC)],
         always(group_id="open", subscribed_topic_names=["open", "closed"]), code, 29, 0, False),
    Case("group", 69, range(2), [(DESCRIBE, GROUP)], always(group_ids=["open", "closed"]),
         codes("groups"), [0, 30], [0, 0]),
    Case("configs", 74, range(2), [(DESCRIBE_CONFIGS, CLUSTER)], always(resource_types=[]),
         lambda answer: (code(answer), len(answer.config_resources) > 0), (31, False), ..., False),
    Case("by name", 75, range(1), [(DESCRIBE, TOPIC)],
         always(topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None),
         names_and_codes, [("closed", 29), ("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("all", 75, range(1), [(DESCRIBE, TOPIC)],
         always(topics=[], response_partition_limit=9, cursor=None),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
]  # fmt: skip

EACH_VERSION = [
    pytest.param(case, version, id=f"{case.key}-{case.what}-v{version}")
    for case in CASES
    for version in case.versions
]


@pytest.mark.parametrize(("case", "version"), EACH_VERSION)
async def test_what_is_denied_is_refused_and_the_rest_is_served(case: Case, version: int):
    authorizer = Denying(*case.denied)
    async with serving(authorizer) as broker:
        answer = await broker.client.ask(case.key, version, **case.request(broker, version))
        assert case.seen(answer) == case.expected
        assert broker.heard_of_closed() == []
        assert bool(broker.calls) == case.reaches
        assert {(operation, kind) for operation, kind, _ in authorizer.asked} >= {*case.denied}
        assert authorizer.clients == {"ANONYMOUS"}


@pytest.mark.parametrize(("case", "version"), EACH_VERSION)
async def test_nothing_is_refused_where_nothing_is_denied(case: Case, version: int):
    async with serving(Denying()) as broker:
        answer = await broker.client.ask(case.key, version, **case.request(broker, version))
        assert case.allowed is ... or case.seen(answer) == case.allowed


async def test_every_api_asks_and_in_all_of_its_versions():
    async with running_broker() as broker:
        served = {
            (api.key, version)
            for api in broker.apis
            for version in api.versions
            if api.name not in ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
        }
    asked = {(case.key, version) for case in CASES for version in case.versions}
    assert asked == served


# --- what either of two permissions is enough for


@pytest.mark.parametrize(
    ("key", "version", "denied"),
    [
        (3, 9, (CREATE, TOPIC)),
        (3, 9, (CREATE, CLUSTER)),
        (19, 7, (CREATE, TOPIC)),
        (19, 7, (CREATE, CLUSTER)),
        (20, 6, (DELETE, TOPIC)),
        (20, 6, (DELETE, CLUSTER)),
        (22, 5, (IDEMPOTENT_WRITE, CLUSTER)),
        (22, 5, (WRITE, TOPIC)),
        (23, 4, (DESCRIBE, TOPIC)),
        (23, 4, (CLUSTER_ACTION, CLUSTER)),
        (16, 5, (DESCRIBE, GROUP)),
        (16, 5, (DESCRIBE, CLUSTER)),
    ],
)
async def test_one_of_two_permissions_is_enough(key: int, version: int, denied: Denial):
    case = next(case for case in CASES if case.key == key and len(case.denied) == 2
                and version in case.versions)  # fmt: skip
    assert denied in case.denied
    async with serving(Denying(denied)) as broker:
        answer = await broker.client.ask(key, version, **case.request(broker, version))
        assert case.seen(answer) == case.allowed


# --- what the table does not tell


async def test_a_refused_topic_is_refused_whether_it_exists_or_not():
    async with serving(Denying((DESCRIBE, TOPIC), (DELETE, TOPIC), (DELETE, CLUSTER))) as broker:
        names = [{"name": name, "topic_id": None} for name in ("closed", "closed-absent", "absent")]
        deleted = await broker.client.ask(20, 6, topics=names)
        assert names_and_codes(deleted) == [("closed", 29), ("closed-absent", 29), ("absent", 3)]
        assert [row.topic_id for row in deleted.responses] == [None] * 3
        described = await broker.client.ask(3, 13, topics=names, allow_auto_topic_creation=False)
        assert names_and_codes(described) == [("closed", 29), ("closed-absent", 29), ("absent", 3)]
        assert [row.topic_id for row in described.topics] == [None] * 3
        assert broker.calls == []


async def test_the_name_of_a_topic_asked_for_by_id_is_not_in_the_text_of_an_error():
    denied = ((WRITE, TOPIC), (DELETE, TOPIC), (DESCRIBE, TOPIC), (DELETE, CLUSTER))
    async with serving(Denying(*denied)) as broker:
        produced = await broker.client.ask(0, 13, **produce(broker, 13))
        text = produced.responses[1].partition_responses[0].error_message
        assert text == "ANONYMOUS may not WRITE this topic"
        deleted = await broker.client.ask(20, 6, **topics_by_id(broker, 6))
        assert "closed" not in deleted.responses[1].error_message


async def test_an_unknown_id_is_unknown_and_not_refused():
    async with serving(Denying((WRITE, TOPIC))) as broker:
        asked = produce(broker, 13)
        unknown = {**asked["topic_data"][1], "topic_id": UUID(int=99)}
        answer = await broker.client.ask(
            0, 13, **{**asked, "topic_data": [*asked["topic_data"], unknown]}
        )
        assert codes("responses", "partition_responses")(answer) == [0, 29, 100]


@pytest.mark.parametrize("acks", [0, -1])
async def test_refused_batches_keep_no_memory(acks: int):
    async with serving(Denying((WRITE, TOPIC))) as broker:
        large = [a_batch(200_000)]
        await broker.client.send(produce_frame(1, large, topic="closed", acks=acks))
        if acks:
            correlation_id, _ = await broker.client.receive()
            assert correlation_id == 1
        else:
            # The only way to tell somebody who wants no answer.
            assert await broker.client.is_closed_by_server()
        assert broker.calls == []
        assert broker.broker.pool.statistics().in_use_bytes == 0


async def test_who_may_not_see_configs_is_not_told_how_a_new_topic_was_made():
    async with serving(Denying((DESCRIBE_CONFIGS, TOPIC))) as broker:
        created = await broker.client.ask(19, 7, **new_topics(broker, 7))
        shown, hidden = created.topics
        assert (shown.topic_config_error_code, shown.num_partitions) == (0, 2)
        assert len(shown.configs) > 0
        assert (hidden.error_code, hidden.topic_config_error_code) == (0, 29)
        assert (hidden.num_partitions, hidden.replication_factor) == (-1, -1)
        assert hidden.configs == ()


@pytest.mark.parametrize("version", range(2, 10))
async def test_all_offsets_of_a_group_are_those_of_topics_that_may_be_described(version):
    async with serving(Denying((DESCRIBE, TOPIC))) as broker:
        answer = await broker.client.ask(9, version, **all_offsets(broker, version))
        assert names_of_offsets(answer) == ["open"]


async def test_the_first_version_of_offset_fetch_tells_a_groups_error_beside_each_partition():
    async with serving(Denying((DESCRIBE, GROUP))) as broker:
        topics = both(lambda name: {"name": name, "partition_indexes": [0]})
        answer = await broker.client.ask(9, 1, group_id="closed", topics=topics)
        assert PARTITIONS(answer) == [30, 30]
        assert broker.calls == []


async def test_a_group_is_not_described_to_who_may_not_describe_the_topics_it_reads():
    async with serving(Denying((DESCRIBE, TOPIC))) as broker:
        answer = await broker.client.ask(
            69, 1, group_ids=["open", "reads-closed"], include_authorized_operations=True
        )
        shown, hidden = answer.groups
        assert (shown.error_code, len(shown.members)) == (0, 1)
        assert shown.authorized_operations == 0b110101001000
        assert (hidden.error_code, hidden.members) == (29, ())
        assert (hidden.group_id, hidden.authorized_operations) == ("reads-closed", NOT_ASKED)


async def test_a_permission_that_goes_ends_what_a_fetch_session_reads():
    authorizer = Denying()
    async with serving(authorizer) as broker:
        client = broker.client
        first = {**fetch(broker, 12), "session_epoch": 0}
        answer = await client.ask(1, 12, **first)
        assert codes("responses", "partitions")(answer) == [0, 0]
        more = {**first, "session_id": answer.session_id, "topics": []}
        authorizer.denials = [(READ, TOPIC)]
        broker.calls.clear()
        answer = await client.ask(1, 12, **{**more, "session_epoch": 1})
        assert [topic.topic for topic in answer.responses] == ["closed"]
        assert codes("responses", "partitions")(answer) == [29]
        assert broker.heard_of_closed() == []
        authorizer.denials = []
        answer = await client.ask(1, 12, **{**more, "session_epoch": 2})
        assert [topic.topic for topic in answer.responses] == ["closed"]
        assert codes("responses", "partitions")(answer) == [0]


async def test_a_session_asks_again_only_when_rules_or_its_topics_are_others():
    authorizer = Denying()
    async with serving(authorizer) as broker:
        client = broker.client
        partitions = fetch(broker, 13)["topics"][0]["partitions"]
        unknown = {"topic_id": UUID(int=99), "partitions": partitions}
        first = {**fetch(broker, 13), "session_epoch": 0}
        answer = await client.ask(1, 13, **first)
        more = {**first, "session_id": answer.session_id, "topics": []}

        async def asked(epoch: int, **others: Any) -> int:
            authorizer.asked.clear()
            await client.ask(1, 13, **{**more, "session_epoch": epoch, **others})
            return len(authorizer.asked)

        assert [await asked(1), await asked(2), await asked(3)] == [1, 0, 0]
        authorizer.denials = [(WRITE, TOPIC)]
        assert [await asked(4), await asked(5)] == [1, 0], "other rules"
        assert await asked(6, topics=[unknown]) == 1, "another topic"
        assert await asked(7) == 1, "one that is not known may become so"


async def test_a_fetch_of_nothing_that_may_be_read_is_answered_at_once():
    async with serving(Denying((READ, TOPIC))) as broker:
        asked = fetch(broker, 12)
        answer = await broker.client.ask(1, 12, **{**asked, "topics": asked["topics"][1:]})
        assert codes("responses", "partitions")(answer) == [29]
        assert broker.calls == []


async def test_authorized_operations_are_those_that_are_not_denied():
    denied = ((WRITE, TOPIC), (ALTER, TOPIC), (DELETE, GROUP), (ALTER, CLUSTER))
    everything = {"topic": 0b110111111000, "group": 0b110101001000, "cluster": 0b1111110100000}
    async with serving(Denying(*denied)) as broker:
        client = broker.client
        answer = await client.ask(
            3, 10, topics=None,
            include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
        )  # fmt: skip
        closed, opened = answer.topics
        assert opened.topic_authorized_operations == everything["topic"]
        assert closed.topic_authorized_operations == everything["topic"] - (1 << 4) - (1 << 7)
        assert answer.cluster_authorized_operations == everything["cluster"] - (1 << 7)
        answer = await client.ask(
            75, 0, topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None
        )
        assert [topic.topic_authorized_operations for topic in answer.topics] == [
            closed.topic_authorized_operations,
            everything["topic"],
        ]
        answer = await client.ask(
            15, 6, groups=["open", "closed"], include_authorized_operations=True
        )
        assert [group.authorized_operations for group in answer.groups] == [
            everything["group"],
            everything["group"] - (1 << 6),
        ]


async def test_who_may_not_describe_has_no_authorized_operations():
    denied = ((DESCRIBE, TOPIC), (DESCRIBE, GROUP), (DESCRIBE, CLUSTER))
    async with serving(Denying(*denied)) as broker:
        client = broker.client
        answer = await client.ask(
            3, 10, **topics_by_name(broker, 10),
            include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
        )  # fmt: skip
        assert answer.topics[1].topic_authorized_operations == NOT_ASKED
        assert answer.cluster_authorized_operations == 0
        answer = await client.ask(
            75, 0, topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None
        )
        assert answer.topics[0].topic_authorized_operations == NOT_ASKED
        answer = await client.ask(15, 6, groups=["closed"], include_authorized_operations=True)
        assert answer.groups[0].authorized_operations == NOT_ASKED


# --- the parts


def test_whoever_allows_everything_reads_no_names():
    def names() -> Iterable[str]:
        raise AssertionError("nobody needs them")
        yield ""

    access = Access(AllowEverything())
    assert access.refused_topics(CLIENT, WRITE, names()) is NOTHING_REFUSED
    assert access.refused_groups(CLIENT, READ, names()) is NOTHING_REFUSED
    assert access.refused_cluster(CLIENT, CREATE) is None
    assert not access.may_with_no_topic(CLIENT, WRITE)


@given(st.lists(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_each_row_gets_its_answer_or_its_error(names: list[str], closed: set[str]) -> None:
    refused = {name: Rejected(name) for name in closed}
    rows = allowed_rows(list(enumerate(names)), lambda row: row[1], refused)
    assert [name for _, name in rows.allowed] == [name for name in names if name not in closed]
    assert rows.are_none == (bool(names) and {*names} <= closed)
    answers = rows.merged(
        [f"{at}{name}" for at, name in rows.allowed], lambda row, error: f"{row[0]}{error}!"
    )
    assert answers == [
        f"{at}{name}!" if name in closed else f"{at}{name}" for at, name in enumerate(names)
    ]


PARTITION = st.builds(
    FetchPartition,
    topic_id=st.none(),
    topic_name=st.sampled_from("abc"),
    partition=st.integers(0, 9),
    offset=st.integers(0, 99),
    max_bytes=st.integers(0, 99),
    current_leader_epoch=st.just(-1),
)


@given(st.data(), st.lists(PARTITION, max_size=12))
@examples(0.5)
def test_the_rows_of_a_fetch_are_taken_apart_and_put_together(
    data: st.DataObject, asked: list[FetchPartition]
) -> None:
    places = range(len(asked))
    refused = {
        place: Rejected(str(place))
        for place in sorted(
            data.draw(st.sets(st.sampled_from(places)) if asked else st.just(set()))
        )
    }
    rows = FetchRows.of(asked).without(refused)
    left = [place for place in places if place not in refused]
    assert [*rows] == [asked[place] for place in left]
    assert {topic.name for topic in rows.topics} == {asked[place].topic_name for place in left}
    results = [
        FetchResult(error=OffsetOutOfRange("x"))
        if place % 3 == 0
        else FetchResult(None, place, 0, [b"x"] if place % 3 == 1 else ())
        for place in left
    ]
    answer = FetchAnswer.of(results).at(dict.fromkeys(range(len(left)), 7)).among(refused)
    assert len(answer) == len(asked)
    assert [*answer.errors] == sorted(answer.errors)
    assert [answer[place] for place in left] == results
    assert {place: answer[place].error for place in refused} == refused
    assert np.all(answer.high_watermarks[[*refused]] == -1)
    assert {*answer.readers} == {place for place in left if place % 3}
