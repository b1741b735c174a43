"""OpenSink and CommitStaged (private APIs 10070 and 10071, version 0) for sinks that stage objects.

Not Kafka APIs, and not listed by ApiVersions; metadata/messages/sinks.py has their rows. The driver
of a sink asks any broker.

- OpenSink: whether the sink may commit to these topics, before any task starts, and what its tasks
  must know of them. Refused are topics with more partitions than a commit may have batches.
- CommitStaged: this broker looks into the objects (diskless/sinks), and sends what it found to the
  sink's home, which commits all of it or nothing, at whichever coordinators their partitions live.
  A batch that was committed before gets its answer without any look at objects, which may be gone.
- The home is the coordinator of partition 0 of the sink's topic, of several the one with the
  smallest id. That never changes, also when the topic gets partitions at other coordinators; and
  where all partitions live at one, it is that one, and a commit is one append.
- Both need WRITE on every topic that is named, and batches may be of no other. An object must lie
  below `staged/<sink id>/` of the very sink. A sink id belongs to the principal that first used it:
  every coordinator that can be reached is asked, and the one that commits decides.
- CommitStaged counts in the client's producer_byte_rate with the bytes of its objects. Who is over
  it gets THROTTLING_QUOTA_EXCEEDED until that is over; nothing was committed then.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    Refusal,
    RunningOperations,
    client_api,
)
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, Authorizer
from diskless.ports import ClientInfo
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.registry import Api
from diskless.sinks.shares import check_shares, shares_of
from diskless.sinks.sink_counts import SinkCounts
from diskless.sinks.staged_check import JudgedTopic, StagedCheck
from diskless.topics.topic_configs import compression_of, effective, topic_rules
from metadata.clients.routed_client import RoutedClient
from metadata.messages.sinks import (
    COMMIT_SINK_HERE,
    COMMIT_STAGED,
    FIND_SINK_HERE,
    OPEN_SINK,
    CommitSinkAt,
    FindSink,
)
from metadata.operations import METADATA_TOPIC, TopicDescription
from metadata.rules.sinks.commit_sink import answered_before
from metadata.sink_operations import (
    STAGED_OBJECTS_MAX,
    CommitSink,
    CommitStaged,
    FoundSink,
    OpenedSink,
    OpenSink,
    SinkCommit,
    SinkShare,
    SinkTopic,
)
from wal.coordinates import TopicIdPartition
from wal.errors import (
    ClusterAuthorizationFailed,
    DisklessError,
    InvalidTopic,
    Overloaded,
    PolicyViolation,
    Rejected,
    UnknownPartition,
)
from wal.staging.staged_keys import check_sink_id, sink_of

TOPICS_MAX: Final = 100
"""Topics that one sink may write to at a time."""


class SinkService:
    """What the handlers of the two APIs share."""

    def __init__(
        self,
        client: RoutedClient,
        check: StagedCheck,
        quotas: QuotaEnforcer,
        counts: SinkCounts,
        *,
        object_store_url: str,
        batches_max: int,
        topic_defaults: Mapping[str, str],
    ) -> None:
        """`batches_max` is what a coordinator takes in one commit. The URL holds no secrets."""
        self._client = client
        self._check = check
        self._quotas = quotas
        self._counts = counts
        self._object_store_url = object_store_url
        self._batches_max = batches_max
        self._topic_defaults = topic_defaults

    def opening(self, client: ClientInfo) -> Call[OpenSink, OpenedSink | DisklessError]:
        async def call(asked: OpenSink, timeout_ms: int) -> Sequence[OpenedSink | DisklessError]:
            check_sink_id(asked.sink_id)
            topics = self._topics(asked.topics)
            home = self._home(topics)
            found = await self._found(asked.sink_id, client, timeout_ms)
            return [
                OpenedSink(
                    topics=[self._described(topic) for topic in topics],
                    object_store_url=self._object_store_url,
                    batches_max=self._batches_max,
                    last_batch_id=max(
                        (item.sink.batch_id for item in found if item.coordinator == home),
                        default=-1,
                    ),
                )
            ]

        return call

    def committing(self, client: ClientInfo) -> Call[CommitStaged, SinkCommit]:
        commit = self._committing(client)

        async def counted(asked: CommitStaged, timeout_ms: int) -> Sequence[SinkCommit]:
            try:
                (answer,) = await commit(asked, timeout_ms)
            except DisklessError as error:
                self._counts.raised(error)
                raise
            size_bytes = sum(size for _, size in asked.files)
            self._counts.answered(answer, size_bytes)
            return [answer]

        return counted

    def _committing(self, client: ClientInfo) -> Call[CommitStaged, SinkCommit]:
        async def call(asked: CommitStaged, timeout_ms: int) -> Sequence[SinkCommit]:
            check_sink_id(asked.sink_id)
            if len(asked.files) > STAGED_OBJECTS_MAX:
                raise Rejected(f"{len(asked.files)} objects, {STAGED_OBJECTS_MAX} may be committed")
            for key, _ in asked.files:
                if sink_of(key) != asked.sink_id:
                    raise ClusterAuthorizationFailed(f"{key!r} is no object of {asked.sink_id}")
            topics = self._topics(asked.topics)
            home = self._home(topics)
            for found in await self._found(asked.sink_id, client, timeout_ms):
                if found.coordinator == home:
                    answer = answered_before(
                        found.sink,
                        sink_id=asked.sink_id,
                        principal=principal_of(client),
                        batch_id=asked.batch_id,
                        digest=asked.digest,
                    )
                    if answer is not None:
                        return [answer]
            self._count(client, sum(size for _, size in asked.files))
            files = await self._check.checked(
                asked.files,
                {topic.topic_id: self._judged(topic) for topic in topics},
                batches_max=self._batches_max,
            )
            by_coordinator = shares_of(files, self._client.coordinator_of)
            shares = [
                SinkShare(coordinator, some)
                for coordinator, some in sorted(by_coordinator.items())
                if coordinator != home
            ]
            await check_shares(self._client, shares, timeout_ms=timeout_ms)
            commit = CommitSink(
                asked.sink_id,
                principal_of(client),
                asked.batch_id,
                asked.digest,
                by_coordinator.get(home, ()),
                shares,
            )
            return await self._client.call(
                COMMIT_SINK_HERE, CommitSinkAt(home, commit), timeout_ms=timeout_ms
            )

        return call

    def _count(self, client: ClientInfo, size_bytes: int) -> None:
        """Raises Overloaded."""
        left_ms = self._quotas.left_ms(self._quotas.held_until(client))
        if left_ms:
            raise Overloaded(f"over the quota of {client.user}: try again in {left_ms} ms")
        self._quotas.produced(client, size_bytes)

    def _topics(self, names: Sequence[str]) -> Sequence[TopicDescription]:
        known = self._client.topics()
        topics = []
        for name in dict.fromkeys(names):
            if name == METADATA_TOPIC:
                raise InvalidTopic(f"{name} is the cluster's own: clients can only read it")
            if name not in known:
                raise UnknownPartition(f"there is no topic {name!r}")
            topics.append(known[name])
        if not topics:
            raise Rejected("a sink writes to a topic")
        return topics

    def _home(self, topics: Sequence[TopicDescription]) -> int:
        """The coordinator that decides. Raises PolicyViolation."""
        count = sum(topic.partition_count for topic in topics)
        if count > self._batches_max:
            raise PolicyViolation(
                f"{count} partitions are more than the {self._batches_max} batches that fit into"
                " one commit: write without sink.id"
            )
        first = min(topic.topic_id for topic in topics)
        return self._client.coordinator_of(TopicIdPartition(first, 0))

    async def _found(
        self, sink_id: str, client: ClientInfo, timeout_ms: int
    ) -> Sequence[FoundSink]:
        """What coordinators know of the sink. Raises ClusterAuthorizationFailed."""
        (found,) = await self._client.call(FIND_SINK_HERE, FindSink(sink_id), timeout_ms=timeout_ms)
        if isinstance(found, DisklessError):
            raise found
        if any(item.sink.principal != principal_of(client) for item in found.found):
            raise ClusterAuthorizationFailed(f"sink id {sink_id} belongs to another principal")
        return found.found

    def _configs(self, topic: TopicDescription) -> Mapping[str, str]:
        return {**self._topic_defaults, **topic.configs}

    def _judged(self, topic: TopicDescription) -> JudgedTopic:
        configs = self._configs(topic)
        return JudgedTopic(
            topic.name, topic.partition_count, topic_rules(configs), compression_of(configs)
        )

    def _described(self, topic: TopicDescription) -> SinkTopic:
        configs = self._configs(topic)
        rules = topic_rules(configs)
        return SinkTopic(
            topic.name,
            topic.topic_id,
            topic.partition_count,
            rules.max_message_bytes,
            rules.compacted,
            effective(configs, "compression.type"),
            [
                self._client.coordinator_of(TopicIdPartition(topic.topic_id, index))
                for index in range(topic.partition_count)
            ],
        )


def principal_of(client: ClientInfo) -> str:
    """As ACLs write it."""
    return f"User:{client.user}"


def sink_apis(
    service: SinkService,
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry."""
    access = Access(authorizer, audit)
    refusal = _needs_write(access)
    return (
        client_api(OPEN_SINK, service.opening, running, access, refusal=refusal),
        client_api(COMMIT_STAGED, service.committing, running, access, refusal=refusal),
    )


def _needs_write(access: Access) -> Refusal:
    """Refuses the whole of a request that names a topic which its sender may not write to."""

    def refusal(client: ClientInfo, asked: Any) -> DisklessError | None:
        if len(asked.topics) > TOPICS_MAX:
            return Rejected(f"{len(asked.topics)} topics, {TOPICS_MAX} may be")
        refused = access.refused_topics(client, AclOperation.WRITE, asked.topics)
        return next(iter(refused.values()), None)

    return refusal
