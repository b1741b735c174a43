"""FileCommitted records: column by column, and what no decoder may swallow."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.records.columns import difference, pack_column, pack_numbers, read_column, total
from metadata.records.file_committed import (
    REFUSED_TAGS,
    CommittedBatch,
    CommittedBatches,
    FileCommittedRecord,
    RefusedBatch,
)
from metadata.records.records import decode_record, encode_record
from tests.support.samples.file_samples import committed_batches, files
from tests.support.samples.record_samples import ENCODED, FILE_COMMITTED, PARTITION, TOPIC, batch
from tests.support.samples.typed_samples import INT8, INT64
from wal.columns import FEW_MAX, column
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import FieldReader, tag_section, uvarint


def file_of(*batches: CommittedBatch, **fields: Any) -> FileCommittedRecord:
    values: dict[str, Any] = {
        "object_key": ObjectKey("k"),
        "object_format": 1,
        "file_size": 1,
        "uploader_broker_id": 0,
        "owner_ids": (0,),
        "committed_at_ms": 0,
        "batches": batches,
    }
    return FileCommittedRecord(**{**values, **fields})


def test_a_record_is_exactly_these_bytes() -> None:
    assert encode_record(FILE_COMMITTED) == ENCODED
    assert decode_record(ENCODED) == FILE_COMMITTED


# --- columns -------------------------------------------------------------------------------------


@given(st.lists(INT64, max_size=50) | st.lists(INT8, max_size=50), st.booleans())
def test_a_column_comes_back_as_it_was(numbers: list[int], is_leading: bool) -> None:
    assert pack_numbers(numbers, is_leading=is_leading) == pack_column(
        column(numbers), is_leading=is_leading
    )
    data = pack_column(column(numbers), is_leading=is_leading)
    reader = FieldReader(data, "test")
    found = read_column(reader, None if is_leading else len(numbers))
    reader.finish()
    assert found.tolist() == numbers


@given(
    st.sampled_from([0, -1, 5, 1 << 40, (1 << 63) - 1, -1 << 63, 1 << 63, (1 << 64) - 1]),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_column_of_equal_numbers_is_packed_modulo_64_bits(
    number: int, count: int, is_leading: bool
) -> None:
    stored = (number + (1 << 63)) % (1 << 64) - (1 << 63)
    expected = pack_column(column([stored] * count), is_leading=is_leading)
    assert pack_numbers([number] * count, is_leading=is_leading) == expected
    assert pack_numbers([*[stored] * count, number], is_leading=is_leading) == pack_column(
        column([stored] * (count + 1)), is_leading=is_leading
    )


@given(st.lists(st.tuples(INT64, INT64), min_size=1, max_size=20))
def test_differences_of_any_numbers_can_be_undone(pairs: list[tuple[int, int]]) -> None:
    ones, others = (column(numbers) for numbers in zip(*pairs, strict=True))
    assert total(difference(ones, others), others).tolist() == ones.tolist()
    assert total(difference(ones, pairs[0][1]), pairs[0][1]).tolist() == ones.tolist()


def test_equal_numbers_take_no_bytes_each_and_close_numbers_few() -> None:
    assert pack_column(column([70] * 1000)) == bytes.fromhex("e907 00 8c01")
    assert len(pack_column(column(range(1 << 40, (1 << 40) + 256)))) == 2 + 1 + 6 + 256


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (uvarint(0xFFFFFFFF) + b"\x00\x00", None, "without bytes"),
        (uvarint(0xFFFFFFFF) + b"\x01\x00", None, "bytes expected"),
        (uvarint(0xFFFFFFFF) + b"\x00\x00", 3, "beside those of 3"),
        (b"\x03\x09\x00" + bytes(18), 2, "2 entries of 9 bytes"),
        (b"\x00\x00\x00", 0, "-1 entries"),
        (b"\x02\x00" + b"\xff" * 9 + b"\x7f", 1, "more than 64 bits"),
        (b"\x02\x00" + b"\x80" * 10, 1, "more than 64 bits"),
    ],
)
def test_a_column_that_cannot_be_is_refused_before_anything_is_allocated(
    data: bytes, count: int | None, problem: str
) -> None:
    with pytest.raises(CorruptLog, match=problem):
        read_column(FieldReader(data, "test"), count)


@given(st.binary(max_size=60), st.none() | st.integers(0, 9))
def test_garbage_is_a_column_or_corrupt(data: bytes, count: int | None) -> None:
    reader = FieldReader(data, "test")
    try:
        found = read_column(reader, count)
    except CorruptLog:
        return
    assert count in (None, len(found))


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize(
    ("field", "number", "bits"),
    [
        ("magic", 128, 8),
        ("byte_size", -(1 << 31) - 1, 32),
        ("producer_epoch", 1 << 15, 16),
        ("last_sequence", 1 << 31, 32),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_not_encoded(
    field: str, number: int, bits: int, count: int
) -> None:
    changed: dict[str, Any] = {field: number}
    last = FILE_COMMITTED.batches[0]._replace(**changed)
    batches = [FILE_COMMITTED.batches[0]] * (count - 1) + [last]
    with pytest.raises(ValueError, match=f"{field} of a batch has more than {bits} bits"):
        encode_record(file_of(*batches))


def test_a_number_beyond_64_bits_is_no_column() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        column([1 << 63])


# --- batches -------------------------------------------------------------------------------------


@given(files)
def test_every_file_comes_back_as_it_was(record: FileCommittedRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(files)
def test_batches_in_columns_have_the_bytes_of_batches_in_a_list(
    record: FileCommittedRecord,
) -> None:
    assert isinstance(record.batches, tuple)
    in_columns = replace(record, batches=CommittedBatches.of(record.batches))
    assert encode_record(in_columns) == encode_record(record)


@given(files)
def test_what_was_decoded_is_encoded_to_the_same_bytes(record: FileCommittedRecord) -> None:
    data = encode_record(record)
    decoded = decode_record(data)
    assert encode_record(decoded) == data


@given(files)
def test_a_file_cut_anywhere_is_refused(record: FileCommittedRecord) -> None:
    encoded = encode_record(record)
    for length in range(len(encoded)):
        with pytest.raises(CorruptLog):
            decode_record(encoded[:length])


@given(record=files, data=st.data())
def test_a_damaged_file_is_refused_with_nothing_but_corrupt_log(
    record: FileCommittedRecord, data: Any
) -> None:
    encoded = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] = data.draw(st.integers(0, 255))
    try:
        decode_record(bytes(encoded))
    except CorruptLog:
        return


@given(st.binary(max_size=300))
def test_garbage_is_refused_with_nothing_but_corrupt_log(data: bytes) -> None:
    try:
        decode_record(uvarint(1) + uvarint(102) + uvarint(1) + data)
    except CorruptLog:
        return


@given(st.lists(committed_batches, max_size=9))
def test_batches_as_columns_are_the_same_sequence(batches: list[CommittedBatch]) -> None:
    columns = CommittedBatches.of(batches)
    assert columns == batches
    assert len(columns) == len(batches)
    assert columns[1:4] == batches[1:4]
    assert columns != [*batches, *batches, batch(PARTITION, 0, 0, 0)]
    assert CommittedBatches.of(columns) is columns
    assert columns.run_lengths.sum() == len(batches)
    starts = columns.run_starts.tolist()
    assert [batches[start].partition for start in starts] == columns.partitions


def test_batches_are_not_equal_to_what_is_no_sequence() -> None:
    assert CommittedBatches.of([]) != 3


def many_batches(count: int, runs: int, *, producers: int) -> FileCommittedRecord:
    """Like the file of a busy broker: batches of 10 records, back to back."""
    rng = np.random.default_rng(1)
    partition_of = np.arange(count) * runs // count
    sizes = rng.integers(300, 20_000, count)
    ends = np.cumsum(sizes) + 16
    now_ms = 1_700_000_000_000
    next_offset = {run: int(rng.integers(1 << 30)) for run in range(runs)}
    batches = []
    for number, run in enumerate(partition_of.tolist()):
        base = next_offset[run]
        next_offset[run] = base + 10
        sequence = int(rng.integers(1 << 28)) if producers else -1
        batches.append(
            CommittedBatch(
                TopicIdPartition(UUID(int=run // 4), run % 4),
                number,
                2,
                ByteOffset(int(ends[number] - sizes[number])),
                int(sizes[number]),
                Offset(base),
                Offset(base + 9),
                now_ms,
                now_ms - int(rng.integers(500)),
                0,
                1000 + int(rng.integers(producers)) if producers else -1,
                0 if producers else -1,
                sequence,
                sequence + 9 if producers else -1,
            )
        )
    return file_of(*batches, object_key=ObjectKey("wal/0f/" + "K" * 26), committed_at_ms=now_ms)


@pytest.mark.parametrize(("producers", "bytes_max"), [(0, 15), (8, 20), (60_000, 24)])
def test_a_batch_takes_few_bytes_of_the_log(producers: int, bytes_max: int) -> None:
    """1,600 batches over 632 partitions of 158 topics; KIP-1164's layout takes 61 each."""
    record = many_batches(1_600, 632, producers=producers)
    data = encode_record(record)
    assert len(data) <= bytes_max * 1_600
    assert decode_record(data) == record


# --- what a newer release may write, and what nobody may -----------------------------------------


def test_unknown_tagged_fields_are_skipped_in_every_structure() -> None:
    topic = TOPIC.bytes + b"\x02"
    extended = ENCODED.replace(topic + b"\x00", topic + tag_section({3: b"x" * 200}))
    assert len(extended) > len(ENCODED)
    assert decode_record(extended) == FILE_COMMITTED
    bare = encode_record(file_of())
    assert bare[-1] == 0
    assert decode_record(bare[:-1] + tag_section({5: b"", 5000: b"new"})) == file_of()


def test_a_file_with_half_of_its_refusals_is_refused() -> None:
    bare = encode_record(file_of())
    fields = {tag: pack_column(column([1]), is_leading=True) for tag in REFUSED_TAGS}
    complete = decode_record(bare[:-1] + tag_section(fields))
    assert complete == file_of(refused=(RefusedBatch(1, 1, 1, 1, 1),))
    for missing in REFUSED_TAGS:
        some = {tag: content for tag, content in fields.items() if tag != missing}
        with pytest.raises(CorruptLog, match=r"without those before it|only 4 fields"):
            decode_record(bare[:-1] + tag_section(some))


@pytest.mark.parametrize(
    ("find", "replace", "problem"),
    [
        ("00112233445566778899aabbccddeeff 02", "00112233445566778899aabbccddeeff 03", "runs"),
        ("03 00 02 03 01 00 0a 00", "03 00 04 03 01 00 0a 00", "no runs of 2 batches"),
        ("03 00 02 03 01 00 0a 00", "03 00 00 03 01 00 0a 00", "no runs of 2 batches"),
        ("03 01 06 00 01", "03 01 ffffffffffffffffff01 00 01", "no runs of 2 batches"),
        ("03 00 04 03 00 02", "03 00 8002 03 00 02", "magic of a batch has more than 8 bits"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(find: str, replace: str, problem: str) -> None:
    assert ENCODED.count(bytes.fromhex(find)) == 1
    with pytest.raises(CorruptLog, match=problem):
        decode_record(ENCODED.replace(bytes.fromhex(find), bytes.fromhex(replace)))


@pytest.mark.parametrize(
    "change",
    [
        {"byte_offset": 1 << 31},
        {"magic": 128},
        {"producer_epoch": 1 << 15},
        {"base_offset": 1 << 63},
        {"partition": TopicIdPartition(TOPIC, 1 << 31)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_number_that_does_not_fit_is_refused_by_name(change: dict[str, Any]) -> None:
    few = [batch(PARTITION, 0, 0, 0)._replace(**change)]
    for batches in (few, few * (FEW_MAX + 1)):
        with pytest.raises(ValueError, match="FileCommittedRecord"):
            encode_record(file_of(*batches))


def test_a_digest_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        encode_record(file_of(request_digest=b"short"))
