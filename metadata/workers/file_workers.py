"""Deletes and hands over the files in which one coordinator has no live batches any more.

An object becomes deletable when its last live batch goes (rolled into a segment, deleted with its
records or its topic), or at once when its commit left no batch alive. From then on, and after a
*grace period* for readers that were given an extent just before, three workers move it along:

- one hands it over to the next coordinator of its owner list, until that has said that it took it;
- one deletes it from the store, where this coordinator is the last of that list, and forgets what
  is dealt with;
- one takes over what an earlier owner should have handed over and never heard of: its commit there
  did not happen. All earlier owners refuse the key for ever before this coordinator acts for them.

What comes next for a file is decided by `metadata.rules.files.plan_file`. A row stays until its key
is *too old to be committed*: a commit that is sent again must get its first answer for so long.
Only then is the object deleted once more (a recovered chunk may have uploaded it again meanwhile)
and forgotten through the metadata log. Segments need no such care: their keys belong to plans. But
one whose topic is a table waits until the table cannot name it (metadata/rules/tables.py).

Passes are bounded and go round: an object that the store refuses to delete and an owner that does
not answer neither stop the others nor are given up. Only keys that the store confirmed are
forgotten. Before anything is deleted, what it notes of other objects is kept
(`metadata.workers.note_keeper`). Nothing is lost by a crash at any point, since every step may be
repeated: what was not forgotten is deleted or handed over again, which changes nothing.

One per coordinator, run by its leader and ended with its leadership; the next leader finds the same
rows. Retries for ever, backing off while the store or another coordinator is away. Source:
KIP-1164, "WAL file management"; docs/file-lifecycle.md.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import PARQUET_SEGMENT, WRITE_AHEAD_MULTI_SEGMENT, HandedFile
from metadata.rules.files import FilePlan, FileStep, owners_before, plan_file
from metadata.rules.tables import GIVEN_UP, Hold
from metadata.state.queries.file_queries import DeletableFile
from metadata.workers.file_agreement import OtherCoordinators, give_up_files
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.periodic import repeat
from wal.clock import Clock, Sleep
from wal.coordinates import ObjectKey
from wal.errors import DisklessError
from wal.failpoint import failpoint
from wal.steady_clock import SteadyClock
from wal.stores.object_store import ObjectStore
from wal.stores.retry import backed_off_s

REMEMBERED_MAX: Final = 100_000
"""Objects known to be deleted, or handed over, and not yet forgotten; beyond it the step is
repeated every round."""

HANDED_PER_CALL_MAX: Final = 1_000

BACKOFF_MAX_S: Final = 300.0

_GIVEN_UP_REASONS: Final = {
    Hold.OVERDUE: "no commit of their table came within table.owner.max.ms, see the tiering job",
    Hold.SWITCHED_OFF: "the table of their topic is switched off",
    Hold.TOPIC_DELETED: "their topic is deleted",
}

_START: Final = (-1, -1)

_logger = logging.getLogger(__name__)


class FileAccounts(Protocol):
    """What the workers need of their own coordinator."""

    async def deletable_files(
        self, *, before_ms: int, after: tuple[int, int], limit: int, is_owner: bool
    ) -> Sequence[tuple[tuple[int, int], DeletableFile]]: ...

    async def hand_over_files(
        self, files: Sequence[HandedFile]
    ) -> Sequence[DisklessError | None]: ...

    async def seal_files(self, keys: Sequence[ObjectKey]) -> None: ...

    def hold_of(self, file: DeletableFile, now_ms: int) -> Hold: ...

    async def forget_files(
        self, keys: Sequence[ObjectKey], *, tombstones: bool = False
    ) -> None: ...


@dataclass(slots=True)
class _Absent:
    """A coordinator that did not answer."""

    failures: int
    ask_again_at: float
    """By the monotonic clock."""


class FileWorkers:
    """All background work of one coordinator on its files."""

    def __init__(
        self,
        coordinator: FileAccounts,
        store: ObjectStore,
        others: OtherCoordinators,
        *,
        coordinator_id: int,
        settings: CoordinatorSettings,
        clock: Clock,
        rng: random.Random,
        notes: NoteKeeper,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`notes` keeps what objects note of others before these workers delete them."""
        self._coordinator = coordinator
        self._store = store
        self._notes = notes
        self._others = others
        self._coordinator_id = coordinator_id
        self._settings = settings
        self._clock = SteadyClock(clock)
        self._rng = rng
        self._sleep = sleep
        self._deleting = _Round(coordinator, settings, is_owner=True)
        self._handing = _Round(coordinator, settings, is_owner=True)
        self._waiting = _Round(coordinator, settings, is_owner=False)
        self._deleted: set[ObjectKey] = set()
        self._handed: set[ObjectKey] = set()
        self._absent: dict[int, _Absent] = {}
        self._given_up: dict[ObjectKey, Hold] = {}
        self._last_success = clock.monotonic()
        # What follows is for the metrics, and counts from the start of these workers.
        self.objects_deleted = 0
        """Deletions that the store confirmed."""
        self.given_up_deleted = Counter(dict.fromkeys(GIVEN_UP, 0))
        """Those of segments that a table may still name, by why they went."""
        self.handed_over = 0
        """Files that the next owner took."""
        self.taken_over = 0
        """Files of earlier owners that never heard of them."""
        self.tombstoned = 0
        """Files that were handed over to us and never committed here, sealed before their end."""
        self.forgotten = 0

    @property
    def last_success_age_s(self) -> float:
        """Seconds since any of the workers got through a pass."""
        return self._clock.monotonic() - self._last_success

    async def run(self) -> None:
        """Work until cancelled.

        Raises CorruptState when a row is damaged: objects are deleted by what stands there.
        """
        async with asyncio.TaskGroup() as tasks:
            for step in (self.delete_once, self.hand_over_once, self.take_over_once):
                tasks.create_task(self._repeat(step), name=f"files-{step.__name__}")

    async def _repeat(self, step: Callable[[], Awaitable[bool]]) -> None:
        async def pass_once() -> None:
            while await step():
                pass
            self._last_success = self._clock.monotonic()

        await repeat(
            pass_once,
            interval_s=self._settings.file_cleaner_interval_ms / 1000,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "%s failed, trying again later: %s", step.__name__),
            rng=self._rng,
        )

    def _plan(self, file: DeletableFile) -> FilePlan:
        now_ms = self._clock.now_ms()
        is_segment = file.object_format == PARQUET_SEGMENT
        hold = self._coordinator.hold_of(file, now_ms) if is_segment else Hold.NONE
        if hold in GIVEN_UP:
            self._given_up[file.object_key] = hold
        return plan_file(
            file,
            coordinator_id=self._coordinator_id,
            now_ms=now_ms,
            settings=self._settings,
            hold=hold,
        )

    # -- deleting and forgetting ----------------------------------------------------------------

    async def delete_once(self) -> bool:
        """One bounded pass from where the last one ended; True when the round is not over.

        Raises: ObjectStoreUnavailable, CommitFailed, NotCoordinator, CommitOutcomeUnknown.
        """
        doomed: dict[ObjectKey, int | None] = {}
        forgettable: set[ObjectKey] = set()
        unsealed: list[ObjectKey] = []
        tombstones: list[ObjectKey] = []
        for file in await self._deleting.page(self._clock.now_ms()):
            plan = self._plan(file)
            key = file.object_key
            match plan.step:
                case FileStep.DELETE if plan.is_final or key not in self._deleted:
                    doomed[key] = file.object_bytes
                    if plan.is_final:
                        forgettable.add(key)
                case FileStep.SEAL:
                    unsealed.append(key)
                case FileStep.FORGET_TOMBSTONE:
                    tombstones.append(key)
        if unsealed:
            # What comes next is up to a later round, which reads the rows as they are then.
            await self._coordinator.seal_files(unsealed)
            self.tombstoned += len(unsealed)
            failpoint("seal.after_log")
        if doomed:
            await self._delete(doomed, forgettable)
        if tombstones:
            await self._coordinator.forget_files(tombstones, tombstones=True)
            self.forgotten += len(tombstones)
        return self._deleting.is_under_way

    async def _delete(
        self, doomed: Mapping[ObjectKey, int | None], forgettable: set[ObjectKey]
    ) -> None:
        given_up = {key: hold for key, hold in self._given_up.items() if key in doomed}
        self._given_up.clear()
        for why, reason in _GIVEN_UP_REASONS.items():
            if keys := [key for key, hold in given_up.items() if hold is why]:
                _logger.warning(
                    "%d segments are deleted although snapshots of tables may name them: %s, for "
                    "instance %s",
                    len(keys),
                    reason,
                    min(keys),
                )
        await self._notes.keep(doomed)
        failpoint("delete.before_object")
        confirmed = await self._store.delete(list(doomed))
        failpoint("delete.after_object")
        self._notes.were_deleted(confirmed)
        self.objects_deleted += sum(key not in self._deleted for key in confirmed)
        self.given_up_deleted.update(given_up[key] for key in confirmed if key in given_up)
        _remember(self._deleted, [key for key in confirmed if key not in forgettable])
        forgotten = [key for key in confirmed if key in forgettable]
        if forgotten:
            await self._forget(forgotten)
            self._deleted.difference_update(forgotten)

    async def _forget(self, keys: Sequence[ObjectKey]) -> None:
        await self._coordinator.forget_files(keys)
        self.forgotten += len(keys)
        failpoint("forget.after_log")

    # -- handing over ---------------------------------------------------------------------------

    async def hand_over_once(self) -> bool:
        """One bounded pass, as `delete_once`; an owner that does not answer is left for later.

        Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown.
        """
        due: dict[int, list[DeletableFile]] = {}
        forgettable: set[ObjectKey] = set()
        taken: list[ObjectKey] = []
        for file in await self._handing.page(self._clock.now_ms()):
            plan = self._plan(file)
            if plan.next_owner is None:
                continue
            if plan.is_final:
                forgettable.add(file.object_key)
            if file.object_key in self._handed:
                taken.append(file.object_key)
            else:
                due.setdefault(plan.next_owner, []).append(file)
        async with asyncio.TaskGroup() as tasks:
            sent = [
                tasks.create_task(self._hand_over(owner, files)) for owner, files in due.items()
            ]
        for sending in sent:
            acknowledged = sending.result()
            self.handed_over += len(acknowledged)
            _remember(self._handed, [key for key in acknowledged if key not in forgettable])
            taken += acknowledged
        if forgotten := [key for key in taken if key in forgettable]:
            await self._forget(forgotten)
            self._handed.difference_update(forgotten)
        return self._handing.is_under_way

    async def _hand_over(self, owner: int, files: Sequence[DeletableFile]) -> Sequence[ObjectKey]:
        """The keys of those that `owner` has taken; others are tried again in later rounds."""
        absent = self._absent.get(owner)
        if absent is not None and self._clock.monotonic() < absent.ask_again_at:
            return ()
        taken: list[ObjectKey] = []
        for some in _chunks(files, HANDED_PER_CALL_MAX):
            failpoint("handover.before_send")
            try:
                answers = await self._others.hand_over_files(
                    owner, [_handed(file) for file in some]
                )
            except DisklessError as error:
                self._was_absent(owner, error)
                return taken
            failpoint("handover.after_ack")
            for file, refused in zip(some, answers, strict=True):
                if refused is None:
                    taken.append(file.object_key)
                else:
                    _logger.warning(
                        "coordinator %d did not take %s: %s", owner, file.object_key, refused
                    )
        self._absent.pop(owner, None)
        return taken

    def _was_absent(self, owner: int, error: DisklessError) -> None:
        before = self._absent.get(owner)
        failures = 1 if before is None else before.failures + 1
        interval_s = self._settings.file_cleaner_interval_ms / 1000
        pause_s = backed_off_s(interval_s, failures, BACKOFF_MAX_S, self._rng)
        self._absent[owner] = _Absent(failures, self._clock.monotonic() + pause_s)
        _logger.warning(
            "coordinator %d does not take files, again in %.0f s: %s", owner, pause_s, error
        )

    # -- taking over ----------------------------------------------------------------------------

    async def take_over_once(self) -> bool:
        """One bounded pass over files that wait for an earlier owner, however many there are.

        Usually that owner still has live batches in them, so this goes slowly: one page each time.
        Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown.
        """
        files = {
            file.object_key: file
            for file in await self._waiting.page(self._clock.now_ms())
            if self._plan(file).step is FileStep.TAKE_OVER
        }
        if files:
            agreement = await give_up_files(
                self._others,
                {
                    key: owners_before(file.owner_ids, self._coordinator_id)
                    for key, file in files.items()
                },
            )
            failpoint("takeover.after_tombstones")
            if agreement.given_up:
                # From here on it is a file that was handed over to us, if not by its owner.
                handed = [_handed(files[key]) for key in agreement.given_up]
                answers = await self._coordinator.hand_over_files(handed)
                self.taken_over += sum(refused is None for refused in answers)
                failpoint("takeover.after_log")
        return False


class _Round:
    """Goes through the files without live batches, page by page, and starts anew at the end."""

    def __init__(
        self, coordinator: FileAccounts, settings: CoordinatorSettings, *, is_owner: bool
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._is_owner = is_owner
        self._position = _START

    @property
    def is_under_way(self) -> bool:
        """Whether the last page was not the last one of its round."""
        return self._position != _START

    async def page(self, now_ms: int) -> Sequence[DeletableFile]:
        """The next ones whose grace is over; whatever happens to them, the page is not repeated."""
        limit = self._settings.file_cleaner_batch_max
        found = await self._coordinator.deletable_files(
            before_ms=now_ms - self._settings.file_delete_grace_ms,
            after=self._position,
            limit=limit,
            is_owner=self._is_owner,
        )
        self._position = _START if len(found) < limit else found[-1][0]
        return [file for _, file in found]


def _handed(file: DeletableFile) -> HandedFile:
    return HandedFile(
        object_key=file.object_key,
        # Of a sealed file the row says tombstone.
        object_format=WRITE_AHEAD_MULTI_SEGMENT,
        file_size_bytes=file.object_bytes,
        owner_ids=file.owner_ids,
    )


def _remember(known: set[ObjectKey], keys: Sequence[ObjectKey]) -> None:
    known.update(keys[: max(REMEMBERED_MAX - len(known), 0)])


def _chunks(files: Sequence[DeletableFile], size: int) -> Iterator[Sequence[DeletableFile]]:
    for start in range(0, len(files), size):
        yield files[start : start + size]
