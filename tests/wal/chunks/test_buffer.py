"""Fragments, chains and pools: who owns a buffer, and that nobody else writes to it."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from tests.support.chunks.chains import chain_of
from wal.chunks.buffer import (
    SIZE_CLASSES,
    SIZE_MAX,
    BufferPool,
    ChainBuilder,
    ChainCutter,
    FragmentChain,
)


def receive(builder: ChainBuilder, data: bytes, *, wanted: int = SIZE_MAX) -> None:
    """What a socket does with `data`: fill whatever room it is given."""
    position = 0
    while position < len(data):
        room = builder.writable(wanted)
        part = data[position : position + len(room)]
        room[: len(part)] = part
        builder.commit(len(part))
        position += len(part)


def content(chain: FragmentChain) -> bytes:
    return b"".join(chain.views())


def test_size_classes_grow_by_a_half_each() -> None:
    assert SIZE_CLASSES == (
        512, 768, 1152, 1728, 2592, 3888, 5832, 8748, 13122, 19683, 29525, 44288, 66432, 99648,
        149472, 224208, 336312, 504468, 524288,
    )  # fmt: skip


@given(st.integers(1, 300_000))
def test_a_fragment_comes_from_the_smallest_class_that_holds_it(wanted: int) -> None:
    capacity = BufferPool(1 << 20).get(wanted).capacity
    assert capacity >= min(wanted, SIZE_MAX)
    for smaller, size in pairwise(SIZE_CLASSES):
        if size == capacity:
            assert smaller < wanted


def test_a_buffer_returns_to_its_pool_with_its_last_owner_only() -> None:
    pool = BufferPool(1 << 20)
    fragment = pool.get(512)
    fragment.retain()
    fragment.release()
    assert pool.statistics().in_use_bytes == 512
    fragment.release()
    assert pool.statistics().in_use_bytes == 0
    assert pool.statistics().free_bytes == 512


def test_a_listener_is_told_after_each_buffer_that_came_back() -> None:
    pool = BufferPool(512)
    lent: list[int] = []
    pool.listen(lambda: lent.append(pool.in_use_bytes))
    pooled, grown = pool.get(512), pool.get(768)
    pooled.retain()
    pooled.release()
    assert lent == []
    pooled.release()
    grown.release()
    assert lent == [768, 0]


def test_releasing_or_retaining_what_went_back_raises() -> None:
    fragment = BufferPool(1 << 20).get(512)
    fragment.release()
    with pytest.raises(ValueError, match="nobody owns"):
        fragment.release()
    with pytest.raises(ValueError, match="nobody owns"):
        fragment.retain()


def test_a_pool_grows_beyond_its_cap_counts_that_and_shrinks_again() -> None:
    pool = BufferPool(1024)
    fragments = [pool.get(512) for _ in range(3)]
    assert pool.statistics().grown == 1
    assert pool.statistics().in_use_bytes == 1536
    for fragment in fragments:
        fragment.release()
    assert pool.statistics().free_bytes == 1024


def test_a_pool_at_its_cap_gives_up_free_buffers_of_other_classes_first() -> None:
    pool = BufferPool(SIZE_MAX)
    for fragment in [pool.get(512) for _ in range(4)]:
        fragment.release()
    big = pool.get(SIZE_MAX)
    assert pool.statistics() == (SIZE_MAX, 0, 0, 5, 0)
    big.release()
    small = pool.get(512)
    assert pool.statistics() == (512, 0, 0, 6, 0)
    small.release()


def test_a_share_keeps_its_bytes_after_the_chain_it_came_from_is_released() -> None:
    pool = BufferPool(4 * SIZE_MAX)
    data = random.Random(1).randbytes(2 * SIZE_MAX + 100_000)
    chain = chain_of(pool, data)
    start = SIZE_MAX - 50
    share = chain.share(start, 100)
    chain.release()
    # Both of the fragments that the share lies in are still taken; the third one is not.
    assert pool.statistics().in_use_bytes == 2 * SIZE_MAX
    assert content(share) == data[start : start + 100]
    share.release()
    assert pool.statistics().in_use_bytes == 0


def test_a_share_does_not_copy() -> None:
    chain = chain_of(BufferPool(1 << 20), bytes(1000))
    share = chain.share(10, 20)
    chain.views()[0][10] = 7
    assert content(share)[0] == 7


@given(st.binary(max_size=5000), st.data())
def test_shares_and_copies_are_slices(data: bytes, draw: st.DataObject) -> None:
    pool = BufferPool(1 << 20)
    builder = ChainBuilder(pool)
    receive(builder, data, wanted=1)
    chain = builder.take(len(data))
    start = draw.draw(st.integers(0, len(data)))
    length = draw.draw(st.integers(0, len(data) - start))
    share = chain.share(start, length)
    assert content(share) == chain.copy_bytes(start, length) == data[start : start + length]
    assert len(share) == length
    chain.release()
    share.release()
    assert pool.statistics().in_use_bytes == 0


@pytest.mark.parametrize(("start", "length"), [(0, 11), (11, 0), (-1, 1), (1, -1), (5, 6)])
def test_what_a_chain_does_not_hold_is_an_error(start: int, length: int) -> None:
    chain = chain_of(BufferPool(1 << 20), bytes(10))
    with pytest.raises(IndexError):
        chain.share(start, length)
    with pytest.raises(IndexError):
        chain.copy_bytes(start, length)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    gaps=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    wanted=st.integers(1, 20),
)
def test_a_cutter_cuts_what_shares_would(lengths: list[int], gaps: list[int], wanted: int) -> None:
    pool = BufferPool(1 << 20)
    data = bytes(range(256))[: sum(lengths) + sum(gaps)]
    fragments, views = [], []
    for start in range(0, len(data), wanted):
        fragment = pool.get(wanted)
        view = fragment.view[: len(data[start : start + wanted])]
        view[:] = data[start : start + wanted]
        fragments.append(fragment)
        views.append(view)
    whole = FragmentChain(fragments, views, sum(map(len, views)))
    cutter = ChainCutter(whole)
    position = 0
    for length, gap in zip(lengths, gaps, strict=False):
        expected = whole.share(position, length)
        cut = cutter.share(position, length)
        assert (content(cut), cut.length_bytes) == (content(expected), length)
        cut.release()
        expected.release()
        position += length + gap
    with pytest.raises(IndexError):
        cutter.share(position, len(data) + 1)
    whole.release()
    assert pool.in_use_bytes == 0


def test_adopted_bytes_are_counted_and_not_copied() -> None:
    pool = BufferPool(1 << 20)
    data = bytes(300_000)
    chain = pool.adopt(data)
    part = chain.share(5, 10)
    assert chain.views()[0].obj is data
    assert pool.in_use_bytes == 300_000
    chain.release()
    assert pool.in_use_bytes == 300_000
    part.release()
    statistics = pool.statistics()
    assert (statistics.in_use_bytes, statistics.free_bytes) == (0, 0)


def test_a_chain_is_released_once_however_often_it_is_asked() -> None:
    pool = BufferPool(1 << 20)
    chain = chain_of(pool, bytes(10))
    share = chain.share(0, 10)
    chain.release()
    chain.release()
    assert content(share) == bytes(10)
    share.release()


def test_a_released_chain_and_its_views_cannot_be_used() -> None:
    chain = chain_of(BufferPool(1 << 20), bytes(10))
    view = chain.views()[0]
    chain.release()
    for use in (chain.views, lambda: chain.share(0, 1), lambda: chain.copy_bytes(0, 1)):
        with pytest.raises(ValueError, match="after its release"):
            use()
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_a_builder_lets_go_of_its_buffer_when_everything_was_taken() -> None:
    pool = BufferPool(1 << 20)
    builder = ChainBuilder(pool)
    receive(builder, b"request")
    builder.take(7).release()
    assert pool.statistics().in_use_bytes == 0


def test_a_builder_that_is_dropped_gives_everything_back() -> None:
    pool = BufferPool(1 << 20)
    builder = ChainBuilder(pool)
    receive(builder, bytes(300_000))
    builder.release()
    builder.release()
    assert pool.statistics().in_use_bytes == 0
    assert builder.received_bytes == 0


def test_room_comes_in_the_size_that_was_wanted() -> None:
    builder = ChainBuilder(BufferPool(1 << 20))
    assert len(builder.writable(600)) == 768
    builder.commit(767)
    # One byte left is not worth a read; the next fragment follows what is wanted now.
    assert len(builder.writable(1 << 30)) == SIZE_MAX


def test_more_than_was_writable_cannot_be_committed() -> None:
    builder = ChainBuilder(BufferPool(1 << 20))
    with pytest.raises(ValueError, match="not writable"):
        builder.commit(1)
    room = builder.writable(512)
    with pytest.raises(ValueError, match="not writable"):
        builder.commit(len(room) + 1)


def test_more_than_was_received_cannot_be_taken_or_read() -> None:
    builder = ChainBuilder(BufferPool(1 << 20))
    receive(builder, b"12345")
    with pytest.raises(IndexError):
        builder.take(6)
    with pytest.raises(IndexError):
        builder.copy_bytes(3, 3)
    assert builder.copy_bytes(2, 3) == b"345"


class Ownership(RuleBasedStateMachine):
    """A stream cut into frames, frames into shares, all released in any order.

    Model: the received bytes as plain bytes. Every live chain must read as the model says at every
    step, however many buffers were recycled in between, and nothing may be left in the end.
    """

    chains: Bundle[tuple[FragmentChain, bytes]] = Bundle("chains")

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)
        # A small cap, so that reuse, growth and dropping all happen.
        self.pool = BufferPool(64 * 1024)
        self.builder = ChainBuilder(self.pool)
        self.received = b""
        self.live: list[tuple[FragmentChain, bytes]] = []

    @rule(length=st.integers(1, 9000), wanted=st.sampled_from([1, 700, 5000, 1 << 20]))
    def receive(self, length: int, wanted: int) -> None:
        data = self.random.randbytes(length)
        receive(self.builder, data, wanted=wanted)
        self.received += data

    @rule(target=chains, share=st.floats(0, 1))
    def take(self, share: float) -> tuple[FragmentChain, bytes]:
        length = round(len(self.received) * share)
        data, self.received = self.received[:length], self.received[length:]
        taken = self.builder.take(length), data
        self.live.append(taken)
        return taken

    @rule(target=chains, chain=chains, start=st.floats(0, 1), length=st.floats(0, 1))
    def share(
        self, chain: tuple[FragmentChain, bytes], start: float, length: float
    ) -> tuple[FragmentChain, bytes]:
        source, data = chain
        first = round(len(data) * start)
        size = round((len(data) - first) * length)
        shared = source.share(first, size), data[first : first + size]
        self.live.append(shared)
        return shared

    @rule(chain=consumes(chains))
    def release(self, chain: tuple[FragmentChain, bytes]) -> None:
        chain[0].release()
        self.live.remove(chain)

    @invariant()
    def every_chain_reads_what_was_received(self) -> None:
        for chain, data in self.live:
            assert content(chain) == data
        assert self.builder.received_bytes == len(self.received)
        if self.received:
            assert self.builder.copy_bytes(0, len(self.received)) == self.received

    @invariant()
    def what_the_builder_owns_is_counted(self) -> None:
        owned = sum(fragment.capacity for fragment, _, _ in self.builder._all_pieces())
        assert self.pool.receiving_bytes == owned
        assert self.pool.receiving_bytes <= self.pool.in_use_bytes

    @invariant()
    def what_is_kept_stays_under_the_cap(self) -> None:
        assert self.pool.statistics().free_bytes <= 64 * 1024

    def teardown(self) -> None:
        for chain, _ in self.live:
            chain.release()
        self.builder.release()
        assert self.pool.statistics().in_use_bytes == 0
        assert self.pool.receiving_bytes == 0


TestOwnership = Ownership.TestCase
