"""What lies below a table's prefix, as the table gets older, and what becomes of lost passes."""

import random

import pyarrow as pa
import pytest
from pyiceberg.types import StructType

from bench.tiering.tables import LIVE, ROWS, TableBed, segment_bytes
from metadata.table_operations import CommitTable, ListTables, TableCommit
from tests.support.profiles import IS_EXHAUSTIVE
from tiering.segment_columns import FIELD_ID
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


# --- columns that a topic's own types add --------------------------------------------------------


def numbered(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def typed(*fields: pa.Field, values: list[object]) -> list[tuple[pa.Field, pa.Array]]:
    data = numbered(100, "data", pa.struct(fields))
    return [(data, pa.array([values[at % len(values)] for at in range(ROWS)], data.type))]


def columns_of(bed: TableBed) -> str:
    metadata = read_metadata(StoreFileIO(bed.store, bed.store.url), current(bed))
    data = metadata.schema().find_field("data")
    assert isinstance(data.field_type, StructType)
    return " ".join(
        f"{field.field_id}:{field.name}:{field.field_type}" for field in data.field_type.fields
    )


def counts_of(bed: TableBed, number: int) -> list[int | None]:
    """How many values of a column each file has, as the table tells."""
    files = StoreFileIO(bed.store, bed.store.url)
    read = LiveFiles(files).read(read_metadata(files, current(bed)))
    entries = [entry.data_file for one in read for entry in one.entries]
    entries.sort(key=lambda file: file.file_path)
    return [(file.value_counts or {}).get(number) for file in entries]


def test_typed_columns_come_and_get_wider_and_none_goes() -> None:
    bed = TableBed()
    bed.add(1)
    bed.commit()
    tags = pa.list_(numbered(103, "element", pa.string()))
    first = typed(
        numbered(101, "a", pa.int32()),
        numbered(102, "tags", tags),
        values=[{"a": 7, "tags": ["x"]}, None],
    )
    bed.add(1, segment_bytes(first))
    bed.commit()
    assert columns_of(bed) == "101:a:int 102:tags:list<string>"
    second = typed(
        numbered(101, "a", pa.int64()), numbered(104, "b", pa.float64()), values=[{"a": 8, "b": 1}]
    )
    bed.add(1, segment_bytes(second))
    bed.add(1, segment_bytes(first))  # rolled late, with the older schema
    bed.commit()
    assert columns_of(bed) == "101:a:long 102:tags:list<string> 104:b:double"
    assert counts_of(bed, 101) == [None, ROWS, ROWS, ROWS]
    assert counts_of(bed, 104) == [None, None, ROWS, None]


def test_a_name_that_went_to_another_column_stays_there() -> None:
    bed = TableBed()
    before = typed(numbered(101, "a", pa.int32()), values=[{"a": 1}])
    after = typed(
        numbered(101, "a_v1", pa.int32()), numbered(102, "a", pa.string()), values=[{"a": "z"}]
    )
    for data in (before, after, before):
        bed.add(1, segment_bytes(data))
        bed.commit()
        seen = columns_of(bed)
    assert seen == "101:a_v1:int 102:a:string"
    assert counts_of(bed, 102) == [None, ROWS, None]
    assert counts_of(bed, 101) == [ROWS, ROWS, ROWS]
