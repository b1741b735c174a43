"""Takes snapshots of a metadata partition, keeps a few of them and prunes the log behind those.

Run by the leader of the partition, beside its coordinator, which it neither blocks nor is waited
for by. One round:

    copy      the SQLite state, at one position (metadata/state/state_file.py)
    upload    the copy, in parts                                       -> objects, no snapshot yet
    load      the parts from the store into another file, every byte, row and the state hash checked
    publish   the manifest                                             -> a snapshot
    keep      the newest `retained_max`; older ones and debris are deleted
    prune     the log below the *oldest* one kept, less one record

So when the newest snapshot turns out to be damaged, the one before and the log since then give the
same state. With a single snapshot (of several to be kept) nothing is pruned for the same reason.
The log keeps the last record that the oldest snapshot has applied: its CRC tells that the snapshot
belongs to this log.

When something fails:
- the store or the disk: the round is given up, and begun anew after a pause, for ever. What it left
  is deleted in the next round. What a dead process left, has no manifest and is deleted when it is
  DEBRIS_AGE_S older, by the store's clock, than the newest object there: another leader that was
  deposed may still be at work on it.
- the loaded snapshot is not what was uploaded: likewise.
- the copy itself is not sound: once, as above. Twice in a row it is the state that is damaged:
  CorruptState ends `run`; the next start finds the damage and rebuilds the state.
- a snapshot is ahead of the log: the log lost records that were durable. CorruptState, see
  metadata/replica/state_recovery.py.
- the process dies: at any point there are the snapshots there were, or one more, and the log behind
  the oldest of those that were there.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.log.log import MetadataLog
from metadata.replica.snapshot_format import SnapshotManifest, snapshot_name
from metadata.replica.snapshots import SnapshotStatus, SnapshotStore, SurveyedSnapshot
from metadata.replica.state_recovery import refuse_lost_tail
from metadata.state.schema import STATE_VERSION
from metadata.state.state import StateDatabase
from metadata.state.state_file import remove_database
from wal.clock import Clock, Sleep
from wal.errors import CorruptLog, CorruptState, DirectoryLost, DisklessError
from wal.failpoint import failpoint
from wal.settings import setting
from wal.ulid import mint_ulid

CHECK_INTERVAL_S: Final = 5.0
"""How often it is looked whether a snapshot is due."""
BACKOFF_MIN_S: Final = 1.0
BACKOFF_MAX_S: Final = 300.0
DEBRIS_AGE_S: Final = 3_600
"""How long an attempt of another process may go without progress before it is deleted."""
PRUNE_RECORDS: Final = 10_000
"""Metadata records pruned at a time."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """When snapshots of the metadata are taken, and how many are kept."""

    interval_ms: int = setting(
        "metadata.snapshot.interval.ms",
        3_600_000,
        minimum=1_000,
        why="a snapshot is taken when the last one is so old and the log has grown; lower: more "
        "uploads of the whole state; higher: a longer log, and a longer replay without local state",
    )
    log_records: int = setting(
        "metadata.snapshot.log.records",
        100_000,
        minimum=1,
        why="a snapshot is also taken when the log has grown by this many records",
    )
    log_bytes: int = setting(
        "metadata.snapshot.log.bytes",
        64 << 20,
        minimum=1 << 10,
        why="a snapshot is also taken when the log has grown by this many bytes; bounds what is "
        "replayed by a start without local state",
    )
    retained_max: int = setting(
        "metadata.snapshot.retained.max",
        3,
        minimum=1,
        maximum=100,
        why="snapshots kept, and the log behind the oldest of them; 1: nothing is left to start "
        "from when that one is damaged; more: more objects and a longer log",
    )


class SnapshotKeeper:
    """One background worker per metadata partition that this process leads."""

    def __init__(
        self,
        state: StateDatabase,
        log: MetadataLog,
        snapshots: SnapshotStore,
        *,
        settings: SnapshotSettings,
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
        is_leading: Callable[[], bool] = lambda: True,
        applied_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`state` is open, at most as far as `log`; copies of it are made beside its file.

        `applied_bytes` counts what is applied to the state, from wherever it likes: how far that
        moves is what `metadata.snapshot.log.bytes` bounds.
        """
        self._state = state
        self._log = log
        self._snapshots = snapshots
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._is_leading = is_leading
        self._newest: SnapshotManifest | None = None
        self._newest_taken_at = clock.monotonic()
        self._applied_bytes = applied_bytes
        self._newest_applied_bytes = applied_bytes()
        self._given_up: set[str] = set()
        self.taken = 0
        """Snapshots taken since the start, for the metrics."""
        self.failures = 0
        """Rounds given up."""

    @property
    def newest(self) -> SnapshotManifest | None:
        """The newest usable snapshot, as of the last round."""
        return self._newest

    async def run(self) -> None:
        """Take, keep and prune until cancelled. Raises: CorruptState, CorruptLog, DirectoryLost."""
        failures = unsound = 0
        must_maintain = True
        while True:
            try:
                if self._is_leading():
                    if must_maintain:
                        # What an earlier round, or process, left undone.
                        await self.maintain_once()
                        must_maintain = False
                    if self._is_due():
                        must_maintain = True
                        await self.take_once()
                        await self.maintain_once()
                        must_maintain = False
                failures = unsound = 0
            except (CorruptLog, DirectoryLost):
                raise
            except CorruptState as error:
                failures += 1
                unsound += 1
                if unsound > 1:
                    self._state.doubt()
                    raise
                _logger.error("metadata snapshot failed, trying once more: %s", error)
            except DisklessError as error:
                failures += 1
                unsound = 0
                _logger.warning("metadata snapshot failed, trying again later: %s", error)
            self.failures += failures > 0
            await self._sleep(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        if not failures:
            return CHECK_INTERVAL_S
        full_s = min(BACKOFF_MIN_S * 2.0 ** min(failures - 1, 16), BACKOFF_MAX_S)
        return self._rng.uniform(full_s / 2, full_s)

    def _is_due(self) -> bool:
        grown = self._log.end_offset - (0 if self._newest is None else self._newest.next_offset)
        if grown <= 0:
            return False
        age_s = self._clock.monotonic() - self._newest_taken_at
        return (
            age_s * 1000 >= self._settings.interval_ms
            or grown >= self._settings.log_records
            or self._applied_bytes() - self._newest_applied_bytes >= self._settings.log_bytes
        )

    # -- taking ---------------------------------------------------------------------------------

    async def take_once(self) -> SnapshotManifest | None:
        """Take one snapshot of the state as it is; None when the newest one is as far already.

        Raises: CorruptState (the copy is not sound), CorruptObject (the store gave back something
        else), StorageFailed, and what the store raises. Then there is no new snapshot.
        """
        copy = self._beside("copy")
        applied_bytes = self._applied_bytes()
        try:
            applied = await self._state.backup(copy)
            failpoint("snapshot.after_copy")
            if applied is None:
                return None
            if self._newest is not None and applied.next_offset <= self._newest.next_offset:
                return None
            name = snapshot_name(applied.next_offset, mint_ulid(self._clock, self._rng))
            self._given_up.add(name)
            body = await self._snapshots.upload(copy, name)
        finally:
            await asyncio.to_thread(remove_database, copy)
        failpoint("snapshot.after_upload")
        manifest = SnapshotManifest(
            cluster_id=self._snapshots.cluster_id,
            partition=self._snapshots.partition,
            name=name,
            state_version=STATE_VERSION,
            applied=applied,
            taken_at_ms=self._clock.now_ms(),
            file_sha256=body.file_sha256,
            parts=body.parts,
        )
        await self._verify(manifest)
        failpoint("snapshot.before_manifest")
        await self._snapshots.publish(manifest)
        failpoint("snapshot.after_manifest")
        self._given_up.discard(name)
        self._took(manifest)
        self._newest_applied_bytes = applied_bytes
        self.taken += 1
        _logger.info("metadata snapshot %s: %d bytes", name, manifest.stored_bytes)
        return manifest

    async def _verify(self, manifest: SnapshotManifest) -> None:
        loaded = self._beside("check")
        try:
            await self._snapshots.download(manifest, loaded)
            await self._snapshots.verify(manifest, loaded)
        finally:
            await asyncio.to_thread(remove_database, loaded)

    def _took(self, manifest: SnapshotManifest) -> None:
        self._newest = manifest
        age_ms = self._clock.now_ms() - manifest.taken_at_ms
        age_ms = min(max(age_ms, 0), self._settings.interval_ms)
        self._newest_taken_at = self._clock.monotonic() - age_ms / 1000

    def _beside(self, suffix: str) -> Path:
        return self._state.path.with_name(f"{self._state.path.name}.{suffix}")

    # -- keeping --------------------------------------------------------------------------------

    async def maintain_once(self) -> None:
        """Delete snapshots beyond those to be kept, and debris; prune the log behind the rest.

        Raises: CorruptState (a snapshot is ahead of the log), what the store or the log raises.
        """
        surveyed = [
            await self._snapshots.survey(stored)
            for stored in await refuse_lost_tail(self._log, self._snapshots)
        ]
        kept = [
            found.manifest
            for found in surveyed
            if found.status is SnapshotStatus.USABLE
            and found.manifest is not None
            # One that the log does not reach back to is of no use to anybody.
            and found.stored.next_offset >= self._log.start_offset
        ][: self._settings.retained_max]
        if kept and (self._newest is None or self._newest.name != kept[0].name):
            self._took(kept[0])
        for found in self._superfluous(surveyed, kept):
            _logger.info("deleting metadata snapshot %s, %s", found.stored.name, found.status.value)
            await self._snapshots.delete(found.stored)
            failpoint("snapshot.after_delete")
        self._given_up.clear()
        if len(kept) >= min(2, self._settings.retained_max):
            await self._prune(kept[-1].next_offset - 1)

    def _superfluous(
        self, surveyed: Sequence[SurveyedSnapshot], kept: Sequence[SnapshotManifest]
    ) -> list[SurveyedSnapshot]:
        """What to delete; the first and so the newest of `kept` is not among it.

        docs/formats.md has this as a table.
        """
        store_now_ms = max((found.stored.last_modified_ms for found in surveyed), default=0)
        kept_names = {manifest.name for manifest in kept}
        is_complete = len(kept) == self._settings.retained_max
        superfluous = []
        for found in surveyed:
            stored = found.stored
            if found.status is SnapshotStatus.FOREIGN or stored.name in kept_names:
                continue
            if found.status in (SnapshotStatus.UNFINISHED, SnapshotStatus.DAMAGED):
                age_ms = store_now_ms - stored.last_modified_ms
                if stored.name in self._given_up or age_ms >= DEBRIS_AGE_S * 1000:
                    superfluous.append(found)
            elif is_complete and stored.name < kept[-1].name:
                superfluous.append(found)
        return superfluous

    async def _prune(self, before_offset: int) -> None:
        position = self._log.start_offset
        if position >= before_offset:
            return
        failpoint("prune.before")
        while position < before_offset:
            position = min(position + PRUNE_RECORDS, before_offset)
            await self._log.prune(position)
            failpoint("prune.after_some")
