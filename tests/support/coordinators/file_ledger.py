"""A world of files for property tests: coordinators that decide by the real rules and keep their
rows in dictionaries, a bucket, clocks that disagree, and a script of what happens in between.

Nothing here waits, so a test may run thousands of lives of files in the time that SQLite would need
for one. That the rows are what the real coordinator makes of the same records is shown by
tests/metadata/workers/test_file_workers.py.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from metadata import operations as ops
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.control import FileHandedOverRecord, FilesTombstonedRecord
from metadata.records.records import FileCommittedRecord, FilesDeletedRecord, MetadataRecord
from metadata.rules.commit import Decision, check_commit, decide_commit, owns_first
from metadata.rules.files import (
    decide_forget,
    decide_hand_over,
    decide_seal,
    decide_tombstone,
    permuted_owners,
)
from metadata.state.image import CommittedImage
from metadata.state.queries.file_queries import DeletableFile
from metadata.state.speculative import FileStanding, KnownFile, SpeculativeView
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, ObjectExpired, ObjectStoreUnavailable, UnknownFile
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStat
from wal.ulid import mint_ulid, minted_ms, wal_object_key

_Answer = TypeVar("_Answer")


class Crash(Exception):
    """The coordinator dies here; what was done so far stays done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What a coordinator has in `files`."""

    id: int
    known: KnownFile
    owner_ids: tuple[int, ...] = ()
    is_live: bool = False
    drained_ms: int = 0


class LedgerCoordinator:
    """One coordinator. Every operation is durable and applied when it returns."""

    def __init__(self, world: "FileWorld", coordinator_id: int) -> None:
        self._world = world
        self._image = CommittedImage(producers_max=1, coordinator_id=coordinator_id)
        self._view = SpeculativeView(self._image)
        self._next_id = 0
        self._image.began_ms = 0
        self.clock = ManualClock()
        self.rows: dict[ObjectKey, LedgerRow] = {}

    def _perform(
        self, keys: Sequence[ObjectKey], decide: Callable[[SpeculativeView], Decision[_Answer]]
    ) -> _Answer:
        view = self._view
        view.start_look_up()
        view.finish_look_up({key: self.rows[key].known for key in keys if key in self.rows}, {})
        view.group += 1
        decision = decide(view)
        for record in decision.records:
            self._apply(record)
        view.retire(view.group)
        return decision.answer

    def _apply(self, record: MetadataRecord) -> None:
        self._next_id += 1
        now_ms = self.clock.now_ms()
        if isinstance(record, FileCommittedRecord):
            before = self.rows.get(record.object_key)
            assert before is None or before.known.standing is FileStanding.HANDED_OVER
            decided = self._view.file(record.object_key)
            assert decided is not None
            is_owner = before is not None or owns_first(
                record.owner_ids, self._image.coordinator_id
            )
            self.rows[record.object_key] = LedgerRow(
                id=self._next_id,
                known=KnownFile(record.request_digest, decided.answer, is_owner=is_owner),
                owner_ids=tuple(record.owner_ids),
                is_live=True,
            )
            self._world.was_committed(record.object_key)
        elif isinstance(record, FileHandedOverRecord):
            row = self.rows.get(record.object_key)
            if row is None:
                row = LedgerRow(
                    id=self._next_id,
                    known=KnownFile(b"", b"", FileStanding.HANDED_OVER),
                    owner_ids=tuple(record.owner_ids),
                    drained_ms=now_ms,
                )
            elif row.known.standing is FileStanding.TOMBSTONED:
                sealed = row.known._replace(standing=FileStanding.SEALED)
                row = replace(row, known=sealed, owner_ids=tuple(record.owner_ids))
            self.rows[record.object_key] = replace(row, known=row.known._replace(is_owner=True))
        elif isinstance(record, FilesTombstonedRecord):
            for key in record.object_keys:
                row = self.rows.get(key)
                if row is None:
                    tombstone = KnownFile(b"", b"", FileStanding.TOMBSTONED)
                    self.rows[key] = LedgerRow(id=self._next_id, known=tombstone, drained_ms=now_ms)
                else:
                    assert row.known.standing is FileStanding.HANDED_OVER
                    sealed = row.known._replace(standing=FileStanding.SEALED)
                    self.rows[key] = replace(row, known=sealed)
        else:
            assert isinstance(record, FilesDeletedRecord)
            for key in record.object_keys:
                assert not self.rows.pop(key).is_live, f"{key} is live and was forgotten"
                self._image.forgotten_until_ms = max(self._image.forgotten_until_ms, minted_ms(key))

    # -- what brokers do

    def commit(self, key: ObjectKey, owner_ids: Sequence[int]) -> None:
        """Raises ObjectExpired."""
        request = ops.CommitFile(
            object_key=key,
            file_size_bytes=1,
            uploader_broker_id=0,
            batches=(),
            owner_ids=tuple(owner_ids),
        )
        commit = check_commit(request, self._world.settings)
        now_ms = self.clock.now_ms()
        self._perform(
            [key],
            lambda view: decide_commit(
                view,
                commit,
                now_ms=now_ms,
                wall_ms=now_ms,
                steady_ms=now_ms,
                settings=self._world.settings,
            ),
        )

    def drain(self, key: ObjectKey) -> None:
        self.rows[key] = replace(self.rows[key], is_live=False, drained_ms=self.clock.now_ms())

    # -- what workers and other coordinators do

    async def deletable_files(
        self, *, before_ms: int, after: tuple[int, int], limit: int, is_owner: bool
    ) -> Sequence[tuple[tuple[int, int], DeletableFile]]:
        found = sorted(
            ((row.drained_ms, row.id), key)
            for key, row in self.rows.items()
            if not row.is_live
            and row.known.is_owner == is_owner
            and row.drained_ms < before_ms
            and (row.drained_ms, row.id) > after
        )
        return [(position, self._deletable(key, self.rows[key])) for position, key in found[:limit]]

    @staticmethod
    def _deletable(key: ObjectKey, row: LedgerRow) -> DeletableFile:
        standing = row.known.standing
        is_given_up = standing in (FileStanding.SEALED, FileStanding.TOMBSTONED)
        return DeletableFile(
            object_key=key,
            object_format=ops.TOMBSTONE if is_given_up else ops.WRITE_AHEAD_MULTI_SEGMENT,
            deletable_since_ms=row.drained_ms,
            is_owner=row.known.is_owner,
            owner_ids=row.owner_ids,
            object_bytes=1,
            standing=standing,
        )

    async def hand_over_files(
        self, files: Sequence[ops.HandedFile]
    ) -> Sequence[DisklessError | None]:
        keys = [file.object_key for file in files]
        return self._perform(keys, lambda view: decide_hand_over(view, files))

    async def tombstone_files(self, keys: Sequence[ObjectKey]) -> Sequence[ops.Tombstone]:
        return self._perform(keys, lambda view: decide_tombstone(view, keys))

    async def seal_files(self, keys: Sequence[ObjectKey]) -> None:
        self._perform(keys, lambda view: decide_seal(view, keys))

    async def forget_files(self, keys: Sequence[ObjectKey], *, tombstones: bool = False) -> None:
        self._perform(keys, lambda view: decide_forget(view, keys, tombstones=tombstones))

    def describe(self, key: ObjectKey) -> ops.DescribedFile:
        row = self.rows.get(key)
        if row is None or row.known.standing is FileStanding.TOMBSTONED:
            return ops.DescribedFile(error=UnknownFile(key))
        return ops.DescribedFile(has_live_batches=row.is_live)


class FileWorld:
    """Coordinators, a bucket, and brokers that upload and commit; also the `OtherCoordinators`.

    It fails the test when an object is deleted that somebody has live batches in, or committed
    after it was deleted.
    """

    def __init__(self, coordinators: int, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.rng = random.Random(0)
        self.broker_clock = ManualClock()
        self.store_clock = ManualClock()
        self.scan_clock = ManualClock()
        self.coordinators = [LedgerCoordinator(self, index) for index in range(coordinators)]
        self.store = WorldStore(self)
        self.script: list[tuple[int, Callable[[], Awaitable[None]]]] = []
        """What happens in between: after so many more awaits, this."""
        self.owners: dict[ObjectKey, tuple[int, ...]] = {}
        self.not_put: set[ObjectKey] = set()
        self.deleted: set[ObjectKey] = set()
        self.absent: set[int] = set()
        self.deletes_fail = 0

    @property
    def clocks(self) -> Sequence[ManualClock]:
        return [
            self.broker_clock,
            self.store_clock,
            self.scan_clock,
            *[coordinator.clock for coordinator in self.coordinators],
        ]

    def was_committed(self, key: ObjectKey) -> None:
        assert key not in self.deleted, f"{key} was deleted and is committed now"

    def live_keys(self) -> set[ObjectKey]:
        return {
            key
            for coordinator in self.coordinators
            for key, row in coordinator.rows.items()
            if row.is_live
        }

    async def between(self) -> None:
        """Other things happen while somebody waits."""
        if self.script:
            left, action = self.script[0]
            if left:
                self.script[0] = (left - 1, action)
            else:
                del self.script[0]
                await action()

    # -- actions

    async def mint(self, shard: int = 0) -> None:
        key = wal_object_key(f"{mint_ulid(self.broker_clock, self.rng)[:-2]}0{shard}")
        count = len(self.coordinators)
        self.owners[key] = tuple(self.rng.sample(range(count), self.rng.randint(1, count)))
        self.not_put.add(key)

    async def upload(self) -> None:
        """An upload lands; also one whose object was deleted in the meantime."""
        if waiting := sorted(self.not_put | (self.deleted if self.rng.random() < 0.2 else set())):
            key = self.rng.choice(waiting)
            await MemoryStore.put(self.store, key, BytesBody(b"x"))
            self.not_put.discard(key)

    def _some_commit(self) -> tuple[LedgerCoordinator, ObjectKey] | None:
        """Usually one that has not been made yet."""
        commits = [
            (self.coordinators[owner], key)
            for key, owners in self.owners.items()
            for owner in owners
            if key not in self.not_put
        ]
        missing = [
            (coordinator, key)
            for coordinator, key in commits
            if key not in coordinator.rows
            or coordinator.rows[key].known.standing is not FileStanding.COMMITTED
        ]
        among = missing if missing and self.rng.random() < 0.9 else commits
        return self.rng.choice(among) if among else None

    def _owner_list(self, key: ObjectKey) -> tuple[int, ...]:
        """Each commit of a key may name coordinators that it has no batches for any more."""
        others = {*range(len(self.coordinators))} - {*self.owners[key]}
        named = self.rng.sample(sorted(others), self.rng.randint(0, len(others)))
        return permuted_owners(key, {*self.owners[key], *named})

    async def commit(self) -> None:
        """A commit of what was uploaded some time arrives at one of its coordinators."""
        if found := self._some_commit():
            coordinator, key = found
            with suppress(ObjectExpired):
                coordinator.commit(key, self._owner_list(key))

    async def commit_late(self) -> None:
        """A commit arrives at a coordinator whose clock is so far behind that it sees no age."""
        if found := self._some_commit():
            coordinator, key = found
            behind_s = (coordinator.clock.now_ms() - minted_ms(key)) / 1000
            coordinator.clock.step_wall(-behind_s)
            with suppress(ObjectExpired):
                coordinator.commit(key, self._owner_list(key))
            coordinator.clock.step_wall(behind_s)

    async def drain(self) -> None:
        if live := [
            (coordinator, key)
            for coordinator in self.coordinators
            for key, row in coordinator.rows.items()
            if row.is_live
        ]:
            coordinator, key = self.rng.choice(live)
            coordinator.drain(key)

    async def crash(self) -> None:
        raise Crash

    async def fail_deletes(self) -> None:
        self.deletes_fail += 1

    async def lose_a_coordinator(self) -> None:
        self.absent ^= {self.rng.randrange(len(self.coordinators))}

    async def jump(self) -> None:
        """Somebody's wall clock is set."""
        self.rng.choice(self.clocks).step_wall(self.rng.choice((-7_200, -120, 120, 7_200)))

    # -- as the other coordinators

    async def _reach(self, coordinator: int) -> LedgerCoordinator:
        await self.between()
        if coordinator in self.absent:
            raise ObjectStoreUnavailable("the coordinator is away")
        return self.coordinators[coordinator]

    async def describe_files(
        self, keys: Sequence[ObjectKey], *, coordinator: int | None = None
    ) -> Sequence[ops.DescribedFile]:
        assert coordinator is not None
        asked = await self._reach(coordinator)
        answer = [asked.describe(key) for key in keys]
        await self.between()
        return answer

    async def tombstone_files(
        self, coordinator: int, keys: Sequence[ObjectKey]
    ) -> Sequence[ops.Tombstone]:
        answer = await (await self._reach(coordinator)).tombstone_files(keys)
        await self.between()
        return answer

    async def hand_over_files(
        self, coordinator: int, files: Sequence[ops.HandedFile]
    ) -> Sequence[DisklessError | None]:
        answer = await (await self._reach(coordinator)).hand_over_files(files)
        await self.between()
        return answer


class WorldStore(MemoryStore):
    """The bucket, watched."""

    def __init__(self, world: FileWorld) -> None:
        super().__init__(clock=world.store_clock)
        self._world = world

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        await self._world.between()
        await super().put(key, body)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        await self._world.between()
        async for stat in super().list(prefix, start_after):
            yield stat

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        world = self._world
        await world.between()
        if world.deletes_fail:
            world.deletes_fail -= 1
            keys = keys[: world.rng.randint(0, len(keys))]
            if not keys:
                raise ObjectStoreUnavailable("503")
        for key in keys:
            assert key not in world.live_keys(), f"{key} is live and is deleted"
            if key in world.owners:
                world.deleted.add(key)
        gone = await super().delete(keys)
        await world.between()
        return gone
