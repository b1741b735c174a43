"""The operations that a broker asks of the coordinators: KIP-1164's, and those it leaves out.

Everything is one method, `call`, of an `Operation` (metadata/messages/codec.py) and its request.
The others are its short forms, with the arguments that callers have.

A `CoordinatorClient` stands for the coordinators that one broker leads. Requests name partitions;
which coordinator a partition belongs to was fixed at its creation and is part of its topic's
metadata. An entry whose coordinator is led elsewhere is answered with NotCoordinator, that entry
alone; the sender then finds out who leads it and asks there (metadata/clients/routed_client.py
does).

An operation is addressed to the catalogue, to a coordinator that the request names, to those led
where it arrives, or for each entry to the coordinator of its partition: `Operation.address` of its
row says which. Leaders answer, also what only reads. FindBatches is answered by any replica, and
may be stale.

Implementations: `metadata.clients.local_client` (in this process), `metadata.clients.wire_client`
(over a socket), and `metadata.clients.routed_client` (the leaders). The first two pass
tests/metadata/coordinator/coordinator_conformance.py.

What holds for all: lists in, lists out, same order, errors per entry. A call raises what concerns
it as a whole: NotCoordinator, CommitFailed (nothing happened, try again), CommitOutcomeUnknown
(it may have happened; repeating it is safe for every operation here), Overloaded, Rejected.
`timeout_ms` bounds how long the caller waits; when it passes, the outcome is unknown
(CommitOutcomeUnknown for what changes something, CommitFailed for what only reads).

Source: KIP-1164, "Diskless coordinator API".
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

from metadata import operations as ops
from metadata import rewrites as rw
from metadata.acls import AclBinding, AclFilter, DeletedAcls
from metadata.messages import brokers as between
from metadata.messages import coordinator as kip
from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILE, CommitFileMessage
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.shapes import Addressed
from wal.coordinates import ObjectKey
from wal.errors import DisklessError

TIMEOUT_MS: Final = 60_000
"""The seed's default of every TimeoutMs."""

BATCHES_PER_PARTITION_MAX: Final = 2**31 - 1

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class CoordinatorClient(Protocol):
    """The coordinators that one broker leads, wherever that broker is."""

    async def call(
        self,
        operation: Operation[Request, Answer],
        request: Request,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[Answer]:
        """The answers to the entries of `request`, by position."""
        ...

    # -- topics and quotas ------------------------------------------------------------------------

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Idempotent. TopicExists (the name has another id), InvalidPartitions (fewer than now),
        UnknownTopicId (the id was deleted not long ago)."""
        return await self.call(kip.CREATE_PARTITIONS, topics, timeout_ms=timeout_ms)

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        return await self.call(between.CREATE_TOPICS, topics, timeout_ms=timeout_ms)

    async def delete_topics(
        self, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        return await self.call(kip.DELETE_TOPICS, topic_ids, timeout_ms=timeout_ms)

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Idempotent. PolicyViolation where there are too many entities."""
        return await self.call(between.ALTER_CLIENT_QUOTAS, requests, timeout_ms=timeout_ms)

    async def create_acls(
        self, rules: Sequence[AclBinding], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Idempotent. PolicyViolation where there are too many rules."""
        return await self.call(between.CREATE_ACLS, rules, timeout_ms=timeout_ms)

    async def delete_acls(
        self, filters: Sequence[AclFilter], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DeletedAcls | DisklessError]:
        """Returns what each filter found, which is gone."""
        return await self.call(between.DELETE_ACLS, filters, timeout_ms=timeout_ms)

    async def alter_scram_credentials(
        self, requests: Sequence[ops.AlterScramCredential], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """UnknownCredential where there is none to remove, PolicyViolation where there are too
        many, or some already that were to be the first."""
        return await self.call(between.ALTER_SCRAM_CREDENTIALS, requests, timeout_ms=timeout_ms)

    # -- data -------------------------------------------------------------------------------------

    async def commit_file(
        self, request: ops.CommitFile, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.BatchCommit]:
        """Results match `request.batches` by position; every coordinator commits its share.

        A second commit of the same key with the same content returns the first answer; other
        content under a known key is Rejected. One bad batch fails alone.
        """
        return await self.call(COMMIT_FILE, CommitFileMessage(request), timeout_ms=timeout_ms)

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.DeletedRecords]:
        return await self.call(kip.DELETE_RECORDS, requests, timeout_ms=timeout_ms)

    async def list_offsets(
        self, requests: Sequence[ops.ListOffsets], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.ListedOffset]:
        """Strictly consistent: reflects every operation that was answered before this call.

        Over a wire a timestamp gives the exact offset, never an extent.
        """
        return await self.call(kip.LIST_OFFSETS, requests, timeout_ms=timeout_ms)

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = BATCHES_PER_PARTITION_MAX,
        isolation: int = ops.READ_UNCOMMITTED,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.FoundBatches]:
        """Extents to read, in request order, at O(answer) cost.

        With isolation level READ_COMMITTED they end with the one that reaches to the last stable
        offset, and the aborted transactions with batches in them are told.

        `max_bytes` is shared over the request; the extent that crosses a limit is included; with
        `at_least_one` the first non-empty partition gets one extent whatever the limits say. May be
        stale; staleness alone never makes an offset out of range.
        """
        message = FindBatchesMessage(
            requests, max_bytes, batches_per_partition_max, at_least_one, isolation
        )
        return await self.call(FIND_BATCHES, message, timeout_ms=timeout_ms)

    # -- files and segments -----------------------------------------------------------------------

    async def describe_files(
        self,
        keys: Sequence[ObjectKey],
        *,
        coordinator: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.DescribedFile]:
        """`coordinator` None: whether any coordinator led there has live batches in the file."""
        message = kip.DescribeFilesMessage(keys, coordinator)
        return await self.call(kip.DESCRIBE_FILES, message, timeout_ms=timeout_ms)

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.Tombstone]:
        """Files that the coordinator never commits from now on, unless it already has."""
        asked = Addressed(coordinator, keys)
        return await self.call(between.TOMBSTONE_FILES, asked, timeout_ms=timeout_ms)

    async def hand_over_files(
        self, coordinator: int, files: Sequence[ops.HandedFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Files whose fate the coordinator decides from now on."""
        asked = Addressed(coordinator, files)
        return await self.call(between.HAND_OVER_FILES, asked, timeout_ms=timeout_ms)

    async def plan_segments(
        self, asked: ops.PlanSegments = ops.WHATEVER_IS_DUE, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentPlan]:
        """Plans not yet committed, after planning what segment.bytes / segment.ms make due."""
        (planned,) = await self.call(between.PLAN_SEGMENTS_HERE, asked, timeout_ms=timeout_ms)
        return _or_raise(planned).plans

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentCommit]:
        """Swap batches for segments, atomically per call entry; idempotent by object key."""
        return await self.call(between.COMMIT_SEGMENTS_HERE, segments, timeout_ms=timeout_ms)

    async def plan_rewrites(
        self, asked: rw.PlanRewrites, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[rw.RewritePlan]:
        """Rewrites of segments under way, after planning what is due."""
        (planned,) = await self.call(between.PLAN_REWRITES_HERE, asked, timeout_ms=timeout_ms)
        return _or_raise(planned).plans

    # -- producers and brokers --------------------------------------------------------------------

    async def allocate_producer_ids(self, *, timeout_ms: int = TIMEOUT_MS) -> range:
        """A block of producer ids that was never given out before, and never will be again."""
        (block,) = await self.call(between.ALLOCATE_PRODUCER_IDS, None, timeout_ms=timeout_ms)
        return _or_raise(block)

    async def register_broker(
        self, broker: ops.RegisteredBroker, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Register, or say that the broker is still alive; sent every few seconds."""
        (error,) = await self.call(between.REGISTER_BROKER, broker, timeout_ms=timeout_ms)
        _or_raise(error)


class Coordinator(CoordinatorClient, Protocol):
    """All coordinators of the cluster, and their topics as this broker has heard of them."""

    def topics(self) -> Mapping[str, ops.TopicDescription]:
        """All topics by name, from committed state; cheap, no I/O; do not modify."""
        ...

    def topic_by_id(self, topic_id: UUID) -> ops.TopicDescription | None: ...

    async def commit_files(
        self, files: Sequence[ops.CommitFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.CommittedFile]:
        """Commit files of this broker in their order, each coordinator its share of all of them.

        A file is Rejected or ObjectExpired alone; where several coordinators have a share in it,
        those batches are that one of them refused. Raises: CommitFailed, CommitOutcomeUnknown,
        NotCoordinator (nobody leads any of the coordinators).
        """
        ...


class TypedCoordinator(Coordinator, Protocol):
    """The same, with what is typed of topics."""

    def topic_columns(self, topic_id: UUID) -> ops.TopicColumns:
        """A topic's typed columns, from committed state."""
        ...


def _or_raise(answer: Answer | DisklessError) -> Answer:
    if isinstance(answer, DisklessError):
        raise answer
    return answer
