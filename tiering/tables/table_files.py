"""Metadata files of tables in the object store: PyIceberg's file system over any of our stores.

Files are written whole and put if absent, under names that are never used again, so what was read
or written once may be kept: `StoreFileIO` remembers the small files of the last passes. A location
is the store's base URI and the object key; readers of the table open it by themselves.

`delete_unnamed` deletes what no pointer will name any more: files of commits that lost or died, and
what expired snapshots have left behind. Age alone does not tell these from the files of a commit
that is on its way, so both count:

- Kept is what the current metadata file names: itself, the versions before it that it lists, the
  manifest list of each snapshot, the manifests of its oldest and its newest snapshot, and the
  delete files in these.
- A manifest or delete file of a snapshot between them is either the oldest one's too, or younger
  than it. So nothing is deleted that is younger than the oldest snapshot's manifest list.
- Nor what is younger than an hour or the retention of snapshots, by the store's own clock: another
  pass may be about to commit it, and a reader may have loaded a pointer that was replaced since.

Failure cases: what the store raises; CorruptObject for a file that cannot be read as what it is.
"""

import io
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final
from uuid import UUID

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2

from metadata.table_operations import table_prefix
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, ObjectNotFound
from wal.stores.blocking_store import BlockingBucket
from wal.stores.object_store import BytesBody
from wal.stores.store_url import base_uri

REMEMBERED_BYTES_MAX: Final = 32 << 20
REMEMBERED_FILE_BYTES_MAX: Final = 4 << 20

UNNAMED_AGE_MIN_MS: Final = 3_600_000
"""A pass takes minutes at most; nothing younger is taken for the rest of one that died."""


class StoreFileIO(FileIO):
    """The objects of `store`, by location."""

    def __init__(self, store: BlockingBucket, store_url: str) -> None:
        """`store_url`: how readers reach the store, which may differ from how we do."""
        super().__init__()
        self._store = store
        self.base_uri: Final = base_uri(store_url)
        self._remembered: OrderedDict[ObjectKey, bytes] = OrderedDict()
        self._remembered_bytes = 0
        self._lock = Lock()

    def location(self, key: ObjectKey) -> str:
        return f"{self.base_uri}/{key}"

    def key(self, location: str) -> ObjectKey:
        """Raises CorruptObject: the location is not in this store."""
        base = f"{self.base_uri}/"
        if not location.startswith(base):
            raise CorruptObject(f"{location} is not below {base}")
        return ObjectKey(location.removeprefix(base))

    def new_input(self, location: str) -> "StoredFile":
        return StoredFile(location, self)

    def new_output(self, location: str) -> "NewFile":
        return NewFile(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        where = location if isinstance(location, str) else location.location
        self._store.delete([self.key(where)])

    def read(self, location: str) -> bytes:
        key = self.key(location)
        with self._lock:
            data = self._remembered.get(key)
            if data is not None:
                self._remembered.move_to_end(key)
                return data
        data = self._store.get(key)
        self._remember(key, data)
        return data

    def write(self, location: str, data: bytes) -> None:
        key = self.key(location)
        self._store.put(key, BytesBody(data))
        self._remember(key, data)

    def _remember(self, key: ObjectKey, data: bytes) -> None:
        if len(data) > REMEMBERED_FILE_BYTES_MAX:
            return
        with self._lock:
            if key in self._remembered:
                return
            self._remembered[key] = data
            self._remembered_bytes += len(data)
            while self._remembered_bytes > REMEMBERED_BYTES_MAX:
                _, dropped = self._remembered.popitem(last=False)
                self._remembered_bytes -= len(dropped)


class StoredFile(InputFile):
    """An object that is read as a whole."""

    def __init__(self, location: str, store: StoreFileIO) -> None:
        super().__init__(location)
        self._store = store

    def __len__(self) -> int:
        return len(self._store.read(self.location))

    def exists(self) -> bool:
        try:
            self._store.read(self.location)
        except ObjectNotFound:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._store.read(self.location))


class NewFile(OutputFile):
    """An object that is put when its stream is closed; put-if-absent, whatever is asked for."""

    def __init__(self, location: str, store: StoreFileIO) -> None:
        super().__init__(location)
        self._store = store
        self.length_bytes = 0

    def __len__(self) -> int:
        return self.length_bytes

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> StoredFile:
        return self._store.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Stream(self, self._store)


class _Stream(io.BytesIO):
    """Collects what is written; an error in its `with` leaves nothing behind."""

    def __init__(self, file: NewFile, store: StoreFileIO) -> None:
        super().__init__()
        self._file = file
        self._store = store

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._file.length_bytes = len(data)
            self._store.write(self._file.location, data)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            super().close()


@contextmanager
def reading(location: str) -> Iterator[None]:
    """What PyIceberg raises for damaged files becomes CorruptObject."""
    try:
        yield
    except (ValueError, KeyError, TypeError, EOFError, AssertionError) as error:
        raise CorruptObject(f"{location}: {type(error).__name__}: {error}") from error


def read_metadata(files: StoreFileIO, key: ObjectKey) -> TableMetadataV2:
    """Raises: ObjectNotFound, CorruptObject."""
    location = files.location(key)
    with reading(location):
        return as_version_2(FromInputFile.table_metadata(files.new_input(location)))


def as_version_2(metadata: TableMetadata) -> TableMetadataV2:
    """Tables are of Iceberg's format version 2. Raises ValueError for another one."""
    if not isinstance(metadata, TableMetadataV2):
        raise ValueError(f"the table has format version {metadata.format_version}")
    return metadata


def write_metadata(files: StoreFileIO, key: ObjectKey, metadata: TableMetadata) -> None:
    """Puts a metadata file."""
    ToOutputFile.table_metadata(metadata, files.new_output(files.location(key)))


def read_manifests(files: StoreFileIO, manifest_list: str) -> Sequence[ManifestFile]:
    """The manifests that a snapshot names. Raises: ObjectNotFound, CorruptObject."""
    with reading(manifest_list):
        return list(read_manifest_list(files.new_input(manifest_list)))


def delete_unnamed(
    store: BlockingBucket,
    files: StoreFileIO,
    topic_id: UUID,
    key: ObjectKey,
    metadata: TableMetadata,
    *,
    retention_ms: int,
) -> int:
    """Deletes metadata files that nothing names; returns how many. `key` is the pointer."""
    stats = {stat.key: stat for stat in store.list(table_prefix(topic_id))}
    snapshots = sorted(metadata.snapshots, key=lambda it: it.sequence_number or 0)
    named = {key, *_named_by(files, metadata)}
    for snapshot in (*snapshots[:1], *snapshots[-1:]):
        manifests = read_manifests(files, snapshot.manifest_list)
        for manifest in manifests:
            named.add(files.key(manifest.manifest_path))
            if manifest.content == ManifestContent.DELETES:
                with reading(manifest.manifest_path):
                    entries = manifest.fetch_manifest_entry(files)
                named.update(files.key(entry.data_file.file_path) for entry in entries)
    pointer = stats.get(key)
    if pointer is None:
        return 0  # a listing may be behind
    before_ms = pointer.last_modified_ms - max(retention_ms, UNNAMED_AGE_MIN_MS)
    for snapshot in snapshots[:1]:
        oldest = stats.get(files.key(snapshot.manifest_list))
        if oldest is None:
            return 0
        before_ms = min(before_ms, oldest.last_modified_ms)
    unnamed = [
        stat.key
        for stat in stats.values()
        if stat.last_modified_ms < before_ms and stat.key not in named
    ]
    return len(store.delete(unnamed)) if unnamed else 0


def _named_by(files: StoreFileIO, metadata: TableMetadata) -> Collection[ObjectKey]:
    return {
        *(files.key(entry.metadata_file) for entry in metadata.metadata_log),
        *(files.key(snapshot.manifest_list) for snapshot in metadata.snapshots),
    }
