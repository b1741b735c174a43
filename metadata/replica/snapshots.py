"""Stores, checks and loads snapshots of the coordinator's state.

A snapshot is a copy of the SQLite state at one position of the metadata log, in the object store
(metadata/replica/snapshot_format.py). It is what allows the log to be pruned, and what a broker
without a usable state of its own starts from: snapshot, then the log behind it.

**There is no unverified snapshot.** The keeper (metadata/workers/snapshot_keeper.py) uploads the
parts, loads them again from the store, checks every byte, row and the state hash, and only then
writes the manifest that makes it a snapshot. A crash before that leaves objects without a manifest,
which the keeper removes later.

Loading finds what is wrong with a stored snapshot, and passes it over for the one before:

| damage | found by |
|---|---|
| a part or manifest is missing, shorter, longer | the listing, the length in the manifest |
| bits of a part or the manifest | CRC32C of each, SHA-256 of the file |
| rows that were wrong when it was taken | row checksums, state hash, SQLite's check: at taking |
| of another cluster or metadata partition | cluster id and partition in the manifest |
| of another release's tables | state version in the manifest |

Nothing larger than one part is in memory. Loading writes to a file of the caller's, synced at the
end.
"""

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from metadata.replica.snapshot_format import (
    MANIFEST_BYTES_MAX,
    PART_BYTES,
    PARTS_MAX,
    SnapshotManifest,
    SnapshotPart,
    decode_manifest,
    encode_manifest,
    manifest_key,
    next_offset_of,
    part_key,
    snapshots_prefix,
)
from metadata.state.schema import STATE_VERSION
from metadata.state.state_check import verified_file
from wal import errors
from wal.coordinates import ObjectKey
from wal.crc import Buffer, crc32c
from wal.disk import SYSTEM_DISK, Disk, write_vectors
from wal.records.compression import ZSTD, deflate, inflate
from wal.stores.object_store import BytesBody, ObjectStat, ObjectStore
from wal.worker_threads import WorkerThreads

_logger = logging.getLogger(__name__)


class SnapshotStatus(Enum):
    """What is to be thought of objects that bear the name of a snapshot."""

    USABLE = "usable"
    UNFINISHED = "without a manifest"
    DAMAGED = "damaged"
    OTHER_VERSION = "of another state version"
    FOREIGN = "of another cluster"


class StoredSnapshot(NamedTuple):
    """The objects of one snapshot, or of an attempt at one, as the store lists them."""

    name: str
    next_offset: int
    objects: Sequence[ObjectStat]

    @property
    def last_modified_ms(self) -> int:
        """By the store's clock: the newest of its objects."""
        return max(stat.last_modified_ms for stat in self.objects)


class SurveyedSnapshot(NamedTuple):
    """A stored snapshot and its manifest, which is None when there is none that can be read."""

    stored: StoredSnapshot
    status: SnapshotStatus
    manifest: SnapshotManifest | None


class SnapshotBody(NamedTuple):
    """What was uploaded, for the manifest."""

    parts: Sequence[SnapshotPart]
    file_sha256: bytes


class SnapshotStore:
    """The snapshots of one metadata partition in an object store, which the caller keeps open."""

    def __init__(
        self, store: ObjectStore, *, partition: int, cluster_id: str, disk: Disk = SYSTEM_DISK
    ) -> None:
        self.partition: Final = partition
        self.cluster_id: Final = cluster_id
        self.disk: Final = disk
        self._store = store

    # -- looking --------------------------------------------------------------------------------

    async def stored(self) -> list[StoredSnapshot]:
        """Lists what bears the name of a snapshot, newest first; nothing is read.

        Raises: ObjectStoreUnavailable.
        """
        prefix = snapshots_prefix(self.partition)
        objects: dict[str, list[ObjectStat]] = {}
        async for stat in self._store.list(prefix):
            name = stat.key.removeprefix(prefix).partition("/")[0]
            objects.setdefault(name, []).append(stat)
        found = [
            StoredSnapshot(name, next_offset, stats)
            for name, stats in objects.items()
            if (next_offset := next_offset_of(name)) is not None
        ]
        return sorted(found, key=lambda snapshot: snapshot.name, reverse=True)

    async def survey(self, stored: StoredSnapshot) -> SurveyedSnapshot:
        """Read its manifest and compare it with the listing; the parts are not read.

        Raises: ObjectStoreUnavailable.
        """
        try:
            manifest = await self._manifest(stored)
        except errors.ObjectNotFound:
            return SurveyedSnapshot(stored, SnapshotStatus.UNFINISHED, None)
        except errors.CorruptObject as error:
            _logger.warning("snapshot %s of the metadata is damaged: %s", stored.name, error)
            return SurveyedSnapshot(stored, SnapshotStatus.DAMAGED, None)
        return SurveyedSnapshot(stored, self._status(stored, manifest), manifest)

    def _status(self, stored: StoredSnapshot, manifest: SnapshotManifest) -> SnapshotStatus:
        if manifest.cluster_id != self.cluster_id:
            return SnapshotStatus.FOREIGN
        lengths = {stat.key: stat.length_bytes for stat in stored.objects}
        for number, part in enumerate(manifest.parts):
            key = part_key(self.partition, manifest.name, number)
            if lengths.get(key) != part.stored_bytes:
                _logger.warning("%s: %s bytes, not %d", key, lengths.get(key), part.stored_bytes)
                return SnapshotStatus.DAMAGED
        if manifest.state_version != STATE_VERSION:
            return SnapshotStatus.OTHER_VERSION
        return SnapshotStatus.USABLE

    async def _manifest(self, stored: StoredSnapshot) -> SnapshotManifest:
        key = manifest_key(self.partition, stored.name)
        length = next((stat.length_bytes for stat in stored.objects if stat.key == key), None)
        if length is None:
            raise errors.ObjectNotFound(key)
        if length > MANIFEST_BYTES_MAX:
            raise errors.CorruptObject(f"{key} has {length} bytes")
        data = await self._store.get_range(key, 0, length)
        manifest = decode_manifest(data, stored.name)
        if manifest.partition != self.partition:
            raise errors.CorruptObject(f"{key} is of metadata partition {manifest.partition}")
        return manifest

    # -- storing --------------------------------------------------------------------------------

    async def upload(self, file: Path, name: str) -> SnapshotBody:
        """Store the parts of the database `file`, which nobody writes, as those of `name`.

        Raises: what the store's put raises, StorageFailed.
        """
        reader = _PartReader(file)
        parts: list[SnapshotPart] = []

        async def upload(threads: WorkerThreads) -> None:
            while (read := await threads.run_to_end(reader.next_part)) is not None:
                part, stored = read
                key = part_key(self.partition, name, len(parts))
                await self._store.put(key, BytesBody(stored))
                parts.append(part)

        await _in_thread("snapshot-upload", upload, reader.close)
        return SnapshotBody(parts, reader.sha256)

    async def publish(self, manifest: SnapshotManifest) -> None:
        """Make it a snapshot. The caller has verified what was stored. Raises: as put."""
        data = encode_manifest(manifest)
        assert len(manifest.parts) <= PARTS_MAX
        assert len(data) <= MANIFEST_BYTES_MAX
        await self._store.put(manifest_key(self.partition, manifest.name), BytesBody(data))

    async def delete(self, stored: StoredSnapshot) -> None:
        """Delete it: first the manifest, so that half of a snapshot never looks like one.

        What the store does not confirm is left for the next time. Raises: ObjectStoreUnavailable.
        """
        key = manifest_key(self.partition, stored.name)
        keys: list[ObjectKey] = [stat.key for stat in stored.objects]
        if key in keys:
            keys.remove(key)
            if key not in await self._store.delete([key]):
                return
        if keys:
            await self._store.delete(keys)

    # -- loading --------------------------------------------------------------------------------

    async def download(self, manifest: SnapshotManifest, to: Path) -> None:
        """Write the SQLite file of a snapshot to `to`, which is replaced, and sync it.

        Its bytes are those that were uploaded; what they mean, `verify` checks.
        Raises: CorruptObject (a part is missing or damaged), StorageFailed, ObjectStoreUnavailable.
        """
        writer = _PartWriter(to, self.disk)

        async def download(threads: WorkerThreads) -> None:
            for number, part in enumerate(manifest.parts):
                key = part_key(self.partition, manifest.name, number)
                try:
                    stored = await self._store.get_range(key, 0, part.stored_bytes)
                except errors.ObjectNotFound as error:
                    raise errors.CorruptObject(f"{key} is missing") from error
                await threads.run_to_end(partial(writer.write, part, stored, key))
            await threads.run_to_end(partial(writer.finish, manifest))

        await _in_thread("snapshot-download", download, writer.close)

    async def verify(self, manifest: SnapshotManifest, file: Path) -> None:
        """Check every row of the loaded `file`, and that it is what the manifest says.

        Raises: CorruptState.
        """

        async def verify(threads: WorkerThreads) -> None:
            applied = await threads.run_to_end(lambda: verified_file(file))
            if applied != manifest.applied:
                raise errors.CorruptState(f"snapshot {manifest.name}: {applied} in the file")

        await _in_thread("snapshot-verify", verify)


async def _in_thread(
    name: str,
    work: Callable[[WorkerThreads], Awaitable[None]],
    close: Callable[[], None] | None = None,
) -> None:
    """`work` with a thread of its own, in which `close` runs at the end, come what may."""
    threads = WorkerThreads(name, 1)
    try:
        try:
            await work(threads)
        finally:
            if close is not None:
                await threads.run_to_end(close)
    finally:
        await threads.close()


class _PartReader:
    """Cuts a file into compressed parts. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._position = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> bytes:
        return self._digest.digest()

    def next_part(self) -> tuple[SnapshotPart, Buffer] | None:
        """The next part and its stored bytes; None at the end. Raises: StorageFailed."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._fd, PART_BYTES, self._position)
        except OSError as error:
            raise errors.StorageFailed(f"{self._path}: {error}") from error
        if not data:
            return None
        self._position += len(data)
        self._digest.update(data)
        stored = deflate(ZSTD, data)
        return SnapshotPart(len(stored), crc32c(stored), len(data)), stored

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _PartWriter:
    """Puts a file together from compressed parts. Used from one thread."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._fd = -1
        self._position = 0
        self._digest = hashlib.sha256()

    def write(self, part: SnapshotPart, stored: bytes, key: str) -> None:
        """Check a part and append it. Raises: CorruptObject, StorageFailed."""
        if len(stored) != part.stored_bytes or crc32c(stored) != part.crc32c:
            raise errors.CorruptObject(f"{key} fails its checksum")
        try:
            data = inflate(ZSTD, stored, limit_bytes=part.file_bytes)
        except errors.BatchRejected as error:
            raise errors.CorruptObject(f"{key}: {error}") from error
        if len(data) != part.file_bytes:
            raise errors.CorruptObject(f"{key} holds {len(data)} bytes, not {part.file_bytes}")
        self._digest.update(data)
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                self._fd = self._disk.open(str(self._path), flags)
            self._position = write_vectors(self._disk, self._fd, [data], self._position)
        except OSError as error:
            raise errors.StorageFailed(f"{self._path}: {error}") from error

    def finish(self, manifest: SnapshotManifest) -> None:
        """Check the whole and sync it. Raises: CorruptObject, StorageFailed."""
        if self._digest.digest() != manifest.file_sha256:
            raise errors.CorruptObject(f"snapshot {manifest.name}: the file fails its SHA-256")
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise errors.StorageFailed(f"{self._path}: {error}") from error

    def close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            self._disk.close(fd)
        except OSError as error:
            raise errors.StorageFailed(f"{self._path}: {error}") from error
