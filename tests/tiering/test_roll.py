"""The roll converges on one object, refuses what is not the plan, and reads in large ranges."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tiering_samples import (
    GZIP,
    ZSTD,
    PreparedBatch,
    SampleBatch,
    SampleRecord,
    expected_batches,
    extent_of,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
)

from metadata.operations import SegmentPlan
from metadata.rebuild.filler import filler_batches
from tiering import segment_format, wal_rows
from tiering.roll import RollSettings, roll, row_groups
from tiering.segment_reader import SegmentReader
from tiering.segment_verification import verify_segment
from wal import failpoint
from wal.clock import SystemClock
from wal.coordinates import ByteOffset, ObjectKey, Offset
from wal.crc import crc32c
from wal.errors import CorruptObject, CorruptSegment, ObjectExists, Rejected
from wal.failpoint import FailpointError
from wal.records.record_batch import parse_header
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import BytesBody

BATCHES = [SampleBatch([SampleRecord(value=b"%d" % at)] * 10, codec=at % 5) for at in range(20)]


class CountingStore:
    """A blocking store that remembers what was asked of it."""

    def __init__(self, store: BlockingFileStore) -> None:
        self._store = store
        self.ranges: list[tuple[str, int, int]] = []
        self.puts = 0
        self._lock = threading.Lock()

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        with self._lock:
            self.ranges.append((key, start, length))
        return self._store.get_range(key, start, length)

    def put(self, key: ObjectKey, body: Any) -> None:
        self.puts += 1
        self._store.put(key, body)

    def head(self, key: ObjectKey) -> Any:
        return self._store.head(key)


def _planned(store: Any, batches: list[SampleBatch] = BATCHES) -> SegmentPlan:
    return plan_of(put_wal_object(store, "wal/00/object", [batches]))


def test_a_second_roll_finds_the_first_ones_object_and_says_the_same_of_it(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        counting = CountingStore(store)
        first = roll(plan, counting).segment
        assert roll(plan, counting).segment == first
        assert counting.puts == 1
        stored = store.get(first.object_key)
    assert (first.object_bytes, first.crc32c) == (len(stored), crc32c(stored))


@pytest.mark.parametrize("point", ["roll.before_put", "roll.after_put"])
def test_a_roll_that_died_around_its_put_is_finished_by_the_next(
    tmp_path: Path, point: str
) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        failpoint.arm(f"{point}=raise")
        try:
            with pytest.raises(FailpointError):
                roll(plan, store)
        finally:
            failpoint.arm("")
        segment = roll(plan, store).segment
        assert verify_segment(store, segment.object_key).counts.records == 200
    assert [path.name for path in (tmp_path / "segments").rglob("*.parquet")] == [
        Path(segment.object_key).name
    ]


def test_attempts_that_run_at_the_same_time_write_equal_bytes(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        first = roll(plan, store).segment
        content = store.get(first.object_key)
        store.delete([first.object_key])
        assert roll(plan, store).segment == first
        assert store.get(first.object_key) == content


def test_a_segment_that_another_version_wrote_meanwhile_becomes_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateStore(CountingStore):
        """Somebody else's put arrives just before ours."""

        def put(self, key: ObjectKey, body: Any) -> None:
            with monkeypatch.context() as other:
                other.setattr(segment_format, "CREATED_BY", "diskless segment writer 0")
                self.theirs = roll(plan, store)
            super().put(key, body)

    with file_store(tmp_path) as store:
        plan = _planned(store)
        late = LateStore(store)
        ours = roll(plan, late)
        assert late.puts == 1
        assert ours == late.theirs
        with pytest.raises(ObjectExists):
            store.put(plan.object_key, BytesBody(b"else"))


def test_something_else_under_the_key_is_an_error_and_stays(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        store.put(plan.object_key, BytesBody(b"not a segment"))
        with pytest.raises(CorruptSegment, match="flights"):
            roll(plan, store)
        assert store.get(plan.object_key) == b"not a segment"


def test_a_segment_of_other_records_under_the_key_is_an_error(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        other = roll(plan, store).segment
        shorter = plan_of(put_wal_object(store, "wal/00/short", [BATCHES[:3]]))
        store.put(shorter.object_key, BytesBody(store.get(other.object_key)))
        with pytest.raises(CorruptSegment, match="not what was planned"):
            roll(shorter, store)


def test_neighbouring_extents_of_one_object_are_read_together(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        extents = put_wal_object(
            store, "wal/00/one", [[batch] for batch in BATCHES], gap=b"of another partition"
        )
        extents += put_wal_object(
            store, "wal/00/two", [[batch] for batch in BATCHES], base_offset=200
        )
        counting = CountingStore(store)
        segment = roll(plan_of(extents), counting).segment
    assert segment.record_count == 400
    assert sorted(key for key, _, _ in counting.ranges) == ["wal/00/one", "wal/00/two"]


def test_an_extent_larger_than_one_read_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    values = [rng.randbytes(rng.randrange(900)) for _ in range(50)]
    batches = [SampleBatch([SampleRecord(value=value)]) for value in values]
    with file_store(tmp_path) as store:
        plan = _planned(store, batches)
        counting = CountingStore(store)
        monkeypatch.setattr(wal_rows, "READ_BYTES_MAX", 700)
        roll(plan, counting)
    assert max(length for _, _, length in counting.ranges) == 700
    rows = pq.read_table(tmp_path / plan.object_key)
    assert rows.column("value").to_pylist() == values
    assert rows.column("offset").to_pylist() == list(range(50))


def test_a_large_compressed_batch_among_small_ones_is_decoded_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_rows, "GROUP_INFLATED_BYTES_MAX", 100_000)
    small = [SampleBatch([SampleRecord()], codec=GZIP)] * 9
    batches = [*small, SampleBatch([SampleRecord(value=bytes(300_000))], codec=ZSTD), *small]
    with file_store(tmp_path) as store:
        plan = _planned(store, batches)
        roll(plan, store, settings=RollSettings(row_group_bytes=1 << 20))
    rows = pq.read_table(tmp_path / plan.object_key)
    assert rows.column("batch_base_offset").to_pylist() == [
        batch.base_offset for batch in expected_batches(batches)
    ]


def test_a_flipped_bit_in_a_batch_names_object_and_byte_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    with file_store(tmp_path) as store:
        plan = _planned(store)
        data = bytearray(store.get(ObjectKey("wal/00/object")))
        start = plan.extents[0].byte_offset + len(BATCHES[0].encoded())
        for position in (*range(start + 8, start + 61), start + 70):
            damaged = bytearray(data)
            damaged[position] ^= 0x04
            store.delete([ObjectKey("wal/00/object")])
            store.put(ObjectKey("wal/00/object"), BytesBody(bytes(damaged)))
            if start + 12 <= position < start + 16:
                continue  # the leader epoch is outside the CRC and not served
            # A wrong length leads to the wrong place before anything else can be checked.
            byte = r"\d+" if start + 8 <= position < start + 12 else str(start)
            with pytest.raises(CorruptObject, match=rf"wal/00/object.* at byte {byte}\b"):
                roll(plan, store)
    assert not (tmp_path / "segments").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"last_offset": Offset(198)}, "extent ends before 199"),
        ({"length_bytes": 2500}, "past its extent|is cut off"),
    ],
)
def test_an_extent_that_does_not_hold_what_is_planned_is_corrupt(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with file_store(tmp_path) as store:
        extent = _planned(store).extents[0]._replace(**change)
        with pytest.raises(CorruptObject, match=complaint):
            roll(plan_of([extent]), store)


def test_the_longest_topic_name_fits_into_a_file_systems_names(tmp_path: Path) -> None:
    name = "n" * 249
    with file_store(tmp_path) as store:
        segment = roll(
            plan_of(put_wal_object(store, "wal/00/object", [BATCHES]), name), store
        ).segment
        identity = verify_segment(store, segment.object_key).identity
    assert identity.topic_name == name
    directory = f"segments/topic={name}/id={identity.partition.topic_id}/"
    assert segment.object_key.startswith(directory)


def test_a_plan_with_a_hole_is_refused(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        (first,) = put_wal_object(store, "wal/00/one", [BATCHES[:1]])
        (second,) = put_wal_object(store, "wal/00/two", [BATCHES[:1]], base_offset=11)
        with pytest.raises(Rejected, match="do not follow at offset 10"):
            roll(plan_of([first, second]), store)


def test_an_extent_beyond_its_object_is_corrupt(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        extent = _planned(store).extents[0]
        beyond = extent._replace(byte_offset=ByteOffset(extent.byte_offset + 5))
        with pytest.raises(CorruptObject, match="wal/00/object"):
            roll(plan_of([beyond]), store)


class WatchedStore(BlockingFileStore):
    """Tells of each ranged read before it is answered."""

    def __init__(self, directory: Path, on_read: Callable[[int], None]) -> None:
        super().__init__(str(directory), clock=SystemClock(), rng=random.Random(1), sync=False)
        self._on_read = on_read

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        self._on_read(length)
        return super().get_range(key, start, length)


def plan_of_small_objects(store: BlockingFileStore, count: int) -> SegmentPlan:
    batch = SampleBatch([SampleRecord(value=bytes(1_000))])
    placed = [
        put_wal_object(store, f"wal/00/{at}", [[batch]], base_offset=at) for at in range(count)
    ]
    return plan_of([extent for (extent,) in placed])


def test_small_ranges_are_read_many_at_a_time(tmp_path: Path) -> None:
    # Each read is answered when seven others have been asked for.
    together = threading.Barrier(8)
    store = WatchedStore(tmp_path, lambda _: together.wait(60))
    plan = plan_of_small_objects(store, 16)
    assert sum(table.num_rows for table in row_groups(plan, store, 1 << 20)) == 16


def test_no_more_is_read_ahead_than_may_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_rows, "READ_AHEAD_BYTES", 3_500)
    asked: list[int] = []
    store = WatchedStore(tmp_path, asked.append)
    plan = plan_of_small_objects(store, 16)
    size = plan.extents[0].length_bytes
    ahead = wal_rows.read_ahead(wal_rows._coalesced(plan.extents), store)
    for given, _ in enumerate(ahead, 1):
        assert sum(asked) <= 3_500 + given * size
    assert len(asked) == 16


def fillers(count: int) -> list[PreparedBatch]:
    """What a rebuild puts where records are missing: batches of control records."""
    return [
        PreparedBatch([SampleRecord()] * parse_header(data).record_count, data)
        for data in filler_batches(count)
    ]


async def test_control_records_become_no_rows_and_are_counted(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        batches = [*BATCHES[:2], *fillers(7), *BATCHES[2:4], *fillers(5)]
        segment = roll(plan_of(put_wal_object(store, "wal/00/object", [batches])), store).segment
        assert (segment.record_count, segment.control_count, segment.last_offset) == (40, 12, 51)
        footer = verify_segment(store, segment.object_key)
        assert footer.counts == (40, 12, 0, 0)
        async with SegmentReader(range_reader(store)) as reader:
            served = await reader.read(extent_of(segment), 0, 1 << 20)
    bounds = [(0, 9), (10, 19), (27, 36), (37, 46), (47, 51)]
    assert [(batch.base_offset, batch.last_offset) for batch in served] == bounds
    rows = pq.read_table(tmp_path / segment.object_key, partitioning=None, columns=["offset"])
    assert rows.column("offset").to_pylist() == [*range(20), *range(27, 47)]


def test_a_segment_of_control_records_alone_has_no_row(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, "wal/00/object", [fillers(250_000)]))
        segment = roll(plan, store).segment
        assert roll(plan, store).segment == segment
        assert (segment.record_count, segment.control_count) == (0, 250_000)
        assert verify_segment(store, segment.object_key).row_groups == ()


def test_a_damaged_control_batch_is_named(tmp_path: Path) -> None:
    (filler,) = fillers(7)
    damaged = PreparedBatch(filler.records, filler.data[:-1] + b"?")
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, "wal/00/object", [[damaged]]))
        with pytest.raises(CorruptObject, match="wal/00/object: batch at byte 20"):
            roll(plan, store)
