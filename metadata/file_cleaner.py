"""Deletes objects that nothing references any more, and then forgets them.

An object becomes deletable when its last live batch goes (rolled into a segment, deleted with its
records or its topic), or at once when its commit left no batch alive. Two things hold it back:

- a *grace period*: a reader may have been given an extent just before. After it, the object is
  deleted from the store.
- the *commit age*: a commit that is sent again must get its first answer as long as its key could
  still be committed. So a WAL object's row stays, with that answer, until the key is too old. Only
  then is the object deleted once more (a recovered chunk may have uploaded it again meanwhile) and
  forgotten through the metadata log. Segments need no such care: their keys belong to plans.

Passes are bounded and go round: one object that the store refuses to delete neither stops the
others nor is given up. Only keys that the store confirmed are forgotten. Nothing is lost by a crash
at any point: what was not forgotten is deleted again, which is harmless.

Run by the broker beside its coordinator. Retries for ever, backing off while the store is away.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import PARQUET_SEGMENT
from metadata.queries import DeletableFile
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import OutcomeUnknown, Retriable
from wal.object_store import ObjectStore
from wal.ulid import minted_ms

DELETED_REMEMBERED_MAX: Final = 100_000
"""Objects known to be deleted but not forgotten; beyond it they are deleted again every round."""

BACKOFF_MAX_S: Final = 300.0

_START: Final = (-1, -1)

_logger = logging.getLogger(__name__)


class FileAccounts(Protocol):
    """What the cleaner needs of a coordinator."""

    async def deletable_files(
        self, *, before_ms: int, after: tuple[int, int], limit: int
    ) -> Sequence[tuple[tuple[int, int], DeletableFile]]: ...

    async def forget_files(self, keys: Sequence[ObjectKey]) -> None: ...


class Sleep(Protocol):
    """`asyncio.sleep`, or a simulation's."""

    async def __call__(self, delay: float, /) -> None: ...


class FileCleaner:
    """One background worker per coordinator."""

    def __init__(
        self,
        coordinator: FileAccounts,
        store: ObjectStore,
        *,
        settings: CoordinatorSettings,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._position = _START
        self._deleted: set[ObjectKey] = set()
        self.objects_deleted = 0
        """Confirmed deletions since the start, for the metrics."""

    async def run(self) -> None:
        """Clean until cancelled."""
        interval_s = self._settings.file_cleaner_interval_ms / 1000
        failures = 0
        while True:
            await self._sleep(min(interval_s * 2**failures, max(BACKOFF_MAX_S, interval_s)))
            try:
                while await self.clean_once() == self._settings.file_cleaner_batch_max:
                    pass
                failures = 0
            except (Retriable, OutcomeUnknown) as error:
                failures = min(failures + 1, 16)
                _logger.warning("cleaning files failed, trying again later: %s", error)

    async def clean_once(self) -> int:
        """One bounded pass from where the last one ended; returns how many files it looked at.

        Raises: ObjectStoreUnavailable, CommitFailed, NotCoordinator, CommitOutcomeUnknown.
        """
        now_ms = self._clock.now_ms()
        found = await self._coordinator.deletable_files(
            before_ms=now_ms - self._settings.file_delete_grace_ms,
            after=self._position,
            limit=self._settings.file_cleaner_batch_max,
        )
        is_last = len(found) < self._settings.file_cleaner_batch_max
        self._position = _START if is_last else found[-1][0]
        forgettable = {file.object_key for _, file in found if self._may_be_forgotten(file, now_ms)}
        keys = [
            file.object_key
            for _, file in found
            if file.object_key in forgettable or file.object_key not in self._deleted
        ]
        if keys:
            confirmed = await self._store.delete(keys)
            self.objects_deleted += sum(key not in self._deleted for key in confirmed)
            forgotten = [key for key in confirmed if key in forgettable]
            room = DELETED_REMEMBERED_MAX - len(self._deleted)
            self._deleted.update([key for key in confirmed if key not in forgettable][:room])
            if forgotten:
                await self._coordinator.forget_files(forgotten)
                self._deleted.difference_update(forgotten)
        return len(found)

    def _may_be_forgotten(self, file: DeletableFile, now_ms: int) -> bool:
        if file.object_format == PARQUET_SEGMENT:
            return True
        return now_ms - minted_ms(file.object_key) > self._settings.max_commit_age_ms
