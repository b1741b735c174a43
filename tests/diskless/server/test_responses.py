"""Answers in the order of their requests, from handlers of every kind, without a socket."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from diskless.loop.long_work import LongWork, Steps
from diskless.loop.turns import Turn
from diskless.ports import ClientInfo
from diskless.quotas.request_meter import NoLimits, RequestMeter
from diskless.server.handlers import Handlers, HandlerTasks
from diskless.server.registry import Api, Deferred, Outcome, Reply, Request
from diskless.server.request_budget import RequestBudget
from diskless.server.response_budget import ResponseBudget
from diskless.server.responses import Outbox, ResponseQueue, Slot
from tests.support.loops.until import until
from wal.chunks.buffer import BufferPool
from wal.clock import ManualClock

LIMIT = 1 << 20


class Rig:
    """A queue whose answers are taken as soon as they can leave."""

    def __init__(self, group: asyncio.TaskGroup | None = None) -> None:
        self.clock = ManualClock()
        self.requests = RequestBudget(LIMIT, BufferPool(LIMIT), lambda _: None)
        self.responses = ResponseBudget(LIMIT, self.clock)
        self.queue = ResponseQueue(
            self.requests.open("a", lambda: None), self.responses.open("a"), self.take
        )
        self.taken: list[Slot] = []
        self.failures: list[Exception | None] = []
        self.turn = Turn(self.clock)
        self.turn.start(0.0, 1_000)
        if group is not None:
            tasks = HandlerTasks(group=group, long_work=LongWork(self.clock.monotonic, slice_s=0))
            meter = RequestMeter(
                NoLimits(), lambda: 0.0, lambda: ClientInfo(1, "", ""), lambda until: None
            )
            self.handlers = Handlers(
                tasks, 1, self.queue, go_on=lambda: None, failed=self._failed, meter=meter
            )

    def slot(self, handler: Any = None, *, starts_in_turn: bool = False) -> Slot:
        api = Api(
            key=0, name="Any", versions=range(1), flexible_from=None, handler=handler,
            starts_in_turn=starts_in_turn,
        )  # fmt: skip
        slot = Slot(api, 0, len(self.queue), 0.0)
        self.queue.add(slot, 100)
        return slot

    def start(self, slot: Slot) -> None:
        request = Request(
            version=0,
            client=ClientInfo(1, "", ""),
            body=b"",
            wake=slot.wake,
            reserve=lambda wanted: wanted,
            mute=lambda _: None,
        )
        self.handlers.start(slot, request, self.turn)

    def take(self) -> None:
        while (head := self.queue.head) is not None and head.is_done:
            if head.outcome is None or self.handlers.encode(head, self.turn):
                self.taken.append(self.queue.take())

    def holds_nothing(self) -> bool:
        return not self.requests.charged_bytes and not self.responses.reserved_bytes

    def _failed(self, slot: Slot, error: Exception | None) -> None:
        self.failures.append(error)
        self.queue.close()


@asynccontextmanager
async def rig_with_handlers() -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as group:
        yield Rig(group)


@pytest.mark.parametrize("seed", range(5))
def test_answers_leave_in_order_whichever_is_there_first(seed):
    rig = Rig()
    slots = [rig.slot() for _ in range(20)]
    for slot in random.Random(seed).sample(slots, len(slots)):
        rig.queue.reserve(slot, 1_000)
        rig.queue.answered(slot, [b"answer"])
    assert rig.taken == slots
    assert rig.queue.ready_bytes == 0
    assert rig.holds_nothing()


def test_an_answer_behind_a_parked_fetch_wakes_it():
    rig = Rig()
    fetch, behind = rig.slot(starts_in_turn=True), rig.slot()
    assert not fetch.wake.is_set()
    rig.queue.answered(behind, None)
    assert fetch.wake.is_set()


async def test_a_closed_queue_gives_back_what_it_held_and_cancels_what_may_be():
    rig = Rig()
    waiting, late, done = rig.slot(starts_in_turn=True), rig.slot(), rig.slot()
    waiting.waits_for = asyncio.get_running_loop().create_future()
    rig.queue.answered(done, [b"done"])
    rig.queue.close()
    assert waiting.waits_for.cancelled()
    assert not rig.queue.drop(rig.turn)
    assert not rig.holds_nothing(), "what still runs holds what it was charged"
    assert rig.queue.give_up(waiting)
    rig.queue.answered(late, [b"late"])
    assert rig.holds_nothing()
    assert rig.taken == []


async def _later() -> Reply:
    await asyncio.sleep(0)
    return [b"answer"]


def _in_slices(_: Request) -> Steps[Outcome]:
    yield
    yield

    def encode(result: bytes) -> Steps[Reply]:
        yield
        yield
        return [result]

    future = asyncio.get_running_loop().create_future()
    future.set_result(b"answer")
    return Deferred(future, encode, None)


@pytest.mark.parametrize(
    "handler",
    [lambda _: [b"answer"], lambda _: _later(), _in_slices],
    ids=["now", "later", "slices"],
)
async def test_a_handler_of_any_kind_is_answered_once(handler):
    async with rig_with_handlers() as rig:
        slots = [rig.slot(handler) for _ in range(3)]
        for slot in slots:
            rig.start(slot)
        await until(lambda: len(rig.taken) == 3)
    assert rig.taken == slots
    assert [slot.reply for slot in slots] == [[b"answer"]] * 3
    assert rig.handlers.beginning == 0
    assert rig.holds_nothing()


def _breaks(_: Request) -> Reply:
    raise RuntimeError("a bug")


def _breaks_in_slices(_: Request) -> Steps[Outcome]:
    yield
    raise RuntimeError("a bug")


async def _breaks_later() -> Reply:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("handler", [_breaks, _breaks_in_slices, lambda _: _breaks_later()])
async def test_what_a_handler_raises_goes_no_further(handler):
    async with rig_with_handlers() as rig:
        rig.start(rig.slot(handler))
        await until(lambda: len(rig.failures) == 1)
    assert isinstance(rig.failures[0], RuntimeError)
    assert rig.holds_nothing()


class Written(asyncio.WriteTransport):
    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        self.writes.append(b"".join(buffers))


def test_small_answers_leave_in_one_write_and_no_answer_leaves_nothing():
    rig, written = Rig(), Written()
    outbox = Outbox(written)
    for reply in ([b"one"], None, [b"two"], [bytes(1 << 20)], [b"three"]):
        slot = rig.slot()
        rig.queue.answered(slot, reply)
        outbox.add(slot)
    outbox.send()
    outbox.send()
    assert [len(one) for one in written.writes] == [11 + 11 + 8 + (1 << 20), 13]
