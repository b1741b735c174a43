"""Makes groups and offsets durable, and reads them back.

`CoordinatorGroupStore` is the log and the state of one metadata partition that this process leads;
tests use one in memory. Both pass the same contract tests.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final, Protocol

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.records.groups import CommittedOffset
from metadata.state.queries.group_queries import AgedOffset, ExpiryCursor, StoredGroup
from wal.coordinates import TopicIdPartition


class GroupStore(Protocol):
    """Writes are durable on return, and later calls come after earlier ones.

    Writes raise InvalidRequest, AppendTooLarge, CommitFailed (nothing happened),
    CommitOutcomeUnknown and NotCoordinator; reads raise Retriable errors and CorruptState.
    """

    async def commit_offsets(self, group_id: str, offsets: Sequence[CommittedOffset]) -> None: ...

    async def keep_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        number: int,
        offsets: Sequence[CommittedOffset],
    ) -> None:
        """Until this transaction ends. Raises InvalidTransactionState, too: it has ended."""
        ...

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition], *, committed_until_ms: int
    ) -> None:
        """Offsets committed later than `committed_until_ms` stay; so for what waits."""
        ...

    async def store_group(self, group_id: str, kind: int, state: bytes) -> None:
        """Replaces what was stored before."""
        ...

    async def delete_group(self, group_id: str) -> None:
        """And its offsets, also what waits."""
        ...

    async def group_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition] | None
    ) -> Mapping[TopicIdPartition, CommittedOffset]:
        """Returns the committed offsets of `partitions`, or of all; of deleted topics too."""
        ...

    async def pending_partitions(self, group_id: str) -> Collection[TopicIdPartition]:
        """Those of which offsets wait for the end of a transaction."""
        ...

    def stored_groups(self) -> AsyncIterator[StoredGroup]:
        """All groups there is anything of; those that only have offsets have no state."""
        ...

    async def aged_offsets(
        self, *, before_ms: int, now_ms: int, limit: int, after: ExpiryCursor | None
    ) -> Sequence[AgedOffset]:
        """Offsets committed before `before_ms`, or by their client's wish due by `now_ms`."""
        ...

    async def confirm_leadership(self) -> None:
        """Return when nobody else can have written until now. Raises like a write."""
        ...

    def certainly_leads(self) -> bool:
        """Whether nobody else led until a moment ago, without asking anybody.

        So short a time ago that no other leader has expelled a member since.
        """
        ...


class CoordinatorGroupStore:
    """`GroupStore` on the coordinator of a metadata partition."""

    def __init__(self, coordinator: PartitionCoordinator) -> None:
        replica = coordinator.replica
        self.commit_offsets: Final = coordinator.commit_offsets
        self.keep_offsets: Final = coordinator.transactions.commit_offsets
        self.delete_offsets: Final = coordinator.delete_offsets
        self.store_group: Final = coordinator.store_group
        self.delete_group: Final = coordinator.delete_group
        self.confirm_leadership: Final = coordinator.lease.confirm
        self.certainly_leads: Final = coordinator.lease.is_certain
        self.group_offsets: Final = replica.group_offsets
        self.pending_partitions: Final = replica.pending_partitions
        self.stored_groups: Final = replica.stored_groups
        self.aged_offsets: Final = replica.aged_offsets
