"""`CoordinatorClient` for the coordinators that this process leads.

It does what a broker does with a request from outside: it gives every entry to the coordinator that
its partition is assigned to, if that is led here, and answers NotCoordinator for the others. One
request may so become several operations, one per coordinator, which go on at the same time; a
commit's answer is put together from its shares.

`find_batches` is the exception: any replica may answer it, so followers do. A follower that has not
heard of an offset or a partition yet says so without calling it out of range: an empty answer, or
NotCoordinator for a partition it does not know.

Creating and deleting topics is the catalogue's, which sees to the other coordinators
(metadata/clients/topic_changes.py).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from metadata import operations as ops
from metadata.clients.coordinator_client import TIMEOUT_MS, Answer, CoordinatorClient, Request
from metadata.clients.finding import found_in_runs
from metadata.clients.shares import in_shares, partitions_of
from metadata.clients.topic_changes import TopicChanges
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.feed_operations import FedObjects, FollowLog
from metadata.messages.brokers import CREATE_TOPICS
from metadata.messages.codec import Address, Operation
from metadata.messages.commit_file import COMMIT_FILE, CommitFileMessage
from metadata.messages.coordinator import CREATE_PARTITIONS, DELETE_TOPICS
from metadata.messages.feeds import FOLLOW_METADATA_LOG
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.shapes import Addressed
from metadata.replica.follower_answers import as_a_follower
from metadata.rules.topics import coordinator_of_new
from wal.coordinates import TopicIdPartition
from wal.errors import NotCoordinator, OffsetOutOfRange, Retriable, UnknownPartition


class LocalClient(CoordinatorClient):
    """The coordinators of one process. `topics.peers` reaches all of them, led here or not."""

    def __init__(
        self,
        partitions: Sequence[MetadataPartition],
        *,
        rng: random.Random,
    ) -> None:
        """`partitions`: all metadata partitions of the cluster, by index."""
        self.partitions: Final = tuple(partitions)
        self.catalogue: Final = self.partitions[ops.CATALOGUE].replica
        """The replica that knows all topics."""
        self.topics: Final = TopicChanges(
            lambda: self._leading(ops.CATALOGUE),
            coordinator_count=len(partitions),
            peers=self,
            rng=rng,
        )
        self._own: Final[Mapping[int, Callable[[Any], Awaitable[Sequence[Any]]]]] = {
            CREATE_TOPICS.key: self.topics.create,
            CREATE_PARTITIONS.key: self.topics.grow,
            DELETE_TOPICS.key: self.topics.delete,
            COMMIT_FILE.key: self._commit_file,
            FIND_BATCHES.key: self._find_batches,
            FOLLOW_METADATA_LOG.key: self._follow_log,
        }
        """Operations that are more than a coordinator's method."""

    async def call(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[Answer]:
        """See `CoordinatorClient`. The operation goes on when the time is up."""
        own = self._own.get(operation.key)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await (self._carry_out(operation, request) if own is None else own(request))
        except TimeoutError as error:
            raise operation.unanswered(f"no answer within {timeout_ms} ms") from error

    async def _carry_out(
        self, operation: Operation[Request, Answer], request: Request
    ) -> Sequence[Answer]:
        assert operation.at is not None
        if operation.address is Address.BY_PARTITION:
            return await self._dispatch(operation, request)
        coordinator = operation.coordinator_of(request)
        if coordinator is not None:
            return await operation.at(self._leading(coordinator), request)
        led = [leading for item in self.partitions if (leading := item.coordinator) is not None]
        if not led:
            raise NotCoordinator("no coordinator is led here")
        assert operation.merged is not None
        return operation.merged(request, [await operation.at(leading, request) for leading in led])

    async def _dispatch(
        self, operation: Operation[Request, Answer], request: Request
    ) -> Sequence[Answer]:
        """Ask each coordinator about its entries, all at once; answers in the order of entries."""
        at = operation.at
        assert at is not None

        async def ask(coordinator: int, share: Request) -> Sequence[Answer]:
            try:
                return await at(self._leading(coordinator), share)
            except operation.contained as error:
                return [operation.failed(error)] * operation.count(share)

        partitions = partitions_of(operation.request.entries(request))
        coordinators = list(map(self.coordinator_of, partitions))
        return await in_shares(operation, request, coordinators, ask)

    # -- who has what ---------------------------------------------------------------------------

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        """The coordinator of a partition; of one that is not there, who had it or would get it.

        A commit that is sent again must fall apart into the same shares as the first time, also
        when a topic was deleted or created in between: each coordinator knows its own share again.
        """
        if len(self.partitions) == 1:
            return ops.CATALOGUE
        topic_id = partition.topic_id
        topic = self.catalogue.topic_by_id(topic_id) or self.catalogue.deleted_topic(topic_id)
        if topic is not None and partition.partition < topic.partition_count:
            return topic.coordinator_of(partition.partition)
        # The catalogue hears of a partition last.
        for metadata_partition in self.partitions:
            if metadata_partition.replica.has_partition(partition):
                return metadata_partition.index
        # Deleted before this process was started, or not there yet.
        return coordinator_of_new(topic_id, partition.partition, len(self.partitions))

    def _leading(self, coordinator: int) -> PartitionCoordinator:
        """Raises NotCoordinator."""
        if 0 <= coordinator < len(self.partitions):
            leading = self.partitions[coordinator].coordinator
            if leading is not None:
                return leading
        raise NotCoordinator(f"coordinator {coordinator} is not led here")

    # -- operations that are more than a coordinator's method -----------------------------------

    async def _commit_file(self, message: CommitFileMessage) -> Sequence[ops.BatchCommit]:
        """What is not divided fails as a whole."""
        if len(self.partitions) == 1 or not message.file.batches:
            return await self._leading(ops.CATALOGUE).commit_file(message.file)
        return await self._dispatch(COMMIT_FILE, message)

    async def _find_batches(self, message: FindBatchesMessage) -> Sequence[ops.FoundBatches]:
        return await found_in_runs(message, self.coordinator_of, self._find_at)

    async def _find_at(
        self, coordinator: int, message: FindBatchesMessage
    ) -> Sequence[ops.FoundBatches]:
        if coordinator >= len(self.partitions):
            # Another broker was given more metadata partitions, and this one not yet.
            unknown = NotCoordinator(f"coordinator {coordinator} is not known here")
            return [ops.FoundBatches(error=unknown)] * len(message.requests)
        requests, max_bytes, per_partition_max, at_least_one, isolation = message
        partition = self.partitions[coordinator]
        found = await partition.replica.find_batches(
            requests,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            rows_per_partition_max=per_partition_max,
            isolation=isolation,
        )
        if any(map(_is_for_a_leader, found)) and not await _leads(partition):
            return [*map(as_a_follower, requests, found)]
        return found

    async def _follow_log(self, asked: Addressed[FollowLog]) -> Sequence[FedObjects]:
        """Followers are fed until the leader has resigned, which is longer than it leads."""
        index = asked.coordinator
        feeds = self.partitions[index].feeds if 0 <= index < len(self.partitions) else None
        if feeds is None:
            raise NotCoordinator(f"coordinator {index} is not led here")
        return await asyncio.gather(*map(feeds.follow, asked.entries))


def _is_for_a_leader(answer: ops.FoundBatches) -> bool:
    return isinstance(answer.error, (UnknownPartition, OffsetOutOfRange))


async def _leads(partition: MetadataPartition) -> bool:
    """Whether what was read before this call was the newest there was."""
    leading = partition.coordinator
    if leading is None:
        return False
    try:
        await leading.lease.confirm()
    except Retriable:
        return False
    return True
