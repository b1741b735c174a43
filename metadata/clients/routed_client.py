"""The coordinators of the whole cluster, as a broker sees them: in this process or elsewhere.

Every entry of a request goes to the broker that leads its coordinator; who that is, the metadata
log says, which every broker reads. An entry that comes back with NotCoordinator went to a broker
that does not lead any more (or not yet): it is sent again, to the leader of that moment, until its
time is up.

    find_batches    the replica in this process first, leader or not; only what it cannot know yet
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
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from metadata import operations as ops
from metadata.access_tokens import AccessTokens
from metadata.acls import AclBinding
from metadata.clients.coordinator_client import (
    TIMEOUT_MS,
    Answer,
    CoordinatorClient,
    Request,
    TypedCoordinator,
)
from metadata.clients.effects import EFFECTS
from metadata.clients.file_shares import commit_divided
from metadata.clients.finding import with_what_is_newer
from metadata.clients.local_client import LocalClient
from metadata.clients.shares import in_shares, partitions_of, taken
from metadata.clients.wire_client import WireClient
from metadata.messages.codec import Address, Operation, error_of
from metadata.messages.commit_file import COMMIT_FILE, COMMIT_FILES_AT, CommitFileMessage
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.shapes import Addressed
from metadata.replica.replica import CommitListener, Replica
from metadata.state.image import PartitionState
from metadata.state.queries.described_producers import (
    DescribedProducer,
    described_producers,
)
from wal.clock import Clock, Sleep
from wal.coordinates import TopicIdPartition
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


class PeerAddress(NamedTuple):
    """Where another broker is reached."""

    host: str
    port: int
    listener: str = ""
    """Of the other broker; what is spoken there, the caller knows."""


def _as_it_says(leader: ops.Leader) -> PeerAddress:
    return PeerAddress(leader.host, leader.port)


class RoutedClient(TypedCoordinator):
    """What a broker uses. Enter it; leaving closes its connections."""

    def __init__(
        self,
        local: LocalClient,
        *,
        connect: Callable[[PeerAddress], WireClient],
        address_of: Callable[[ops.Leader], PeerAddress] = _as_it_says,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._local = local
        self._connect = connect
        self._address_of = address_of
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._stack = AsyncExitStack()
        self._remote: dict[PeerAddress, WireClient] = {}
        self._producer_ids = range(0)
        self._producer_id_lock = asyncio.Lock()
        self._own: Final[Mapping[int, Callable[[Any, int], Awaitable[Sequence[Any]]]]] = {
            COMMIT_FILE.key: self._commit_file,
            COMMIT_FILES_AT.key: self._commit_files_at,
            FIND_BATCHES.key: self._find_batches,
        }
        """Operations that are more than routing, with TimeoutMs."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- without I/O ----------------------------------------------------------------------------

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name, as far as this broker's catalogue has heard; do not modify."""
        return self._local.catalogue.topics()

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return self._local.catalogue.topic_by_id(topic_id)

    def topic_columns(self, topic_id: UUID) -> ops.TopicColumns:
        return self._local.catalogue.topic_columns(topic_id)

    def client_quotas(self) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
        """All of them, as far as this broker has heard; another mapping after every change."""
        return self._local.catalogue.client_quotas()

    def acls(self) -> frozenset[AclBinding]:
        """All rules, as far as this broker has heard; another set after every change."""
        return self._local.catalogue.acls()

    def access_tokens(self) -> AccessTokens:
        """All of them, as far as this broker has heard; another mapping after every change."""
        return self._local.catalogue.access_tokens()

    def scram_credentials(self) -> ops.ScramCredentials:
        """All of them, as far as this broker has heard; another mapping after every change."""
        return self._local.catalogue.scram_credentials()

    def partition_state(self, partition: TopicIdPartition) -> PartitionState | None:
        """As this broker's replica has it; None when it knows no such partition."""
        replica = self._replica_of(partition)
        return None if replica is None else replica.image.partitions.get(partition)

    def partition_states(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Sequence[PartitionState | None]:
        """`partition_state` of many."""
        known = self._local.partitions
        if len(known) == 1:
            return [*map(known[0].replica.image.partitions.get, partitions)]
        return [*map(self.partition_state, partitions)]

    def live_bytes(self, partition: TopicIdPartition) -> int | None:
        """Size of a partition's live data, as this broker's replica has it; None: unknown."""
        state = self.partition_state(partition)
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
        partitions = self._local.partitions
        coordinator = self._local.coordinator_of(partition)
        return partitions[coordinator].replica if 0 <= coordinator < len(partitions) else None

    def _knows(self, coordinator: int) -> bool:
        return 0 <= coordinator < len(self._local.partitions)

    # -- one call -------------------------------------------------------------------------------

    async def call(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[Answer]:
        """See `CoordinatorClient`."""
        own = self._own.get(operation.key)
        if own is not None:
            return await own(request, timeout_ms)
        if operation.address is Address.BY_PARTITION:
            return await self._route(operation, request, timeout_ms=timeout_ms)
        if operation.address is Address.LED:
            return await self._ask_all(operation, request, timeout_ms=timeout_ms)
        coordinator = operation.coordinator_of(request)
        if coordinator is None:
            return await self._local.call(operation, request, timeout_ms=timeout_ms)
        effect = EFFECTS.get(operation.key)
        is_visible = None if effect is None else effect(self._local.catalogue, request)
        answers = await self._ask_leader(coordinator, operation, request, timeout_ms=timeout_ms)
        if is_visible is not None:
            await self._until_visible(partial(is_visible, answers))
        return answers

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
        address = self._address_of(leader)
        client = self._remote.get(address)
        if client is None:
            client = self._connect(address)
            self._remote[address] = client
            await self._stack.enter_async_context(client)
        return client

    async def _route(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int,
        once: bool = False,
    ) -> Sequence[Answer]:
        """Ask the leaders about their entries; answers in the order of entries.

        Raises what concerns a whole call, except that a broker that does not lead, or does not
        answer, makes this look for the leader again.
        """
        deadline = self._clock.monotonic() + min(timeout_ms / 1000, ROUTING_TIMEOUT_S)
        entries = operation.request.entries(request)
        coordinators = list(map(self.coordinator_of, partitions_of(entries)))
        answers: dict[int, Answer] = {}
        unknown: dict[int, Answer] = {}
        pending: Sequence[int] = range(len(entries))
        while pending:
            leaders = await self._leaders_of({coordinators[at] for at in pending})
            if len(pending) < len(entries):
                request = operation.request.share(request, taken(entries, pending))
            some = await in_shares(
                operation,
                request,
                [leaders[coordinators[at]] for at in pending],
                partial(self._ask, operation, timeout_ms=timeout_ms),
            )
            answers.update(zip(pending, some, strict=True))
            pending = [
                at
                for at in pending
                if isinstance(error_of(answers[at]), _LOOK_AGAIN) and self._knows(coordinators[at])
            ]
            for at in pending:
                if isinstance(error_of(answers[at]), CommitOutcomeUnknown):
                    unknown[at] = answers[at]
            if once or not pending or self._clock.monotonic() >= deadline:
                break
            await self._sleep(_RETRY_S)
        # That somebody does not lead says nothing about what was asked of somebody else before.
        answers.update({at: unknown[at] for at in pending if at in unknown})
        return [answers[at] for at in range(len(entries))]

    async def _leaders_of(
        self, coordinators: set[int]
    ) -> Mapping[int, CoordinatorClient | NotCoordinator]:
        leaders: dict[int, CoordinatorClient | NotCoordinator] = {}
        for coordinator in sorted(coordinators):
            try:
                leaders[coordinator] = await self._leader_of(coordinator)
            except NotCoordinator as error:
                leaders[coordinator] = error
        return leaders

    async def _ask(
        self,
        operation: Operation[Request, Answer],
        leader: CoordinatorClient | NotCoordinator,
        share: Request,
        *,
        timeout_ms: int,
    ) -> Sequence[Answer]:
        """Ask one client. Another broker that cannot be reached may not lead any more, either."""
        refusal: DisklessError
        if isinstance(leader, NotCoordinator):
            refusal = leader
        elif leader is self._local:
            try:
                return await leader.call(operation, share, timeout_ms=timeout_ms)
            except NotCoordinator as error:
                refusal = error
        else:
            attempt_ms = min(timeout_ms, round(ATTEMPT_TIMEOUT_S * 1000))
            try:
                return await leader.call(operation, share, timeout_ms=attempt_ms)
            except (NotCoordinator, CommitOutcomeUnknown) as error:
                refusal = error
            except CommitFailed as error:
                refusal = NotCoordinator(str(error))
        return [operation.failed(refusal)] * operation.count(share)

    async def _ask_leader(
        self,
        coordinator: int,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int,
    ) -> Sequence[Answer]:
        """One call to the leader of one coordinator. Raises what the call raises."""
        patience_s = min(timeout_ms / 1000, ROUTING_TIMEOUT_S) if operation.is_repeated else 0.0
        deadline = self._clock.monotonic() + patience_s
        while True:
            client: CoordinatorClient | None = None
            try:
                client = await self._leader_of(coordinator)
                return await client.call(operation, request, timeout_ms=timeout_ms)
            except (NotCoordinator, CommitFailed) as error:
                is_elsewhere = isinstance(error, NotCoordinator) or client is not self._local
                if not is_elsewhere or self._clock.monotonic() >= deadline:
                    raise
            await self._sleep(_RETRY_S)

    async def _ask_all(
        self, operation: Operation[Request, Answer], request: Request, *, timeout_ms: int
    ) -> Sequence[Answer]:
        """Every coordinator that can be reached; what the first one raised when none can be."""
        leaders = await self._leaders_of({item.index for item in self._local.partitions})
        errors: list[DisklessError] = [
            leader for leader in leaders.values() if isinstance(leader, NotCoordinator)
        ]
        answered = []
        for leader in dict.fromkeys(leaders.values()):
            if not isinstance(leader, NotCoordinator):
                try:
                    answered.append(await leader.call(operation, request, timeout_ms=timeout_ms))
                except (Retriable, CommitOutcomeUnknown) as error:
                    errors.append(error)
        if not answered:
            raise errors[0]
        for problem in errors:
            _logger.warning("a coordinator did not answer %s: %s", operation.name, problem)
        assert operation.merged is not None
        return operation.merged(request, answered)

    async def _until_visible(self, is_visible: Callable[[], bool]) -> None:
        """A broker that does not lead the catalogue reads a little behind it."""
        deadline = self._clock.monotonic() + _VISIBLE_TIMEOUT_S
        while not is_visible() and self._clock.monotonic() < deadline:
            await self._sleep(_RETRY_S / 2)

    # -- operations that are more than routing --------------------------------------------------

    async def commit_files(
        self, files: Sequence[ops.CommitFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.CommittedFile]:
        """See `Coordinator`. The order of an object's owners is chosen here."""
        if len(self._local.partitions) == 1:
            coordinator = self._local.partitions[ops.CATALOGUE].coordinator
            if coordinator is not None:
                return await coordinator.commit_files(files)
        return await commit_divided(
            files,
            coordinator_of=self.coordinator_of,
            knows=self._knows,
            is_shared=len(self._local.partitions) > 1,
            commit_at=partial(self._commit_share, timeout_ms=timeout_ms),
        )

    async def _commit_files_at(
        self, asked: Addressed[ops.CommitFile], timeout_ms: int
    ) -> Sequence[ops.CommittedFile]:
        """What a worker of this broker has divided."""
        return await self._commit_share(asked.coordinator, asked.entries, timeout_ms=timeout_ms)

    async def _commit_share(
        self, coordinator: int, files: Sequence[ops.CommitFile], *, timeout_ms: int
    ) -> Sequence[ops.CommittedFile]:
        """Ask the leader, and look for it again; NotCoordinator for every file when there is none.

        Raises what else the coordinator raises. What another broker leaves unknown stays unknown:
        that somebody else does not lead says nothing about it.
        """
        deadline = self._clock.monotonic() + min(timeout_ms / 1000, ROUTING_TIMEOUT_S)
        unknown: CommitOutcomeUnknown | None = None
        while True:
            client: CoordinatorClient | None = None
            try:
                client = await self._leader_of(coordinator)
                attempt_ms = timeout_ms
                if client is not self._local:
                    attempt_ms = min(timeout_ms, round(ATTEMPT_TIMEOUT_S * 1000))
                asked = Addressed(coordinator, files)
                return await client.call(COMMIT_FILES_AT, asked, timeout_ms=attempt_ms)
            except NotCoordinator as error:
                refusal = error
            except (CommitFailed, CommitOutcomeUnknown) as error:
                if client is self._local:
                    raise
                # Another broker that cannot be reached may not lead any more, either.
                refusal = NotCoordinator(str(error))
                if isinstance(error, CommitOutcomeUnknown):
                    unknown = error
            if not self._knows(coordinator) or self._clock.monotonic() >= deadline:
                break
            await self._sleep(_RETRY_S)
        if unknown is not None:
            raise unknown  # repeating the whole gives what was committed its first answer
        return [ops.CommittedFile(error=refusal)] * len(files)

    async def _commit_file(
        self, message: CommitFileMessage, timeout_ms: int
    ) -> Sequence[ops.BatchCommit]:
        """One file. Raises also Rejected and ObjectExpired."""
        (file,) = await self.commit_files([message.file], timeout_ms=timeout_ms)
        if file.error is not None:
            raise file.error
        return file.batches

    async def _find_batches(
        self, message: FindBatchesMessage, timeout_ms: int
    ) -> Sequence[ops.FoundBatches]:
        """The leader is asked only for what a follower cannot know yet."""
        found = await self._local.call(FIND_BATCHES, message, timeout_ms=timeout_ms)
        ask = partial(self._route, FIND_BATCHES, timeout_ms=timeout_ms, once=True)
        return await with_what_is_newer(message, found, ask)

    # -- producers ------------------------------------------------------------------------------

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out before, and never will be again."""
        async with self._producer_id_lock:
            if not self._producer_ids:
                self._producer_ids = await self.allocate_producer_ids()
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def producers(
        self, partition: TopicIdPartition, *, limit: int
    ) -> Sequence[DescribedProducer]:
        """The producers that wrote to a partition last, as this broker's replica has them.

        Raises: UnknownPartition, CorruptState.
        """
        replica = self._replica_of(partition)
        partition_id = None if replica is None else replica.partition_id(partition)
        if replica is None or partition_id is None:
            raise UnknownPartition(f"{partition} is not known here")
        return await replica.state.read(
            partial(described_producers, partition_id=partition_id, limit=limit)
        )
