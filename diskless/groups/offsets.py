"""The offset manager: knows what groups have committed, of which topics, and for how long.

It sits on a `GroupStore`: putting offsets is an append, and its completion is the answer. Who may
commit is the group's business; here is what may be committed. Offsets are kept by topic id, so a
topic that was deleted and created again under its name starts without any; those of the old one are
not given out, and go when they are old.

Fetching reads committed state and then makes sure that nobody else could have written meanwhile, so
that a member never starts behind what was acknowledged. What waits for the end of a transaction is
read before that: were it read afterwards, an offset could be taken for stable which a transaction
has just replaced.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from diskless.groups.consumer.topic_patterns import PatternsInUse
from diskless.groups.errors import OffsetMetadataTooLarge, UnstableOffset
from diskless.groups.group_store import GroupStore
from diskless.groups.requests import (
    RETENTION_AS_CONFIGURED,
    CommitOffset,
    FetchedOffset,
    OffsetTransaction,
)
from diskless.groups.settings import GroupSettings
from diskless.loop.long_work import each
from diskless.ports import LEADER_EPOCH
from metadata.operations import TopicDescription
from metadata.records.groups import NO_EXPIRY, NO_LEADER_EPOCH, WHENEVER_COMMITTED, CommittedOffset
from metadata.state.queries.group_queries import ExpiryCursor
from wal.clock import Clock
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, UnknownPartition
from wal.steady_clock import SteadyClock

AGED_OFFSETS_PER_READ: Final = 1_000

DELETED_AT_ONCE: Final = 500
"""Partitions, of which the offsets are deleted by one append; a few milliseconds."""

_MS_PER_MINUTE: Final = 60_000

_LAST_MS: Final = 2**63 - 1
"""A record states the time at which an offset expires in an int64."""


class KnownTopics(Protocol):
    """The topics there are, as far as this broker knows."""

    def topics(self) -> Mapping[str, TopicDescription]: ...

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None: ...


class TopicsWith:
    """`KnownTopics` of somebody else, and some more that always exist."""

    def __init__(self, known: KnownTopics, more: Iterable[TopicDescription]) -> None:
        self._known = known
        self._more = {topic.name: topic for topic in more}
        self.pattern: Final = PatternsInUse().get
        self.version = 0
        """Another one whenever topics may have been created or deleted, or have more partitions."""

    def changed(self) -> None:
        """Called when they are others now."""
        self.version += 1

    def topics(self) -> Mapping[str, TopicDescription]:
        return self._known.topics()

    def topic(self, name: str) -> TopicDescription | None:
        return self._more.get(name) or self._known.topics().get(name)

    def named(self, names: AbstractSet[str]) -> Sequence[TopicDescription]:
        """Those of these names that there are."""
        always = [topic for name, topic in self._more.items() if name in names]
        found = map(self._known.topics().get, names - self._more.keys())
        return [*always, *(topic for topic in found if topic is not None)]

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        always = (topic for topic in self._more.values() if topic.topic_id == topic_id)
        return next(always, None) or self._known.topic_by_id(topic_id)


class GroupPartition(NamedTuple):
    """A partition of which a group has committed something."""

    group_id: str
    topic_name: str | None
    """None: there is no such topic any more."""
    commit_ms: int


class OffsetManager:
    """The committed offsets of the groups of one metadata partition."""

    def __init__(
        self, store: GroupStore, topics: TopicsWith, *, settings: GroupSettings, clock: Clock
    ) -> None:
        self._store = store
        self._topics = topics
        self._metadata_bytes_max = settings.offset_metadata_max_bytes
        self._clock = clock
        self._steady = SteadyClock(clock)
        self.retention_ms: Final = settings.offsets_retention_minutes * _MS_PER_MINUTE

    @property
    def steady_ms(self) -> int:
        """The time by which things expire: a wall clock that jumps ahead does not move it."""
        return self._steady.now_ms()

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[CommitOffset],
        *,
        retention_ms: int,
        transaction: OffsetTransaction | None = None,
    ) -> Sequence[DisklessError | None]:
        """Durable on return, except for those with an error. Raises like `GroupStore` writes."""
        now_ms = self._clock.now_ms()
        expire_ms = _expire_ms(now_ms, retention_ms)
        errors: list[DisklessError | None] = []
        accepted: dict[TopicIdPartition, CommittedOffset] = {}
        for offset in offsets:
            partition = self._partition(offset.topic_name, offset.partition)
            error: DisklessError | None = None
            if partition is None:
                error = UnknownPartition(f"{offset.topic_name}-{offset.partition}")
            elif len(offset.metadata.encode()) > self._metadata_bytes_max:
                error = OffsetMetadataTooLarge(
                    f"offset.metadata.max.bytes={self._metadata_bytes_max}"
                )
            else:
                accepted[partition] = CommittedOffset(
                    partition=partition,
                    offset=offset.offset,
                    commit_ms=now_ms,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    expire_ms=expire_ms,
                )
            errors.append(error)
        if accepted and transaction is None:
            await self._store.commit_offsets(group_id, [*accepted.values()])
        elif accepted and transaction is not None:
            await self._store.keep_offsets(group_id, *transaction, [*accepted.values()])
        return errors

    async def fetch(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        *,
        require_stable: bool = False,
    ) -> Sequence[FetchedOffset]:
        """In the order asked for, or all there are. Raises like `GroupStore` reads and writes."""
        pending: Collection[TopicIdPartition] = ()
        if require_stable:
            pending = await self._store.pending_partitions(group_id)
        if partitions is None:
            found = await self._store.group_offsets(group_id, None)
            await self._store.confirm_leadership()

            def answer_of_all(
                row: tuple[TopicIdPartition, CommittedOffset],
            ) -> FetchedOffset | None:
                """None for one of a topic that is gone."""
                partition, offset = row
                name = self._name(partition)
                if name is None:
                    return None
                if partition in pending:
                    return _unstable(name, partition.partition)
                return _fetched(name, offset)

            offsets = await each(answer_of_all, [*found.items()])
            return sorted(
                (offset for offset in offsets if offset is not None),
                key=lambda offset: offset[:2],
            )
        located = await each(lambda asked: (*asked, self._partition(*asked)), partitions)
        wanted = [partition for _, _, partition in located if partition is not None]
        found = await self._store.group_offsets(group_id, wanted) if wanted else {}
        await self._store.confirm_leadership()

        def answer(row: tuple[str, int, TopicIdPartition | None]) -> FetchedOffset:
            name, index, partition = row
            if partition in pending:
                return _unstable(name, index)
            if partition is None or partition not in found:
                return FetchedOffset(name, index)
            return _fetched(name, found[partition])

        return await each(answer, located)

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> Sequence[DisklessError | None]:
        """By partition, some at a time; one without an offset is fine. Raises like `GroupStore`."""
        located = [self._partition(*partition) for partition in partitions]
        known = [partition for partition in located if partition is not None]
        if known:
            await self._store.delete_offsets(group_id, known, committed_until_ms=WHENEVER_COMMITTED)
        return [
            None if partition is not None else UnknownPartition(f"{name}-{index}")
            for (name, index), partition in zip(partitions, located, strict=True)
        ]

    async def has_any(self, group_id: str) -> bool:
        """Whether the group has committed anything, or is about to. Raises like `GroupStore`."""
        has_pending = bool(await self._store.pending_partitions(group_id))
        return has_pending or bool(await self._store.group_offsets(group_id, None))

    async def expire(self, is_in_use: Callable[[GroupPartition], bool]) -> Sequence[str]:
        """Forget offsets that are old and not in use, and those whose clients said when.

        One that a transaction is about to replace stays. Returns the groups that lost any. Raises
        like `GroupStore` reads and writes.
        """
        now_ms = self.steady_ms
        after: ExpiryCursor | None = None
        touched: dict[str, None] = {}
        while aged := await self._store.aged_offsets(
            before_ms=now_ms - self.retention_ms,
            now_ms=now_ms,
            limit=AGED_OFFSETS_PER_READ,
            after=after,
        ):
            after = aged[-1].cursor
            expired: dict[str, list[CommittedOffset]] = {}
            for _, group_id, offset in aged:
                name = self._name(offset.partition)
                candidate = GroupPartition(group_id, name, offset.commit_ms)
                if offset.expire_ms != NO_EXPIRY or not is_in_use(candidate):
                    expired.setdefault(group_id, []).append(offset)
            for group_id, of_group in expired.items():
                pending = await self._store.pending_partitions(group_id)
                offsets = [offset for offset in of_group if offset.partition not in pending]
                if not offsets:
                    continue
                await self._store.delete_offsets(
                    group_id,
                    [offset.partition for offset in offsets],
                    committed_until_ms=max(offset.commit_ms for offset in offsets),
                )
                touched[group_id] = None
        return [*touched]

    def _partition(self, name: str, index: int) -> TopicIdPartition | None:
        topic = self._topics.topic(name)
        if topic is None or not 0 <= index < topic.partition_count:
            return None
        return TopicIdPartition(topic.topic_id, index)

    def _name(self, partition: TopicIdPartition) -> str | None:
        topic = self._topics.topic_by_id(partition.topic_id)
        return None if topic is None else topic.name


def _expire_ms(now_ms: int, retention_ms: int) -> int:
    """When an offset goes whose client said how long it is to stay.

    As in Kafka, -1 leaves it to the group's retention, and any other time below 0 is over at once.
    """
    if retention_ms == RETENTION_AS_CONFIGURED:
        return NO_EXPIRY
    return min(max(now_ms + retention_ms, 0), _LAST_MS)


def _unstable(name: str, index: int) -> FetchedOffset:
    error = UnstableOffset("a transaction that is open may commit another offset")
    return FetchedOffset(name, index, error=error)


def _fetched(name: str, offset: CommittedOffset) -> FetchedOffset:
    # A client would believe an epoch above ours, which an offset copied from another cluster may
    # have, more than the Metadata we send it.
    epoch = min(offset.leader_epoch, LEADER_EPOCH)
    return FetchedOffset(
        name,
        offset.partition.partition,
        offset.offset,
        max(epoch, NO_LEADER_EPOCH),
        offset.metadata,
    )
