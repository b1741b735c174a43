"""Finds WAL objects in the bucket that were uploaded and never committed, and deletes them.

A broker may die between upload and commit, an upload may land after everybody gave up on it, an
object may come back after its deletion. Nothing in the metadata speaks of such an object, so the
bucket has to be looked through. KIP-1164 compares each object's age with that of the oldest file
still in use. That is not safe: once everything is drained, that file is younger than an object
whose commit is on its way, which would be deleted and then committed. Here an object is deleted
only when

1. its name is exactly that of a WAL object: `wal/<2 hex>/<ULID>`, the digits those of the ULID;
2. it is old by its ULID *and* by the store's own clock: older than max.commit.age + clock.skew.max
   + the grace period. That keeps the scan away from work in progress; no promise rests on it;
3. no coordinator knows it, and *every* coordinator has durably refused its commit for ever
   (`metadata.workers.file_agreement`). That is the promise: commit or tombstone, the first excludes
   the other, whatever any clock says;
4. the coordinators are still the same ones as before they were asked.

A coordinator does not answer for keys that are older than its own metadata log: if it ever had
another one, that is gone, and the objects are all that is left to rebuild from.

**Staged objects** (`staged/<sink id>/<ULID>`) are looked through once in a round, behind the
shards, by the same rules; they are old beyond `sink.stage.max.age.ms` and the clocks' skew. Keys of
one sink sort by age, so of each sink the scan sees up to the first key that is too young, and goes
on with the next sink.

Everything else is left alone: other names, objects that anybody knows, objects of which not all
coordinators could be asked; those are asked about again in the next round.

**The store's clock.** S3 tells the time only in answers about objects. So a round that meets an old
ULID first writes a small marker object under a name of its own, asks when it was modified, and
deletes it. Later that reading is too early, which makes objects look younger than they are: safe,
so one per round is enough. Markers that a crash left behind are deleted by a later round.

**Progress.** A round goes through the 256 shards of the bucket in random order, spread evenly over
the scan interval. Nothing is remembered over a restart, nothing has to be: a scan that starts anew
starts in a random shard, and in a large shard, behind its first page, at a random place. So every
page has its chance in every life of a scanner, however short. Keys sort by age and orphans are old,
so a shard is listed only up to the first key that is too young. An orphan that was found is dealt
with before the next page is listed.

Several scanners at once (a deposed leader of metadata partition 0 beside the new one) repeat each
other's steps and do no harm. Unfinished multipart uploads are not swept: objects are put in one
request, and the store's interface has no such thing; a bucket's lifecycle rule does that.

Run by the leader of metadata partition 0; retries for ever. docs/file-lifecycle.md has the table of
decisions.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.file_agreement import OtherCoordinators, give_up_files
from metadata.workers.note_keeper import NoteKeeper
from wal.clock import Clock, Sleep
from wal.coordinates import ObjectKey
from wal.errors import ObjectNotFound, OutcomeUnknown, Retriable
from wal.failpoint import failpoint
from wal.staging.staged_keys import STAGED_PREFIX, minted_ms_of_staged_key
from wal.stores.object_store import BytesBody, ObjectStat, ObjectStore
from wal.stores.retry import backed_off_s
from wal.ulid import (
    WAL_SHARDS,
    mint_ulid,
    minted_ms,
    minted_ms_of_wal_key,
    ulid_at,
    wal_shard_prefix,
)

MARKER_PREFIX: Final = "orphan-scan/"
"""Where the objects lie that the store's clock is read from."""

MARKER_KEPT_MS: Final = 3_600_000
"""The scan that wrote an older marker has ended, so anybody may delete it."""

BACKOFF_MAX_S: Final = 300.0

_BEHIND_ALL_OF_SINK: Final = "/~"
"""Sorts behind every ULID, and before the next sink."""

_logger = logging.getLogger(__name__)


class OrphanScan:
    """Looks through the WAL objects of one bucket."""

    def __init__(
        self,
        store: ObjectStore,
        coordinators: OtherCoordinators,
        coordinator_ids: Callable[[], Awaitable[Sequence[int]]],
        *,
        settings: CoordinatorSettings,
        clock: Clock,
        rng: random.Random,
        notes: NoteKeeper,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`coordinator_ids` names all coordinators there are, as of the time it is called.

        `notes` keeps what orphans note of other objects before they are deleted.
        """
        self._store = store
        self._notes = notes
        self._coordinators = coordinators
        self._coordinator_ids = coordinator_ids
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._staged_old_after_ms = settings.sink_stage_max_age_ms + settings.clock_skew_max_ms
        self._old_after_ms = (
            settings.max_commit_age_ms + settings.clock_skew_max_ms + settings.orphan_scan_grace_ms
        )
        self._store_now_ms = -1
        self._store_asked_at = 0.0
        self._last_success = clock.monotonic()
        # What follows is for the metrics, and counts from the start of this scan.
        self.objects_seen = 0
        self.foreign_names = 0
        """Names below wal/ that are no WAL object's; they are never touched."""
        self.known = 0
        """Old objects that some coordinator knows."""
        self.deferred = 0
        """Old objects of which not all coordinators could be asked."""
        self.tombstoned = 0
        """Objects that all coordinators have given up."""
        self.orphans_deleted = 0
        """Those of them whose deletion the store confirmed."""

    @property
    def last_success_age_s(self) -> float:
        """Seconds since a shard was looked through to its end."""
        return self._clock.monotonic() - self._last_success

    async def run(self) -> None:
        """Scan until cancelled; a shard that fails is left for the next round."""
        pause_s = self._settings.orphan_scan_interval_ms / 1000 / WAL_SHARDS
        failures = 0
        while True:
            for shard in self._shuffled_shards():
                await self._sleep(backed_off_s(pause_s, failures, BACKOFF_MAX_S, self._rng))
                try:
                    await self.scan_shard(shard)
                    failures = 0
                except (Retriable, OutcomeUnknown, ObjectNotFound) as error:
                    failures += 1
                    _logger.warning("scanning %s: %s", wal_shard_prefix(shard), error)
            try:
                await self.scan_staged()
            except (Retriable, OutcomeUnknown, ObjectNotFound) as error:
                _logger.warning("scanning %s: %s", STAGED_PREFIX, error)

    async def scan_once(self) -> None:
        """One round without pauses; the first failure ends it.

        Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, ObjectNotFound (somebody deletes our
        markers).
        """
        for shard in self._shuffled_shards():
            await self.scan_shard(shard)
        await self.scan_staged()

    def _shuffled_shards(self) -> Sequence[int]:
        shards = list(range(WAL_SHARDS))
        self._rng.shuffle(shards)
        return shards

    # -- one shard ------------------------------------------------------------------------------

    async def scan_shard(self, shard: int) -> None:
        """Look through one of the WAL_SHARDS shards. Raises as `scan_once`."""
        prefix = wal_shard_prefix(shard)
        position = await self._scan_page(prefix, "", None)
        if position is not None:
            pivot = self._somewhere_behind(prefix, position)
            await self._scan_range(prefix, pivot, None)
            await self._scan_range(prefix, position, pivot)
        self._last_success = self._clock.monotonic()

    async def scan_staged(self) -> None:
        """Look through the objects of all sinks. Raises as `scan_once`."""
        position: str | None = ""
        while position is not None:
            position = await self._scan_staged_page(position)

    async def _scan_staged_page(self, after: str) -> str | None:
        """As `_scan_page`: ends at a full page, or behind the old objects of a sink."""
        old: dict[ObjectKey, int] = {}
        following: str | None = None
        seen = 0
        async with aclosing(self._listed(STAGED_PREFIX, after)) as stats:
            async for stat in stats:
                self.objects_seen += 1
                seen += 1
                minted = minted_ms_of_staged_key(stat.key)
                if minted is None:
                    self.foreign_names += 1
                elif self._clock.now_ms() - minted <= self._staged_old_after_ms:
                    following = stat.key.rpartition("/")[0] + _BEHIND_ALL_OF_SINK
                    break
                elif await self._is_old(stat, minted, self._staged_old_after_ms):
                    old[stat.key] = stat.length_bytes
                if seen == self._settings.orphan_scan_page_max:
                    following = stat.key
                    break
        if old:
            await self._delete_orphans(old)
        return following

    def _somewhere_behind(self, prefix: str, position: str) -> str:
        """A random key between `position` and the youngest that may be an orphan."""
        end_ms = self._clock.now_ms() - self._old_after_ms
        start_ms = minted_ms_of_wal_key(position)
        if start_ms is None or start_ms >= end_ms:
            return position
        return max(position, prefix + ulid_at(self._rng.randint(start_ms, end_ms), self._rng))

    async def _scan_range(self, prefix: str, after: str, last: str | None) -> None:
        position: str | None = after
        while position is not None:
            position = await self._scan_page(prefix, position, last)

    async def _scan_page(self, prefix: str, after: str, last: str | None) -> str | None:
        """Deal with the next keys behind `after`; the last one seen, None when there are no more.

        Keys behind `last`, or too young to be orphans, end it too.
        """
        old: dict[ObjectKey, int] = {}
        position: str | None = None
        seen = 0
        is_full = False
        async with aclosing(self._listed(prefix, after)) as stats:
            async for stat in stats:
                if last is not None and stat.key > last:
                    break
                self.objects_seen += 1
                seen += 1
                position = stat.key
                minted = minted_ms_of_wal_key(stat.key)
                if minted is None:
                    self.foreign_names += 1
                elif self._clock.now_ms() - minted <= self._old_after_ms:
                    break
                elif await self._is_old(stat, minted, self._old_after_ms):
                    old[stat.key] = stat.length_bytes
                if seen == self._settings.orphan_scan_page_max:
                    is_full = True
                    break
        if old:
            await self._delete_orphans(old)
        return position if is_full else None

    async def _is_old(self, stat: ObjectStat, minted: int, after_ms: int) -> bool:
        """By the store's clock, which counts for the ULID as well."""
        now_ms = await self._store_now()
        return now_ms - max(minted, stat.last_modified_ms) > after_ms

    async def _delete_orphans(self, lengths: Mapping[ObjectKey, int]) -> None:
        keys = list(lengths)
        coordinators = tuple(await self._coordinator_ids())
        if not coordinators:
            self.deferred += len(keys)
            return
        agreement = await give_up_files(self._coordinators, dict.fromkeys(keys, coordinators))
        self.known += len(agreement.known)
        self.deferred += len(agreement.unclear)
        orphans = agreement.given_up
        if not orphans:
            return
        if set(await self._coordinator_ids()) != set(coordinators):
            # A new coordinator was not asked. Its clock would have to be far behind for it to
            # accept a commit of such an old key, but then there would be no stopping it.
            self.deferred += len(orphans)
            return
        self.tombstoned += len(orphans)
        failpoint("orphan.after_tombstones")
        await self._notes.keep({key: lengths[key] for key in orphans})
        confirmed = await self._store.delete(orphans)
        failpoint("orphan.after_delete")
        self._notes.were_deleted(confirmed)
        self.orphans_deleted += len(confirmed)
        _logger.info("%d of %d orphans deleted", len(confirmed), len(orphans))

    # -- the store ------------------------------------------------------------------------------

    async def _listed(self, prefix: str, after: str) -> AsyncGenerator[ObjectStat, None]:
        async for stat in self._store.list(prefix, after):
            yield stat

    async def _store_now(self) -> int:
        """What the store's clock showed at most one scan interval ago."""
        asked = self._clock.monotonic()
        interval_s = self._settings.orphan_scan_interval_ms / 1000
        if self._store_now_ms < 0 or asked - self._store_asked_at >= interval_s:
            self._store_now_ms = await self._read_store_clock()
            self._store_asked_at = asked
            await self._sweep_markers(self._store_now_ms)
        return self._store_now_ms

    async def _read_store_clock(self) -> int:
        marker = ObjectKey(MARKER_PREFIX + mint_ulid(self._clock, self._rng))
        await self._store.put(marker, BytesBody(marker.encode()))
        failpoint("orphan.after_marker")
        stat = await self._store.head(marker)
        await self._store.delete([marker])
        return stat.last_modified_ms

    async def _sweep_markers(self, now_ms: int) -> None:
        """Delete markers of scanners that did not live to do it."""
        left: list[ObjectKey] = []
        async with aclosing(self._listed(MARKER_PREFIX, "")) as stats:
            async for stat in stats:
                try:
                    minted_ms(stat.key)
                except ValueError:
                    continue  # somebody else's
                if now_ms - stat.last_modified_ms > MARKER_KEPT_MS:
                    left.append(stat.key)
                if len(left) == self._settings.orphan_scan_page_max:
                    break
        if left:
            await self._store.delete(left)
