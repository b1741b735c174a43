"""The budget of request bytes: nobody starves, whoever sends what in which order."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.request_budget import RequestBudget

LIMIT = 1_000
READ_BYTES = 100


@dataclass
class Sender:
    """A connection that sends frames of the given sizes and reads at most READ_BYTES at a time."""

    number: int
    frames: list[int]
    received: int = 0
    is_paused: bool = False
    answered: int = 0
    in_flight: list[int] = field(default_factory=list)

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3_000), min_size=1, max_size=4), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_frame_is_read_and_answered_and_memory_stays_near_the_limit(frames, chance):
    budget = RequestBudget(LIMIT)
    senders = [Sender(number, list(sizes)) for number, sizes in enumerate(frames)]
    largest = max(max(sizes) for sizes in frames)
    while any(sender.frames or sender.in_flight for sender in senders):
        readable = [s for s in senders if s.frames and not s.is_paused]
        answerable = [s for s in senders if s.in_flight]
        assert readable or answerable, "everybody waits for everybody"
        if readable and (not answerable or chance.random() < 0.7):
            sender = chance.choice(readable)
            count = min(READ_BYTES, sender.frames[0] - sender.received)
            sender.received += count
            budget.received(count)
            if sender.received == sender.frames[0]:
                size = sender.frames.pop(0)
                sender.received = 0
                budget.completed(sender.number, size)
                sender.in_flight.append(size)
            sender.is_paused = budget.must_wait(
                sender.number, sender.resume, is_partial=sender.received > 0
            )
        else:
            sender = chance.choice(answerable)
            sender.answered += 1
            budget.answered(sender.in_flight.pop(0))
        assert budget.used_bytes <= LIMIT + largest + READ_BYTES * len(senders)
    assert budget.used_bytes == 0
    assert budget.waiting == 0
    assert [sender.answered for sender in senders] == [len(sizes) for sizes in frames]


def test_a_connection_that_ends_lets_the_next_one_go_on():
    budget = RequestBudget(LIMIT)
    resumed: list[int] = []
    budget.received(LIMIT)
    assert not budget.must_wait(1, lambda: resumed.append(1), is_partial=True), "the first goes on"
    budget.received(10)
    assert budget.must_wait(2, lambda: resumed.append(2), is_partial=True)
    assert budget.must_wait(3, lambda: resumed.append(3), is_partial=False)
    budget.abandoned(1, 100)
    assert resumed == [2, 3], "below the limit again, so all go on"


def test_somebody_with_nothing_begun_is_never_preferred_at_the_limit():
    budget = RequestBudget(LIMIT)
    resumed: list[int] = []
    budget.received(3 * LIMIT)
    assert not budget.must_wait(1, lambda: resumed.append(1), is_partial=True)
    assert budget.must_wait(2, lambda: resumed.append(2), is_partial=False)
    assert budget.must_wait(3, lambda: resumed.append(3), is_partial=True)
    budget.completed(1, LIMIT)
    assert resumed == []
    budget.answered(LIMIT)
    assert resumed == [3]
    assert budget.waiting == 1


@pytest.mark.parametrize("is_partial", [True, False])
def test_below_the_limit_nobody_waits(is_partial):
    budget = RequestBudget(LIMIT)
    budget.received(LIMIT - 1)
    assert not budget.must_wait(1, lambda: None, is_partial=is_partial)
