"""Makes the tables of topics name exactly the segments that are live: one pass over all of them.

    live segments of the coordinators ─┐
    files of the current snapshot ─────┴─ difference ─ footers ─ manifests ─ metadata file
                                          ─ CommitTables(old -> new) ─ the table shows it

It compares states and hears of no events. So rolls, retention, deleted records, merges need no code
of their own here; a pass that is repeated, runs twice or dies finds the difference that is left:

| dies | what is left | the next pass |
|---|---|---|
| before CommitTables | files that nothing names | writes others; the old ones go by age |
| while CommitTables is under way | the pointer moved or not | finds no difference, or the same |

Two at once: the pointer moves for one of them, the other one looks again, up to ATTEMPTS_MAX times.
A table gets one snapshot per pass, and none before its `table.commit.interval.ms` is over.
A pass commits nothing but the applied offsets where the files are as they should be already and a
segment that left is still stored: only then may the coordinators delete it
(metadata/rules/tables.py). `gc.enabled=false` tells other engines not to delete our segments.

With `table.hide.deleted` the rows below log start offsets are part of the comparison
(tiering/tables/hidden_rows.py).

A table that was lost with the metadata is made anew, under a new UUID, from the live segments.

Failure cases: a table that cannot be written is reported, and the others go on. A segment whose
footer is damaged is left out of its table and reported. What concerns all tables is raised.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    TableUpdate,
    update_table_metadata,
)

from metadata.table_operations import (
    NO_TABLE,
    CommitTable,
    ListTables,
    TableDescription,
    table_prefix,
)
from tiering.tables.data_files import (
    METRICS_PROPERTIES,
    SPEC,
    Footer,
    SegmentFile,
    data_files,
    evolved,
    read_footers,
    segment_schema,
)
from tiering.tables.hidden_rows import Hidden, HiddenCounts, hidden_by, write_delete_file
from tiering.tables.live_segments import LiveSegments, TableClient, live_segments
from tiering.tables.report import TableResult, TablesReport
from tiering.tables.snapshots import (
    FileChange,
    LiveFiles,
    ReadManifest,
    expired_snapshots,
    expiry_updates,
    snapshot_updates,
)
from tiering.tables.table_files import (
    StoreFileIO,
    as_version_2,
    delete_unnamed,
    read_metadata,
    write_metadata,
)
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import CommitFailed, CorruptSegment, ObjectNotFound
from wal.failpoint import failpoint
from wal.stores.blocking_store import BlockingBucket

ATTEMPTS_MAX: Final = 3
PREVIOUS_VERSIONS: Final = 20
"""Metadata files that the current one lists as its predecessors."""

SWEEP_EVERY: Final = 10
"""Snapshots of a table between two looks for files that nothing names."""

OFFSETS_PROPERTY: Final = "diskless.metadata.offsets"
TOPIC_ID_PROPERTY: Final = "diskless.topic.id"

_PROPERTIES: Final = {
    **METRICS_PROPERTIES,
    "gc.enabled": "false",
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": str(PREVIOUS_VERSIONS),
}


class _Difference(NamedTuple):
    """What a table lacks, and what it should not have."""

    footers: Sequence[Footer] = ()
    removed: Mapping[str, DataFile] = MappingProxyType({})
    """Data files by location."""
    hidden: Sequence[Hidden] = ()
    shown: Mapping[str, DataFile] = MappingProxyType({})
    """Delete files by location."""
    failure: str = ""
    """Segments that could not be read, and so wait for another pass."""

    @property
    def is_empty(self) -> bool:
        return not (self.footers or self.removed or self.hidden or self.shown)


class Registrar:
    """Writes tables; one for all passes of a job, since it remembers what it read."""

    def __init__(
        self,
        client: TableClient,
        store: BlockingBucket,
        store_url: str,
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`store_url`: how readers of the tables reach `store`."""
        self._client = client
        self._store = store
        self._files = StoreFileIO(store, store_url)
        self._live_files = LiveFiles(self._files)
        self._hidden_counts = HiddenCounts(store)
        self._clock = clock
        self._rng = rng

    def run_pass(self, tables: Sequence[TableDescription]) -> TablesReport:
        """Writes those of `tables` that are due."""
        results = []
        waiting = 0
        for table in tables:
            if 0 <= table.age_ms < table.commit_interval_ms:
                waiting += 1
                continue
            try:
                results.append(self._written(table))
            except Exception as error:
                # Also what PyIceberg raises: one table's trouble is no other's.
                failure = f"{type(error).__name__}: {error}"
                results.append(TableResult(table.topic_name, failure=failure))
        return TablesReport(tables=results, waiting=waiting)

    def _written(self, table: TableDescription) -> TableResult:
        for _ in range(ATTEMPTS_MAX):
            result = self._attempt(table)
            if result is not None:
                return result
            # Somebody else moved the pointer: what is to be done depends on where it is now.
            now = self._client.list_tables(ListTables(topics=(table.topic_name,))).tables
            found = [other for other in now if other.topic_id == table.topic_id]
            if not found:
                return TableResult(table.topic_name)  # deleted, or switched off
            (table,) = found
        raise CommitFailed(f"the pointer moved {ATTEMPTS_MAX} times meanwhile")

    def _attempt(self, table: TableDescription) -> TableResult | None:
        """None: the pointer is not where it was."""
        # The pointer was read first: what it was made of is not newer than these answers.
        live = live_segments(self._client, table.topic_id, table.partition_count)
        now_ms = self._clock.now_ms()
        is_new = table.location == NO_TABLE
        if is_new:
            base = self._new_metadata(table, now_ms)
        else:
            base = read_metadata(self._files, table.location)
            now_ms = max(now_ms, base.last_updated_ms)
        manifests = self._live_files.read(base)
        difference = self._difference(table, live, manifests)
        added, removed = len(difference.footers), len(difference.removed)
        expired = expired_snapshots(base, now_ms=now_ms, retention_ms=table.snapshot_retention_ms)
        named = sum(len(read.entries) for read in manifests if not read.has_deletes)
        result = TableResult(
            table.topic_name,
            added=added,
            removed=removed,
            file_count=named + added - removed,
            new_uuid=str(base.table_uuid) if is_new else "",
            is_committed=True,
            failure=difference.failure,
        )
        if expired or is_new or not difference.is_empty:
            metadata = self._next_metadata(
                table, base, manifests, difference, expired, live, now_ms
            )
            location = self._put(table, metadata)
        elif any(left >= table.applied.get(at, 0) for at, left in live.left.items()):
            metadata, location = base, table.location
        else:
            return result._replace(is_committed=False)
        failpoint("table.before_commit")
        commit = self._client.commit_table(
            CommitTable(
                topic_id=table.topic_id,
                old_location=table.location,
                new_location=location,
                applied=live.applied,
            )
        )
        failpoint("table.after_commit")
        if commit.error is not None:
            raise commit.error
        if not commit.is_committed:
            return None
        if not difference.is_empty:
            self._sweep(table, location, metadata)
        return result

    def _difference(
        self, table: TableDescription, live: LiveSegments, manifests: Sequence[ReadManifest]
    ) -> _Difference:
        wanted = {
            (location := self._files.location(segment.object_key)): SegmentFile(
                segment, location, partition
            )
            for partition, segments in live.by_partition.items()
            for segment in segments
        }
        named = _files_of(manifests, has_deletes=False)
        missing = [file for location, file in wanted.items() if location not in named]
        removed = {at: file for at, file in named.items() if at not in wanted}
        footers, failures = self._read_footers(missing)
        hiding: dict[tuple[str, int], Hidden] = {}
        uncounted: dict[str, str] = {}
        if table.hides_deleted:
            hiding, uncounted = self._hiding(wanted.values(), live)
            failures += uncounted.values()
        hidden = {hidden_by(file): file for file in _files_of(manifests, has_deletes=True).values()}
        return _Difference(
            footers,
            removed,
            [hides for of, hides in hiding.items() if of not in hidden],
            {
                file.file_path: file
                for of, file in hidden.items()
                if of not in hiding and of[0] not in uncounted
            },
            "; ".join(failures),
        )

    def _read_footers(self, missing: Sequence[SegmentFile]) -> tuple[Sequence[Footer], list[str]]:
        """And what failed."""
        try:
            return read_footers(self._store, missing), []
        except (CorruptSegment, ObjectNotFound):
            pass  # one by one, so that a damaged one does not keep out the others
        footers = []
        failures = []
        for file in missing:
            try:
                footers += read_footers(self._store, [file])
            except (CorruptSegment, ObjectNotFound) as error:
                failures.append(f"{type(error).__name__}: {error}")
        return footers, failures

    def _hiding(
        self, wanted: Iterable[SegmentFile], live: LiveSegments
    ) -> tuple[dict[tuple[str, int], Hidden], dict[str, str]]:
        """What is to be hidden, by segment and count; why that is not known of some segments."""
        hiding = {}
        uncounted = {}
        for file in wanted:
            log_start = live.log_starts[file.partition]
            if not file.segment.base_offset < log_start <= file.segment.last_offset:
                continue  # no record of it is deleted, or it has left the live ones since
            try:
                count = self._hidden_counts.below(file.segment, log_start)
            except (CorruptSegment, ObjectNotFound) as error:
                uncounted[file.location] = f"{type(error).__name__}: {error}"
                continue
            if count:
                hiding[file.location, count] = Hidden(file, count)
        return hiding, uncounted

    def _next_metadata(
        self,
        table: TableDescription,
        base: TableMetadataV2,
        manifests: Sequence[ReadManifest],
        difference: _Difference,
        expired: Sequence[int],
        live: LiveSegments,
        now_ms: int,
    ) -> TableMetadataV2:
        """Puts the manifests that they need."""
        updates: tuple[TableUpdate, ...] = ()
        schema = evolved(base.schema(), difference.footers)
        if schema is not base.schema():
            updates = (
                AddSchemaUpdate(schema=schema),
                SetCurrentSchemaUpdate.model_validate({"schema-id": schema.schema_id}),
            )
        current = as_version_2(update_table_metadata(base, updates)) if updates else base
        if not difference.is_empty:
            directory = self._files.location(ObjectKey(table_prefix(table.topic_id)))
            offsets = ", ".join(f'"{at}": {live.applied[at]}' for at in sorted(live.applied))
            updates += snapshot_updates(
                self._files,
                current,
                manifests,
                FileChange(
                    data_files(current, difference.footers),
                    difference.removed,
                    [
                        write_delete_file(
                            self._files,
                            current,
                            hides,
                            f"{directory}{self._new_id()}-deletes.parquet",
                        )
                        for hides in difference.hidden
                    ],
                    difference.shown,
                ),
                directory=directory,
                name=self._new_id(),
                now_ms=now_ms,
                properties={OFFSETS_PROPERTY: f"{{{offsets}}}"},
            )
        updates += expiry_updates(expired)
        if not updates:
            return base
        before = None if table.location == NO_TABLE else self._files.location(table.location)
        metadata = as_version_2(update_table_metadata(base, updates, metadata_location=before))
        return metadata.model_copy(update={"last_updated_ms": now_ms})

    def _put(self, table: TableDescription, metadata: TableMetadataV2) -> ObjectKey:
        """Puts a metadata file under a name of its own."""
        failpoint("table.before_metadata")
        name = f"{metadata.last_sequence_number:05d}-{self._new_id()}.metadata.json"
        key = ObjectKey(f"{table_prefix(table.topic_id)}{name}")
        write_metadata(self._files, key, metadata)
        return key

    def _sweep(self, table: TableDescription, key: ObjectKey, metadata: TableMetadataV2) -> None:
        """The pointer is at `key`, which holds `metadata`."""
        if metadata.last_sequence_number % SWEEP_EVERY:
            return
        delete_unnamed(
            self._store,
            self._files,
            table.topic_id,
            key,
            metadata,
            retention_ms=table.snapshot_retention_ms,
        )

    def _new_id(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    def _new_metadata(self, table: TableDescription, now_ms: int) -> TableMetadataV2:
        """A table without a snapshot."""
        schema = segment_schema()
        return TableMetadataV2.model_validate(
            {
                "location": self._files.location(
                    ObjectKey(table_prefix(table.topic_id).removesuffix("/metadata/"))
                ),
                "table-uuid": self._new_id(),
                "last-updated-ms": now_ms,
                "last-column-id": schema.highest_field_id,
                "schemas": [schema],
                "current-schema-id": schema.schema_id,
                "partition-specs": [SPEC],
                "default-spec-id": SPEC.spec_id,
                "last-partition-id": SPEC.last_assigned_field_id,
                "sort-orders": [UNSORTED_SORT_ORDER],
                "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
                "properties": {**_PROPERTIES, TOPIC_ID_PROPERTY: str(table.topic_id)},
            }
        )


def _files_of(manifests: Sequence[ReadManifest], *, has_deletes: bool) -> dict[str, DataFile]:
    """Data files, or delete files, by location."""
    return {
        entry.data_file.file_path: entry.data_file
        for read in manifests
        if read.has_deletes == has_deletes
        for entry in read.entries
    }
