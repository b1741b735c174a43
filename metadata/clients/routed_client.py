"""The coordinators of the whole cluster, as a broker sees them: in this process or elsewhere.

Every entry of a request goes to the broker that leads its coordinator; who that is, the metadata
log says, which every broker reads. An entry that comes back with NotCoordinator went to somebody
who does not lead any more (or not yet): it is sent again, to whoever leads then, until its time is
up.

    find_batches    the replica in this process first, whoever leads; only what it cannot know yet
                    is asked of the leader
    list_offsets    the leader, always
    what changes something   the leader

It also keeps what a broker wants at hand without I/O: topics, offsets of partitions, and a block of
producer ids.

Failure cases: a leader that cannot be reached is an error of its entries alone, retriable, after
`ROUTING_TIMEOUT_S`; for reads through `find_batches` it only means that nothing newer than this
replica's state can be read. A coordinator that other brokers were configured with and this one was
not yet is NotCoordinator at once, for its entries alone: waiting would hold up everybody else's
commits, and clients try other brokers.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar
from uuid import UUID

from metadata import operations as ops
from metadata.clients.coordinator_client import (
    BATCHES_PER_PARTITION_MAX,
    TIMEOUT_MS,
    CoordinatorClient,
)
from metadata.clients.local_client import LocalClient, in_parallel
from metadata.replica.replica import CommitListener, Replica
from metadata.rules.files import permuted_owners
from metadata.state.producer_rows import StoredProducer, producers_of
from wal.clock import Clock, Sleep
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    Retriable,
    UnknownPartition,
)

ROUTING_TIMEOUT_S: Final = 15.0
"""How long an entry looks for a leader: longer than a coordinator takes to be replaced (P9)."""
ATTEMPT_TIMEOUT_S: Final = 3.0
"""How long another broker is waited for before it is looked who leads now: it may be paused, with
its sockets open."""
_RETRY_S: Final = 0.1
_VISIBLE_TIMEOUT_S: Final = 5.0
"""How long a created topic may take to arrive in this broker's own catalogue."""

_LOOK_AGAIN: Final = (NotCoordinator, CommitOutcomeUnknown)

_logger = logging.getLogger(__name__)


class _Failable(Protocol):
    @property
    def error(self) -> DisklessError | None: ...


_Answer = TypeVar("_Answer", bound=_Failable)
_Result = TypeVar("_Result")

Endpoint = tuple[str, int]


class RemoteClient(CoordinatorClient, Protocol):
    """A `CoordinatorClient` over a connection."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class RoutedClient:
    """What a broker uses. Enter it; leaving closes its connections."""

    def __init__(
        self,
        local: LocalClient,
        *,
        connect: Callable[[str, int], RemoteClient],
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._local = local
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._stack = AsyncExitStack()
        self._remote: dict[Endpoint, RemoteClient] = {}
        self._producer_ids = range(0)
        self._producer_id_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    # -- without I/O ----------------------------------------------------------------------------

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name, as far as this broker's catalogue has heard; do not modify."""
        return self._local.catalogue.topics()

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return self._local.catalogue.topic_by_id(topic_id)

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        """All of them, as far as this broker has heard; another mapping after every change."""
        return self._local.catalogue.client_quotas()

    def high_watermark(self, partition: TopicIdPartition) -> int | None:
        """As this broker's replica has it; None when it knows no such partition."""
        replica = self._replica_of(partition)
        return None if replica is None else replica.high_watermark(partition)

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """As this broker's replica has it; None when it knows no such partition."""
        replica = self._replica_of(partition)
        return None if replica is None else replica.log_start_offset(partition)

    def live_bytes(self, partition: TopicIdPartition) -> int | None:
        """Size of a partition's live data, as this broker's replica has it; None: unknown."""
        replica = self._replica_of(partition)
        state = None if replica is None else replica.image.partitions.get(partition)
        return None if state is None else state.live_bytes

    def subscribe(self, listener: CommitListener) -> None:
        """See `Replica.subscribe`; of all metadata partitions."""
        for partition in self._local.partitions:
            partition.replica.subscribe(listener)

    def subscribe_topics(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the event loop when `topics` may be others."""
        self._local.catalogue.subscribe_topics(listener)

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        return self._local.coordinator_of(partition)

    def _replica_of(self, partition: TopicIdPartition) -> Replica | None:
        """None: of a coordinator that this broker was not configured with."""
        coordinator = self._local.coordinator_of(partition)
        return self._local.partitions[coordinator].replica if self._knows(coordinator) else None

    def _knows(self, coordinator: int) -> bool:
        return 0 <= coordinator < len(self._local.partitions)

    # -- who to ask -----------------------------------------------------------------------------

    async def _leader_of(self, coordinator: int) -> CoordinatorClient:
        """Raises NotCoordinator when nobody leads, as far as this broker has heard."""
        if not self._knows(coordinator):
            raise NotCoordinator(f"coordinator {coordinator} is not known to this broker")
        partition = self._local.partitions[coordinator]
        if partition.coordinator is not None:
            return self._local
        leader = partition.leader
        if leader is None or partition.is_myself(leader):
            raise NotCoordinator(f"nobody leads coordinator {coordinator} at the moment")
        endpoint = (leader.host, leader.port)
        client = self._remote.get(endpoint)
        if client is None:
            client = self._connect(*endpoint)
            self._remote[endpoint] = client
            await self._stack.enter_async_context(client)
        return client

    async def _route(
        self,
        partitions: Sequence[TopicIdPartition],
        ask: Callable[[CoordinatorClient, Sequence[int], int], Awaitable[Sequence[_Answer]]],
        refused: Callable[[DisklessError], _Answer],
        *,
        timeout_ms: int,
        once: bool = False,
    ) -> Sequence[_Answer]:
        """Ask whoever leads about each entry; answers in the order of entries.

        `ask` gets positions in `partitions` and the time it may take in milliseconds, and asks for
        something that may be repeated without harm. Raises what concerns a whole call, except that
        a broker that does not lead, or does not answer, makes this look for the leader again.
        """
        deadline = self._clock.monotonic() + min(timeout_ms / 1000, ROUTING_TIMEOUT_S)
        answers: dict[int, _Answer] = {}
        unknown: dict[int, _Answer] = {}
        pending: Sequence[int] = range(len(partitions))
        while pending:
            shares: dict[CoordinatorClient, list[int]] = {}
            for position in pending:
                try:
                    client = await self._leader_of(self.coordinator_of(partitions[position]))
                except NotCoordinator as error:
                    answers[position] = refused(error)
                else:
                    shares.setdefault(client, []).append(position)
            asked = await in_parallel(
                [
                    self._share(ask, client, positions, refused, timeout_ms=timeout_ms)
                    for client, positions in shares.items()
                ]
            )
            for positions, some in zip(shares.values(), asked, strict=True):
                answers.update(zip(positions, some, strict=True))
            pending = [
                at
                for at in pending
                if isinstance(answers[at].error, _LOOK_AGAIN)
                and self._knows(self.coordinator_of(partitions[at]))
            ]
            for position in pending:
                if isinstance(answers[position].error, CommitOutcomeUnknown):
                    unknown[position] = answers[position]
            if once or not pending or self._clock.monotonic() >= deadline:
                break
            await self._sleep(_RETRY_S)
        # That somebody does not lead says nothing about what was asked of somebody else before.
        answers.update({position: unknown[position] for position in pending if position in unknown})
        return [answers[position] for position in range(len(partitions))]

    async def _share(
        self,
        ask: Callable[[CoordinatorClient, Sequence[int], int], Awaitable[Sequence[_Answer]]],
        client: CoordinatorClient,
        positions: Sequence[int],
        refused: Callable[[DisklessError], _Answer],
        *,
        timeout_ms: int,
    ) -> Sequence[_Answer]:
        """Ask one client. Another broker that cannot be reached may not lead any more, either."""
        if client is self._local:
            try:
                return await ask(client, positions, timeout_ms)
            except NotCoordinator as error:
                return [refused(error)] * len(positions)
        try:
            return await ask(client, positions, min(timeout_ms, round(ATTEMPT_TIMEOUT_S * 1000)))
        except (NotCoordinator, CommitOutcomeUnknown) as error:
            return [refused(error)] * len(positions)
        except CommitFailed as error:
            return [refused(NotCoordinator(str(error)))] * len(positions)

    async def _ask_leader(
        self,
        coordinator: int,
        ask: Callable[[CoordinatorClient], Awaitable[_Result]],
        *,
        timeout_ms: int,
    ) -> _Result:
        """One call to the leader of one coordinator. Raises what the call raises."""
        deadline = self._clock.monotonic() + min(timeout_ms / 1000, ROUTING_TIMEOUT_S)
        while True:
            client: CoordinatorClient | None = None
            try:
                client = await self._leader_of(coordinator)
                return await ask(client)
            except (NotCoordinator, CommitFailed) as error:
                is_elsewhere = isinstance(error, NotCoordinator) or client is not self._local
                if not is_elsewhere or self._clock.monotonic() >= deadline:
                    raise
            await self._sleep(_RETRY_S)

    # -- topics ---------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        """See `CoordinatorClient`; what was created is in this broker's catalogue on return."""
        created = await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.create_topics(topics, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )
        await self._until_visible(
            lambda: all(
                isinstance(topic, DisklessError) or self.topic_by_id(topic.topic_id) is not None
                for topic in created
            )
        )
        return created

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`; what was created is in this broker's catalogue on return."""
        errors = await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.create_partitions(topics, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )
        await self._until_visible(
            lambda: all(
                error is not None or self._has_partitions(topic)
                for topic, error in zip(topics, errors, strict=True)
            )
        )
        return errors

    def _has_partitions(self, topic: ops.CreatePartitions) -> bool:
        known = self.topic_by_id(topic.topic_id)
        return known is not None and known.partition_count >= topic.partition_count

    async def delete_topics(
        self, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`; what was deleted is gone from this broker's catalogue too."""
        errors = await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.delete_topics(topic_ids, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )
        await self._until_visible(
            lambda: all(
                error is not None or self.topic_by_id(topic_id) is None
                for topic_id, error in zip(topic_ids, errors, strict=True)
            )
        )
        return errors

    async def alter_topic_configs(
        self, requests: Sequence[ops.AlterTopicConfigs], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.AlteredTopicConfigs]:
        """See `CoordinatorClient`; what was altered is in this broker's catalogue on return."""
        before = [self.topic_by_id(request.topic_id) for request in requests]
        answers = await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.alter_topic_configs(requests, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )
        await self._until_visible(
            lambda: all(
                answer.error is not None
                or self.topic_by_id(request.topic_id) is not topic
                or (topic is not None and topic.configs == answer.configs)
                for request, topic, answer in zip(requests, before, answers, strict=True)
            )
        )
        return answers

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`; what was altered is in force at this broker on return."""
        before = [self.client_quotas().get(request.entity) for request in requests]
        errors = await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.alter_client_quotas(requests, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )
        await self._until_visible(
            lambda: all(
                error is not None or self._are_altered(request, old)
                for request, old, error in zip(requests, before, errors, strict=True)
            )
        )
        return errors

    def _are_altered(
        self, request: ops.AlterClientQuotas, before: Mapping[str, float] | None
    ) -> bool:
        """Whether each is as asked for, or what somebody else made of it in between."""
        known = self.client_quotas().get(request.entity) or {}
        old = before or {}
        return all(
            known.get(key) == value or known.get(key) != old.get(key)
            for key, value in request.changes.items()
        )

    async def _until_visible(self, is_visible: Callable[[], bool]) -> None:
        """A broker that does not lead the catalogue reads a little behind it."""
        deadline = self._clock.monotonic() + _VISIBLE_TIMEOUT_S
        while not is_visible() and self._clock.monotonic() < deadline:
            await self._sleep(_RETRY_S / 2)

    async def create_partitions_at(
        self,
        coordinator: int,
        topics: Sequence[ops.CreatePartitionsAt],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`."""
        return await self._ask_leader(
            coordinator,
            lambda client: client.create_partitions_at(coordinator, topics, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )

    async def delete_topics_at(
        self, coordinator: int, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`."""
        return await self._ask_leader(
            coordinator,
            lambda client: client.delete_topics_at(coordinator, topic_ids, timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )

    # -- data -----------------------------------------------------------------------------------

    async def commit_file(
        self, request: ops.CommitFile, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.BatchCommit]:
        """See `CoordinatorClient`; the order of the object's owners is chosen here.

        Raises: Rejected, ObjectExpired, CommitFailed, CommitOutcomeUnknown, NotCoordinator (nobody
        leads any of the coordinators).
        """
        if len(self._local.partitions) > 1:
            request = self._owned(request)
        elif (coordinator := self._local.partitions[ops.CATALOGUE].coordinator) is not None:
            return await coordinator.commit_file(request)
        if not request.batches:
            return await self._ask_leader(
                ops.CATALOGUE,
                lambda client: client.commit_file(request, timeout_ms=timeout_ms),
                timeout_ms=timeout_ms,
            )

        async def commit(
            client: CoordinatorClient, positions: Sequence[int], timeout_ms: int
        ) -> Sequence[ops.BatchCommit]:
            share = ops.CommitFile(
                object_key=request.object_key,
                file_size_bytes=request.file_size_bytes,
                uploader_broker_id=request.uploader_broker_id,
                batches=[request.batches[position] for position in positions],
                object_format=request.object_format,
                owner_ids=request.owner_ids,
            )
            return await client.commit_file(share, timeout_ms=timeout_ms)

        results = await self._route(
            [batch.partition for batch in request.batches],
            commit,
            lambda error: ops.BatchCommit(error=error),
            timeout_ms=timeout_ms,
        )
        for result in results:
            if isinstance(result.error, CommitOutcomeUnknown):
                raise result.error  # repeating the whole gives what was committed its first answer
        tried = [
            result
            for result, batch in zip(results, request.batches, strict=True)
            if self._knows(self.coordinator_of(batch.partition))
        ]
        if tried and all(isinstance(result.error, NotCoordinator) for result in tried):
            # Nothing happened at all, so the whole commit may be tried again later.
            raise NotCoordinator(f"{request.object_key}: {tried[0].error}")
        return results

    def _owned(self, request: ops.CommitFile) -> ops.CommitFile:
        coordinators = {self.coordinator_of(batch.partition) for batch in request.batches}
        owners = set(filter(self._knows, coordinators)) or {ops.CATALOGUE}
        return ops.CommitFile(
            object_key=request.object_key,
            file_size_bytes=request.file_size_bytes,
            uploader_broker_id=request.uploader_broker_id,
            batches=request.batches,
            object_format=request.object_format,
            owner_ids=permuted_owners(request.object_key, owners),
        )

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.DeletedRecords]:
        """See `CoordinatorClient`."""
        return await self._route(
            [request.partition for request in requests],
            lambda client, positions, timeout_ms: client.delete_records(
                [requests[at] for at in positions], timeout_ms=timeout_ms
            ),
            lambda error: ops.DeletedRecords(error=error),
            timeout_ms=timeout_ms,
        )

    async def list_offsets(
        self, requests: Sequence[ops.ListOffsets], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.ListedOffset]:
        """See `CoordinatorClient`."""
        return await self._route(
            [request.partition for request in requests],
            lambda client, positions, timeout_ms: client.list_offsets(
                [requests[at] for at in positions], timeout_ms=timeout_ms
            ),
            lambda error: ops.ListedOffset(error=error),
            timeout_ms=timeout_ms,
        )

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = BATCHES_PER_PARTITION_MAX,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.FoundBatches]:
        """See `CoordinatorClient`; the leader is asked only for what a follower cannot know yet."""
        found = await self._local.find_batches(
            requests,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            batches_per_partition_max=batches_per_partition_max,
            timeout_ms=timeout_ms,
        )
        behind = [
            position
            for position, (request, answer) in enumerate(zip(requests, found, strict=True))
            if isinstance(answer.error, NotCoordinator)
            or (answer.error is None and request.offset > answer.high_watermark)
        ]
        if not behind:
            return found
        answers = list(found)
        try:
            newer = await self._route(
                [requests[position].partition for position in behind],
                lambda client, positions, timeout_ms: client.find_batches(
                    [requests[behind[at]] for at in positions],
                    max_bytes=max_bytes,
                    at_least_one=False,
                    batches_per_partition_max=batches_per_partition_max,
                    timeout_ms=timeout_ms,
                ),
                lambda error: ops.FoundBatches(error=error),
                timeout_ms=timeout_ms,
                once=True,
            )
        except (Retriable, CommitOutcomeUnknown) as error:
            _logger.info("nobody to ask what is newer than this replica: %s", error)
            return answers
        for position, answer in zip(behind, newer, strict=True):
            if not isinstance(answer.error, _LOOK_AGAIN):
                answers[position] = answer
        return answers

    # -- files ----------------------------------------------------------------------------------

    async def describe_files(
        self,
        keys: Sequence[ObjectKey],
        *,
        coordinator: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.DescribedFile]:
        """See `CoordinatorClient`; without `coordinator`, those led in this process answer."""
        if coordinator is None:
            return await self._local.describe_files(keys, timeout_ms=timeout_ms)
        client = await self._leader_of(coordinator)
        return await client.describe_files(keys, coordinator=coordinator, timeout_ms=timeout_ms)

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.Tombstone]:
        """See `CoordinatorClient`."""
        client = await self._leader_of(coordinator)
        return await client.tombstone_files(coordinator, keys, timeout_ms=timeout_ms)

    async def hand_over_files(
        self, coordinator: int, files: Sequence[ops.HandedFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`."""
        client = await self._leader_of(coordinator)
        return await client.hand_over_files(coordinator, files, timeout_ms=timeout_ms)

    # -- producers, segments, brokers -----------------------------------------------------------

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out before, and never will be again."""
        async with self._producer_id_lock:
            if not self._producer_ids:
                self._producer_ids = await self.allocate_producer_ids()
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def allocate_producer_ids(self, *, timeout_ms: int = TIMEOUT_MS) -> range:
        """See `CoordinatorClient`."""
        return await self._ask_leader(
            ops.CATALOGUE,
            lambda client: client.allocate_producer_ids(timeout_ms=timeout_ms),
            timeout_ms=timeout_ms,
        )

    async def producers(
        self, partition: TopicIdPartition, *, limit: int
    ) -> Sequence[StoredProducer]:
        """The producers that wrote to a partition last, as this broker's replica has them.

        Raises: UnknownPartition, CorruptState.
        """
        replica = self._replica_of(partition)
        partition_id = None if replica is None else replica.partition_id(partition)
        if replica is None or partition_id is None:
            raise UnknownPartition(f"{partition} is not known here")
        return await replica.state.read(
            partial(producers_of, partition_id=partition_id, limit=limit)
        )

    async def plan_segments(
        self, *, include_partial: bool = False, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentPlan]:
        """See `CoordinatorClient`; plans of every coordinator that can be reached.

        Raises what the first one raised when none can be.
        """
        clients: list[CoordinatorClient] = []
        errors: list[DisklessError] = []
        for partition in self._local.partitions:
            try:
                client = await self._leader_of(partition.index)
            except NotCoordinator as error:
                errors.append(error)
            else:
                if client not in clients:
                    clients.append(client)
        plans: list[ops.SegmentPlan] = []
        answered = 0
        for client in clients:
            try:
                plans += await client.plan_segments(
                    include_partial=include_partial, timeout_ms=timeout_ms
                )
                answered += 1
            except (Retriable, CommitOutcomeUnknown) as error:
                errors.append(error)
        if not answered:
            raise errors[0]
        for problem in errors:
            _logger.warning("a coordinator did not plan segments: %s", problem)
        return plans

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentCommit]:
        """See `CoordinatorClient`."""
        return await self._route(
            [segment.partition for segment in segments],
            lambda client, positions, timeout_ms: client.commit_segments(
                [segments[at] for at in positions], timeout_ms=timeout_ms
            ),
            lambda error: ops.SegmentCommit(error=error),
            timeout_ms=timeout_ms,
        )

    async def register_broker(
        self, broker: ops.RegisteredBroker, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """See `CoordinatorClient`. Raises what it raises, at once."""
        client = await self._leader_of(ops.CATALOGUE)
        await client.register_broker(broker, timeout_ms=timeout_ms)
