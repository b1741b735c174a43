"""What a broker asks of the coordinators: KIP-1164's operations, and those that it leaves out.

A `CoordinatorClient` stands for the coordinators that one broker leads. Requests name partitions;
which coordinator a partition belongs to was fixed at its creation and is part of its topic's
metadata. An entry whose coordinator is led elsewhere is answered with NotCoordinator, that entry
alone; the sender then finds out who leads it and asks there (metadata/clients/routed_client.py
does).

| operation          | key    | addressed to |
|--------------------|--------|--------------|
| create_partitions  | 93     | leader of the catalogue; it sees to the other coordinators |
| delete_topics      | 94     | leader of the catalogue; it sees to the other coordinators |
| commit_file        | 95     | per batch: leader of the partition's coordinator |
| delete_records     | 96     | per partition: leader of its coordinator |
| list_offsets       | 97     | per partition: leader of its coordinator, strictly consistent |
| find_batches       | 98     | per partition: any replica of its coordinator; may be stale |
| describe_files     | 100    | all coordinators led here, or the one that is named |
| create_topics      | 10002  | leader of the catalogue |
| allocate_producer_ids | 10003 | leader of the catalogue |
| tombstone_files    | 10004  | the named coordinator |
| hand_over_files    | 10005  | the named coordinator |
| create_partitions_at | 10006 | the named coordinator |
| delete_topics_at   | 10007  | the named coordinator |
| plan_segments      | 10009  | all coordinators led here |
| commit_segments    | 10010  | per segment: leader of the partition's coordinator |
| alter_topic_configs | 10011 | leader of the catalogue |
| alter_client_quotas | 10012 | leader of the catalogue |
| register_broker    | 10008  | leader of the catalogue |

Implementations: `metadata.clients.local_client` (in this process) and
`metadata.clients.wire_client` (over a socket). Both pass
tests/metadata/coordinator/coordinator_conformance.py.

What holds for all: lists in, lists out, same order, errors per entry. A call raises what concerns
it as a whole: NotCoordinator, CommitFailed (nothing happened, try again), CommitOutcomeUnknown
(it may have happened; repeating it is safe for every operation here), Overloaded, Rejected.
`timeout_ms` bounds how long the caller waits; when it passes, the outcome is unknown
(CommitOutcomeUnknown for what changes something, CommitFailed for what only reads).

Source: KIP-1164, "Diskless coordinator API".
"""

from collections.abc import Sequence
from typing import Final, Protocol
from uuid import UUID

from metadata import operations as ops
from wal.coordinates import ObjectKey
from wal.errors import DisklessError

TIMEOUT_MS: Final = 60_000
"""The seed's default of every TimeoutMs."""

BATCHES_PER_PARTITION_MAX: Final = 2**31 - 1


class CoordinatorClient(Protocol):
    """The coordinators that one broker leads, wherever that broker is."""

    async def create_partitions(
        self, topics: Sequence[ops.CreatePartitions], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Idempotent. TopicExists (the name has another id), InvalidPartitions (fewer than now),
        UnknownTopicId (the id was deleted not long ago)."""
        ...

    async def create_topics(
        self, topics: Sequence[ops.CreateTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.TopicDescription | DisklessError]: ...

    async def delete_topics(
        self, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]: ...

    async def alter_topic_configs(
        self, requests: Sequence[ops.AlterTopicConfigs], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.AlteredTopicConfigs]:
        """Idempotent; an entry that came too late says what the topic's configs are instead."""
        ...

    async def alter_client_quotas(
        self, requests: Sequence[ops.AlterClientQuotas], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]:
        """Idempotent. PolicyViolation where there are too many entities."""
        ...

    async def commit_file(
        self, request: ops.CommitFile, *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.BatchCommit]:
        """Results match `request.batches` by position; every coordinator commits its share."""
        ...

    async def delete_records(
        self, requests: Sequence[ops.DeleteRecords], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.DeletedRecords]: ...

    async def list_offsets(
        self, requests: Sequence[ops.ListOffsets], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.ListedOffset]:
        """Strictly consistent. Over a wire a timestamp gives the exact offset, never an extent."""
        ...

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = BATCHES_PER_PARTITION_MAX,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.FoundBatches]:
        """May be stale; staleness alone never makes an offset out of range."""
        ...

    async def describe_files(
        self,
        keys: Sequence[ObjectKey],
        *,
        coordinator: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[ops.DescribedFile]:
        """`coordinator` None: whether any coordinator led there has live batches in the file."""
        ...

    async def allocate_producer_ids(self, *, timeout_ms: int = TIMEOUT_MS) -> range:
        """A block of producer ids that was never given out before, and never will be again."""
        ...

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.Tombstone]: ...

    async def hand_over_files(
        self, coordinator: int, files: Sequence[ops.HandedFile], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]: ...

    async def create_partitions_at(
        self,
        coordinator: int,
        topics: Sequence[ops.CreatePartitionsAt],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Sequence[DisklessError | None]:
        """Idempotent; partitions that the coordinator has already are left as they are."""
        ...

    async def delete_topics_at(
        self, coordinator: int, topic_ids: Sequence[UUID], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[DisklessError | None]: ...

    async def plan_segments(
        self, *, include_partial: bool = False, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentPlan]: ...

    async def commit_segments(
        self, segments: Sequence[ops.RolledSegment], *, timeout_ms: int = TIMEOUT_MS
    ) -> Sequence[ops.SegmentCommit]: ...

    async def register_broker(
        self, broker: ops.RegisteredBroker, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Register, or say that the broker is still alive; sent every few seconds."""
        ...
