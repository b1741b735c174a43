"""What lies below a table's prefix, as the table gets older, and what becomes of lost passes."""

import random

import pytest

from bench.tables import LIVE, ROWS, TableBed
from metadata.table_operations import CommitTable, ListTables, TableCommit
from tests.support.profiles import IS_EXHAUSTIVE
from tiering.tables import snapshots, table_files
from tiering.tables.registrar import Registrar
from tiering.tables.snapshots import MANIFESTS_MAX, LiveFiles
from tiering.tables.table_files import StoreFileIO, read_manifests, read_metadata
from wal.coordinates import ObjectKey
from wal.stores.object_store import BytesBody

MINUTES_5_MS = 300_000


def current(bed: TableBed) -> ObjectKey:
    (table,) = bed.list_tables(ListTables()).tables
    return table.location


def test_a_table_does_not_grow_with_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    young, old, retention_ms = 200, 2_000, 3_600_000
    if not IS_EXHAUSTIVE:
        # The same with another clock: what counts is how many commits fit into the times.
        monkeypatch.setattr(table_files, "UNNAMED_AGE_MIN_MS", MINUTES_5_MS)
        young, old, retention_ms = 25, 70, MINUTES_5_MS
    bed = TableBed(retention_ms=retention_ms)
    bed.add(LIVE)
    sizes = {}
    for number in range(1, old + 1):
        bed.a_minute()
        if number in (young, old):
            sizes[number] = bed.size()
    assert sizes[old][0] <= 1.5 * sizes[young][0], sizes
    assert sizes[old][1] <= 1.5 * sizes[young][1], sizes
    files = StoreFileIO(bed.store, bed.store.url)
    metadata = read_metadata(files, current(bed))
    assert len(metadata.snapshots) <= retention_ms // 60_000 + 1
    assert len(metadata.metadata_log) == 20
    for snapshot in metadata.snapshots:
        manifests = read_manifests(files, snapshot.manifest_list)
        assert len(manifests) <= MANIFESTS_MAX
        for manifest in manifests:
            manifest.fetch_manifest_entry(files)  # everything that a snapshot names is there
    entries = [entry for read in LiveFiles(files).read(metadata) for entry in read.entries]
    assert LIVE <= len(entries) < LIVE + 20
    assert {entry.data_file.record_count for entry in entries} == {ROWS}


def test_manifests_are_merged_and_name_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MANIFESTS_MAX", 8)
    bed = TableBed()
    files = StoreFileIO(bed.store, bed.store.url)
    counts = []
    for number in range(1, 15):
        bed.add(1)
        bed.commit()
        metadata = read_metadata(files, current(bed))
        read = LiveFiles(files).read(metadata)
        counts.append(len(read))
        paths = [entry.data_file.file_path for one in read for entry in one.entries]
        assert len(paths) == len(set(paths)) == number
        snapshot = metadata.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(number * ROWS)
    assert max(counts) == 8
    assert min(counts[8:]) == 1


def test_a_pass_that_finds_nothing_new_writes_nothing() -> None:
    bed = TableBed()
    bed.add(3)
    bed.commit()
    before = bed.size()
    bed.commit()
    assert bed.size() == before


def test_of_two_passes_at_once_the_loser_starts_from_the_new_pointer() -> None:
    bed = TableBed()
    bed.add(3)
    bed.commit()

    class Overtaken:
        """Another pass commits between the answers and the commit of this one."""

        def __init__(self) -> None:
            self.list_tables = bed.list_tables
            self.list_segments = bed.list_segments
            self.lost = 0

        def commit_table(self, commit: CommitTable) -> TableCommit:
            if not self.lost:
                bed.commit()
            answer = bed.commit_table(commit)
            self.lost += not answer.is_committed
            return answer

    other = Overtaken()
    registrar = Registrar(other, bed.store, bed.store.url, clock=bed.clock, rng=random.Random(2))
    bed.add(1)
    (result,) = registrar.run_pass(bed.list_tables(ListTables()).tables).tables
    assert other.lost == 1
    assert not result.is_committed  # the other one had done it already
    files = StoreFileIO(bed.store, bed.store.url)
    metadata = read_metadata(files, current(bed))
    assert sum(len(read.entries) for read in LiveFiles(files).read(metadata)) == 4


def test_a_damaged_segment_is_told_of_and_keeps_out_no_other() -> None:
    bed = TableBed()
    bed.add(2)
    damaged = next(stat.key for stat in bed.store.list("segments/"))
    data = bytearray(bed.store.get(damaged))
    data[-20] ^= 1
    bed.store.delete([damaged])
    bed.store.put(damaged, BytesBody(bytes(data)))
    registrar = Registrar(bed, bed.store, bed.store.url, clock=bed.clock, rng=random.Random(2))
    (result,) = registrar.run_pass(bed.list_tables(ListTables()).tables).tables
    assert damaged in result.failure
    assert result.file_count == 1
    metadata = read_metadata(StoreFileIO(bed.store, bed.store.url), current(bed))
    assert metadata.current_snapshot() is not None
