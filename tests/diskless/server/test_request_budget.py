"""The budget of request memory: nobody starves, whoever sends what in which order.

Over real pools and chain builders, since what they lend is what is counted.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.server.request_budget import RequestBudget
from wal.chunks.buffer import BufferPool, ChainBuilder, FragmentChain

BUFFER = 512
LIMIT = 8 * BUFFER
OVERHEAD = 40


class Sender:
    """A connection that sends frames of the given sizes and reads at most a buffer at a time."""

    def __init__(self, number: int, pool: BufferPool, frames: list[int]) -> None:
        self.number = number
        self.builder = ChainBuilder(pool)
        self.frames = frames
        self.is_paused = False
        self.answered = 0
        self.in_memory: list[FragmentChain] = []
        self.unanswered = 0

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def read(self, budget: RequestBudget, count: int) -> None:
        """Receive some of what is to come, hand on the frames it completes, then wait or not."""
        room = self.builder.writable(1)
        left = sum(self.frames) - self.builder.received_bytes
        self.builder.commit(min(count, len(room), left))
        while self.frames and self.builder.received_bytes >= self.frames[0]:
            chain = self.builder.take(self.frames.pop(0))
            budget.completed(self.number)
            budget.charge(OVERHEAD)
            self.in_memory.append(chain)
            self.unanswered += 1
        self.is_paused = budget.must_wait(
            self.number, self.resume, is_partial=self.builder.received_bytes > 0
        )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9_000), min_size=1, max_size=4), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_frame_is_read_and_answered_and_memory_stays_near_the_limit(frames, chance):
    pool = BufferPool(LIMIT)
    budget = RequestBudget(LIMIT, pool)
    senders = [Sender(number, pool, list(sizes)) for number, sizes in enumerate(frames)]
    largest = max(max(sizes) for sizes in frames)
    slack = largest + (2 * BUFFER + OVERHEAD * 4) * len(senders) + 2 * BUFFER
    while any(sender.frames or sender.unanswered for sender in senders):
        readable = [s for s in senders if s.frames and not s.is_paused]
        written = [s for s in senders if s.in_memory]
        answerable = [s for s in senders if s.unanswered > len(s.in_memory)]
        assert readable or written or answerable, "everybody waits for everybody"
        step = chance.choice([step for step in (readable, written, answerable) if step])
        sender = chance.choice(step)
        if step is readable:
            sender.read(budget, chance.randint(1, BUFFER))
        elif step is written:
            sender.in_memory.pop(0).release()
        else:
            sender.unanswered -= 1
            sender.answered += 1
            budget.answered(OVERHEAD)
        assert budget.used_bytes <= LIMIT + slack
    assert budget.used_bytes == 0
    assert budget.waiting == 0
    assert [sender.answered for sender in senders] == [len(sizes) for sizes in frames]


@dataclass
class Rig:
    """A budget whose memory is lent in buffers by the test."""

    pool: BufferPool = field(default_factory=lambda: BufferPool(LIMIT))
    resumed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = RequestBudget(LIMIT, self.pool)

    def partial(self, buffers: int) -> ChainBuilder:
        """A connection's unfinished frame."""
        builder = ChainBuilder(self.pool)
        for _ in range(buffers):
            builder.commit(len(builder.writable(BUFFER)))
        return builder

    def complete(self, buffers: int) -> FragmentChain:
        """A frame whose batches wait for the write loop."""
        return self.partial(buffers).take(buffers * BUFFER)

    def must_wait(self, connection: int, *, is_partial: bool) -> bool:
        return self.budget.must_wait(
            connection, lambda: self.resumed.append(connection), is_partial=is_partial
        )


def test_memory_that_was_written_lets_everybody_go_on_although_nothing_is_answered():
    rig = Rig()
    rig.budget.charge(OVERHEAD)
    chains = [rig.complete(1) for _ in range(8)]
    assert rig.must_wait(1, is_partial=True)
    assert rig.must_wait(2, is_partial=False)
    chains.pop().release()
    assert rig.resumed == [], "one buffer is not worth to go on for"
    assert rig.must_wait(3, is_partial=False), "nor may others take what these wait for"
    chains.pop().release()
    chains.pop().release()
    assert rig.resumed == [1, 2, 3]
    assert not rig.must_wait(1, is_partial=True)
    for chain in chains:
        chain.release()
    assert rig.budget.used_bytes == OVERHEAD


def test_what_unanswered_requests_keep_counts_as_well():
    rig = Rig()
    rig.budget.charge(LIMIT)
    assert rig.must_wait(1, is_partial=False)
    rig.budget.answered(LIMIT // 4)
    assert rig.resumed == []
    rig.budget.answered(1)
    assert rig.resumed == [1]


def test_in_an_outage_unfinished_frames_wait_for_those_that_are_not_written():
    rig = Rig()
    unfinished = rig.partial(7)
    blocked = rig.complete(1)
    assert rig.must_wait(1, is_partial=True)
    rig.budget.charge(OVERHEAD)
    rig.budget.answered(OVERHEAD)
    assert rig.resumed == [], "an answer, a timeout for one, wrote nothing"
    blocked.release()
    assert rig.resumed == [1]
    unfinished.release()


def test_a_request_that_waits_for_long_does_not_keep_unfinished_frames_waiting():
    rig = Rig()
    rig.budget.charge(OVERHEAD)  # a parked Fetch, say
    unfinished = rig.partial(8)
    assert not rig.must_wait(1, is_partial=True), "it will never be enough by itself"
    unfinished.release()


def test_unfinished_frames_are_let_through_one_after_the_other_in_turn():
    rig = Rig()
    frames = [rig.partial(4) for _ in range(3)]
    assert not rig.must_wait(1, is_partial=True), "the first goes on"
    assert rig.must_wait(2, is_partial=True)
    assert rig.must_wait(3, is_partial=True)
    assert not rig.must_wait(1, is_partial=True), "until its frame is complete"
    rig.budget.completed(1)
    assert rig.must_wait(1, is_partial=True), "its next frame is behind the others"
    assert rig.resumed == [2]
    rig.budget.completed(2)
    assert rig.must_wait(2, is_partial=True)
    assert rig.resumed == [2, 3]
    for frame in frames:
        frame.release()
    assert rig.resumed == [2, 3, 1, 2]


def test_a_connection_that_ends_lets_the_next_one_go_on():
    rig = Rig()
    first, rest = rig.partial(2), rig.partial(8)
    assert not rig.must_wait(1, is_partial=True)
    assert rig.must_wait(2, is_partial=True)
    assert rig.must_wait(3, is_partial=True)
    first.release()
    assert rig.resumed == []
    rig.budget.abandoned(1)
    assert rig.resumed == [2]
    rest.release()
    assert rig.resumed == [2, 3]


def test_unfinished_frames_above_the_mark_leave_the_room_up_to_the_limit_to_all():
    rig = Rig()
    frames = [rig.partial(1) for _ in range(9)]
    assert not rig.must_wait(1, is_partial=True)
    assert rig.must_wait(2, is_partial=True)
    assert rig.must_wait(3, is_partial=False)
    frames.pop().release()
    assert rig.resumed == []
    frames.pop().release()
    assert rig.resumed == [2, 3], "no answer would bring it down to the mark"
    for frame in frames:
        frame.release()


def test_somebody_with_nothing_begun_is_never_preferred_at_the_limit():
    rig = Rig()
    unfinished = rig.partial(24)
    assert not rig.must_wait(1, is_partial=True)
    assert rig.must_wait(2, is_partial=False)
    assert rig.must_wait(3, is_partial=True)
    rig.budget.completed(1)
    assert rig.must_wait(4, is_partial=True)
    assert rig.resumed == [3]
    assert rig.budget.waiting == 2
    unfinished.release()


@pytest.mark.parametrize("is_partial", [True, False])
def test_below_the_limit_nobody_waits(is_partial):
    rig = Rig()
    chain = rig.complete(7)
    assert not rig.must_wait(1, is_partial=is_partial)
    assert not rig.budget.is_spent_for(1)
    chain.release()


def test_at_the_limit_all_but_the_preferred_one_read_little_at_a_time():
    rig = Rig()
    unfinished = rig.partial(8)
    assert not rig.must_wait(1, is_partial=True)
    assert not rig.budget.is_spent_for(1)
    assert rig.budget.is_spent_for(2)
    unfinished.release()
