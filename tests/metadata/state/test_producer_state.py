"""Kafka's rules for idempotent producers, one batch at a time and many at once."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.state.producer_state import (
    NO_STATE,
    RECORDS_UNCHECKED_MAX,
    ProducerBatch,
    ProducerBatches,
    ProducerState,
    ProducerWindow,
    all_follow,
    appended,
    check_sequence,
    grouped_by_producer,
    last_append_ms,
    newest_append_ms,
    next_sequence,
    pack_window,
    plainly_follows,
    state_of_row,
    states_array,
    states_list,
    stored_bytes,
    stored_state,
    unpack_window,
    with_batch,
    with_checksum,
)
from metadata.state.producer_state import state_after as packed_after
from wal.columns import column
from wal.errors import CorruptState, OutOfOrderSequence, Rejected, StaleProducerEpoch

MAX = 2**31 - 1


def state_after(*spans: tuple[int, int], epoch: int = 0, at_ms: int = 0) -> ProducerWindow:
    """The state after batches with these (base, last) sequences, one offset each."""
    state: ProducerWindow | None = None
    for offset, (base, last) in enumerate(spans):
        state = with_batch(state, epoch, ProducerBatch(base, last, offset, at_ms))
    assert state is not None
    return state


def verdict(
    state: ProducerWindow | None, base: int, last: int, *, epoch: int = 0, now_ms: int = 0
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


def test_a_duplicate_of_a_batch_that_spans_the_wrap_is_recognised() -> None:
    state = state_after((MAX - 4, MAX - 2), (MAX - 1, 2), (3, 7))
    duplicate = verdict(state, MAX - 1, 2)
    assert isinstance(duplicate, ProducerBatch)
    assert duplicate.base_offset == 1


def test_a_batch_with_the_base_of_another_but_not_its_end_is_no_duplicate() -> None:
    state = state_after((0, 4), (5, 9))
    assert verdict(state, 5, 8) is OutOfOrderSequence
    assert verdict(state, 6, 9) is OutOfOrderSequence


def test_a_duplicate_is_one_within_its_epoch_only() -> None:
    state = state_after((0, 4), epoch=3)
    assert verdict(state, 0, 4, epoch=2) is StaleProducerEpoch
    assert isinstance(verdict(state, 0, 4, epoch=3), ProducerBatch)
    assert verdict(state, 0, 4, epoch=4) is None


def test_an_epoch_may_be_bumped_by_more_than_one_and_up_to_the_greatest() -> None:
    state = state_after((0, 4), epoch=3)
    assert verdict(state, 0, 0, epoch=32_767) is None
    assert verdict(state, 1, 1, epoch=32_767) is OutOfOrderSequence


def test_an_expired_producer_may_come_back_with_an_older_epoch() -> None:
    """Nobody may know it any more: whether its row was deleted yet makes no difference."""
    state = state_after((0, 4), epoch=3)
    assert verdict(state, 9, 9, epoch=2, now_ms=1_000) is StaleProducerEpoch
    assert verdict(state, 9, 9, epoch=2, now_ms=1_001) is None


def test_a_window_is_never_longer_than_five() -> None:
    state = state_after(*[(i, i) for i in range(20)])
    assert [batch.base_sequence for batch in state.batches] == [15, 16, 17, 18, 19]


# --- packed states -------------------------------------------------------------------------------

sequences = st.integers(0, MAX)
producer_batches = st.builds(
    ProducerBatch, sequences, sequences, st.integers(0, 2**62), st.integers(0, 2**62)
)
windows = st.builds(
    ProducerWindow,
    st.integers(0, 2**15 - 1),
    st.lists(producer_batches, min_size=1, max_size=5).map(tuple),
)


def packed_by_hand(window: ProducerWindow, checksum: int) -> bytes:
    """As the module's docstring and docs/formats.md have it."""
    data = struct.pack("<hH", window.epoch, len(window.batches))
    data += b"".join(struct.pack("<iiqq", *batch) for batch in window.batches)
    return data.ljust(124, b"\0") + struct.pack("<q", checksum)


@given(windows)
def test_a_window_survives_packing(window: ProducerWindow) -> None:
    assert unpack_window(pack_window(window)) == window
    assert pack_window(window, -7) == packed_by_hand(window, -7)


def test_after_the_greatest_sequence_of_a_packed_window_comes_zero() -> None:
    packed = pack_window(ProducerWindow(3, (ProducerBatch(MAX, MAX, 7, 8),)))
    window = unpack_window(packed)
    assert next_sequence(window.batches[-1].last_sequence) == 0
    assert verdict(window, 1, 1, epoch=3) is OutOfOrderSequence


@given(st.lists(windows, min_size=1, max_size=4))
def test_a_row_holds_as_many_bytes_as_its_window_has_batches(found: list[ProducerWindow]) -> None:
    states = states_array([pack_window(window) for window in found])
    lengths = stored_bytes(states).tolist()
    assert lengths == [4 + 24 * len(window.batches) for window in found]
    stored = [pack_window(window)[:length] for window, length in zip(found, lengths, strict=True)]
    assert [unpack_window(state_of_row(row, -7)) for row in stored] == found
    assert states_array([state_of_row(stored[0], -7)])["checksum"].tolist() == [-7]
    assert last_append_ms(states).tolist() == [window.last_append_ms for window in found]
    assert states_list(states) == [pack_window(window) for window in found]
    packed = [*map(pack_window, found)]
    assert [*map(stored_state, packed)] == stored
    assert [*map(newest_append_ms, packed)] == last_append_ms(states).tolist()
    assert with_checksum(packed[0], -7) == pack_window(found[0], -7)


@given(st.binary(max_size=200))
def test_garbage_is_a_window_or_corrupt(data: bytes) -> None:
    try:
        state = state_of_row(data, 1)
    except CorruptState:
        return
    assert state[: stored_bytes(states_array([state]))[0]] == data


@pytest.mark.parametrize(
    "data", [b"", bytes(4), bytes(28), b"\0\0\1\0" + bytes(23), b"\0\0\6\0" + bytes(144)]
)
def test_a_row_without_the_batches_that_it_counts_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptState):
        state_of_row(data, 1)


# --- packed, and many at once ---------------------------------------------------------------------

# Sequences close to the wrap and to each other, so that batches follow, repeat and miss each other.
near = st.integers(-6, 6).map(lambda number: number & MAX)
near_batches = st.builds(
    lambda base, records, offset: ProducerBatch(base, (base + records - 1) & MAX, offset, offset),
    near,
    st.integers(1, 4) | st.sampled_from([RECORDS_UNCHECKED_MAX, MAX]),
    st.integers(0, 100),
)
Sent = tuple[int, ProducerBatch]
"""(epoch, batch)."""
sent = st.tuples(st.integers(0, 2), near_batches)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Sent], list[Sent]]:
    """What a producer has appended, and what a file brings of it; often in sequence."""

    def batches(min_size: int, after: list[Sent]) -> list[Sent]:
        made: list[Sent] = []
        for epoch, batch in draw(st.lists(sent, min_size=min_size, max_size=8)):
            before = made or after
            if before and draw(st.booleans()):
                records = (batch.last_sequence - batch.base_sequence) & MAX
                base = (before[-1][1].last_sequence + 1) & MAX
                batch = batch._replace(base_sequence=base, last_sequence=(base + records) & MAX)
                epoch = before[-1][0]
            made.append((epoch, batch))
        return made

    earlier = batches(0, [])
    return earlier, batches(1, earlier)


def window_after(window: ProducerWindow | None, batches: list[Sent]) -> ProducerWindow | None:
    for epoch, batch in batches:
        window = with_batch(window, epoch, batch)
    return window


def together(
    cases: list[tuple[list[Sent], list[Sent]]],
) -> tuple[list[ProducerState | None], ProducerBatches, list[Sent]]:
    earlier = [window_after(None, before) for before, _ in cases]
    now = [batch for _, batches in cases for batch in batches]
    lengths = column(len(batches) for _, batches in cases)
    batches = ProducerBatches(
        starts=np.cumsum(lengths) - lengths,
        epoch=column(epoch for epoch, _ in now),
        base_sequence=column(batch.base_sequence for _, batch in now),
        last_sequence=column(batch.last_sequence for _, batch in now),
    )
    return [None if window is None else pack_window(window) for window in earlier], batches, now


@given(histories(), st.integers(0, 5_000))
def test_a_packed_state_goes_by_the_same_rules(
    case: tuple[list[Sent], list[Sent]], now_ms: int
) -> None:
    before, new = case
    window = window_after(None, before)
    state = None if window is None else pack_window(window, checksum=1)
    for epoch, batch in new:
        if plainly_follows(state, epoch, batch.base_sequence):
            base, last = batch.base_sequence, batch.last_sequence
            assert verdict(window, base, last, epoch=epoch, now_ms=now_ms) is None
        window = with_batch(window, epoch, batch)
        state = packed_after(state, epoch, *batch)
        assert state == pack_window(window)


def test_the_next_batch_of_a_producer_plainly_follows() -> None:
    state = pack_window(state_after((MAX - 9, MAX - 5), (MAX - 4, MAX)))
    assert plainly_follows(None, 0, 77)
    assert plainly_follows(state, 0, 0)
    assert not plainly_follows(state, 0, 1)
    assert not plainly_follows(state, 1, 0)
    assert not plainly_follows(pack_window(state_after((0, 4), (5, MAX))), 0, 0)


@given(st.lists(histories(), min_size=1, max_size=5))
def test_appending_for_many_producers_at_once_is_appending_one_by_one(
    cases: list[tuple[list[Sent], list[Sent]]],
) -> None:
    states, batches, now = together(cases)
    after = appended(
        states_array(states),
        batches,
        column(batch.base_offset for _, batch in now),
        column(batch.append_time_ms for _, batch in now),
    )
    expected = [window_after(window_after(None, before), new) for before, new in cases]
    assert [unpack_window(state) for state in states_list(after)] == expected


@given(st.lists(histories(), min_size=1, max_size=5))
def test_what_follows_without_a_look_at_each_batch_is_what_the_rules_append(
    cases: list[tuple[list[Sent], list[Sent]]],
) -> None:
    states, batches, _ = together(cases)
    for follows, (before, new) in zip(
        all_follow(states_array(states), batches).tolist(), cases, strict=True
    ):
        window = window_after(None, before)
        verdicts = []
        for epoch, batch in new:
            verdicts.append(verdict(window, batch.base_sequence, batch.last_sequence, epoch=epoch))
            window = with_batch(window, epoch, batch)
        if follows:
            assert verdicts == [None] * len(new)


def test_batches_in_sequence_need_no_look_at_each() -> None:
    """Of a producer that is known, one that is not, and one at the wrap."""
    known = [(0, ProducerBatch(5, 9, 0, 0))]
    follow = [(0, ProducerBatch(10, 11, 1, 0)), (0, ProducerBatch(12, 12, 2, 0))]
    at_wrap = [(0, ProducerBatch(MAX, MAX, 0, 0))], [(0, ProducerBatch(0, 4, 1, 0))]
    states, batches, _ = together([(known, follow), ([], follow), at_wrap, (follow, known)])
    assert all_follow(states_array(states), batches).tolist() == [True, True, True, False]


def test_no_state_is_all_zeros() -> None:
    (array,) = states_array([None])
    assert array["count"] == 0
    assert states_list(states_array([None])) == [NO_STATE]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_batches_are_grouped_by_producer_in_their_order(keys: list[tuple[int, int]]) -> None:
    partitions, producers = column(key[0] for key in keys), column(key[1] for key in keys)
    order, starts = grouped_by_producer(partitions, producers)
    assert [keys[place] for place in order] == sorted(keys)
    groups = np.split(order, starts[1:]) if keys else []
    assert [keys[group[0]] for group in groups] == sorted(set(keys))
    assert all(np.all(np.diff(group) > 0) for group in groups)
