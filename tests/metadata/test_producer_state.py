"""Kafka's rules for idempotent producers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.producer_state import (
    ProducerBatch,
    ProducerState,
    check_sequence,
    pack_batches,
    unpack_batches,
    with_batch,
)
from wal.errors import CorruptState, OutOfOrderSequence, Rejected, StaleProducerEpoch

MAX = 2**31 - 1


def state_after(*spans: tuple[int, int], epoch: int = 0, at_ms: int = 0) -> ProducerState:
    """The state after batches with these (base, last) sequences, one offset each."""
    state: ProducerState | None = None
    for offset, (base, last) in enumerate(spans):
        state = with_batch(state, epoch, ProducerBatch(base, last, offset, at_ms))
    assert state is not None
    return state


def verdict(
    state: ProducerState | None, base: int, last: int, *, epoch: int = 0, now_ms: int = 0
) -> ProducerBatch | type[Rejected] | None:
    return check_sequence(
        state,
        epoch=epoch,
        base_sequence=base,
        last_sequence=last,
        now_ms=now_ms,
        expiration_ms=1_000,
    )


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    assert verdict(None, 77, 79) is None


@pytest.mark.parametrize("back", range(5))
def test_each_of_the_last_five_batches_is_recognised_as_a_duplicate(back: int) -> None:
    state = state_after(*[(i * 10, i * 10 + 9) for i in range(7)])
    duplicate = verdict(state, (6 - back) * 10, (6 - back) * 10 + 9)
    assert isinstance(duplicate, ProducerBatch)
    assert duplicate.base_offset == 6 - back


def test_the_sixth_oldest_batch_is_out_of_order() -> None:
    state = state_after(*[(i * 10, i * 10 + 9) for i in range(6)])
    assert verdict(state, 0, 9) is OutOfOrderSequence


@pytest.mark.parametrize(("base", "last"), [(13, 13), (14, 15), (14, 16), (16, 16)])
def test_overlaps_and_gaps_are_out_of_order(base: int, last: int) -> None:
    assert verdict(state_after((10, 14)), base, last) is OutOfOrderSequence


def test_zero_follows_the_greatest_sequence() -> None:
    state = state_after((MAX - 1, MAX))
    assert verdict(state, 0, 4) is None
    assert verdict(state, 1, 1) is OutOfOrderSequence


def test_a_batch_may_span_the_wrap_and_is_followed_by_its_last_sequence_plus_one() -> None:
    state = state_after((MAX - 1, 2))
    assert verdict(state, 3, 3) is None
    assert verdict(state, 0, 0) is OutOfOrderSequence
    assert isinstance(verdict(state, MAX - 1, 2), ProducerBatch)


def test_a_new_epoch_must_start_at_zero_and_forgets_the_old_one() -> None:
    state = state_after((0, 4))
    assert verdict(state, 5, 5, epoch=1) is OutOfOrderSequence
    assert verdict(state, 0, 4, epoch=1) is None
    bumped = with_batch(state, 1, ProducerBatch(0, 4, 5, 0))
    assert bumped.batches == (ProducerBatch(0, 4, 5, 0),)
    assert verdict(bumped, 0, 4, epoch=0) is StaleProducerEpoch


def test_an_expired_producer_is_unknown_but_its_duplicates_are_still_told() -> None:
    state = state_after((0, 4), at_ms=0)
    assert verdict(state, 9, 9, now_ms=1_000) is OutOfOrderSequence
    assert verdict(state, 9, 9, now_ms=1_001) is None
    assert isinstance(verdict(state, 0, 4, now_ms=1_001), ProducerBatch)


def test_a_batch_that_does_not_follow_starts_a_new_window() -> None:
    state = with_batch(state_after((0, 4)), 0, ProducerBatch(50, 50, 9, 0))
    assert state.batches == (ProducerBatch(50, 50, 9, 0),)


@given(
    st.lists(
        st.builds(
            ProducerBatch,
            st.integers(0, MAX),
            st.integers(0, MAX),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_window_survives_packing(batches: list[ProducerBatch]) -> None:
    assert unpack_batches(pack_batches(tuple(batches))) == tuple(batches)


@given(st.binary(max_size=200))
def test_garbage_is_a_window_or_corrupt(data: bytes) -> None:
    try:
        assert pack_batches(unpack_batches(data)) == data
    except CorruptState:
        assert len(data) == 0 or len(data) % 24 or len(data) > 120
