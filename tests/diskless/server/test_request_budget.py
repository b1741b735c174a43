"""The budget of request memory: nobody starves, whatever comes in which order.

Over real pools and chain builders, since what they lend is what is counted.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.loop.turns import Turn
from diskless.server.request_budget import REQUEST_ALLOWANCE_BYTES, RequestBudget
from tests.support.profiles import examples
from wal.chunks.buffer import BufferPool, ChainBuilder, FragmentChain
from wal.clock import ManualClock

BUFFER = 8748
"""A size class of the pool."""
LIMIT = 64 * BUFFER
OVERHEAD = 2_000
LARGE = REQUEST_ALLOWANCE_BYTES + 1


@dataclass
class Rig:
    """A budget with its pool; those whom it lets go on are noted."""

    pool: BufferPool = field(default_factory=lambda: BufferPool(LIMIT))
    is_woken: bool = False

    def __post_init__(self) -> None:
        self.budget = RequestBudget(LIMIT, self.pool, self._wake)
        self.turn = Turn(ManualClock())

    def _wake(self, budget: RequestBudget) -> None:
        self.is_woken = True

    def take_turns(self) -> None:
        """What the event loop does."""
        while self.is_woken:
            self.is_woken = False
            self.turn.start(0.0, 1)
            self.is_woken = self.budget.take_turn(self.turn) or self.is_woken

    def client(self, owner: str, frames: list[int] | None = None) -> "Client":
        return Client(self, owner, frames or [])


class Client:
    """A connection that sends frames of the given sizes and reads at most a buffer at a time."""

    def __init__(self, rig: Rig, owner: str, frames: list[int]) -> None:
        self.owner = owner
        self.frames = frames
        self.went_on = 0
        self.account = rig.budget.open(owner, self._resume)
        self.builder = ChainBuilder(rig.pool, self.account)
        self.is_paused = False
        self.in_memory: list[FragmentChain] = []
        self.unanswered = 0
        self.answered = 0

    def _resume(self) -> None:
        self.is_paused = False
        self.went_on += 1

    @property
    def held(self) -> int:
        return self.account.held_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing of an earlier request is held."""
        return not self.unanswered and not self.in_memory

    def can_read(self) -> bool:
        return bool(self.frames) and not self.is_paused

    def read(self, count: int) -> None:
        """Receive some of the next frame, hand it on when it is complete, then wait or not."""
        if not self.may_go_on():
            return
        room = self.builder.writable(1)
        left = self.frames[0] - self.builder.received_bytes
        self.builder.commit(min(count, len(room), left))
        if self.builder.received_bytes == self.frames[0]:
            chain = self.builder.take(self.frames.pop(0))
            self.account.completed()
            self.account.charge(OVERHEAD)
            self.in_memory.append(chain)
            self.unanswered += 1
        self.may_go_on()

    def may_go_on(self) -> bool:
        size = self.frames[0] if self.frames and self.builder.received_bytes else 0
        self.is_paused = self.account.must_wait(size)
        if self.is_idle and size <= REQUEST_ALLOWANCE_BYTES:
            assert not self.is_paused, "nothing is unanswered, and it is told to wait"
        return not self.is_paused

    def written(self) -> None:
        self.in_memory.pop(0).release()

    def answer(self) -> None:
        self.unanswered -= 1
        self.answered += 1
        self.account.answered(OVERHEAD)
        if self.is_paused:
            # An answer is reason enough to ask again, as a connection does.
            self.may_go_on()

    def close(self) -> None:
        self.builder.release()
        self.account.close()

    def hold(self, buffers: int) -> FragmentChain:
        """A complete frame that is not written."""
        for _ in range(buffers):
            self.builder.commit(len(self.builder.writable(BUFFER)))
        return self.builder.take(self.builder.received_bytes)


FRAMES = st.lists(
    st.one_of(st.integers(1, 60_000), st.integers(60_000, 300_000)), min_size=1, max_size=4
)


@examples(0.5)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), FRAMES), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_every_frame_is_read_and_answered_and_memory_stays_within_the_shares(senders, seed):
    chance = random.Random(seed)
    rig = Rig()
    clients = [rig.client(owner, list(sizes)) for owner, sizes in senders]
    largest = max(max(sizes) for _, sizes in senders)
    allowance = REQUEST_ALLOWANCE_BYTES + 3 * BUFFER + OVERHEAD
    while any(client.frames or client.unanswered for client in clients):
        steps = [
            *((client.read, client) for client in clients if client.can_read()),
            *((client.written, client) for client in clients if client.in_memory),
            *(
                (client.answer, client)
                for client in clients
                if client.unanswered > len(client.in_memory)
            ),
        ]
        assert steps, "everybody waits for everybody"
        step, client = chance.choice(steps)
        if step == client.read:
            client.read(chance.randint(1, 3 * BUFFER))
        else:
            step()
        rig.take_turns()
        for owner in "ab":
            own = [client for client in clients if client.owner == owner]
            held = rig.budget.held_by(owner)
            assert held == sum(client.held for client in own)
            # Beyond its half: one request each, and the one whose turn it is to be received.
            assert held <= LIMIT // 2 + allowance * len(own) + largest + BUFFER
        assert rig.budget.used_bytes == sum(client.held for client in clients)
    assert rig.budget.used_bytes == 0
    assert rig.budget.waiting == 0
    assert [client.answered for client in clients] == [len(sizes) for _, sizes in senders]


@examples(0.3)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), FRAMES), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_whoever_goes_leaves_nothing_behind_and_holds_up_nobody(senders, seed):
    chance = random.Random(seed)
    rig = Rig()
    clients = [rig.client(owner, list(sizes)) for owner, sizes in senders]
    for _ in range(chance.randint(0, 200)):
        readers = [client for client in clients if client.can_read()]
        if readers:
            chance.choice(readers).read(3 * BUFFER)
        rig.take_turns()
    chance.shuffle(clients)
    while clients:
        gone = clients.pop()
        gone.close()
        while gone.in_memory:
            gone.written()
        while gone.unanswered:
            gone.unanswered -= 1
            gone.account.answered(OVERHEAD)
        rig.take_turns()
    assert rig.budget.used_bytes == 0
    assert rig.budget.waiting == 0
    assert rig.budget.held_by("a") == rig.budget.held_by("b") == 0


def test_who_has_nothing_unanswered_never_waits_for_a_small_request():
    rig = Rig()
    rig.client("a").account.charge(LIMIT)
    same, other = rig.client("a"), rig.client("b")
    for client in (same, other):
        assert not client.account.must_wait(0)
        assert not client.account.must_wait(REQUEST_ALLOWANCE_BYTES)
        client.account.charge(OVERHEAD)
        assert client.account.must_wait(0), "one request, and no more"


def test_an_owner_at_its_half_stops_none_of_another():
    rig = Rig()
    rig.client("a").account.charge(LIMIT // 2)
    same, other = rig.client("a"), rig.client("b")
    same.account.charge(OVERHEAD)
    other.account.charge(OVERHEAD)
    assert same.account.must_wait(100)
    assert not other.account.must_wait(100)
    assert not other.account.must_wait(LIMIT)


def test_memory_that_was_written_lets_everybody_go_on_although_nothing_is_answered():
    rig = Rig()
    holder, other = rig.client("a"), rig.client("b")
    chains = [holder.hold(8) for _ in range(4)]
    chains += [other.hold(8) for _ in range(4)]
    assert rig.budget.used_bytes >= LIMIT
    waiting = [rig.client(owner) for owner in "abab"]
    for client in waiting:
        client.account.charge(OVERHEAD)
        assert client.account.must_wait(0)
    chains.pop().release()
    rig.take_turns()
    assert [client.went_on for client in waiting] == [0] * 4, "one frame is not worth to go on for"
    for chain in chains:
        chain.release()
    rig.take_turns()
    assert [client.went_on for client in waiting] == [1] * 4
    assert rig.budget.used_bytes == 4 * OVERHEAD


def test_large_frames_are_received_one_after_the_other_beyond_the_limit():
    rig = Rig()
    rig.client("a").account.charge(LIMIT)
    clients = [rig.client(owner) for owner in "aba"]
    assert not clients[0].account.must_wait(LARGE), "the first goes on"
    assert clients[1].account.must_wait(LARGE)
    assert clients[2].account.must_wait(LARGE)
    assert not clients[0].account.must_wait(LARGE), "until its frame is complete"
    clients[0].account.completed()
    assert clients[0].account.must_wait(LARGE), "its next frame is behind the others"
    assert [client.went_on for client in clients] == [0, 1, 0]
    clients[1].close()
    assert [client.went_on for client in clients] == [0, 1, 1], "who ends leaves the turn to others"
    clients[2].account.completed()
    assert [client.went_on for client in clients] == [1, 1, 1]


def test_in_an_outage_large_frames_wait_for_those_that_are_not_written():
    rig = Rig()
    chains = [rig.client("a").hold(20), rig.client("b").hold(44)]
    large = rig.client("b")
    assert large.account.must_wait(LARGE)
    large.account.answered(0)
    assert large.went_on == 0, "an answer, a timeout for one, wrote nothing"
    chains.pop().release()
    assert large.went_on == 0, "more than a quarter of the limit is not written"
    chains.pop().release()
    rig.take_turns()
    assert large.went_on == 1


def test_who_timed_out_and_asks_again_in_an_outage_waits():
    rig = Rig()
    chains = [rig.client(owner).hold(33) for owner in "ab"]
    client = rig.client("b")
    own = client.hold(1)
    assert not client.account.charged_bytes
    assert client.account.must_wait(100), "what it sent before is still in the write queue"
    own.release()
    assert client.went_on == 1
    assert not client.account.must_wait(100)
    for chain in chains:
        chain.release()


def test_those_who_wait_go_on_an_owner_at_a_time():
    rig = Rig()
    hog = rig.client("hog")
    hog.account.charge(LIMIT)
    order: list[str] = []
    for owner in ("a", "a", "a", "b", "c"):
        account = rig.budget.open(owner, lambda owner=owner: order.append(owner))
        account.charge(1)
        assert account.must_wait(0)
    hog.account.answered(LIMIT)
    rig.take_turns()
    assert order == ["a", "b", "c", "a", "a"]


@pytest.mark.parametrize("size", [0, LARGE])
def test_below_the_limits_nobody_waits(size):
    rig = Rig()
    client = rig.client("a")
    chain = client.hold(30)
    client.account.charge(OVERHEAD)
    assert not client.account.must_wait(size)
    assert not client.account.is_at_limit()
    chain.release()


def test_at_a_limit_all_but_the_one_whose_turn_it_is_read_little_at_a_time():
    rig = Rig()
    rig.client("a").account.charge(LIMIT // 2)
    same, other = rig.client("a"), rig.client("b")
    assert same.account.is_at_limit()
    assert not other.account.is_at_limit()
    assert not same.account.must_wait(LARGE)
    assert not same.account.is_at_limit()
