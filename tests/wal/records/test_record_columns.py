"""Records to columns and back: against a plain model, other clients' codecs, and garbage."""

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import (
    KafkaPythonBatch,
    KafkaPythonBatchBuilder,
    Row,
    blob,
    build_batch,
    record,
    seal,
    varint,
    wrap64,
)
from tests.support.profiles import examples
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP
from wal.errors import CorruptBatch, RecordTooLarge
from wal.records import record_columns
from wal.records.record_batch import (
    HEADER_BYTES,
    EncodedBatch,
    assign_log_append_time,
    parse_header,
    verify_crc,
)
from wal.records.record_columns import RECORD_SCHEMA, LocatedBatch, decode_batches
from wal.records.record_encoding import encode_batches
from wal.records.record_scan import inspect_records, open_batch, rising_timestamps

CODECS = range(5)
NOW = 1_700_000_000_000


def located(data: bytes, base_offset: int = 0, append_time: int | None = None) -> LocatedBatch:
    if append_time is None:
        return LocatedBatch(data, base_offset, CREATE_TIME, NO_TIMESTAMP)
    return LocatedBatch(data, base_offset, LOG_APPEND_TIME, append_time)


def located_again(encoded: Sequence[EncodedBatch]) -> list[LocatedBatch]:
    return [located(batch.data, batch.base_offset) for batch in encoded]


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of each record, as Python values."""
    return [
        (
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in table.to_pylist()
    ]


def model(rows: Sequence[Row], base_offset: int) -> list[tuple[Any, ...]]:
    return [
        (base_offset + n, row.timestamp, row.key, row.value, list(row.headers))
        for n, row in enumerate(rows)
    ]


timestamps = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 10**13)
payloads = st.none() | st.binary(max_size=40) | st.builds(bytes, st.integers(0, 300))
headers = st.lists(
    st.tuples(
        st.sampled_from([b"", b"k", b"trace", b"\xff\xfe"]) | st.binary(max_size=5), payloads
    ),
    max_size=4,
)
rows = st.builds(Row, timestamps, payloads, payloads, headers)
batches_of_rows = st.lists(st.lists(rows, min_size=1, max_size=12), max_size=6)


@given(batches=batches_of_rows, codecs=st.lists(st.sampled_from(CODECS), min_size=6, max_size=6))
def test_records_of_any_shape_decode_to_what_was_written(
    batches: list[list[Row]], codecs: list[int]
) -> None:
    data, expected, offset = [], [], 2**40
    for number, (batch, codec) in enumerate(zip(batches, codecs, strict=False)):
        data.append(
            located(
                build_batch(
                    batch,
                    codec=codec,
                    producer_id=number,
                    producer_epoch=number + 1,
                    base_sequence=100 * number,
                    leader_epoch=-1,
                ),
                offset,
            )
        )
        expected += model(batch, offset)
        offset += len(batch) + number
    table = decode_batches(data)
    assert table.schema == RECORD_SCHEMA
    table.validate(full=True)
    assert rows_of(table) == expected
    counts = [len(batch) for batch in batches]
    for name, values in {
        "batch_base_offset": [batch.base_offset for batch in data],
        "producer_id": range(len(batches)),
        "producer_epoch": range(1, len(batches) + 1),
        "base_sequence": range(0, 100 * len(batches), 100),
        "leader_epoch": [-1] * len(batches),
        "attributes": codecs[: len(batches)],
        "timestamp_type": [CREATE_TIME] * len(batches),
    }.items():
        repeated = [
            value for value, count in zip(values, counts, strict=True) for _ in range(count)
        ]
        assert table.column(name).to_pylist() == repeated


@given(batches=batches_of_rows, codec=st.sampled_from(CODECS), append_time=st.none() | timestamps)
def test_encoding_is_the_inverse_of_decoding(
    batches: list[list[Row]], codec: int, append_time: int | None
) -> None:
    data, offset = [], 7
    for number, batch in enumerate(batches):
        built = build_batch(
            batch, codec=codec, producer_id=number, producer_epoch=3, base_sequence=number
        )
        data.append(located(built, offset, append_time))
        offset += len(batch)
    table = decode_batches(data)
    encoded = encode_batches(table)
    again = decode_batches(located_again(encoded))
    unchanged = [name for name in RECORD_SCHEMA.names if name != "attributes"]
    assert again.select(unchanged).equals(table.select(unchanged))
    for served, source in zip(encoded, data, strict=True):
        verify_crc(served.data)
        header, sent = parse_header(served.data), parse_header(source.data)
        last_offset = source.base_offset + sent.last_offset_delta
        assert served.base_offset == header.base_offset == source.base_offset
        assert served.last_offset == header.last_offset == last_offset
        assert (
            header[5:]
            == sent._replace(
                attributes=0 if append_time is None else 0x08,
                base_timestamp_ms=sent.base_timestamp_ms if append_time is None else append_time,
                max_timestamp_ms=sent.max_timestamp_ms if append_time is None else append_time,
            )[5:]
        )


@given(batch=st.lists(rows, min_size=1, max_size=8))
def test_an_uncompressed_batch_is_served_back_byte_for_byte(batch: list[Row]) -> None:
    data = build_batch(batch, base_offset=11, producer_id=1, producer_epoch=0, base_sequence=5)
    assert [encoded.data for encoded in encode_batches(decode_batches([located(data, 11)]))] == [
        data
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_built_by_aiokafka_decode_to_equal_values(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=12,
        producer_epoch=1,
        base_sequence=2**31 - 2,
        batch_size=1 << 20,
    )
    batch = [
        Row(NOW + n, b"k%d" % n if n % 3 else None, b"v" * n, [(f"h{n}", b"x"), ("h", None)])  # type: ignore[list-item]
        for n in range(50)
    ]
    for n, row in enumerate(batch):
        builder.append(n, row.timestamp, row.key, row.value, row.headers)
    table = decode_batches([located(bytes(builder.build()), 1000)])
    expected = [
        row._replace(headers=[(name.encode(), value) for name, value in row.headers])  # type: ignore[attr-defined]
        for row in batch
    ]
    assert rows_of(table) == model(expected, 1000)
    assert set(table.column("base_sequence").to_pylist()) == {2**31 - 2}


@pytest.mark.parametrize("codec", [0, 1])
def test_batches_built_by_kafka_python_decode_to_equal_values(codec: int) -> None:
    builder = KafkaPythonBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for n in range(20):
        builder.append(n, NOW - n, b"k", b"value %d" % n, [("a", b"1"), ("a", b"2")])
    table = decode_batches([located(bytes(builder.build()), 3)])
    assert rows_of(table) == [
        (3 + n, NOW - n, b"k", b"value %d" % n, [(b"a", b"1"), (b"a", b"2")]) for n in range(20)
    ]


@pytest.mark.parametrize("reader", [DefaultRecordBatch, KafkaPythonBatch])
@given(batch=st.lists(rows, min_size=1, max_size=8))
def test_other_clients_read_what_is_encoded_here(reader: Any, batch: list[Row]) -> None:
    readable = [
        row._replace(
            headers=[(f"h{n}", value) for n, (_, value) in enumerate(row.headers)],  # type: ignore[misc]
            timestamp=NOW + row.timestamp % 10_000,
        )
        for row in batch
    ]
    stored = [
        row._replace(headers=[(name.encode(), value) for name, value in row.headers])  # type: ignore[attr-defined]
        for row in readable
    ]
    (encoded,) = encode_batches(decode_batches([located(build_batch(stored), 2**33)]))
    batch_read = reader(encoded.data)
    assert batch_read.validate_crc()
    assert [
        (item.offset, item.timestamp, item.key, item.value, list(item.headers))
        for item in batch_read
    ] == model(readable, 2**33)


@pytest.mark.parametrize("value_bytes", [100, 70_000])
def test_large_batches_are_served_out_of_the_memory_they_were_made_in(value_bytes: int) -> None:
    sent = [
        build_batch([Row(NOW, b"k%d" % n, bytes([n]) * value_bytes), Row(NOW)], base_offset=10 * n)
        for n in range(4)
    ]
    encoded = encode_batches(decode_batches([located(data, 10 * n) for n, data in enumerate(sent)]))
    assert [batch.data for batch in encoded] == sent
    views = [batch.data for batch in encoded if isinstance(batch.data, memoryview)]
    assert len(views) == (4 if value_bytes > 1000 else 0), "little is copied out"
    assert len({id(view.obj) for view in views}) <= 1
    assert all(view.readonly and view.format == "B" for view in views)


def test_no_batches_give_an_empty_table_and_no_rows_give_no_batches() -> None:
    table = decode_batches([])
    assert table.schema == RECORD_SCHEMA
    assert table.num_rows == 0
    assert encode_batches(table) == []


def test_a_batch_emptied_by_compaction_has_no_records() -> None:
    empty = located(seal(b"", record_count=0, last_offset_delta=9), 50)
    full = located(build_batch([Row()]), 60)
    assert decode_batches([empty]).num_rows == 0
    assert decode_batches([empty, full, empty]).column("offset").to_pylist() == [60]


def test_log_append_time_replaces_every_records_timestamp() -> None:
    data = build_batch([Row(timestamp=n) for n in (5, 2**62, -1)])
    table = decode_batches([located(data, 0, append_time=NOW)])
    assert table.column("timestamp").to_pylist() == [NOW] * 3
    assert table.column("timestamp_type").to_pylist() == [LOG_APPEND_TIME] * 3
    patched = bytearray(data)
    assign_log_append_time(patched, 0, len(data), NOW)
    assert decode_batches([located(bytes(patched))]).drop_columns("attributes") == (
        table.drop_columns("attributes")
    )


def test_gaps_that_compaction_left_between_offsets_stay() -> None:
    kept = [0, 3, 4, 9]
    payload = b"".join(record(Row(), NOW, delta) for delta in kept)
    data = seal(payload, record_count=4, last_offset_delta=9)
    table = decode_batches([located(data, 100)])
    assert table.column("offset").to_pylist() == [100, 103, 104, 109]
    (encoded,) = encode_batches(table)
    assert encoded.last_offset == 109
    assert [item.offset for item in DefaultRecordBatch(encoded.data)] == [100, 103, 104, 109]


def test_rows_from_the_middle_of_a_batch_keep_its_offsets_and_sequence() -> None:
    data = build_batch(
        [Row(timestamp=NOW + n) for n in range(10)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=40,
    )
    (encoded,) = encode_batches(decode_batches([located(data, 20)]).slice(4, 3))
    header = parse_header(encoded.data)
    assert (header.base_offset, header.base_sequence, header.record_count) == (20, 40, 3)
    assert encoded.last_offset == header.last_offset == 29
    read = [(item.offset, item.timestamp) for item in DefaultRecordBatch(encoded.data)]
    assert read == [(24, NOW + 4), (25, NOW + 5), (26, NOW + 6)]


def test_nonzero_record_attributes_are_ignored_as_clients_do() -> None:
    many = [Row(timestamp=NOW + n, value=b"v" * 90) for n in range(3000)]
    for batch in (many[:3], many):
        table = decode_batches([located(build_batch(batch, record_attributes=7))])
        assert rows_of(table) == model(batch, 0)


@pytest.mark.parametrize("value", [bytes(100), b"\x0c\x00" * 50, b"\x80" * 99 + b"\x00"])
def test_values_that_look_like_records_do_not_mislead(value: bytes) -> None:
    batch = [Row(timestamp=NOW, key=value[: n % 60], value=value) for n in range(9000)]
    assert rows_of(decode_batches([located(build_batch(batch))])) == model(batch, 0)


def test_a_record_with_thousands_of_headers_is_read() -> None:
    many = [(b"", None if n % 2 else b"") for n in range(30_000)]
    batch = [Row(headers=many), Row(headers=[(b"a", b"1")]), Row()]
    table = decode_batches([located(build_batch(batch))])
    assert rows_of(table) == model(batch, 0)
    (encoded,) = encode_batches(table)
    assert encoded.data == build_batch(batch)


def test_slices_are_cut_between_batches_and_joined_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_columns, "SLICE_BYTES", 2000)
    batches = [[Row(value=b"%d" % n * 50, headers=[(b"h", b"v")])] * (n % 5 + 1) for n in range(40)]
    data = [located(build_batch(batch), 10 * n) for n, batch in enumerate(batches)]
    table = decode_batches(data)
    assert table.column("offset").num_chunks > 3
    assert rows_of(table) == [
        row for n, batch in enumerate(batches) for row in model(batch, 10 * n)
    ]
    encoded = encode_batches(table)
    assert [batch.base_offset for batch in encoded] == [10 * n for n in range(40)]
    assert decode_batches(located_again(encoded)).combine_chunks() == table.combine_chunks()


def test_a_batch_whose_rows_lie_in_several_chunks_is_encoded_whole() -> None:
    table = decode_batches([located(build_batch([Row(value=b"%d" % n) for n in range(9)]), 5)])
    torn = pa.concat_tables(
        [table.slice(0, 2), table.slice(2, 0), table.slice(2, 6), table.slice(8)]
    )
    assert encode_batches(torn) == encode_batches(table)


def test_rows_survive_a_parquet_file(tmp_path: Any) -> None:
    batch = [Row(NOW, None, b"", [(b"\xff", None), (b"\xff", b"")]), Row(NOW, b"", None)]
    table = decode_batches([located(build_batch(batch), 1)])
    pq.write_table(table, tmp_path / "segment.parquet")
    stored = pq.read_table(tmp_path / "segment.parquet")
    assert encode_batches(stored) == encode_batches(table)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("offset", [10, 9, 11]),
        ("offset", [10, 10, 11]),
        ("offset", [4, 5, 6]),
        ("offset", [5, 6, 2**33]),
        ("offset", [5, 6, 8]),
        ("batch_last_offset", [7, 7, 8]),
        ("batch_last_offset", [2**33] * 3),
        ("producer_id", [1, 1, 2]),
        ("leader_epoch", [0, 1, 1]),
    ],
)
def test_rows_that_contradict_their_batch_are_corrupt(column: str, values: list[int]) -> None:
    table = decode_batches([located(build_batch([Row()] * 3), 5)])
    index = RECORD_SCHEMA.get_field_index(column)
    field = RECORD_SCHEMA.field(index)
    table = table.set_column(index, field, pa.array(values, type=field.type))
    with pytest.raises(CorruptBatch, match="batch at offset 5"):
        encode_batches(table)


def test_rows_of_another_schema_are_corrupt() -> None:
    table = decode_batches([located(build_batch([Row()]))])
    for broken in (
        table.drop_columns("headers"),
        table.set_column(0, "offset", pa.array(["text"])),
        table.set_column(5, "headers", pa.array([None], type=RECORD_SCHEMA.field(5).type)),
        table.set_column(0, "offset", pa.array([None], type=pa.int64())),
    ):
        with pytest.raises(CorruptBatch, match="record schema"):
            encode_batches(broken)


# --- damage --------------------------------------------------------------------------------------

GOOD = [Row(NOW, b"key", b"value", [(b"h", b"v")]), Row(NOW + 1, None, b"", [])]


def expect_corrupt(data: bytes) -> None:
    """Alone and behind a good batch, `data` is refused by the base offset it was given."""
    bad = located(data, 77)
    for batches in ([bad], [located(build_batch(GOOD), 1), bad]):
        with pytest.raises(CorruptBatch, match="batch at offset 77"):
            decode_batches(batches)


def test_a_damaged_batch_is_named_by_its_base_offset() -> None:
    good = build_batch(GOOD)
    for position in range(8, len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        if 12 <= position < 16:  # the leader epoch is under no check
            continue
        expect_corrupt(bytes(damaged))
    for length in (0, 11, 60, 61, len(good) - 1):
        expect_corrupt(good[:length])
    expect_corrupt(good + b"\0")
    expect_corrupt(seal(b"", record_count=1, codec=5, compress=False))
    expect_corrupt(seal(b"junk", record_count=1, codec=4, compress=False))


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 3, 7, 2**31 - 1])
def test_a_record_count_that_does_not_fit_the_bytes_is_corrupt(count: int) -> None:
    expect_corrupt(build_batch(GOOD, record_count=count, last_offset_delta=2**31 - 1))


def body(fields: bytes) -> bytes:
    return varint(len(fields)) + fields


@pytest.mark.parametrize(
    "payload",
    [
        body(b"\0\0\0" + blob(None) + varint(5) + b"four" + varint(0)),
        body(b"\0\0\0" + blob(None) + varint(-2) + b"four" + varint(0)),
        body(b"\0\0\0" + varint(2**40) + blob(b"v") + varint(0)),
        body(b"\0\0\0" + varint(2**63 - 1) + blob(b"v") + varint(0)),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(-1)),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(2**31)),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(1)),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(1) + blob(b"h")),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(1) + blob(None) + blob(b"v")),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(1) + blob(b"h") + varint(9) + b"v"),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(1) + blob(b"h") + blob(b"v") + b"\0"),
        body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(0) + b"surplus"),
        body(b"\0" + b"\xff" * 11 + b"\0" * 8),
        body(b"\0" + b"\0" + b"\xff" * 10 + b"\0" * 8),
        body(b"\0\0" + varint(1) + blob(b"k") + blob(b"v") + varint(0)),
        body(b"\0\0" + varint(-1) + blob(b"k") + blob(b"v") + varint(0)),
        body(b"\0\0\0\0\0"),
        varint(-1) + bytes(10),
        varint(100) + bytes(10),
        varint(2**62) + bytes(10),
        b"\xff" * 20,
        b"\x80" * 20,
    ],
)
def test_fields_that_do_not_fit_their_record_are_corrupt(payload: bytes) -> None:
    expect_corrupt(seal(payload, record_count=1))


def test_offset_deltas_must_rise() -> None:
    for deltas in ([0, 0], [1, 0], [0, 2], [-1, 0]):
        payload = b"".join(record(Row(), NOW, delta) for delta in deltas)
        expect_corrupt(seal(payload, record_count=2))


def test_inflated_records_are_capped_and_the_batch_named() -> None:
    for codec in CODECS:
        data = build_batch([Row(value=bytes(100_000))], codec=codec)
        assert decode_batches([located(data)], inflated_bytes_max=101_000).num_rows == 1
        for read in (
            decode_batches,
            lambda batches, **limit: open_batch(batches[0], **limit),
        ):
            with pytest.raises(RecordTooLarge, match="batch at offset 9"):
                read([located(data, 9)], inflated_bytes_max=100_000)


@pytest.mark.parametrize("limit", [-1, 2**30 + 1])
def test_a_cap_that_arrow_offsets_could_not_reach_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="1 GiB"):
        decode_batches([], inflated_bytes_max=limit)


def survives(data: bytes) -> None:
    """Only the two promised errors may leave any of the readers."""
    batch = located(data)
    for read in (
        lambda: encode_batches(decode_batches([batch], inflated_bytes_max=100_000)),
        lambda: rising_timestamps(open_batch(batch, inflated_bytes_max=100_000)),
        lambda: inspect_records(open_batch(batch, inflated_bytes_max=100_000)),
    ):
        try:
            read()
        except (CorruptBatch, RecordTooLarge):
            pass


@given(data=st.binary(max_size=300))
def test_garbage_raises_nothing_unexpected(data: bytes) -> None:
    survives(data)


@examples(3)
@given(
    data=st.binary(max_size=120),
    count=st.integers(-1, 20) | st.integers(-(2**31), 2**31 - 1),
    last_delta=st.integers(-(2**31), 2**31 - 1),
    codec=st.integers(0, 7),
)
def test_garbage_under_a_valid_crc_raises_nothing_unexpected(
    data: bytes, count: int, last_delta: int, codec: int
) -> None:
    survives(
        seal(data, record_count=count, last_offset_delta=last_delta, codec=codec, compress=False)
    )
    survives(seal(data, record_count=count, last_offset_delta=last_delta, codec=codec % 5))


@examples(4)
@given(
    batch=st.lists(rows, min_size=1, max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    header_too=st.booleans(),
)
def test_records_changed_under_a_valid_crc_raise_nothing_unexpected(
    batch: list[Row], changes: list[tuple[int, int]], header_too: bool
) -> None:
    data = bytearray(build_batch(batch))
    start = 21 if header_too else HEADER_BYTES
    for position, byte in changes:
        data[start + position % (len(data) - start)] = byte
    header = parse_header(data)
    survives(
        seal(
            bytes(data[HEADER_BYTES:]),
            record_count=header.record_count,
            last_offset_delta=header.last_offset_delta,
            codec=header.codec,
            base_timestamp=header.base_timestamp_ms,
            compress=False,
        )
    )


def test_lying_counts_allocate_nothing() -> None:
    lying = seal(b"\0" * 70, record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    inside = seal(body(b"\0\0\0" + blob(b"k") + blob(b"v") + varint(2**31 - 1)), record_count=1)
    tracemalloc.start()
    try:
        expect_corrupt(lying)
        expect_corrupt(inside)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_timestamps_wrap_as_64_bit_arithmetic_does() -> None:
    extremes = [-(2**63), 2**63 - 1, 0, -(2**63)]
    batch = [Row(timestamp=time) for time in extremes]
    assert wrap64(extremes[1] - extremes[0]) == -1
    table = decode_batches([located(build_batch(batch))])
    assert table.column("timestamp").to_numpy().tolist() == extremes
    (encoded,) = encode_batches(table)
    assert struct.unpack_from(">qq", encoded.data, 27) == (-(2**63), 2**63 - 1)
    assert np.array_equal(
        decode_batches([located(encoded.data)]).column("timestamp").to_numpy(), extremes
    )
