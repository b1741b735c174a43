"""Batches that a producer had accepted and nobody can decode: rolled, served and told of."""

import asyncio
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tiering_samples import (
    PARTITION,
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
    read_batch,
)

from metadata.operations import RolledSegment
from tests.support.chunks.batch_builder import Row, build_batch, record, seal
from tests.support.profiles import examples
from tiering import wal_rows
from tiering.raw_batches import raw_batches, raw_rows
from tiering.roll import RollSettings, roll
from tiering.segment_columns import segment_table
from tiering.segment_format import SegmentIdentity
from tiering.segment_reader import SegmentReader, TimestampPosition
from tiering.segment_verification import verify_segment
from tiering.segment_writer import FileBody, SegmentWriter
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME, ObjectKey
from wal.crc import crc32c_of
from wal.errors import CorruptObject, CorruptSegment
from wal.records.batch_validation import UNBOUNDED_MS, TopicRules, check_contents, check_header
from wal.records.record_batch import unchecked_header
from wal.records.record_columns import LocatedBatch, decode_batches
from wal.stores.object_store import BytesBody

NOW = 1_700_000_000_000
LEADER_EPOCH = 5
SMALL_ROW_GROUPS = RollSettings(row_group_bytes=4096)
RULES = TopicRules(
    max_message_bytes=2 << 20,
    timestamp_type=CREATE_TIME,
    timestamp_before_max_ms=UNBOUNDED_MS,
    timestamp_after_max_ms=3_600_000,
    compacted=False,
)
THREE_RECORDS = b"".join(record(Row(NOW), NOW, delta) for delta in range(3))
BOMB = build_batch([Row(NOW, value=bytes(3 << 20))], codec=ZSTD)

POISON: dict[str, bytes] = {
    "garbage": seal(b"\xff" * 50, record_count=3),
    **{
        f"garbage as {codec}": seal(b"\x03" * 50, record_count=3, codec=codec, compress=False)
        for codec in range(1, 5)
    },
    "garbage inside zstd": seal(b"\xff" * 50, record_count=3, codec=ZSTD),
    "a record too few": seal(THREE_RECORDS, record_count=4),
    "a record too many": seal(THREE_RECORDS, record_count=2),
    "a record cut off": seal(THREE_RECORDS[:-1], record_count=3),
    "one byte more": seal(THREE_RECORDS + b"\x00", record_count=3),
    "offsets that fall": seal(
        b"".join(record(Row(NOW), NOW, delta) for delta in (0, 2, 1)), record_count=3
    ),
    "nothing inside zstd": seal(b"", record_count=9, codec=ZSTD),
    "far too much inside zstd": BOMB,
    "an idempotent producer's": seal(
        b"\xff" * 50, record_count=3, producer_id=7, producer_epoch=2, base_sequence=40
    ),
}


def prepared(data: bytes, max_timestamp_ms: int = NOW) -> PreparedBatch:
    (count,) = struct.unpack_from(">i", data, 57)
    return PreparedBatch([SampleRecord(timestamp_ms=max_timestamp_ms)] * count, data)


def accepted(batch: PreparedBatch) -> PreparedBatch:
    """The batch, after the checks of a Produce request."""
    payload = [memoryview(batch.data)]
    header = unchecked_header(payload)
    check_header(header, size=len(batch.data), rules=RULES, produce_version=9)
    check_contents(header, crc32c_of(payload, 21), rules=RULES, now_ms=NOW)
    return batch


def stamped(data: bytes, base_offset: int, append_time_ms: int | None = None) -> bytes:
    """What a consumer gets of these bytes from a WAL object, by the format's description."""
    batch = bytearray(data)
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, LEADER_EPOCH)
    if append_time_ms is not None:
        batch[22] |= 0x08
        struct.pack_into(">q", batch, 35, append_time_ms)
        struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    return bytes(batch)


def served(directory: Path, segment: RolledSegment, start: int | None = None) -> list[bytes]:
    async def read_all() -> list[bytes]:
        with file_store(directory) as store:
            async with SegmentReader(range_reader(store), leader_epoch=LEADER_EPOCH) as reader:
                batches: list[bytes] = []
                offset = int(segment.base_offset) if start is None else start
                while offset <= segment.last_offset:
                    taken = await reader.read(extent_of(segment), offset, max_bytes=3000)
                    batches += [batch.data for batch in taken]
                    offset = taken[-1].last_offset + 1
                return batches

    return asyncio.run(read_all())


def assert_served_as_from_the_wal(
    batches: Sequence[SampleBatch | PreparedBatch],
    answer: Sequence[bytes],
    base_offset: int,
    append_time_ms: int | None = None,
) -> None:
    assert len(answer) == len(batches)
    for batch, data in zip(batches, answer, strict=True):
        if isinstance(batch, PreparedBatch):
            assert data == stamped(batch.data, base_offset, append_time_ms)
        else:
            time_type = CREATE_TIME if append_time_ms is None else LOG_APPEND_TIME
            append_time = -1 if append_time_ms is None else append_time_ms
            assert [read_batch(data)] == expected_batches(
                [batch], base_offset, time_type, append_time
            )
        base_offset += len(batch.records)


@pytest.fixture
def little_inflation(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MiB are as much as a batch may inflate to, so that a bomb fits into a test."""
    monkeypatch.setattr(wal_rows, "INFLATED_BYTES_MAX", 2 << 20)
    monkeypatch.setattr(wal_rows, "GROUP_INFLATED_BYTES_MAX", 2 << 20)


@pytest.mark.parametrize("append_time_ms", [None, 1_800_000_000_000])
@pytest.mark.parametrize("name", POISON)
@pytest.mark.usefixtures("little_inflation")
def test_an_accepted_batch_that_nobody_can_decode_is_served_as_it_was_sent(
    tmp_path: Path, name: str, append_time_ms: int | None
) -> None:
    poison = accepted(prepared(POISON[name]))
    good = [SampleBatch([SampleRecord(value=b"%d" % at)] * 5, codec=at % 5) for at in range(10)]
    batches: list[SampleBatch | PreparedBatch] = [*good[:7], poison, *good[7:]]
    with file_store(tmp_path) as store:
        extents = put_wal_object(
            store,
            "wal/00/object",
            [batches],
            base_offset=100,
            timestamp_type=CREATE_TIME if append_time_ms is None else LOG_APPEND_TIME,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
        )
        rolled = roll(plan_of(extents), store)
        assert rolled.raw_batch_count == 1
        assert roll(plan_of(extents), store) == rolled
        assert verify_segment(store, rolled.segment.object_key).raw_batch_count == 1
    assert_served_as_from_the_wal(batches, served(tmp_path, rolled.segment), 100, append_time_ms)
    for offset in range(135, 135 + len(poison.records)):
        assert served(tmp_path, rolled.segment, offset)[0] == stamped(
            poison.data, 135, append_time_ms
        )


def test_stock_readers_see_a_row_without_content_for_each_of_its_records(tmp_path: Path) -> None:
    data = seal(b"\xff" * 50, record_count=3, max_timestamp=NOW + 9, leader_epoch=4)
    good = SampleBatch([SampleRecord(headers=[("h", b"1")])] * 2)
    with file_store(tmp_path) as store:
        placed = put_wal_object(store, "wal/00/object", [[good, prepared(data), good]])
        segment = roll(plan_of(placed), store).segment
    rows = pq.read_table(tmp_path / segment.object_key, partitioning=None).to_pylist()
    assert [row["offset"] for row in rows] == list(range(7))
    assert [row["raw_batch"] for row in rows] == [None, None, data, None, None, None, None]
    assert not any(row["tombstone"] for row in rows)
    for row in rows[2:5]:
        assert (row["key"], row["value"], row["headers"]) == (None, None, [])
        assert row["timestamp"].timestamp() * 1000 == NOW + 9
        assert (row["batch_base_offset"], row["timestamp_type"]) == (2, CREATE_TIME)
        assert (row["producer_id"], row["base_sequence"], row["leader_epoch"]) == (-1, -1, 4)


async def test_its_records_are_found_by_the_greatest_timestamp_of_the_batch(
    tmp_path: Path,
) -> None:
    data = seal(b"\xff" * 50, record_count=3, max_timestamp=NOW + 9)
    good = SampleBatch([SampleRecord(timestamp_ms=NOW + 3)] * 2)
    with file_store(tmp_path) as store:
        placed = put_wal_object(
            store, "wal/00/object", [[good, prepared(data, NOW + 9), good]], base_offset=10
        )
        segment = roll(plan_of(placed), store).segment
        assert segment.max_timestamp_ms == NOW + 9
        async with SegmentReader(range_reader(store)) as reader:
            extent = extent_of(segment)
            assert await reader.find_timestamp(extent, NOW + 3) == (10, NOW + 3)
            assert await reader.find_timestamp(extent, NOW + 4) == (12, NOW + 9)
            assert await reader.find_timestamp(extent, NOW + 10) is None
            assert await reader.max_timestamp(extent) == TimestampPosition(12, NOW + 9)


_records = st.tuples(st.none() | st.binary(max_size=9), st.binary(max_size=200)).map(
    lambda pair: SampleRecord(*pair)
)
_good = st.tuples(st.lists(_records, min_size=1, max_size=9), st.integers(0, 4)).map(
    lambda parts: SampleBatch(*parts)
)
_sealed_garbage = st.builds(
    lambda payload, count, codec, squeeze: seal(
        payload, record_count=count, codec=codec, compress=squeeze
    ),
    st.binary(min_size=64, max_size=300).map(lambda tail: b"\xff" * 12 + tail),
    st.integers(1, 9),
    st.integers(0, 4),
    st.booleans(),
)


@given(
    extents=st.lists(
        st.lists(_good | _sealed_garbage.map(prepared).map(accepted), min_size=1, max_size=9),
        min_size=1,
        max_size=3,
    ),
    base_offset=st.sampled_from([0, 2**40, 2**63 - 1000]),
    append_time_ms=st.none() | st.integers(0, 2**45),
    row_group_bytes=st.sampled_from([1, 500, 4 << 20]),
)
@examples(0.6, allow=[HealthCheck.function_scoped_fixture])
def test_any_mixture_is_served_as_from_the_wal(
    tmp_path_factory: pytest.TempPathFactory,
    extents: list[list[SampleBatch | PreparedBatch]],
    base_offset: int,
    append_time_ms: int | None,
    row_group_bytes: int,
) -> None:
    directory = tmp_path_factory.mktemp("store")
    batches = list(itertools.chain(*extents))
    with file_store(directory) as store:
        placed = put_wal_object(
            store,
            "wal/00/object",
            extents,
            base_offset=base_offset,
            timestamp_type=CREATE_TIME if append_time_ms is None else LOG_APPEND_TIME,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
        )
        rolled = roll(
            plan_of(placed), store, settings=RollSettings(row_group_bytes=row_group_bytes)
        )
        assert verify_segment(store, rolled.segment.object_key).identity.last_offset == (
            placed[-1].last_offset
        )
    assert rolled.raw_batch_count == sum(isinstance(batch, PreparedBatch) for batch in batches)
    assert_served_as_from_the_wal(
        batches, served(directory, rolled.segment), base_offset, append_time_ms
    )


def test_flipped_bits_of_a_stored_batch_are_damage_whatever_it_held(tmp_path: Path) -> None:
    good = SampleBatch([SampleRecord()] * 5)
    poison = prepared(POISON["garbage inside zstd"])
    key = ObjectKey("wal/00/object")
    with file_store(tmp_path) as store:
        plan = plan_of(put_wal_object(store, key, [[good, poison, good]]))
        data = store.get(key)
        start = plan.extents[0].byte_offset + len(good.encoded())
        for position in (*range(start + 16, start + 61), start + len(poison.data) - 1):
            damaged = bytearray(data)
            damaged[position] ^= 0x10
            store.delete([key])
            store.put(key, BytesBody(bytes(damaged)))
            with pytest.raises(CorruptObject, match=rf"{key}: batch at byte {start}\b"):
                roll(plan, store)
    assert not (tmp_path / "segments").exists()


def test_a_million_records_are_kept_in_one_row_group_of_few_bytes(tmp_path: Path) -> None:
    poison = prepared(
        seal(bytes(range(250)) * 600, record_count=1_000_000, codec=ZSTD, compress=False)
    )
    good = SampleBatch([SampleRecord()] * 3)
    with file_store(tmp_path) as store:
        placed = put_wal_object(store, "wal/00/object", [[good, accepted(poison), good]])
        segment = roll(plan_of(placed), store).segment
    assert pq.read_metadata(tmp_path / segment.object_key).num_row_groups == 3
    assert segment.object_bytes < 200_000
    assert_served_as_from_the_wal([good, poison, good], served(tmp_path, segment), 0)


def test_more_records_than_a_producer_may_send_are_not_given_rows(tmp_path: Path) -> None:
    poison = PreparedBatch([SampleRecord()] * 1_000_001, seal(b"\xff" * 50, record_count=1_000_001))
    with file_store(tmp_path) as store:
        placed = put_wal_object(store, "wal/00/object", [[poison]])
        with pytest.raises(CorruptObject, match="cannot be decoded, and counts 1000001 records"):
            roll(plan_of(placed), store)


@pytest.mark.parametrize(("poisoned", "calls_max"), [(None, 1), (0, 13), (37, 13), (63, 13)])
def test_a_bad_batch_is_looked_for_only_where_decoding_failed_and_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poisoned: int | None, calls_max: int
) -> None:
    batches: list[SampleBatch | PreparedBatch] = [SampleBatch([SampleRecord()])] * 64
    if poisoned is not None:
        batches[poisoned] = prepared(POISON["garbage"])
    calls: list[int] = []

    def counted(located: Sequence[LocatedBatch], **limits: int) -> Any:
        calls.append(len(located))
        return decode_batches(located, **limits)

    monkeypatch.setattr(wal_rows, "decode_batches", counted)
    with file_store(tmp_path) as store:
        rolled = roll(plan_of(put_wal_object(store, "wal/00/object", [batches])), store)
    assert calls[0] == 64
    assert len(calls) == calls_max
    assert rolled.raw_batch_count == (poisoned is not None)


def located(data: bytes) -> LocatedBatch:
    return LocatedBatch(data, 10, CREATE_TIME, -1)


def test_rows_that_are_not_those_of_their_raw_batch_are_corrupt() -> None:
    data = POISON["garbage"]
    rows = raw_rows(located(data))
    assert [raw[:3] for raw in raw_batches("key", rows)] == [(0, 3, 10)]
    of_two = seal(b"\xff" * 50, record_count=2)
    swapped = rows.set_column(rows.num_columns - 1, "raw_batch", [[of_two, None, None]])
    for bad in (rows.slice(0, 2), swapped):
        with pytest.raises(CorruptSegment, match="key: raw batch at offset 10"):
            list(raw_batches("key", bad))


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-1] + b"?"])
def test_a_raw_batch_that_fails_its_own_checks_is_corrupt(change: Any) -> None:
    rows = raw_rows(located(POISON["garbage"]))
    bad = rows.set_column(
        rows.num_columns - 1, "raw_batch", [[change(POISON["garbage"]), None, None]]
    )
    with pytest.raises(CorruptSegment, match="key: raw batch at offset 10: "):
        list(raw_batches("key", bad))


def test_verification_counts_the_raw_batches(tmp_path: Path) -> None:
    key = ObjectKey("segments/x")
    identity = SegmentIdentity("flights", PARTITION, 10, 12)
    with (tmp_path / "file").open("w+b") as file, file_store(tmp_path / "store") as store:
        with SegmentWriter(file, identity, sources=()) as writer:
            writer.write_row_group(segment_table(raw_rows(located(POISON["garbage"]))))
            writer._raw_batch_count += 1
            written = writer.finish()
        store.put(key, FileBody(file, written.object_bytes))
        with pytest.raises(CorruptSegment, match="holds 1 raw batches, not 2"):
            verify_segment(store, key)
