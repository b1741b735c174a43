"""The next metadata of a table: a snapshot that names other files, and what expires with it.

A snapshot is a manifest list, which names manifests, which name data files with their statistics.
Files that come, and those of manifests that lose some, go into one new manifest; the others are
named again as they are. When there would be more than MANIFESTS_MAX, the small ones are written
into the new one too. Manifests of MANIFEST_FILES_MAX files are left alone, so that a table of a
hundred thousand files does not write all of them anew when its oldest one goes. Delete files
(tiering/tables/hidden_rows.py) have manifests of their own; they are few, so these are written anew
when one comes or goes.

A snapshot expires when the one behind it is older than the retention: whoever loaded the table just
before it was superseded can read on for that long. The newest one never does.

Times are the caller's. Nothing is read or written here but manifests. One manifest takes a
millisecond or more to decode, so those that were read are remembered.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from tiering.tables.table_files import StoreFileIO, read_manifests, reading

MANIFESTS_MAX: Final = 50
MANIFEST_FILES_MAX: Final = 1_000
ENTRIES_REMEMBERED_MAX: Final = 50_000
"""Of all tables together; an entry takes some 3 KB."""

_COMPRESSION: Final = "deflate"


class ReadManifest(NamedTuple):
    """A manifest and the files in it that are live."""

    manifest: ManifestFile
    entries: Sequence[ManifestEntry]

    @property
    def has_deletes(self) -> bool:
        """Whether its files are delete files."""
        return bool(self.manifest.content == ManifestContent.DELETES)


class FileChange(NamedTuple):
    """How the files of a table change."""

    added: Sequence[DataFile]
    removed: Mapping[str, DataFile]
    """By location."""
    hidden: Sequence[DataFile] = ()
    """Delete files that come."""
    shown: Mapping[str, DataFile] = MappingProxyType({})
    """Delete files that go, by location."""


class LiveFiles:
    """Reads what current snapshots name, and remembers the manifests: most are named again."""

    def __init__(self, files: StoreFileIO) -> None:
        self._files = files
        self._remembered: OrderedDict[str, ReadManifest] = OrderedDict()
        self._entry_count = 0

    def read(self, metadata: TableMetadata) -> Sequence[ReadManifest]:
        """The manifests of the current snapshot. Raises: ObjectNotFound, CorruptObject."""
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return ()
        return [
            self._read(manifest)
            for manifest in read_manifests(self._files, snapshot.manifest_list)
            # One that tells only of files that were deleted tells nothing any more.
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _read(self, manifest: ManifestFile) -> ReadManifest:
        known = self._remembered.get(manifest.manifest_path)
        if known is not None:
            self._remembered.move_to_end(manifest.manifest_path)
            return known
        with reading(manifest.manifest_path):
            read = ReadManifest(manifest, manifest.fetch_manifest_entry(self._files))
        self._remembered[manifest.manifest_path] = read
        self._entry_count += len(read.entries)
        while self._entry_count > ENTRIES_REMEMBERED_MAX:
            _, dropped = self._remembered.popitem(last=False)
            self._entry_count -= len(dropped.entries)
        return read


class _DeleteManifestWriter(ManifestWriterV2):
    """PyIceberg reads manifests of delete files and writes none by itself."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def snapshot_updates(
    files: StoreFileIO,
    metadata: TableMetadata,
    manifests: Sequence[ReadManifest],
    change: FileChange,
    *,
    directory: str,
    name: UUID,
    now_ms: int,
    properties: Mapping[str, str],
) -> tuple[TableUpdate, ...]:
    """Writes the manifests of a new snapshot below `directory`; returns what makes it current.

    `name` distinguishes its files from all others.
    """
    snapshot_id = metadata.new_snapshot_id()
    numbers = count()

    def written(
        kind: type[ManifestWriterV2],
        dissolved: Sequence[ReadManifest],
        added: Sequence[DataFile],
        removed: Collection[str],
    ) -> Iterator[ManifestFile]:
        entries = [
            *_entries(ManifestEntryStatus.ADDED, snapshot_id, added),
            *_moved(dissolved, removed, snapshot_id),
        ]
        entries.sort(key=lambda entry: entry.data_file.file_path)
        for start in range(0, len(entries), MANIFEST_FILES_MAX):
            with kind(
                metadata.spec(),
                metadata.schema(),
                files.new_output(f"{directory}{name}-m{next(numbers)}.avro"),
                snapshot_id,
                _COMPRESSION,
            ) as writer:
                for entry in entries[start : start + MANIFEST_FILES_MAX]:
                    writer.add_entry(entry)
            yield writer.to_manifest_file()

    kept, dissolved = _divided([one for one in manifests if not one.has_deletes], change.removed)
    named = [
        *written(ManifestWriterV2, dissolved, change.added, change.removed),
        *(read.manifest for read in kept),
    ]
    deletes = [one for one in manifests if one.has_deletes]
    if change.hidden or change.shown:
        named += written(_DeleteManifestWriter, deletes, change.hidden, change.shown)
    else:
        named += [read.manifest for read in deletes]
    parent = metadata.current_snapshot()
    sequence_number = metadata.next_sequence_number()
    manifest_list = f"{directory}snap-{snapshot_id}-{name}.avro"
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=files.new_output(manifest_list),
        snapshot_id=snapshot_id,
        parent_snapshot_id=None if parent is None else parent.snapshot_id,
        sequence_number=sequence_number,
        avro_compression=_COMPRESSION,
    ) as list_writer:
        list_writer.add_manifests(named)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": None if parent is None else parent.snapshot_id,
            "manifest-list": manifest_list,
            "sequence-number": sequence_number,
            "timestamp-ms": now_ms,
            "summary": _summary(metadata, change, properties),
            "schema-id": metadata.current_schema_id,
        }
    )
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
        ),
    )


def expired_snapshots(metadata: TableMetadata, *, now_ms: int, retention_ms: int) -> list[int]:
    """The snapshots whose successor is older than the retention."""
    snapshots = sorted(metadata.snapshots, key=lambda it: it.sequence_number or 0)
    return [
        snapshot.snapshot_id
        for snapshot, successor in pairwise(snapshots)
        if successor.timestamp_ms <= now_ms - retention_ms
    ]


def expiry_updates(expired: Sequence[int]) -> tuple[TableUpdate, ...]:
    if not expired:
        return ()
    return (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(expired)}),)


def _divided(
    manifests: Sequence[ReadManifest], removed: Collection[str]
) -> tuple[Sequence[ReadManifest], Sequence[ReadManifest]]:
    """Those that are named again, and those whose files go into a new one."""
    kept: list[ReadManifest] = []
    dissolved: list[ReadManifest] = []
    for read in manifests:
        loses = any(entry.data_file.file_path in removed for entry in read.entries)
        (dissolved if loses else kept).append(read)
    if len(kept) + 1 > MANIFESTS_MAX:
        dissolved += [read for read in kept if len(read.entries) < MANIFEST_FILES_MAX // 2]
        kept = [read for read in kept if len(read.entries) >= MANIFEST_FILES_MAX // 2]
    return kept, dissolved


def _entries(
    status: ManifestEntryStatus, snapshot_id: int, files: Sequence[DataFile]
) -> Iterator[ManifestEntry]:
    for file in files:
        yield ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )


def _moved(
    dissolved: Sequence[ReadManifest], removed: Collection[str], snapshot_id: int
) -> Iterator[ManifestEntry]:
    for read in dissolved:
        for entry in read.entries:
            is_removed = entry.data_file.file_path in removed
            yield ManifestEntry.from_args(
                status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
                snapshot_id=snapshot_id if is_removed else entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                data_file=entry.data_file,
            )


def _summary(metadata: TableMetadata, change: FileChange, properties: Mapping[str, str]) -> Summary:
    operation = Operation.OVERWRITE
    if not (change.removed or change.hidden or change.shown):
        operation = Operation.APPEND
    elif not change.added and (change.removed or change.hidden):
        operation = Operation.DELETE
    collected = SnapshotSummaryCollector()
    for file in (*change.added, *change.hidden):
        collected.add_file(file, metadata.schema(), metadata.spec())
    for file in (*change.removed.values(), *change.shown.values()):
        collected.remove_file(file, metadata.schema(), metadata.spec())
    parent = metadata.current_snapshot()
    return update_snapshot_summaries(
        Summary(operation=operation, **collected.build(), **properties),
        None if parent is None else parent.summary,
    )
