"""Tables without the rows that were deleted: which delete files there are, and what they say."""

import random
from collections.abc import Mapping, Sequence

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from bench.tiering.tables import ROWS, TableBed, segment_bytes
from metadata.table_operations import NO_TABLE, ListTables, TableDescription
from tiering.tables.hidden_rows import hidden_by
from tiering.tables.registrar import Registrar
from tiering.tables.report import TableResult
from tiering.tables.snapshots import LiveFiles
from tiering.tables.table_files import StoreFileIO, read_metadata
from wal.coordinates import ObjectKey
from wal.stores.object_store import BytesBody


class HidingBed(TableBed):
    """A topic with `table.hide.deleted`."""

    def __init__(self) -> None:
        super().__init__(hides_deleted=True)
        self.registrar = Registrar(
            self, self.store, self.store.url, clock=self.clock, rng=random.Random(2)
        )
        self.files = StoreFileIO(self.store, self.store.url)

    @property
    def table(self) -> TableDescription:
        (table,) = self.list_tables(ListTables()).tables
        return table

    def run_pass(self) -> TableResult:
        self.clock.advance(60)
        (result,) = self.registrar.run_pass([self.table]).tables
        return result

    def hidden(self) -> Mapping[int, int]:
        """How many rows are hidden, by the base offset of the segment."""
        metadata = read_metadata(self.files, self.table.location)
        found = {}
        for manifest in LiveFiles(self.files).read(metadata):
            for entry in manifest.entries if manifest.has_deletes else ():
                location, count = hidden_by(entry.data_file)
                found[int(location.rpartition("/")[2].partition("-")[0])] = count
        return found

    def offsets(self) -> Sequence[int]:
        """What PyIceberg reads."""
        location = self.table.location
        assert location != NO_TABLE
        table = Table(
            ("topics", "flights"),
            read_metadata(self.files, location),
            self.files.location(location),
            self.files,
            NoopCatalog("none"),
        )
        found: list[int] = table.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()
        return sorted(found)


def test_a_delete_file_follows_the_log_start() -> None:
    bed = HidingBed()
    bed.add(1)
    bed.run_pass()
    assert bed.hidden() == {}
    for log_start in (1, 30, ROWS - 1):
        bed.log_start = log_start
        assert bed.run_pass().is_committed
        assert bed.hidden() == {0: log_start}
        assert bed.offsets() == [*range(log_start, ROWS)]
        assert not bed.run_pass().is_committed
    bed.add(1)
    bed.leave(1)
    bed.log_start = ROWS
    bed.run_pass()
    assert bed.hidden() == {}


def test_rows_come_back_when_the_config_is_switched_off() -> None:
    bed = HidingBed()
    bed.add(1)
    bed.log_start = 30
    bed.run_pass()
    assert bed.offsets() == [*range(30, ROWS)]
    bed.hides_deleted = False
    bed.run_pass()
    assert bed.offsets() == [*range(ROWS)]
    assert not bed.run_pass().is_committed


def test_rows_are_counted_by_their_offsets_where_some_are_missing() -> None:
    bed = HidingBed()
    offsets = [0, 7, 8, 50, 90]
    bed.add(1, segment_bytes(offsets=offsets), rows=len(offsets))
    for log_start in (1, 7, 8, 49, 51, 91):
        bed.log_start = log_start
        bed.run_pass()
        kept = [offset for offset in offsets if offset >= log_start]
        assert bed.offsets() == kept, log_start


def test_what_a_compaction_removed_already_needs_no_delete_file() -> None:
    bed = HidingBed()
    bed.add(1, segment_bytes(offsets=[60, 61]), rows=2)
    bed.log_start = 50
    bed.run_pass()
    assert bed.hidden() == {}
    assert not bed.run_pass().is_committed


def test_a_segment_that_cannot_be_counted_keeps_the_rows_hidden_that_were() -> None:
    bed = HidingBed()
    bed.add(1, segment_bytes(offsets=[0, 7, 8, 50, 90]), rows=5)
    bed.log_start = 8
    bed.run_pass()
    (key,) = [stat.key for stat in bed.store.list("segments/")]
    data = bed.store.get(key)
    bed.store.delete([key])
    bed.store.put(key, BytesBody(data[:-20] + b"?" + data[-19:]))
    bed.log_start = 9
    assert key in bed.run_pass().failure
    assert bed.hidden() == {0: 2}


def test_delete_files_that_a_snapshot_names_stay_and_others_go() -> None:
    bed = HidingBed()
    bed.add(2)
    for minute in range(1, 181):
        bed.log_start = min(minute, 30)
        bed.add(minute % 3 == 0)
        bed.run_pass()
    metadata = read_metadata(bed.files, bed.table.location)
    named: set[ObjectKey] = set()
    for snapshot in metadata.snapshots:
        for manifest in snapshot.manifests(bed.files):
            for entry in manifest.fetch_manifest_entry(bed.files):
                named.add(bed.files.key(entry.data_file.file_path))
    stored = {stat.key for stat in bed.store.list("")}
    assert named <= stored
    deletes = [key for key in stored if key.endswith("-deletes.parquet")]
    assert len(deletes) == 1, "those of expired snapshots are gone"
