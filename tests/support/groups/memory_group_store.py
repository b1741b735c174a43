"""A `GroupStore` in two dictionaries. Writes can be held back, and made to fail."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from metadata.records.groups import NO_EXPIRY, CommittedOffset, GroupKind
from metadata.state.queries.group_queries import AgedOffset, ExpiryCursor, StoredGroup
from wal.clock import Clock
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, NotCoordinator


class MemoryGroupStore:
    """Give it to the next coordinator to see what survives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicIdPartition, CommittedOffset]] = {}
        self.pending: dict[tuple[str, int], dict[TopicIdPartition, CommittedOffset]] = {}
        """What waits, by group and producer id."""
        self.failures: list[DisklessError] = []
        """Raised by the next writes and confirmations, first one first."""
        self.read_failures: list[DisklessError] = []
        self.gate = asyncio.Event()
        """Writes wait here; set unless a test clears it."""
        self.gate.set()
        self.writes: list[str] = []
        """What was written, in order: the method's name and the group."""
        self.leads = True
        self._ids = 0

    async def _write(self, what: str, group_id: str) -> None:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append(f"{what} {group_id}")

    def _known(self, group_id: str) -> StoredGroup:
        known = self.groups.get(group_id)
        if known is None:
            self._ids += 1
            now_ms = self._clock.now_ms()
            known = StoredGroup(self._ids, group_id, GroupKind.OFFSETS_ONLY, b"", now_ms)
            self.groups[group_id] = known
        return known

    async def commit_offsets(self, group_id: str, offsets: Sequence[CommittedOffset]) -> None:
        await self._write("commit_offsets", group_id)
        self._known(group_id)
        self.offsets.setdefault(group_id, {}).update({one.partition: one for one in offsets})

    async def keep_offsets(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        number: int,
        offsets: Sequence[CommittedOffset],
    ) -> None:
        await self._write("keep_offsets", group_id)
        kept = self.pending.setdefault((group_id, producer_id), {})
        kept.update({one.partition: one for one in offsets})

    def end(self, group_id: str, producer_id: int, *, is_commit: bool) -> None:
        """End the producer's transaction; the caller tells the coordinator."""
        kept = self.pending.pop((group_id, producer_id), {})
        if is_commit and kept:
            self._known(group_id)
            self.offsets.setdefault(group_id, {}).update(kept)

    async def pending_partitions(self, group_id: str) -> Collection[TopicIdPartition]:
        self._fail_read()
        return {
            partition
            for (of_group, _), kept in self.pending.items()
            for partition in kept
            if of_group == group_id
        }

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition], *, committed_until_ms: int
    ) -> None:
        await self._write("delete_offsets", group_id)
        kept = self.offsets.get(group_id, {})
        waiting = [self.pending[key] for key in self.pending if key[0] == group_id]
        for offsets in (kept, *waiting):
            for partition in partitions:
                if partition in offsets and offsets[partition].commit_ms <= committed_until_ms:
                    del offsets[partition]
        known = self.groups.get(group_id)
        if not kept and known is not None and known.kind == GroupKind.OFFSETS_ONLY:
            del self.groups[group_id]

    async def store_group(self, group_id: str, kind: int, state: bytes) -> None:
        await self._write("store_group", group_id)
        known = self._known(group_id)
        self.groups[group_id] = known._replace(
            kind=kind, state=state, updated_ms=self._clock.now_ms()
        )

    async def delete_group(self, group_id: str) -> None:
        await self._write("delete_group", group_id)
        self.groups.pop(group_id, None)
        self.offsets.pop(group_id, None)
        self.pending = {key: kept for key, kept in self.pending.items() if key[0] != group_id}

    async def group_offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition] | None
    ) -> Mapping[TopicIdPartition, CommittedOffset]:
        self._fail_read()
        found = self.offsets.get(group_id, {})
        return {
            partition: offset
            for partition, offset in found.items()
            if partitions is None or partition in partitions
        }

    async def stored_groups(self) -> AsyncIterator[StoredGroup]:
        self._fail_read()
        for group in [*self.groups.values()]:
            yield group

    async def aged_offsets(
        self, *, before_ms: int, now_ms: int, limit: int, after: ExpiryCursor | None
    ) -> Sequence[AgedOffset]:
        self._fail_read()
        aged = []
        for group_id, offsets in self.offsets.items():
            for offset in offsets.values():
                has_expiry = offset.expire_ms != NO_EXPIRY
                time = offset.expire_ms if has_expiry else offset.commit_ms
                is_aged = time <= now_ms if has_expiry else time < before_ms
                cursor = ExpiryCursor(
                    has_expiry,
                    time,
                    self.groups[group_id].id,
                    offset.partition.partition,
                    offset.partition.topic_id.bytes,
                )
                if is_aged and (after is None or cursor > after):
                    aged.append(AgedOffset(cursor, group_id, offset))
        return sorted(aged)[:limit]

    async def confirm_leadership(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if not self.leads:
            raise NotCoordinator("another leads")

    def certainly_leads(self) -> bool:
        return self.leads

    def _fail_read(self) -> None:
        if self.read_failures:
            raise self.read_failures.pop(0)
