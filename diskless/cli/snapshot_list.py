"""`diskless metadata snapshots`: lists the metadata snapshots of an object store.

A snapshot has a manifest only since its keeper loaded it again and checked every row of it, so
every one that is *usable* was verified once. With `verify` each is loaded and checked here as well,
into a temporary directory. Nothing in the store is changed.

Snapshots of several clusters below one prefix are a mistake that this shows: the cluster is a
column, and none of them is called foreign.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from diskless.cli.metadata_sources import existing_store, snapshot_partitions
from metadata.replica.snapshots import (
    SnapshotStatus,
    SnapshotStore,
    StoredSnapshot,
    SurveyedSnapshot,
)
from wal.errors import CorruptData
from wal.stores.object_store import ObjectStore


class ListedSnapshot(NamedTuple):
    """One snapshot, or what is left of an attempt at one; None: its manifest cannot be read."""

    partition: int
    name: str
    next_offset: int
    """The first metadata record that is not in it."""
    stored_bytes: int
    """Of all its objects."""
    status: str
    """`usable`, or what is wrong with it by its manifest and the listing."""
    file_bytes: int | None = None
    """Of the SQLite file."""
    taken_at_ms: int | None = None
    state_hash: int | None = None
    cluster_id: str | None = None
    problem: str | None = None
    """What loading it has found."""

    @property
    def is_sound(self) -> bool:
        """Neither damaged nor contradicted by what is in it."""
        return self.problem is None and self.status != SnapshotStatus.DAMAGED.value


def list_snapshots(
    url: str, *, partitions: Sequence[int] = (), verify: bool = False
) -> list[ListedSnapshot]:
    """Those of the given metadata partitions, or of all, newest first.

    Raises: InvalidSettings, ObjectStoreUnavailable, StorageFailed (no room to verify).
    """
    return asyncio.run(_list(url, partitions, verify=verify))


async def _list(url: str, partitions: Sequence[int], *, verify: bool) -> list[ListedSnapshot]:
    async with existing_store(url) as store:
        return [
            await _listed(store, index, stored, verify=verify)
            for index in sorted(set(partitions)) or await snapshot_partitions(store)
            for stored in await SnapshotStore(store, partition=index, cluster_id="").stored()
        ]


async def _listed(
    store: ObjectStore, partition: int, stored: StoredSnapshot, *, verify: bool
) -> ListedSnapshot:
    surveyed = await SnapshotStore(store, partition=partition, cluster_id="").survey(stored)
    listed = ListedSnapshot(
        partition,
        stored.name,
        stored.next_offset,
        sum(stat.length_bytes for stat in stored.objects),
        surveyed.status.value,
    )
    manifest = surveyed.manifest
    if manifest is None:
        return listed
    # Asked again on behalf of its own cluster, what it says of itself is all that counts.
    snapshots = SnapshotStore(store, partition=partition, cluster_id=manifest.cluster_id)
    surveyed = await snapshots.survey(stored)
    return listed._replace(
        status=surveyed.status.value,
        file_bytes=manifest.file_bytes,
        taken_at_ms=manifest.taken_at_ms,
        state_hash=manifest.applied.state_hash,
        cluster_id=manifest.cluster_id,
        problem=await _problem(snapshots, surveyed) if verify else None,
    )


async def _problem(snapshots: SnapshotStore, surveyed: SurveyedSnapshot) -> str | None:
    if surveyed.status is not SnapshotStatus.USABLE or surveyed.manifest is None:
        return None
    with TemporaryDirectory(prefix="diskless-snapshot-") as directory:
        file = Path(directory) / "state.sqlite"
        try:
            await snapshots.download(surveyed.manifest, file)
            await snapshots.verify(surveyed.manifest, file)
        except CorruptData as error:
            return str(error)
    return None
