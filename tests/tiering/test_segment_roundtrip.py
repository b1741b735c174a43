"""WAL batches -> roll -> Parquet -> reader gives every batch back as it was (invariant R1)."""

import asyncio
import itertools
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tiering_samples import (
    PARTITION,
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
from metadata.records.segment_identity import segment_key
from tests.support.profiles import examples
from tiering.roll import RollSettings, roll
from tiering.segment_columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from tiering.segment_reader import SegmentReader
from wal.coordinates import LOG_APPEND_TIME
from wal.crc import crc32c

INT64_MAX = 2**63 - 1
SMALL_ROW_GROUPS = RollSettings(row_group_bytes=4096)

_keys = st.none() | st.binary(max_size=20)
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4)


@st.composite
def _batches(draw: st.DrawFn) -> SampleBatch:
    # A batch holds differences to its first timestamp, which Kafka's clients keep below 2**63.
    base = draw(st.sampled_from([0, -1, 1_700_000_000_000, TIMESTAMP_MS_MAX, -(2**62), 2**62]))
    times = st.integers(-(2**40), 2**40).map(lambda delta: base + delta)
    # The client's encoder that makes these takes a first timestamp of -1 for one not yet known, and
    # writes another than it was given.
    times = times.filter(lambda time: time != -1)
    records = st.builds(SampleRecord, _keys, _keys, times, _headers)
    producer = draw(st.none() | st.integers(0, 2**63 - 1))
    return SampleBatch(
        draw(st.lists(records, min_size=1, max_size=12)),
        codec=draw(st.integers(0, 4)),
        producer_id=-1 if producer is None else producer,
        producer_epoch=-1 if producer is None else draw(st.integers(0, 2**15 - 1)),
        base_sequence=-1 if producer is None else draw(st.integers(0, 2**31 - 1)),
    )


def _served(store_directory: Path, segment: RolledSegment) -> list[bytes]:
    async def read_all() -> list[bytes]:
        with file_store(store_directory) as store:
            async with SegmentReader(range_reader(store)) as reader:
                extent = extent_of(segment)
                batches, offset = [], int(segment.base_offset)
                while offset <= segment.last_offset:
                    taken = await reader.read(extent, offset, max_bytes=3000)
                    batches += [batch.data for batch in taken]
                    offset = taken[-1].last_offset + 1
                return batches

    return asyncio.run(read_all())


@given(
    extents=st.lists(st.lists(_batches(), min_size=1, max_size=4), min_size=1, max_size=4),
    base_offset=st.sampled_from([0, 7, 2**40, INT64_MAX - 1000]),
    gap=st.binary(max_size=3),
    append_time=st.none() | st.integers(0, 2**45),
)
@examples(0.6, allow=[HealthCheck.function_scoped_fixture])
def test_a_consumer_sees_the_same_batches_from_the_segment_as_from_the_wal_object(
    tmp_path_factory: pytest.TempPathFactory,
    extents: list[list[SampleBatch]],
    base_offset: int,
    gap: bytes,
    append_time: int | None,
) -> None:
    directory = tmp_path_factory.mktemp("store")
    timestamp_type = 0 if append_time is None else LOG_APPEND_TIME
    log_append_time_ms = -1 if append_time is None else append_time
    with file_store(directory) as store:
        placed = put_wal_object(
            store,
            "wal/00/object",
            extents,
            base_offset=base_offset,
            gap=gap,
            timestamp_type=timestamp_type,
            log_append_time_ms=log_append_time_ms,
        )
        segment = roll(plan_of(placed), store, settings=SMALL_ROW_GROUPS).segment
    flat = list(itertools.chain(*extents))
    expected = expected_batches(flat, base_offset, timestamp_type, log_append_time_ms)
    assert [read_batch(data) for data in _served(directory, segment)] == expected
    assert segment.max_timestamp_ms == max(batch.max_timestamp_ms for batch in expected)
    assert segment.record_count == sum(len(batch.records) for batch in flat)


def test_timestamps_at_both_ends_of_64_bits_come_back_exactly(tmp_path: Path) -> None:
    extremes = [0, -1, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX + 1, INT64_MAX]
    extremes += [TIMESTAMP_MS_MIN, TIMESTAMP_MS_MIN - 1, -(2**63)]
    batches = [SampleBatch([SampleRecord(timestamp_ms=time)]) for time in extremes]
    with file_store(tmp_path) as store:
        segment = roll(plan_of(put_wal_object(store, "wal/00/object", [batches])), store).segment
    assert [read_batch(data) for data in _served(tmp_path, segment)] == expected_batches(batches)
    rows = pq.read_table(tmp_path / segment.object_key, columns=["timestamp", "timestamp_raw"])
    outside = [not TIMESTAMP_MS_MIN <= time <= TIMESTAMP_MS_MAX for time in extremes]
    assert [time is None for time in rows.column("timestamp").to_pylist()] == outside
    assert rows.column("timestamp_raw").to_pylist() == [
        time if is_outside else None for time, is_outside in zip(extremes, outside, strict=True)
    ]


def test_row_groups_end_where_batches_end(tmp_path: Path) -> None:
    batches = [
        SampleBatch([SampleRecord(value=bytes(100))] * count, codec=codec)
        for count, codec in zip(range(1, 60), itertools.cycle([0, 4, 4]), strict=False)
    ]
    with file_store(tmp_path) as store:
        placed = put_wal_object(store, "wal/00/object", [batches[:30], batches[30:]])
        segment = roll(plan_of(placed), store, settings=SMALL_ROW_GROUPS).segment
    file = pq.ParquetFile(tmp_path / segment.object_key)
    assert file.num_row_groups > 5
    seen: set[int] = set()
    for index in range(file.num_row_groups):
        bases = set(file.read_row_group(index, ["batch_base_offset"])[0].to_pylist())
        assert not bases & seen
        seen |= bases
    assert seen == {batch.base_offset for batch in expected_batches(batches)}


def test_the_footer_names_the_records_and_holds_no_time(tmp_path: Path) -> None:
    with file_store(tmp_path) as store:
        placed = put_wal_object(
            store, "wal/00/object", [[SampleBatch([SampleRecord()] * 5)]], base_offset=100
        )
        segment = roll(plan_of(placed), store).segment
    assert segment.object_key == segment_key("flights", PARTITION, 100, 104)
    assert segment.object_key.endswith(
        f"topic=flights/id={PARTITION.topic_id}/partition=3/"
        "00000000000000000100-00000000000000000104.parquet"
    )
    metadata = pq.read_metadata(tmp_path / segment.object_key).metadata
    assert {key.decode(): value.decode() for key, value in metadata.items()} == {
        "diskless.format.version": "2",
        "diskless.topic": "flights",
        "diskless.topic.id": str(PARTITION.topic_id),
        "diskless.partition": "3",
        "diskless.base.offset": "100",
        "diskless.last.offset": "104",
        "diskless.generation": "0",
        "diskless.record.count": "5",
        "diskless.control.count": "0",
        "diskless.aborted.count": "0",
        "diskless.removed.count": "0",
        "diskless.raw.batch.count": "0",
        "diskless.typed.columns": "",
        "diskless.sources.bytes": "0",
        "diskless.created.by": "diskless segment writer 2",
        "diskless.row.groups": "[[100,104,5,1700000000000]]",
        "diskless.row.group.parts": metadata[b"diskless.row.group.parts"].decode(),
        "diskless.empty.batches": "[]",
        "diskless.crc32c": metadata[b"diskless.crc32c"].decode(),
    }


def test_a_header_key_that_is_not_text_keeps_its_bytes(tmp_path: Path) -> None:
    batch = SampleBatch([SampleRecord(headers=[("xy", b"1"), ("xy", None)])]).encoded()
    raw = batch.replace(b"xy", b"\xff\xfe")
    # aiokafka cannot make such a batch, so its CRC is computed again.
    patched = raw[:17] + crc32c(raw[21:]).to_bytes(4, "big") + raw[21:]
    prepared = PreparedBatch([SampleRecord()], patched)
    with file_store(tmp_path) as store:
        placed = put_wal_object(store, "wal/00/object", [[prepared]])
        segment = roll(plan_of(placed), store).segment
    (served,) = _served(tmp_path, segment)
    assert served.count(b"\xff\xfe") == 2
