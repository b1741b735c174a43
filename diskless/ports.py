"""What the Kafka API handlers call: small protocols and the values that cross them.

The handlers in `diskless/api/` decode, call one of these, and encode; everything that waits, stores
or decides lies behind them. `diskless/replica/replica_manager.py` and `diskless/broker.py`
implement them, tests pass in-memory ones.

Requests are sequences, answers are sequences in the same order. An error belongs to one entry and
is a value in it (`error`); raising is left for what concerns the call as a whole, and then fails
the whole request. Which Kafka code an error becomes is decided in `diskless/api/errors.py` alone.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from diskless.loop.long_work import Steps
from metadata.operations import (
    AlterClientQuotas,
    CreatePartitions,
    CreateTopic,
    DeletedRecords,
    DeleteRecords,
    QuotaEntity,
    TopicDescription,
)
from wal.chunks.buffer import FragmentChain
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import SizedBytes

LEADER_EPOCH: Final = 0
"""The one leader epoch there is: in Metadata, ListOffsets, Fetch and every batch served.

A leaderless partition never changes its epoch; clients reject rewinds and re-validate their
position on every increase, so a constant is the only value that stays quiet.
"""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

Buffer = bytes | bytearray | memoryview


ANONYMOUS: Final = "ANONYMOUS"


class ClientInfo(NamedTuple):
    """Who sent a request."""

    connection_id: int
    """Unique within this broker process; requests of one connection keep their order."""
    client_id: str
    """As the request header gave it; empty for null."""
    host: str
    """The peer's address without port."""
    user: str = ANONYMOUS
    """The principal's name; whoever is not authenticated is ANONYMOUS, as with Kafka."""


class AppendBatch(NamedTuple):
    """What a Produce request holds for one partition.

    The callee owns `records` from the moment `append` is called and releases it when done, also
    when it answers with an error. None stands for a null records field.
    """

    topic_id: UUID | None
    """Set only by versions that name topics by id; then `topic_name` is empty."""
    topic_name: str
    partition: int
    records: FragmentChain | None


class AppendResult(NamedTuple):
    """`log_append_time_ms` is -1 under CreateTime."""

    error: DisklessError | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class FetchPartition(NamedTuple):
    """From where, and how much at most, to read one partition."""

    topic_id: UUID | None
    """Set by Fetch ≥ 13, which names topics by id; then `topic_name` is empty."""
    topic_name: str
    partition: int
    offset: int
    max_bytes: int
    current_leader_epoch: int
    """What the client believes; -1 = does not say. Only LEADER_EPOCH is right."""


class FetchResult(NamedTuple):
    """What one partition gave.

    `records` are whole RecordBatches with offsets and leader epoch patched in, as buffers to be
    written back to back. They must not change while anyone references them: the socket may still
    be reading them long after the call returned. Offsets are -1 when `error` is set.
    """

    error: DisklessError | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()


class ListOffsetsPartition(NamedTuple):
    """A timestamp in milliseconds or one of the negative constants of `metadata.operations`."""

    topic_name: str
    partition: int
    timestamp: int
    current_leader_epoch: int


class ListOffsetsResult(NamedTuple):
    """Exact to the record. No record at or after the timestamp: offset and timestamp -1."""

    error: DisklessError | None = None
    offset: int = -1
    timestamp_ms: int = -1


AT_ONCE: Final[AbstractAsyncContextManager[None]] = nullcontext()
"""The turn of a reader that waits for nobody."""


class EarlyEnd:
    """Tells a parked fetch to answer now with what it has, because somebody waits behind it.

    Set at most once per request, never reset. One listener at a time; it runs synchronously in
    `set()`, or at once when the signal was set before it came.
    """

    __slots__ = ("_is_set", "_listener")

    def __init__(self) -> None:
        self._is_set = False
        self._listener: Callable[[], None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Idempotent."""
        if self._is_set:
            return
        self._is_set = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Replace the listener; None removes it (a fetch that is done leaves nothing behind)."""
        if listener is not None and self._is_set:
            listener()
        else:
            self._listener = listener


class ClientQuotas(Protocol):
    """What clients may send and be sent. Every call is cheap; times are of the monotonic clock.

    A time that is given is when the client's connection may be read from again; 0.0: now.
    """

    def produced(self, client: ClientInfo, size_bytes: int) -> float:
        """A Produce request arrived."""
        ...

    def may_fetch(self, client: ClientInfo, max_bytes: int) -> tuple[float, int]:
        """What is still to be waited for; and how much may be fetched, at most `max_bytes`."""
        ...

    def fetched(self, client: ClientInfo, size_bytes: int) -> float:
        """An answer to Fetch is about to be sent."""
        ...

    def left_ms(self, until: float) -> int:
        """Milliseconds until then, for throttle_time_ms; 0 for 0.0."""
        ...


class QuotaAdmin(Protocol):
    """The quotas that are set."""

    def client_quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """All of them, from committed state; another mapping after every change."""
        ...

    async def alter_client_quotas(
        self, requests: Sequence[AlterClientQuotas]
    ) -> Sequence[DisklessError | None]:
        """Entities, keys and values were validated by the caller; in force here on return."""
        ...


class ReplicaManager(Protocol):
    """Append and fetch; owns the purgatories."""

    def append(
        self,
        batches: Sequence[AppendBatch],
        *,
        acks: int,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
    ) -> Steps[Awaitable[Sequence[AppendResult]]]:
        """Enqueue the batches before returning; the awaitable gives their results in order.

        Called, and taken to its end, in the order in which requests arrive on a connection, which
        is what keeps a producer's batches in sequence. Cancelling the awaitable gives up the
        answer, never the append. A future is awaited through a callback, without a task. `acks` is
        -1, 0 or 1.
        """
        ...

    def fetch(
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
    ) -> Awaitable[Sequence[FetchResult]]:
        """Read partitions in request order, waiting for `min_bytes` until `max_wait_ms` or `wake`.

        Looks up and reads within `read_turn`, and waits outside of it. Asks `reserve` before it
        reads, with how much there is to read, and reads as much as that gives. The first non-empty
        partition gives at least one whole batch, whatever the limits. Cancelled when the client is
        gone; leaves no watch behind then.
        """
        ...

    async def bounds(self, requests: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        """What `fetch` answers but for the records, at once."""
        ...

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        """Linearisable over brokers: reflects everything acknowledged before the call."""
        ...


class BrokerEndpoint(NamedTuple):
    """A live broker as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Cluster(Protocol):
    """Who is there, seen from this broker. All calls are cheap and do no I/O."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> int:
        """This broker."""
        ...

    @property
    def controller_id(self) -> int:
        """A live broker; any of them takes administrative requests."""
        ...

    def brokers(self) -> Sequence[BrokerEndpoint]:
        """Live brokers, this one included, by ascending node id."""
        ...

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        """The node id this client is sent to for a partition; sticky while that broker lives."""
        ...

    def replicas_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> Sequence[int]:
        """Whom this client may read from: `leader_of`, then one broker of each other rack."""
        ...

    def is_another_rack(self, rack: str) -> bool:
        """Whether brokers are alive in `rack`, and this one is elsewhere."""
        ...

    def reader_in(self, rack: str, topic_id: UUID, partition: int) -> int:
        """The broker that readers of a partition in a rack are sent to; the rack has one."""
        ...

    def preferred_produce_brokers(
        self, topic_id: UUID, partition: int, client: ClientInfo
    ) -> Sequence[int]:
        """The produce gateways for this client, best first; empty when there is no telling."""
        ...


class TopicAdmin(Protocol):
    """Topics, and the cluster's defaults for new ones."""

    @property
    def auto_create_enabled(self) -> bool:
        """`auto.create.topics.enable`"""
        ...

    @property
    def default_partition_count(self) -> int:
        """`num.partitions`"""
        ...

    @property
    def max_partition_count(self) -> int:
        """Upper bound for one topic."""
        ...

    def topics(self) -> Mapping[str, TopicDescription]:
        """All topics by name, from committed state; do not modify."""
        ...

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None: ...

    async def create_topics(
        self, topics: Sequence[CreateTopic]
    ) -> Sequence[TopicDescription | DisklessError]:
        """Names, partition counts and configs were validated by the caller."""
        ...

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]: ...

    async def create_partitions(
        self, topics: Sequence[CreatePartitions]
    ) -> Sequence[DisklessError | None]:
        """Topics grow; counts were validated by the caller."""
        ...

    async def alter_configs(
        self, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Set what `change` makes of what is set on a topic; in force here on return.

        `change` is called again when somebody else altered the topic meanwhile. Raises what it
        raises, UnknownTopicId, and what a coordinator raises.
        """
        ...

    async def delete_records(self, requests: Sequence[DeleteRecords]) -> Sequence[DeletedRecords]:
        """At whatever coordinators the partitions live."""
        ...


class ActiveProducer(NamedTuple):
    """What is remembered of an idempotent producer on one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_ms: int


class StoredPartitions(Protocol):
    """What is stored of partitions, as far as this broker has heard."""

    @property
    def store_url(self) -> str:
        """The object store; the same for all partitions."""
        ...

    def size_bytes(self, partition: TopicIdPartition) -> int | None:
        """Live data in WAL objects and segments; None when there is no such partition."""
        ...

    async def producers(
        self, partition: TopicIdPartition, *, limit: int
    ) -> Sequence[ActiveProducer]:
        """The `limit` that wrote last, by producer id. Raises UnknownPartition, CorruptState."""
        ...


class ProducerIds(Protocol):
    """Where InitProducerId gets its ids; the coordinator is one."""

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out before, and never will be again."""
        ...


class BrokerConfigEntry(NamedTuple):
    """One setting of this broker, as DescribeConfigs shows it."""

    name: str
    value: str
    default: str
    documentation: str
    kind: type[int] | type[float] | type[bool] | type[str] = str


class BrokerConfigs(Protocol):
    """The broker's own configuration, read only."""

    def entries(self) -> Sequence[BrokerConfigEntry]: ...


class ServerMetrics(Protocol):
    """What the TCP server counts. Every call is made on the event loop and must be cheap."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self, reason: str) -> None:
        """Closed before anything was read: `max.connections` or `max.connections.per.ip`."""
        ...

    def connection_cut(self, reason: str) -> None:
        """Closed by us: bad bytes, too slow, idle, or a handler that failed."""
        ...

    def request_received(self, api: str, size_bytes: int) -> None: ...

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        """From the last byte of the request to handing the answer to the socket."""
        ...


# --- consumer groups


class GroupProtocol(NamedTuple):
    """A way of assigning that a member knows, with what it has to say for it; opaque to brokers."""

    name: str
    metadata: SizedBytes


class JoinGroup(NamedTuple):
    """A member wants to be in the next generation of its group."""

    group_id: str
    member_id: str
    """Empty: it has none yet."""
    instance_id: str | None
    """Of a static member; the same over restarts."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[GroupProtocol]
    """Most wanted first."""
    needs_member_id: bool
    """Whether it must come back with an id before it is let in (JoinGroup ≥ 4)."""
    may_skip_assignment: bool
    """Whether a leader understands that it has nothing to assign (JoinGroup ≥ 9)."""
    reason: str


class JoinedMember(NamedTuple):
    """One member, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinedGroup(NamedTuple):
    """The answer to JoinGroup; with an error only `member_id` may say something."""

    error: DisklessError | None = None
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    member_id: str = ""
    members: Sequence[JoinedMember] = ()
    """Only the leader gets them."""
    skip_assignment: bool = False


class SyncGroup(NamedTuple):
    """A member asks what is assigned to it; the leader says what is assigned to all."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    """None: does not say."""
    protocol_name: str | None
    assignments: Mapping[str, bytes]
    """By member id; empty but for the leader."""


class SyncedGroup(NamedTuple):
    """The answer to SyncGroup."""

    error: DisklessError | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class GroupHeartbeat(NamedTuple):
    """A classic member is alive."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None


class LeavingMember(NamedTuple):
    """A static member may be named by its instance id alone; then `member_id` is empty."""

    member_id: str
    instance_id: str | None
    reason: str


RETENTION_AS_CONFIGURED: Final = -1


class CommitOffset(NamedTuple):
    """How far a group has read one partition: the next offset to be read."""

    topic_name: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """Offsets of one group, committed by a member or, with generation -1, by anybody."""

    group_id: str
    generation_id: int
    """The member epoch, if the member is one of a KIP-848 group."""
    member_id: str
    instance_id: str | None
    retention_ms: int
    """How long the offsets stay, or RETENTION_AS_CONFIGURED; any other below 0: they go at once."""
    knows_member_epochs: bool
    """Whether this version can speak for a member of a KIP-848 group (OffsetCommit ≥ 9)."""
    offsets: Sequence[CommitOffset]


class FetchOffsets(NamedTuple):
    """What a group has committed is asked for."""

    group_id: str
    member_id: str | None
    """Set by members of KIP-848 groups, with `member_epoch`."""
    member_epoch: int
    partitions: Sequence[tuple[str, int]] | None
    """(topic, partition); None: all that were committed."""
    require_stable: bool


class FetchedOffset(NamedTuple):
    """Nothing committed: offset -1."""

    topic_name: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: DisklessError | None = None


class FetchedOffsets(NamedTuple):
    """The offsets of one group."""

    error: DisklessError | None = None
    offsets: Sequence[FetchedOffset] = ()


class GroupMember(NamedTuple):
    """A member, as administrators see it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group, as administrators see it. `error` GroupIdNotFound: there is none of this name."""

    group_id: str
    error: DisklessError | None = None
    state: str = "Dead"
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[GroupMember] = ()


class ListedGroup(NamedTuple):
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    """"classic" or "consumer"."""


class ConsumerHeartbeat(NamedTuple):
    """A member of a KIP-848 group is alive, and says what has changed since it last said so.

    None, or -1 for the timeout: as before.
    """

    group_id: str
    member_id: str
    """Empty in version 0 only, of a member that joins and has none yet."""
    member_epoch: int
    """What it was last told; JOIN_EPOCH and so on of `groups.consumer.consumer_requests`."""
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_names: Sequence[str] | None
    topic_pattern: str | None
    """Empty: none."""
    assignor: str | None
    owned: Mapping[UUID, frozenset[int]] | None
    """The partitions it has, by topic id."""
    makes_own_id: bool
    """Whether members of this version come with an id of their own making (version ≥ 1)."""


class ConsumerHeartbeatAnswer(NamedTuple):
    """The answer to ConsumerHeartbeat."""

    error: DisklessError | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, frozenset[int]] | None = None
    """What it may have; None: as before."""


class AssignedTopic(NamedTuple):
    """Partitions of one topic, as administrators see them."""

    topic_id: UUID
    topic_name: str
    partitions: Sequence[int]


class ConsumerGroupMember(NamedTuple):
    """A member of a KIP-848 group, as administrators see it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: Sequence[str]
    topic_pattern: str | None
    assigned: Sequence[AssignedTopic]
    target: Sequence[AssignedTopic]
    is_classic: bool
    """It speaks the classic protocol."""


class DescribedConsumerGroup(NamedTuple):
    """A KIP-848 group, as administrators see it; `error` GroupIdNotFound: there is none."""

    group_id: str
    error: DisklessError | None = None
    state: str = "Dead"
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: Sequence[ConsumerGroupMember] = ()


class GroupCoordinator(Protocol):
    """Consumer groups, each at the broker that leads the group's metadata partition.

    Where another broker does, the error is NotGroupCoordinator. Nothing is raised: whatever goes
    wrong is an error in the answer. Answers about what was changed come when it is durable.
    """

    def find(self, group_id: str) -> BrokerEndpoint | DisklessError:
        """Which broker to go to, as far as this one knows."""
        ...

    def join(self, request: JoinGroup, client: ClientInfo) -> Awaitable[JoinedGroup]:
        """Answered when the group's next generation begins. A future needs no task to wait."""
        ...

    def sync(self, request: SyncGroup) -> Awaitable[SyncedGroup]:
        """Answered when the leader of the generation has said what is assigned to whom."""
        ...

    def heartbeat(self, request: GroupHeartbeat) -> DisklessError | None: ...

    async def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> DisklessError | Sequence[DisklessError | None]:
        """The group's error, or the members' in their order."""
        ...

    def match_patterns(self, request: ConsumerHeartbeat) -> Steps[object]:
        """Match what has to be matched for this heartbeat; good for as long as the result is kept.

        Raises: InvalidRegularExpression.
        """
        ...

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, client: ClientInfo
    ) -> Awaitable[ConsumerHeartbeatAnswer]:
        """Answered at once, or when what the heartbeat has changed is durable."""
        ...

    async def commit_offsets(self, request: CommitOffsets) -> Sequence[DisklessError | None]:
        """By offset, in order."""
        ...

    async def fetch_offsets(self, request: FetchOffsets) -> FetchedOffsets:
        """Partitions in the order asked for."""
        ...

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DisklessError | Sequence[DisklessError | None]:
        """The group's error, or the partitions' in their order."""
        ...

    async def describe(self, group_id: str) -> DescribedGroup:
        """A classic group."""
        ...

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        """A KIP-848 group."""
        ...

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Steps[DisklessError | Sequence[ListedGroup]]:
        """The groups this broker coordinates; nothing given: all. Case does not matter."""
        ...

    async def delete_group(self, group_id: str) -> DisklessError | None: ...
