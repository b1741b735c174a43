"""The coordinators as a worker reaches them: all of them through its head.

Where batches are is read in the files of the head's replicas, without it. For all else the head
asks whoever leads a coordinator, itself or another broker, and looks for the leader again
where that is needed (metadata/clients/routed_client.py). What a worker wants at hand without I/O is
in `diskless.workers.known`.

A connection is answered in the order of its requests. So commits, which wait for a metadata log,
have a connection of their own, and what reads has several.

Failure cases are those of `WireClient`; a head that is gone ends the worker before they matter.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

from diskless.workers.known import Known
from diskless.workers.news import PartitionEnd
from metadata import operations as ops
from metadata.clients.coordinator_client import (
    TIMEOUT_MS,
    Answer,
    Coordinator,
    Request,
)
from metadata.clients.file_shares import commit_divided
from metadata.clients.near_replicas import NearReplicas
from metadata.clients.wire_client import WireClient
from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILES_AT
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.shapes import Addressed
from wal.coordinates import TopicIdPartition

ASKING: Final = 4
"""Connections for all that is no commit."""


class HeadClient(Coordinator):
    """What a worker uses. Enter it; leaving closes its connections."""

    def __init__(self, known: Known, connect: Callable[[], WireClient], near: NearReplicas) -> None:
        """`connect` makes a client of the head; `near` reads the files that it writes."""
        self._known = known
        self._near = near
        self._committing: Final = connect()
        self._asking: Final = [connect() for _ in range(ASKING)]
        self._stack = AsyncExitStack()
        self._own: Final[Mapping[int, Callable[[Any, int], Awaitable[Sequence[Any]]]]] = {
            FIND_BATCHES.key: self._find_batches
        }
        """Operations of which the head is asked only a part, with TimeoutMs."""

    async def __aenter__(self) -> Self:
        for client in (self._committing, *self._asking):
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

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
        return await self._ask(operation, request, timeout_ms=timeout_ms)

    async def _find_batches(
        self, message: FindBatchesMessage, timeout_ms: int
    ) -> Sequence[ops.FoundBatches]:
        """The head is asked only for what is not in its files."""
        ask = partial(self._ask, FIND_BATCHES, timeout_ms=timeout_ms)
        return await self._near.find(message, ask, timeout_ms=timeout_ms)

    async def _ask(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int,
    ) -> Sequence[Answer]:
        client = min(self._asking, key=lambda one: one.in_flight)
        return await client.call(operation, request, timeout_ms=timeout_ms)

    async def commit_files(
        self, files: Sequence[ops.CommitFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.CommittedFile]:
        """See `Coordinator`."""
        count = len(self._known.partitions)

        async def commit_at(
            coordinator: int, share: Sequence[ops.CommitFile]
        ) -> Sequence[ops.CommittedFile]:
            asked = Addressed(coordinator, share)
            return await self._committing.call(COMMIT_FILES_AT, asked, timeout_ms=timeout_ms)

        return await commit_divided(
            files,
            coordinator_of=self.coordinator_of,
            knows=lambda coordinator: 0 <= coordinator < count,
            is_shared=count > 1,
            commit_at=commit_at,
        )

    # -- without I/O ------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name; do not modify."""
        return self._known.topics()

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None:
        return self._known.topic_by_id(topic_id)

    def partition_state(self, partition: TopicIdPartition) -> PartitionEnd | None:
        """Returns where its log begins and ends, as far as the head has told."""
        return self._known.partition_state(partition)

    def partition_states(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Sequence[PartitionEnd | None]:
        """`partition_state` of many."""
        return [*map(self._known.partition_state, partitions)]

    def subscribe(self, listener: Callable[[Collection[TopicIdPartition]], None]) -> None:
        """Call `listener` with the partitions that changed in any way."""
        self._known.subscribe(listener)

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        return self._known.coordinator_of(partition)
