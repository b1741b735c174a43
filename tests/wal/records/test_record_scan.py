"""A look into one batch: what it finds, and what it takes."""

import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import Row, blob, build_batch, record, seal, varint
from tests.support.profiles import examples
from wal.coordinates import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP
from wal.errors import CorruptBatch, DisklessError
from wal.records import record_scan
from wal.records.compression import NONE, ZSTD, deflate, inflated_bound
from wal.records.record_batch import HEADER_BYTES, parse_header
from wal.records.record_columns import LocatedBatch
from wal.records.record_scan import (
    NULL_KEYS_NAMED_MAX,
    RecordFacts,
    RisingTimestamps,
    inspect_records,
    open_batch,
    rising_timestamps,
    scan_bytes,
)

NOW = 1_700_000_000_000
MIB = 1 << 20

timestamps = st.integers(NOW - 5, NOW + 5) | st.just(NO_TIMESTAMP) | st.integers(0, 2**62)
rows = st.builds(
    Row, timestamps, st.none() | st.binary(max_size=3), st.binary(max_size=9), st.just(())
)


def located(data: bytes, base_offset: int = 0, append_time: int | None = None) -> LocatedBatch:
    if append_time is None:
        return LocatedBatch(data, base_offset, CREATE_TIME, NO_TIMESTAMP)
    return LocatedBatch(data, base_offset, LOG_APPEND_TIME, append_time)


def first_at_or_after(rising: RisingTimestamps, sought: int) -> tuple[int, int] | None:
    pairs = zip(rising.offsets.tolist(), rising.timestamps.tolist(), strict=True)
    return next((pair for pair in pairs if pair[1] >= sought), None)


@examples(allow=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("at_once", [3, 16_384])
@given(
    batch=st.lists(rows, min_size=1, max_size=12),
    codec=st.sampled_from(range(5)),
    target=timestamps,
    append_time=st.none() | timestamps,
)
def test_a_look_is_exact_to_the_record_however_many_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    batch: list[Row],
    codec: int,
    target: int,
    append_time: int | None,
) -> None:
    monkeypatch.setattr(record_scan, "RECORDS_AT_ONCE", at_once)
    opened = open_batch(located(build_batch(batch, codec=codec), 70, append_time))
    times = [row.timestamp if append_time is None else append_time for row in batch]
    rising = rising_timestamps(opened)
    for sought in (target, *times):
        expected = next((n for n, time in enumerate(times) if time >= sought), None)
        found = first_at_or_after(rising, sought)
        assert found == (None if expected is None else (70 + expected, times[expected]))
    last = (int(rising.offsets[-1]), int(rising.timestamps[-1]))
    assert last == (70 + times.index(max(times)), max(times))
    known = [time for time in times if time != NO_TIMESTAMP] or [NO_TIMESTAMP]
    null_keys = [position for position, row in enumerate(batch) if row.key is None]
    assert inspect_records(opened) == (
        len(batch), len(null_keys), null_keys, min(known), max(known)
    )  # fmt: skip


def test_a_batch_emptied_by_compaction_has_nothing_to_be_found() -> None:
    empty = open_batch(located(seal(b"", record_count=0, last_offset_delta=9), 50))
    assert rising_timestamps(empty).offsets.tolist() == []
    assert inspect_records(empty) == RecordFacts(0, 0, [], NO_TIMESTAMP, NO_TIMESTAMP)


def test_of_very_many_records_without_key_the_first_are_named() -> None:
    count = NULL_KEYS_NAMED_MAX * 2
    facts = inspect_records(open_batch(located(build_batch([Row()] * count))))
    assert facts.null_key_count == count
    assert list(facts.null_key_positions) == list(range(NULL_KEYS_NAMED_MAX))


@pytest.mark.parametrize("deltas", [[0, 1, 1], [0, 2, 1], [0, 1, 2, 3, 3], [5, -(2**63) + 6]])
def test_offset_deltas_must_rise_from_one_look_to_the_next(
    monkeypatch: pytest.MonkeyPatch, deltas: Sequence[int]
) -> None:
    monkeypatch.setattr(record_scan, "RECORDS_AT_ONCE", 2)
    payload = b"".join(record(Row(), NOW, delta) for delta in deltas)
    batch = seal(payload, record_count=len(deltas), last_offset_delta=9)
    with pytest.raises(CorruptBatch, match="batch at offset 7: a record's fields do not fit"):
        inspect_records(open_batch(located(batch, 7)))


# --- memory --------------------------------------------------------------------------------------


def of_zeros() -> tuple[bytes, int]:
    """Every position could be the start of a record, and none is."""
    return bytes(6 * MIB), 800_000


def of_tiny_records() -> tuple[bytes, int]:
    count = 200_000
    bodies = (b"\0\0" + varint(delta) + b"\x02k\0\0" for delta in range(count))
    return b"".join(map(blob, bodies)), count


def of_one_large_record() -> tuple[bytes, int]:
    return record(Row(NOW, b"key", bytes(6 * MIB)), NOW, 0), 1


def of_few_bytes() -> tuple[bytes, int]:
    return record(Row(), NOW, 0), 1


@pytest.mark.parametrize("codec", [NONE, ZSTD])
@pytest.mark.parametrize("look", [inspect_records, rising_timestamps])
@pytest.mark.parametrize("make", [of_zeros, of_tiny_records, of_one_large_record, of_few_bytes])
def test_a_look_takes_no_more_memory_than_it_says(
    make: Callable[[], tuple[bytes, int]], look: Callable[..., object], codec: int
) -> None:
    payload, count = make()
    data = seal(bytes(deflate(codec, payload)), record_count=count, codec=codec, compress=False)
    header = parse_header(data)
    bound = inflated_bound(codec, memoryview(data)[HEADER_BYTES:], limit_bytes=1 << 30)
    tracemalloc.start()
    try:
        look(open_batch(located(data), inflated_bytes_max=bound))
    except DisklessError:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # What the codec keeps for itself is not traced; it may be as much as it writes.
    assert peak + bound <= scan_bytes(bound, header.record_count)
