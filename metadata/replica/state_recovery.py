"""Opens the SQLite state: trusts it only when everything fits, else makes it anew.

SQLite is a cache (P8). What may become of it, in this order:

1. The local file, when it is sound and the log has the very record that it applied last; then the
   log behind it. A file that is damaged, of another version, or of another log is set aside, never
   repaired. One that the log does not reach back to any more is replaced.
2. The newest snapshot in the object store that the log reaches back to, loaded under another name,
   checked, synced and renamed; then the log behind it. One that is damaged or of another state
   version is passed over for the one before.
3. The log from its beginning, when that is still there.

All three give the same state, because applying records is deterministic. Leaders and followers
start alike.

What is wrong with the log itself is not healed here; it is CorruptState or CorruptLog, and the
process must not serve this metadata partition:

- the log begins behind everything usable: there is nothing to continue from;
- a snapshot of this cluster, or a sound local file, is *ahead* of the log. Both hold only what was
  durable in the log, so the log lost its tail: its last record was damaged and taken for one that
  was torn, its directory was restored from an old copy, or another one was configured. Its offsets
  were given out and acknowledged; to go on would give them out twice.

Looking for such snapshots costs every start one listing. It is left out when the store is away and
the local file is sound; the keeper of snapshots looks again before it prunes anything.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from sqlalchemy import Connection

from metadata.apply.apply import RecordApplier
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.read_ahead import read_ahead
from metadata.replica.snapshot_format import SnapshotManifest
from metadata.replica.snapshots import SnapshotStatus, SnapshotStore, StoredSnapshot
from metadata.state.image import Changes, CommittedImage
from metadata.state.state import Applied, StateDatabase, load_image, read_applied, read_copy
from metadata.state.state_check import checked_position
from metadata.state.state_file import remove_database
from wal import errors
from wal.crc import crc32c
from wal.failpoint import failpoint

REPLAY_BYTES: Final = 4 << 20
"""Metadata log read, and applied in one transaction, at a time."""

OPEN_ATTEMPTS_MAX: Final = 5
"""How often the log may be pruned past where a replay is."""

LOOKS_FOR_A_SNAPSHOT: Final = 2
"""How often the snapshots are listed before there is none to start from."""

LISTING_TIMEOUT_S: Final = 5.0
"""How long a start with a sound local state waits to see whether a snapshot is ahead of the log."""

_GIVEN_OUT_TWICE: Final = (
    "the log lost records that were acknowledged, and to go on would give their offsets out twice"
)

_logger = logging.getLogger(__name__)


class _LostTail(errors.CorruptState):
    """A state holds records that its log has not got any more."""


async def open_state(
    state: StateDatabase,
    log: MetadataLog,
    settings: CoordinatorSettings,
    snapshots: SnapshotStore | None = None,
    *,
    coordinator_id: int = 0,
) -> CommittedImage:
    """Open `state` and bring it to the end of `log`; returns the image that goes with it.

    Raises: CorruptState (the log contradicts itself, begins behind what a rebuild needs, or lost
    its tail), CorruptLog, StorageFailed, ObjectStoreUnavailable (a snapshot is needed).
    """
    opening = _Opening(state, log, settings, snapshots, coordinator_id)
    for _ in range(OPEN_ATTEMPTS_MAX):
        try:
            image = await opening.from_local_file()
            if image is None:
                image = await opening.rebuilt()
            elif snapshots is not None:
                await _look_for_a_lost_tail(log, snapshots)
            state.trust()
            return image
        except errors.OutOfBounds as error:
            # The leader pruned the log meanwhile; behind a snapshot that is newer than ours.
            _logger.info("metadata log pruned during the replay: %s", error)
            await log.refresh()
    raise errors.StorageFailed("the metadata log is pruned faster than it can be replayed")


class _Opening:
    """One attempt at each of the three ways."""

    def __init__(
        self,
        state: StateDatabase,
        log: MetadataLog,
        settings: CoordinatorSettings,
        snapshots: SnapshotStore | None,
        coordinator_id: int,
    ) -> None:
        self._state = state
        self._log = log
        self._settings = settings
        self._snapshots = snapshots
        self._coordinator_id = coordinator_id

    def _empty_image(self) -> CommittedImage:
        return CommittedImage(
            producers_max=self._settings.producer_cache_max, coordinator_id=self._coordinator_id
        )

    async def from_local_file(self) -> CommittedImage | None:
        """Start from the local file; None when there is none (any more)."""
        state, log = self._state, self._log
        if not state.path.exists():
            return None
        image = self._empty_image()
        try:
            applied = await state.while_closed(checked_position)
            await state.open_or_create()
            await state.read(partial(load_image, image=image))
        except (errors.CorruptState, errors.StorageFailed) as error:
            await self._set_aside(error)
            return None
        if applied is None or applied.next_offset <= log.start_offset:
            return None  # it stays until there is something to put in its place
        try:
            await _check_position(applied, log)
            await replay(state, log, image)
        except _LostTail as error:
            raise errors.CorruptState(
                f"{error}: {_GIVEN_OUT_TWICE}. Bring the log back, or let `diskless rebuild` make "
                f"a new one from the objects in the bucket. Removing {state.path} gives the lost "
                "records up"
            ) from error
        except errors.CorruptState as error:
            await self._set_aside(error)
            return None
        return image

    async def _set_aside(self, error: Exception) -> None:
        aside = await self._state.set_aside()
        _logger.warning("coordinator state set aside as %s: %s", aside, error)

    async def rebuilt(self) -> CommittedImage:
        """Start from the newest snapshot that is good for it, else from the log's beginning."""
        passed_over: list[str] = []
        for _ in range(LOOKS_FOR_A_SNAPSHOT):
            passed_over.clear()
            if self._snapshots is not None:
                try:
                    image = await self._from_a_snapshot(self._snapshots, passed_over)
                except errors.ObjectStoreUnavailable as error:
                    if self._log.start_offset > 0:
                        raise
                    _logger.warning("replaying the whole metadata log, no snapshot: %s", error)
                    image = None
                if image is not None:
                    return image
            if self._log.start_offset == 0:
                break
            # What was deleted during the listing is gone, and what was put may not show in it: the
            # keeper may have gone on. One more, begun after this, shows what there is.
            await self._log.refresh()
        if self._log.start_offset > 0:
            raise errors.CorruptState(
                f"the metadata log begins at {self._log.start_offset}, and there is no state to "
                f"start from: no local one, {'; '.join(passed_over) or 'no snapshot'}. "
                "`diskless rebuild` makes a new metadata log from the objects in the bucket"
            )
        await self._state.discard()  # an empty one, or a snapshot that did not fit the log
        image = self._empty_image()
        await self._state.open_or_create()
        await replay(self._state, self._log, image)
        return image

    async def _from_a_snapshot(
        self, snapshots: SnapshotStore, passed_over: list[str]
    ) -> CommittedImage | None:
        for stored in await refuse_lost_tail(self._log, snapshots):
            found = await snapshots.survey(stored)
            if found.status is not SnapshotStatus.USABLE or found.manifest is None:
                passed_over.append(f"snapshot {stored.name} is {found.status.value}")
                continue
            if stored.next_offset < self._log.start_offset:
                passed_over.append(f"snapshot {stored.name} ends before the log begins")
                continue
            try:
                return await self._from_snapshot(snapshots, found.manifest)
            except (errors.CorruptState, errors.CorruptObject) as error:
                _logger.warning("metadata snapshot %s passed over: %s", stored.name, error)
                passed_over.append(f"snapshot {stored.name}: {error}")
        return None

    async def _from_snapshot(
        self, snapshots: SnapshotStore, manifest: SnapshotManifest
    ) -> CommittedImage:
        """Raises: CorruptObject, CorruptState (try another one), and what `open_state` raises."""
        state, log = self._state, self._log
        loaded = state.path.with_name(f"{state.path.name}.loading")
        state.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Its SHA-256 is that of the file whose rows were all checked when it was taken.
            await snapshots.download(manifest, loaded)
            if await asyncio.to_thread(read_copy, loaded, read_applied) != manifest.applied:
                raise errors.CorruptState(
                    f"snapshot {manifest.name} is not as far as its manifest says"
                )
            failpoint("restore.before_rename")
            await state.adopt(loaded, snapshots.disk)
        finally:
            await asyncio.to_thread(remove_database, loaded)
        failpoint("restore.after_rename")
        _logger.info("coordinator state loaded from snapshot %s", manifest.name)
        await state.open_or_create()
        image = self._empty_image()
        await state.read(partial(load_image, image=image))
        if manifest.next_offset > log.start_offset:
            await _check_position(manifest.applied, log)
        await replay(state, log, image)
        return image


async def _check_position(applied: Applied, log: MetadataLog) -> None:
    """The log must hold the very record that was applied last."""
    last = applied.next_offset - 1
    if last >= log.end_offset:
        await log.refresh()
    if log.start_offset == 0 < log.end_offset:
        (first, *_) = await log.read(0, 1)
        if first.timestamp_ms != applied.began_ms:
            raise errors.CorruptState("the state is of another log, which began at another time")
    if last >= log.end_offset:
        raise _LostTail(f"the log ends at {log.end_offset}, the state is at {applied.next_offset}")
    batch = (await log.read(last, 1))[0]
    if crc32c(batch.records[last - batch.base_offset]) != applied.last_record_crc:
        raise errors.CorruptState(f"the log's record {last} is not the one that was applied")


async def _look_for_a_lost_tail(log: MetadataLog, snapshots: SnapshotStore) -> None:
    try:
        async with asyncio.timeout(LISTING_TIMEOUT_S):
            await refuse_lost_tail(log, snapshots)
    except (errors.Retriable, TimeoutError) as error:
        _logger.warning("not known whether a snapshot is ahead of the metadata log: %s", error)


async def refuse_lost_tail(log: MetadataLog, snapshots: SnapshotStore) -> Sequence[StoredSnapshot]:
    """Raise CorruptState when a snapshot of this cluster is ahead of the log's end.

    Returns what is stored, newest first, as it was listed for that.
    """
    listed = await snapshots.stored()
    for stored in listed:
        if stored.next_offset <= log.end_offset:
            break
        if stored.next_offset <= await log.refresh():
            continue  # of a leader that this log object had not yet heard of
        found = await snapshots.survey(stored)
        if found.status in (SnapshotStatus.USABLE, SnapshotStatus.OTHER_VERSION):
            raise errors.CorruptState(
                f"the metadata log ends at {log.end_offset}, but a snapshot of it holds everything "
                f"up to {stored.next_offset}: {_GIVEN_OUT_TWICE}. Bring the log back, or let "
                "`diskless rebuild` make a new one from the objects in the bucket"
            )
    return listed


async def replay(state: StateDatabase, log: MetadataLog, image: CommittedImage) -> None:
    """Apply what the log has beyond `image`, in transactions of about REPLAY_BYTES.

    Raises: OutOfBounds (it was pruned past `image`), CorruptState, CorruptLog, StorageFailed.
    """
    async with aclosing(read_ahead(log, image.next_offset, REPLAY_BYTES)) as replayed:
        async for batches in replayed:
            image.merge(await state.write(partial(apply_batches, image, batches)))


def apply_batches(
    image: CommittedImage, batches: Sequence[MetadataRecordBatch], connection: Connection
) -> Changes:
    """One transaction's work: `batches` in log order, on top of `image`."""
    applier = RecordApplier(connection, image)
    for batch in batches:
        applier.apply(batch)
    changes = applier.finish()
    failpoint("apply.before_commit")
    return changes
