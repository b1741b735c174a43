"""`CoordinatorClient` for the coordinators that this process leads.

It does what a broker does with a request from outside: it gives every entry to the coordinator that
its partition is assigned to, if that is led here, and answers NotCoordinator for the others. One
request may so become several operations, one per coordinator, which go on at the same time; a
commit's answer is put together from its shares.

`find_batches` is the exception: any replica may answer it, so followers do. A follower that has not
heard of an offset or a partition yet says so without calling it out of range: an empty answer, or
NotCoordinator for a partition it does not know.

Creating and deleting topics is the catalogue's. Its leader has to reach the other coordinators for
that, wherever they are led, and does it through `peers`. Partitions come into being at their
coordinators first and in the catalogue last, so a topic that can be seen is complete; deleting goes
the other way. What a crash leaves half done is repeated by whoever asks again, or collected by
`metadata.workers.catalogue_sweep`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

from metadata import operations as ops
from metadata.clients.coordinator_client import (
    BATCHES_PER_PARTITION_MAX,
    TIMEOUT_MS,
    CoordinatorClient,
)
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.replica.replica import Replica
from metadata.rules.topics import coordinator_assignments, coordinator_of_new
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    NotCoordinator,
    ObjectExpired,
    OffsetOutOfRange,
    Rejected,
    UnknownFile,
    UnknownPartition,
    UnknownTopicId,
)
from wal.failpoint import failpoint

_CONTAINED: Final = (NotCoordinator, CommitFailed, CommitOutcomeUnknown)

_Answer = TypeVar("_Answer")


class LocalClient:
    """The coordinators of one process. `peers` reaches all of them, led here or not."""

    def __init__(
        self,
        partitions: Sequence[MetadataPartition],
        *,
        rng: random.Random,
        peers: CoordinatorClient | None = None,
    ) -> None:
        """`partitions`: all metadata partitions of the cluster, by index."""
        self._partitions: Final = tuple(partitions)
        self._rng = rng
        self.peers: CoordinatorClient = self if peers is None else peers
        self._changing_topics = asyncio.Lock()
        """Held by the catalogue's leader while a change of topics goes through the coordinators. A
        creation of the same name in between would take the partitions that another one has made for
        those of a topic that is no more, and delete them."""

    # -- who has what ---------------------------------------------------------------------------

    @property
    def partitions(self) -> Sequence[MetadataPartition]:
        return self._partitions

    @property
    def catalogue(self) -> Replica:
        """The replica that knows all topics."""
        return self._partitions[ops.CATALOGUE].replica

    def coordinator_of(self, partition: TopicIdPartition) -> int:
        """The coordinator of a partition; of one that is not there, who had it or would get it.

        A commit that is sent again must fall apart into the same shares as the first time, also
        when a topic was deleted or created in between: each coordinator knows its own share again.
        """
        if len(self._partitions) == 1:
            return ops.CATALOGUE
        topic_id = partition.topic_id
        topic = self.catalogue.topic_by_id(topic_id) or self.catalogue.deleted_topic(topic_id)
        if topic is not None and partition.partition < topic.partition_count:
            return topic.coordinator_of(partition.partition)
        # The catalogue hears of a partition last.
        for metadata_partition in self._partitions:
            if metadata_partition.replica.has_partition(partition):
                return metadata_partition.index
        # Deleted before this process was started, or not there yet.
        return coordinator_of_new(topic_id, partition.partition, len(self._partitions))

    def _leading(self, coordinator: int) -> PartitionCoordinator:
        """Raises NotCoordinator."""
        if 0 <= coordinator < len(self._partitions):
            leading = self._partitions[coordinator].coordinator
            if leading is not None:
                return leading
        raise NotCoordinator(f"coordinator {coordinator} is not led here")

    def _led_here(self) -> Sequence[PartitionCoordinator]:
        return [
            partition.coordinator
            for partition in self._partitions
            if partition.coordinator is not None
        ]

    # -- topics ---------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        catalogue = self._leading(ops.CATALOGUE)
        async with _deadline(timeout_ms):
            if len(self._partitions) == 1:
                return await catalogue.create_topics(topics)
            return await self._create_topics(catalogue, topics)

    async def _create_topics(
        self, catalogue: PartitionCoordinator, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        async with self._changing_topics:
            placed = [self._placed(topic) for topic in topics]
            failed = await self._create_shares(
                [
                    (topic.topic_id, topic.name, topic.assignments)
                    for topic in placed
                    if topic.topic_id is not None and topic.name not in catalogue.replica.topics()
                ]
            )
            failpoint("topic.after_shares")
            created = iter(
                await catalogue.create_topics(
                    [topic for topic in placed if topic.topic_id not in failed]
                )
            )
            return [
                failed[topic.topic_id] if topic.topic_id in failed else next(created)
                for topic in placed
                if topic.topic_id is not None
            ]

    def _placed(self, topic: ops.CreateTopic) -> ops.CreateTopic:
        topic_id = topic.topic_id or UUID(int=self._rng.getrandbits(128), version=4)
        return ops.CreateTopic(
            name=topic.name,
            partition_count=topic.partition_count,
            configs=topic.configs,
            topic_id=topic_id,
            assignments=coordinator_assignments(
                topic_id, 0, topic.partition_count, len(self._partitions)
            ),
        )

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`; new partitions are spread over all coordinators there are now.

        A topic that was deleted while somebody wanted it to grow is not made anew.
        Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown.
        """
        catalogue = self._leading(ops.CATALOGUE)
        async with _deadline(timeout_ms), self._changing_topics:
            placed = [self._grown(topic) for topic in topics]
            failed: dict[UUID, DisklessError] = {
                topic.topic_id: UnknownTopicId(f"{topic.name} was deleted")
                for topic in placed
                if catalogue.replica.deleted_topic(topic.topic_id) is not None
            }
            failed.update(
                await self._create_shares(
                    [
                        (topic.topic_id, topic.name, topic.assignments)
                        for topic in placed
                        if topic.topic_id not in failed and self._may_be_created(topic)
                    ]
                )
            )
            failpoint("topic.after_shares")
            created = iter(
                await catalogue.create_partitions(
                    [topic for topic in placed if topic.topic_id not in failed]
                )
            )
            return [
                failed[topic.topic_id] if topic.topic_id in failed else next(created)
                for topic in placed
            ]

    def _grown(self, topic: ops.CreatePartitions) -> ops.CreatePartitions:
        known = self.catalogue.topic_by_id(topic.topic_id)
        return ops.CreatePartitions(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=topic.partition_count,
            assignments=coordinator_assignments(
                topic.topic_id,
                0 if known is None else known.partition_count,
                topic.partition_count,
                len(self._partitions),
            ),
        )

    def _may_be_created(self, topic: ops.CreatePartitions) -> bool:
        """Whether the catalogue will take it, so that its shares are worth creating."""
        named = self.catalogue.topics().get(topic.name)
        known = self.catalogue.topic_by_id(topic.topic_id)
        return named == known

    async def _create_shares(
        self, topics: Sequence[tuple[UUID, str, Mapping[int, int]]]
    ) -> Mapping[UUID, DisklessError]:
        """Create the partitions that live beside the catalogue; the topics that failed, and why.

        Of several topics of one name, or names of one topic, the catalogue will take the first.
        """
        ids: dict[str, UUID] = {}
        names: dict[UUID, str] = {}
        wanted_at: dict[int, dict[UUID, set[int]]] = {}
        for topic_id, name, assignments in topics:
            is_known_as = names.setdefault(topic_id, name)
            if ids.setdefault(name, topic_id) == topic_id and is_known_as == name:
                for index, coordinator in assignments.items():
                    wanted_at.setdefault(coordinator, {}).setdefault(topic_id, set()).add(index)
        shares = {
            coordinator: {
                topic_id: ops.CreatePartitionsAt(
                    topic_id=topic_id, name=names[topic_id], partitions=sorted(indexes)
                )
                for topic_id, indexes in wanted.items()
            }
            for coordinator, wanted in wanted_at.items()
        }

        async def create(coordinator: int) -> Sequence[tuple[UUID, DisklessError | None]]:
            wanted = shares[coordinator]
            try:
                errors = await self.peers.create_partitions_at(coordinator, [*wanted.values()])
            except DisklessError as error:
                return [(topic_id, error) for topic_id in wanted]
            return list(zip(wanted, errors, strict=True))

        outcomes = await asyncio.gather(*[create(coordinator) for coordinator in shares])
        failed = {
            topic_id: error
            for outcome in outcomes
            for topic_id, error in outcome
            if error is not None
        }
        # The next one of its name would become a topic without these partitions.
        return {
            topic_id: failed[ids[name]] for topic_id, name in names.items() if ids[name] in failed
        }

    async def delete_topics(
        self, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        catalogue = self._leading(ops.CATALOGUE)
        async with _deadline(timeout_ms):
            shares: dict[int, list[UUID]] = {}
            async with self._changing_topics:
                for topic_id in topic_ids:
                    topic = self.catalogue.topic_by_id(topic_id)
                    for coordinator in set(() if topic is None else topic.assignments.values()):
                        shares.setdefault(coordinator, []).append(topic_id)
                deleted = await catalogue.delete_topics(topic_ids)
                failpoint("topic.after_deletion")
            # Gone for everybody now; what a coordinator that cannot be reached keeps of it is
            # found by the sweep later.
            await asyncio.gather(
                *[self.peers.delete_topics_at(number, ids) for number, ids in shares.items()],
                return_exceptions=True,
            )
            return deleted

    async def alter_topic_configs(
        self, requests: Sequence[ops.AlterTopicConfigs], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.AlteredTopicConfigs]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(ops.CATALOGUE).alter_topic_configs(requests)

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(ops.CATALOGUE).alter_client_quotas(requests)

    async def create_partitions_at(
        self,
        coordinator: int,
        topics: Sequence[ops.CreatePartitionsAt],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(coordinator).create_partitions_at(topics)

    async def delete_topics_at(
        self, coordinator: int, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`; deleting what is not there succeeds."""
        async with _deadline(timeout_ms):
            errors = await self._leading(coordinator).delete_topics(topic_ids)
            return [None if isinstance(error, UnknownTopicId) else error for error in errors]

    # -- data -----------------------------------------------------------------------------------

    async def commit_file(
        self, request: ops.CommitFile, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.BatchCommit]:
        """See `CoordinatorClient`. Raises: CommitFailed, CommitOutcomeUnknown.

        What one coordinator refuses for the whole object concerns its batches alone, as long as
        others have a share too; repeating the commit then gives each its first answer again.
        """

        async def commit(
            leading: PartitionCoordinator, positions: Sequence[int]
        ) -> Sequence[ops.BatchCommit]:
            is_all = len(positions) == len(request.batches)
            return await leading.commit_file(request if is_all else _share(request, positions))

        async with _deadline(timeout_ms):
            if len(self._partitions) == 1 or not request.batches:
                return await self._leading(ops.CATALOGUE).commit_file(request)
            return await self._dispatch(
                [batch.partition for batch in request.batches],
                commit,
                lambda error: ops.BatchCommit(error=error),
                contained=(NotCoordinator, Rejected, ObjectExpired),
            )

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.DeletedRecords]:
        """See `CoordinatorClient`."""
        async with _deadline(timeout_ms):
            return await self._dispatch(
                [request.partition for request in requests],
                lambda leading, positions: leading.delete_records(
                    [requests[at] for at in positions]
                ),
                lambda error: ops.DeletedRecords(error=error),
            )

    async def list_offsets(
        self, requests: Sequence[ops.ListOffsets], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.ListedOffset]:
        """See `CoordinatorClient`."""
        async with _deadline(timeout_ms, reads=True):
            return await self._dispatch(
                [request.partition for request in requests],
                lambda leading, positions: leading.list_offsets([requests[at] for at in positions]),
                lambda error: ops.ListedOffset(error=error),
            )

    async def _dispatch(
        self,
        partitions: Sequence[TopicIdPartition],
        ask: Callable[[PartitionCoordinator, Sequence[int]], Awaitable[Sequence[_Answer]]],
        refused: Callable[[DisklessError], _Answer],
        *,
        contained: tuple[type[DisklessError], ...] = _CONTAINED,
    ) -> Sequence[_Answer]:
        """Ask each coordinator about its entries, all at once; answers in the order of entries.

        `ask` gets positions in `partitions`. An error in `contained` is that coordinator's entries'
        alone, through `refused`; any other is raised.
        """

        async def share(coordinator: int, positions: Sequence[int]) -> Sequence[_Answer]:
            try:
                return await ask(self._leading(coordinator), positions)
            except contained as error:
                return [refused(error)] * len(positions)

        shares: dict[int, list[int]] = {}
        for position, partition in enumerate(partitions):
            shares.setdefault(self.coordinator_of(partition), []).append(position)
        if len(shares) == 1:
            ((coordinator, positions),) = shares.items()
            return await share(coordinator, positions)
        answered = await in_parallel([share(*item) for item in shares.items()])
        answers: dict[int, _Answer] = {}
        for positions, some in zip(shares.values(), answered, strict=True):
            answers.update(zip(positions, some, strict=True))
        return [answers[position] for position in range(len(partitions))]

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = BATCHES_PER_PARTITION_MAX,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.FoundBatches]:
        """See `CoordinatorClient`. Requests share `max_bytes` in their order."""
        found: list[ops.FoundBatches] = []
        async with _deadline(timeout_ms, reads=True):
            start = 0
            while start < len(requests):
                # Entries of one coordinator that follow each other are one look-up; the budget
                # goes from run to run, since who asks first is served first.
                coordinator = self.coordinator_of(requests[start].partition)
                end = start + 1
                while (
                    end < len(requests)
                    and self.coordinator_of(requests[end].partition) == coordinator
                ):
                    end += 1
                if coordinator >= len(self._partitions):
                    # Another broker was given more metadata partitions, and this one not yet.
                    unknown = NotCoordinator(f"coordinator {coordinator} is not known here")
                    found += [ops.FoundBatches(error=unknown)] * (end - start)
                    start = end
                    continue
                partition = self._partitions[coordinator]
                some = await partition.replica.find_batches(
                    requests[start:end],
                    max_bytes=max_bytes,
                    at_least_one=at_least_one,
                    rows_per_partition_max=batches_per_partition_max,
                )
                if partition.coordinator is None:
                    some = [
                        _as_a_follower(request, answer)
                        for request, answer in zip(requests[start:end], some, strict=True)
                    ]
                max_bytes -= taken_bytes(requests[start:end], some)
                at_least_one = at_least_one and not any(answer.extents for answer in some)
                found += some
                start = end
        return found

    # -- files ----------------------------------------------------------------------------------

    async def describe_files(
        self,
        keys: Sequence[ObjectKey],
        *,
        coordinator: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.DescribedFile]:
        """See `CoordinatorClient`. Raises: NotCoordinator (none is led here)."""
        asked = self._led_here() if coordinator is None else [self._leading(coordinator)]
        if not asked:
            raise NotCoordinator("no coordinator is led here")
        async with _deadline(timeout_ms, reads=True):
            answers = [await leading.describe_files(keys) for leading in asked]
        return [_described(key, [answer[at] for answer in answers]) for at, key in enumerate(keys)]

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.Tombstone]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(coordinator).tombstone_files(keys)

    async def hand_over_files(
        self, coordinator: int, files: Sequence[ops.HandedFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(coordinator).hand_over_files(files)

    # -- producers, segments, brokers -----------------------------------------------------------

    async def allocate_producer_ids(self, *, timeout_ms: int = TIMEOUT_MS) -> range:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            return await self._leading(ops.CATALOGUE).allocate_producer_ids()

    async def plan_segments(
        self, *, include_partial: bool = False, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentPlan]:
        """See `CoordinatorClient`. Raises: NotCoordinator (none is led here), CommitFailed."""
        led = self._led_here()
        if not led:
            raise NotCoordinator("no coordinator is led here")
        async with _deadline(timeout_ms):
            plans = [
                await leading.plan_segments(include_partial=include_partial) for leading in led
            ]
        return [plan for some in plans for plan in some]

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentCommit]:
        """See `CoordinatorClient`."""
        async with _deadline(timeout_ms):
            return await self._dispatch(
                [segment.partition for segment in segments],
                lambda leading, positions: leading.commit_segments(
                    [segments[at] for at in positions]
                ),
                lambda error: ops.SegmentCommit(error=error),
            )

    async def register_broker(
        self, broker: ops.RegisteredBroker, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """See `CoordinatorClient`. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        async with _deadline(timeout_ms):
            await self._leading(ops.CATALOGUE).register_broker(broker)


def taken_bytes(requests: Sequence[ops.FindBatches], answers: Sequence[ops.FoundBatches]) -> int:
    """Returns how much of a shared byte budget these answers use up.

    Of the extent that holds the asked offset only what follows counts. A segment counts as much as
    its partition's limit allows: the reader cuts what it needs out of it, so one old segment must
    not starve the partitions behind it.
    """
    return sum(
        min(extent.bytes_from(request.offset), max(request.max_bytes, 0))
        for request, answer in zip(requests, answers, strict=True)
        for extent in answer.extents
    )


def _as_a_follower(request: ops.FindBatches, answer: ops.FoundBatches) -> ops.FoundBatches:
    """What a replica may say that perhaps has not read everything there is."""
    if isinstance(answer.error, UnknownPartition):
        return ops.FoundBatches(
            error=NotCoordinator(f"{request.partition} is not known here, ask its coordinator")
        )
    if isinstance(answer.error, OffsetOutOfRange) and request.offset > answer.high_watermark:
        return answer._replace(error=None)
    return answer


def _described(key: ObjectKey, answers: Sequence[ops.DescribedFile]) -> ops.DescribedFile:
    known = [answer for answer in answers if answer.error is None]
    if any(answer.has_live_batches for answer in known):
        return ops.DescribedFile(has_live_batches=True)
    for answer in answers:
        if answer.error is not None and not isinstance(answer.error, UnknownFile):
            return answer
    return known[0] if known else ops.DescribedFile(error=UnknownFile(f"nobody knows {key}"))


def _share(request: ops.CommitFile, positions: Sequence[int]) -> ops.CommitFile:
    return ops.CommitFile(
        object_key=request.object_key,
        file_size_bytes=request.file_size_bytes,
        uploader_broker_id=request.uploader_broker_id,
        batches=[request.batches[position] for position in positions],
        object_format=request.object_format,
        owner_ids=request.owner_ids,
    )


async def in_parallel(calls: Sequence[Coroutine[Any, Any, _Answer]]) -> Sequence[_Answer]:
    """All answers, once every call has ended; else the error that says least about what happened.

    An unknown outcome goes before a definite failure: who is told "did not happen" would be wrong.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, CommitOutcomeUnknown))
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


@asynccontextmanager
async def _deadline(timeout_ms: int, *, reads: bool = False) -> AsyncIterator[None]:
    """Stop waiting after `timeout_ms`; the operation itself goes on."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError as error:
        text = f"no answer within {timeout_ms} ms"
        raise (CommitFailed(text) if reads else CommitOutcomeUnknown(text)) from error
