"""Shares of a topic: cut by sizes alone, without gap or overlap, in bounded memory."""

import itertools
import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import Extent, SegmentExtent, WalExtent
from tests.support.profiles import examples
from tiering.source.planning import SHARE_BYTES, SHARE_EXTENTS, Share, bytes_up_to, shares
from tiering.source.stream import limited_by_offsets
from wal.coordinates import LOG_APPEND_TIME, ByteOffset, ObjectKey, Offset

WAL, SEGMENTS = ObjectKey("wal/00/a"), ObjectKey("segments/a")


def wal(base: int, count: int, length: int, timestamp: int = 5, appended: int = -1) -> WalExtent:
    last = Offset(base + count - 1)
    kind = LOG_APPEND_TIME if appended >= 0 else 0
    return WalExtent(WAL, ByteOffset(0), length, Offset(base), last, appended, timestamp, kind)


def segment(base: int, count: int, length: int, timestamp: int = 5) -> SegmentExtent:
    return SegmentExtent(SEGMENTS, length, Offset(base), Offset(base + count - 1), timestamp)


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    found: list[Extent] = []
    base = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 12))):
        make = draw(st.sampled_from([wal, segment]))
        count = draw(st.integers(1, 40))
        found.append(make(base, count, draw(st.integers(1, 400)), draw(st.integers(0, 9))))
        base += count
    return found


@given(data=st.data(), all_extents=extents(), least=st.none() | st.integers(0, 9))
@examples()
def test_shares_hold_every_offset_that_may_match_once_and_in_order(
    data: st.DataObject, all_extents: list[Extent], least: int | None
) -> None:
    first, last = all_extents[0].base_offset, all_extents[-1].last_offset + 1
    start = data.draw(st.integers(first, all_extents[0].last_offset))
    end = data.draw(st.integers(max(start, all_extents[-1].base_offset) + 1, last))
    cut = [*shares(7, start, end, all_extents, timestamp_min_ms=least, share_bytes=100)]
    offsets = [offset for share in cut for offset in range(share.start, share.end)]
    assert offsets == [
        offset
        for extent in all_extents
        if least is None or extent.max_timestamp_ms >= least
        for offset in range(max(extent.base_offset, start), min(extent.last_offset + 1, end))
    ]
    assert all(share.partition == 7 and share.start < share.end for share in cut)


def test_a_share_ends_before_it_gets_too_large() -> None:
    quarter = SHARE_BYTES // 4
    found = [wal(10 * at, 10, quarter) for at in range(10)]
    assert [*shares(0, 0, 100, found)] == [Share(0, 0, 40), Share(0, 40, 80), Share(0, 80, 100)]


def test_a_segment_larger_than_a_share_is_cut_at_offsets() -> None:
    found = [wal(0, 10, 1), segment(10, 1000, 3 * SHARE_BYTES), wal(1010, 10, 1)]
    cut = [*shares(0, 0, 1020, found)]
    assert [share.start for share in cut] == [0, 10, 343, 676, 1010]
    assert cut[-1].end == 1020


def test_extents_that_are_too_old_are_left_out() -> None:
    found = [wal(0, 5, 1, 3), wal(5, 5, 1, 9), segment(10, 5, 1, 2), wal(15, 5, 1, 0, appended=8)]
    assert [*shares(0, 0, 20, found, timestamp_min_ms=4)] == [Share(0, 5, 10), Share(0, 15, 20)]


def test_millions_of_extents_are_planned_without_keeping_them() -> None:
    count = 10 * SHARE_EXTENTS

    def small_ones() -> Iterator[Extent]:
        return (wal(100 * at, 100, 900) for at in range(count))

    tracemalloc.start()
    try:
        cut = [*shares(0, 0, 100 * count, small_ones())]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(share.end - share.start for share in cut) == 10_000_000
    assert len(cut) == 10
    assert peak_bytes < 1 << 20


@given(all_extents=extents(), limit=st.integers(0, 3_000))
@examples()
def test_a_limit_of_bytes_takes_one_offset_at_least_and_no_more_than_it_says(
    all_extents: list[Extent], limit: int
) -> None:
    start, end = all_extents[0].base_offset, all_extents[-1].last_offset + 1
    cut, taken = bytes_up_to(start, end, all_extents, limit)
    assert start < cut <= end
    assert taken <= limit or cut == start + 1
    whole = sum(
        extent.length_bytes if isinstance(extent, WalExtent) else extent.object_bytes
        for extent in all_extents
    )
    assert (cut == end) or whole > limit


@given(
    lags=st.dictionaries(
        st.integers(0, 9),
        st.tuples(st.integers(0, 50), st.integers(1, 50)).map(lambda item: (item[0], sum(item))),
        min_size=1,
    ),
    limit=st.integers(1, 300),
)
@examples()
def test_a_limit_of_offsets_is_used_up_and_divided_as_partitions_lag(
    lags: dict[int, tuple[int, int]], limit: int
) -> None:
    limited = limited_by_offsets(lags, limit)
    taken = {number: last - first for number, (first, last) in limited.items()}
    lag = {number: last - first for number, (first, last) in lags.items()}
    assert sum(taken.values()) == min(limit, sum(lag.values()))
    for one, other in itertools.permutations(lags, 2):
        assert taken[one] <= lag[one]
        if lag[one] >= lag[other]:
            assert taken[one] >= taken[other] - 1
