"""The protocols that the Kafka API handlers call, and the values that cross them.

The handlers in `diskless/api/` decode, call one of these, and encode; everything that waits, stores
or decides lies behind them. `diskless/replica/replica_manager.py`, `diskless/cluster/`
and `diskless/quotas/` implement them, tests pass in-memory ones.

Requests are sequences, answers are sequences in the same order. An error belongs to one entry and
is a value in it (`error`); raising is left for what concerns the call as a whole, and then fails
the whole request. `diskless/api/errors.py` decides which Kafka code a client gets for an error.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps
from metadata import operations as ops
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from wal.chunks.buffer import FragmentChain
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.security.secret import Secret

LEADER_EPOCH: Final = 0
"""The one leader epoch there is: in Metadata, ListOffsets, Fetch and every batch served.

A leaderless partition never changes its epoch; clients reject rewinds and re-validate their
position on every increase, so a constant is the only value that stays quiet.
"""

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
    """The principal's name; ANONYMOUS without authentication, as with Kafka."""
    listener: str = ""
    """The name of the listener that the connection came through."""
    request_id: int = 0
    """The correlation id of the request, which its client chose."""

    def asking(self, request_id: int) -> "ClientInfo":
        """The same client, with another request. A quarter of the time of `_replace`."""
        return tuple.__new__(ClientInfo, (*self[:-1], request_id))


class ProducedTopic(NamedTuple):
    """A topic in a Produce request."""

    named: str | UUID
    """By its id where the version has that."""
    batch_count: int
    """How many of the request's batches are its."""


class ProducedBatches(NamedTuple):
    """What a Produce request holds, in its order.

    The caller owns `frame` until the steps of the call have ended; the callee shares what it needs
    for longer.
    """

    topics: Sequence[ProducedTopic]
    rows: bytes
    """One for each batch, see diskless/protocol/batch_scan.py; they say where it is in `frame`."""
    frame: FragmentChain


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
    last_stable_offset: int = -1
    aborted: Sequence[ops.AbortedTransaction] = ()
    """For a reader of committed records: those that began below the end of the records, and whose
    markers are not below the asked offset; by first offset."""


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


class QuotaAdmin(Protocol):
    """The quotas that are set."""

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        """All of them, from committed state; another mapping after every change."""
        ...

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas]
    ) -> Sequence[DisklessError | None]:
        """Entities, keys and values were validated by the caller; in force here on return."""
        ...


class AclAdmin(Protocol):
    """The rules of access control."""

    def acls(self) -> frozenset[AclBinding]:
        """All of them, from committed state; another set after every change."""
        ...

    async def create_acls(self, rules: Sequence[AclBinding]) -> Sequence[DisklessError | None]:
        """Rules were validated by the caller; in force here on return."""
        ...

    async def delete_acls(
        self, filters: Sequence[AclFilter]
    ) -> Sequence[DeletedAcls | DisklessError]:
        """Returns the rules that each filter found, which are gone; here, too."""
        ...


class ScramAdmin(Protocol):
    """The SCRAM credentials of users."""

    def scram_credentials(self) -> ops.ScramCredentials:
        """All of them, from committed state; another mapping after every change."""
        ...

    async def alter_scram_credentials(
        self, requests: Sequence[ops.AlterScramCredential]
    ) -> Sequence[DisklessError | None]:
        """Names and credentials were validated by the caller; in force here on return."""
        ...


NOTHING_REFUSED: Final[Mapping[Any, DisklessError]] = MappingProxyType({})


class ReplicaManager(Protocol):
    """Append and fetch; owns the purgatories."""

    def append(
        self,
        batches: ProducedBatches,
        *,
        timeout_ms: int,
        produce_version: int,
        client: ClientInfo,
        transactional_id: str | None = None,
    ) -> Steps[Awaitable[Sequence[ops.BatchCommit]]]:
        """Enqueue the batches before returning; the awaitable gives their results in order.

        Called, and taken to its end, in the order in which requests arrive on a connection, which
        is what keeps a producer's batches in sequence. Cancelling the awaitable gives up the
        answer, never the append. A future is awaited through a callback, without a task. The append
        time of a result is -1 under CreateTime. `client` was found to be allowed to write under
        `transactional_id`, which batches of a transaction need.
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
        """Answers like `fetch`, at once and without the records."""
        ...

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        """Linearisable over brokers: reflects everything acknowledged before the call."""
        ...


class BrokerEndpoint(NamedTuple):
    """A live broker as the clients of one listener reach it."""

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

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        """Live brokers that have this listener, as clients of it reach them, by node id."""
        ...

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int:
        """The node id this client is sent to for a partition; sticky while that broker lives."""
        ...

    def replicas_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> Sequence[int]:
        """Returns the brokers to read from: `leader_of`, then one of each other rack."""
        ...

    def is_another_rack(self, rack: str, client: ClientInfo) -> bool:
        """Whether brokers are alive in `rack`, and this one is elsewhere."""
        ...

    def reader_in(self, rack: str, topic_id: UUID, partition: int, client: ClientInfo) -> int:
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

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name, from committed state; do not modify."""
        ...

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None: ...

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        """Names, partition counts and configs were validated by the caller."""
        ...

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]: ...

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions]
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

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords]
    ) -> Sequence[ops.DeletedRecords]:
        """At whatever coordinators the partitions live."""
        ...


class ActiveProducer(NamedTuple):
    """What is remembered of a producer on one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_ms: int
    coordinator_epoch: int = -1
    """Of who ended its last transaction here, as far as its marker is still there."""
    first_open_offset: int = -1
    """Where its open transaction began here; -1: it has none, or none with data here."""


class TopicsById(Protocol):
    """The topics, as far as this broker has heard."""

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None: ...


class FollowedPartition(Protocol):
    """A metadata partition, for those who send requests to its leader."""

    @property
    def leader(self) -> ops.Leader | None: ...


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
    """One setting of this broker, as DescribeConfigs shows it; of a secret, not the value."""

    name: str
    value: str
    default: str
    documentation: str
    kind: type[int] | type[float] | type[bool] | type[str] | type[Secret] = str
    of_all: "BrokerConfigEntry | None" = None
    """Of what one listener has for itself: what it would have otherwise."""


class BrokerConfigs(Protocol):
    """The broker's own configuration, read only."""

    def entries(self) -> Sequence[BrokerConfigEntry]: ...
