"""Varints by the column, and chains followed by both strategies with one result."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.chunks.batch_builder import blob, varint
from tests.support.profiles import examples
from wal.records import varint_columns
from wal.records.varint_columns import (
    MALFORMED,
    WINDOW_BYTES,
    Arena,
    Links,
    MalformedChain,
    follow_chains,
    pack_varints,
    read_varints,
    varint_sizes,
    zigzag,
)

EDGES = sorted(
    {sign * (1 << shift) + off for shift in range(63) for sign in (1, -1) for off in (-1, 0, 1)}
    | {2**63 - 1, -(2**63)}
)
int64s = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES)


def positions_of(parts: list[bytes]) -> np.ndarray:
    return np.cumsum([0, *map(len, parts[:-1])], dtype=np.int64)


@given(st.lists(int64s, min_size=1, max_size=30))
@example(EDGES)
def test_varints_are_read_as_they_were_written(numbers: list[int]) -> None:
    parts = [varint(number) for number in numbers]
    values, sizes = read_varints(Arena(parts), positions_of(parts))
    assert values.tolist() == numbers
    assert sizes.tolist() == [len(part) for part in parts]


@given(st.lists(st.tuples(int64s, int64s), min_size=1, max_size=30), st.binary(max_size=3))
@example([(number, -number - 1) for number in EDGES], b"\0")
def test_rows_of_varints_are_packed_as_the_format_says(
    pairs: list[tuple[int, int]], constant: bytes
) -> None:
    columns = [zigzag(np.array(column, dtype=np.int64)) for column in zip(*pairs, strict=True)]
    offsets, packed = pack_varints([columns[0], constant, columns[1]])
    expected = [varint(first) + constant + varint(second) for first, second in pairs]
    assert packed.tobytes() == b"".join(expected)
    assert np.diff(offsets).tolist() == [len(row) for row in expected]
    assert varint_sizes(columns[0]).tolist() == [len(varint(first)) for first, _ in pairs]


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80" * 20, b"\xff" * 3, b"\x80" * 9 + b"\x7f"],
    ids=["ten bytes without end", "65 bits", "twenty bytes", "torn", "70 bits"],
)
def test_a_varint_that_does_not_fit_64_bits_or_its_buffer_reads_as_no_valid_length(
    data: bytes,
) -> None:
    values, sizes = read_varints(Arena([data]), np.zeros(1, dtype=np.int64))
    assert (values[0], sizes[0]) == (MALFORMED, 0) or sizes[0] > len(data)


@given(st.binary(max_size=40))
def test_garbage_can_be_read_at_every_position_up_to_the_end(data: bytes) -> None:
    values, sizes = read_varints(Arena([data]), np.arange(len(data) + 1))
    assert ((sizes >= 0) & (sizes <= 10)).all()
    assert len(values) == len(data) + 1


def lockstep(arena: Arena, *chains: np.ndarray, window_bytes: int = 0) -> Links:
    return varint_columns._follow_lockstep(arena, *chains)


def windows(arena: Arena, *chains: np.ndarray, window_bytes: int = WINDOW_BYTES) -> Links:
    return varint_columns._follow_windows(
        arena, *chains, zero_follows=False, window_bytes=window_bytes
    )


def windows_at_zeros(arena: Arena, *chains: np.ndarray, window_bytes: int = WINDOW_BYTES) -> Links:
    return varint_columns._follow_windows(
        arena, *chains, zero_follows=True, window_bytes=window_bytes
    )


Way = Callable[..., Links]
EVERY_WAY = [lockstep, windows, windows_at_zeros]


def lay_out(
    chains: Sequence[Sequence[bytes | None]], gap: bytes = b""
) -> tuple[Arena, list[np.ndarray]]:
    """The arena and (starts, ends, counts) of chains of blobs, with `gap` after each chain."""
    joined = [b"".join(map(blob, chain)) for chain in chains]
    starts = positions_of([part + gap for part in joined])
    ends = starts + np.array([len(part) for part in joined], dtype=np.int64)
    counts = np.array([len(chain) for chain in chains], dtype=np.int64)
    return Arena([part + gap for part in joined]), [starts, ends, counts]


blobs = st.binary(max_size=300) | st.builds(bytes, st.integers(0, 300))


@pytest.mark.parametrize("way", EVERY_WAY)
@given(
    chains=st.lists(st.lists(blobs, min_size=1, max_size=20), min_size=1, max_size=8),
    gap=st.binary(max_size=4),
    window=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_every_way_finds_the_links_of_all_chains(
    way: Way, chains: list[list[bytes]], gap: bytes, window: int
) -> None:
    chains = [[b"\0" + link for link in chain] for chain in chains]
    arena, bounds = lay_out(chains, gap)
    found = way(arena, *bounds, window_bytes=window)
    assert [
        arena.data[start : start + length]
        for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
    ] == [link for chain in chains for link in chain]


@pytest.mark.parametrize("way", [lockstep, windows])
def test_null_links_have_length_minus_one(way: Way) -> None:
    arena, bounds = lay_out([[None, b"a", None], [b"", None]])
    found = way(arena, *bounds)
    assert found.lengths.tolist() == [-1, 1, -1, 0, -1]


@examples(3)
@given(data=st.binary(max_size=80), cuts=st.lists(st.integers(0, 80), max_size=5), seed=st.data())
def test_both_ways_agree_on_what_is_malformed(
    data: bytes, cuts: list[int], seed: st.DataObject
) -> None:
    edges = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    starts, ends = np.array(edges[:-1], dtype=np.int64), np.array(edges[1:], dtype=np.int64)
    if not len(starts):
        return
    counts = np.array(
        [seed.draw(st.integers(1, end - start)) for start, end in zip(starts, ends, strict=True)],
        dtype=np.int64,
    )
    arena = Arena([data])
    found: list[Links | None] = []
    for way in (lockstep, windows):
        try:
            found.append(way(arena, starts, ends, counts))
        except MalformedChain:
            found.append(None)
    one, other = found
    if one is None or other is None:
        assert one is other
    else:
        assert np.array_equal(one.starts, other.starts)
        assert np.array_equal(one.lengths, other.lengths)


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_chain_with_another_number_of_links_is_malformed(way: Way, change: int) -> None:
    arena, (starts, ends, counts) = lay_out([[b"\0a"] * 5, [b"\0b"] * 3])
    counts[1] += change
    with pytest.raises(MalformedChain) as caught:
        way(arena, starts, ends, counts)
    assert caught.value.chain == 1


@pytest.mark.parametrize("length", [100, 2**31, 2**62, 2**63 - 1, -2, -(2**63)])
def test_a_lying_length_is_malformed_and_names_its_chain(length: int) -> None:
    good, bad = b"".join([blob(b"\0ok")] * 4), varint(length) + b"\0x"
    starts, ends = np.array([0, len(good)]), np.array([len(good), len(good) + len(bad)])
    arena = Arena([good, bad, good])
    bounds = (starts, ends, np.array([4, 1]))
    for way in EVERY_WAY:
        with pytest.raises(MalformedChain) as caught:
            way(arena, *bounds)
        assert caught.value.chain == 1
    with pytest.raises(MalformedChain):
        follow_chains(arena, *bounds, zero_follows=True)


def test_long_chains_take_windows_and_short_ones_lockstep(monkeypatch: pytest.MonkeyPatch) -> None:
    link = b"\0" + b"x" * 90
    long, short = lay_out([[link] * 8000]), lay_out([[link] * 8] * 1000)
    with monkeypatch.context() as patch:
        patch.delattr(varint_columns, "_follow_lockstep")
        assert len(follow_chains(long[0], *long[1], zero_follows=True).starts) == 8000
    with monkeypatch.context() as patch:
        patch.delattr(varint_columns, "_follow_windows")
        assert len(follow_chains(short[0], *short[1], zero_follows=True).starts) == 8000


def test_long_chains_are_found_though_no_zero_follows() -> None:
    links = [b"\1" + b"%d" % n for n in range(20_000)]
    arena, bounds = lay_out([links])
    found = follow_chains(arena, *bounds, zero_follows=True)
    assert found.lengths.tolist() == [len(link) for link in links]


def test_a_long_malformed_chain_is_not_walked_link_by_link(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, (starts, ends, counts) = lay_out([[b"\0" + b"x" * 5] * 50_000])
    monkeypatch.delattr(varint_columns, "_follow_lockstep")
    for wrong in (counts - 1, counts + 1):
        with pytest.raises(MalformedChain):
            follow_chains(arena, starts, ends, wrong, zero_follows=True)
