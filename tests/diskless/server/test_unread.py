"""Who is cut off for not reading, and who is not; and how little answers leave to others."""

from dataclasses import dataclass, field

import pytest

from diskless.server.request_budget import RequestAccount, RequestBudget
from diskless.server.response_budget import ANSWER_ALLOWANCE_BYTES, ResponseAccount, ResponseBudget
from diskless.server.unread import (
    UNREAD_ANSWERS_SHARE_BYTES,
    UNREAD_REQUESTS_SHARE_BYTES,
    ReadProgress,
    UnreadCutter,
)
from wal.chunks.buffer import BufferPool
from wal.clock import ManualClock

LIMIT = 64 << 20
UNREAD_MAX_S = 10.0


@dataclass
class Client:
    name: str
    owner: str
    requests: RequestAccount
    responses: ResponseAccount
    unread_since: float | None = None
    is_cut: bool = False

    def cut_as_slow_reader(self) -> None:
        self.is_cut = True
        self.responses.set_unsent(0)


@dataclass
class Rig:
    clock: ManualClock = field(default_factory=ManualClock)
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.requests = RequestBudget(LIMIT, BufferPool(LIMIT), lambda _: None)
        self.responses = ResponseBudget(LIMIT, self.clock)
        self.cutter = UnreadCutter(self.requests, self.responses, UNREAD_MAX_S)

    def client(
        self,
        name: str,
        *,
        owner: str = "a",
        requests: int = 0,
        unsent: int = 0,
        unread: bool = True,
    ) -> Client:
        account = self.requests.open(owner, lambda: None)
        client = Client(name, owner, account, self.responses.open(owner))
        client.requests.charge(requests)
        client.responses.set_unsent(unsent)
        client.unread_since = self.clock.monotonic() if unread else None
        self.clients.append(client)
        return client

    def cut(self) -> list[str]:
        for _ in self.cutter.cut(self.clients, self.clock.monotonic()):
            pass
        return [client.name for client in self.clients if client.is_cut]

    def waits(self, owner: str) -> Client:
        """Somebody who reads its answers and has to wait for memory of requests."""
        client = self.client("waits", owner=owner, requests=1, unread=False)
        assert client.requests.must_wait(0)
        return client


def test_who_pauses_is_left_alone_while_nobody_waits():
    rig = Rig()
    rig.client("requests", requests=LIMIT // 2)
    rig.client("answers", owner="b", unsent=LIMIT // 2)
    for _ in range(60):
        rig.clock.advance(60)
        assert rig.cut() == []


def test_the_deaf_that_wait_for_each_other_are_left_alone():
    rig = Rig()
    rig.client("hog", requests=LIMIT)
    deaf = rig.client("deaf", requests=1)
    assert deaf.requests.must_wait(0)
    rig.clock.advance(UNREAD_MAX_S)
    assert rig.cut() == []


@pytest.mark.parametrize("waiting", ["a", "b"])
def test_who_holds_requests_that_others_wait_for_is_cut_when_its_time_is_up(waiting):
    rig = Rig()
    rig.client("hog", requests=LIMIT - (1 << 20))
    rig.client("within its share", requests=UNREAD_REQUESTS_SHARE_BYTES)
    rig.client("reads", requests=1 << 20, unread=False)
    rig.waits(waiting)
    rig.clock.advance(UNREAD_MAX_S - 1)
    assert rig.cut() == []
    rig.clock.advance(1)
    assert rig.cut() == ["hog"]


def test_who_waits_at_the_limit_of_an_address_has_none_of_another_cut():
    rig = Rig()
    rig.client("here", owner="a", requests=LIMIT // 2)
    rig.client("elsewhere", owner="b", requests=LIMIT // 4)
    rig.waits("a")
    rig.clock.advance(UNREAD_MAX_S)
    assert rig.cut() == ["here"]


def test_no_more_are_cut_than_it_takes():
    rig = Rig()
    for number in range(10):
        rig.client(str(number), requests=LIMIT // 20 + number)
    rig.waits("a")
    rig.clock.advance(UNREAD_MAX_S)
    assert rig.cut() == ["7", "8", "9"], "an address is below its mark again; who held most went"


def test_who_leaves_answers_unread_is_cut_when_others_are_granted_less_for_it():
    rig = Rig()
    rig.client("hog", unsent=LIMIT // 2 - UNREAD_ANSWERS_SHARE_BYTES)
    rig.client("within its share", unsent=UNREAD_ANSWERS_SHARE_BYTES)
    reader = rig.client("reads", unread=False)
    rig.clock.advance(UNREAD_MAX_S)
    assert rig.cut() == []
    other = rig.client("elsewhere", owner="b", unread=False)
    assert other.responses.grant(1 << 20, instead_of=0) == 1 << 20, "an address stops no other"
    assert rig.cut() == []
    assert reader.responses.grant(1 << 20, instead_of=0) == ANSWER_ALLOWANCE_BYTES
    assert rig.cut() == ["hog"]
    assert reader.responses.grant(1 << 20, instead_of=0) == 1 << 20


def test_that_somebody_was_granted_less_is_forgotten():
    rig = Rig()
    rig.client("hog", unsent=LIMIT // 2)
    rig.client("reads", unread=False).responses.grant(1 << 20, instead_of=0)
    rig.clock.advance(UNREAD_MAX_S + 1)
    assert rig.cut() == []


def test_at_twice_the_limit_of_answers_memory_comes_first():
    rig = Rig()
    for number in range(5):
        rig.client(str(number), owner=str(number), unsent=LIMIT // 2 - 10 + number)
    assert rig.cut() == [], "they were written to a moment ago"
    rig.clock.advance(1)
    assert rig.cut() == ["2", "3", "4"]
    assert rig.responses.unsent_bytes <= LIMIT


def test_who_reads_slowly_reads():
    progress = ReadProgress()
    for second in range(100):
        progress.look(1_000 - second, float(second))
        assert progress.since == second
    progress.look(901, 100.0)
    progress.look(901, 200.0)
    assert progress.since == 99.0
    progress.look(0, 300.0)
    assert progress.since is None
