"""Sessions of brokers: who is alive, who is silent, and node ids that two brokers claim."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from metadata.operations import RegisteredBroker
from metadata.workers.broker_sessions import BrokerSessions
from wal.clock import ManualClock
from wal.errors import CommitFailed, InvalidRequest

TIMEOUT_S = 8.0
STEP_S = TIMEOUT_S / 4


def broker(broker_id: int, *, life: int = 0, host: str = "h") -> RegisteredBroker:
    return RegisteredBroker(broker_id, host, 9092, "", UUID(int=life), "")


class Catalogue:
    """Who is registered, and sessions that think of it as their catalogue."""

    def __init__(self, *brokers: RegisteredBroker, deposed: int | None = None) -> None:
        self.registered = {item.broker_id: item for item in brokers}
        self.clock = ManualClock()
        self.failures = 0
        self.slept_s = 0.0
        self._step_s = 0.0
        self._steps: asyncio.Queue[None] = asyncio.Queue(1)
        self.sessions = BrokerSessions(
            lambda: self.registered,
            self._unregister,
            clock=self.clock,
            timeout_ms=int(TIMEOUT_S * 1000),
            deposed=deposed,
            sleep=self._sleep,
        )

    async def _unregister(self, broker_ids: Sequence[int]) -> None:
        if self.failures:
            self.failures -= 1
            raise CommitFailed("not now")
        for broker_id in broker_ids:
            del self.registered[broker_id]

    async def _sleep(self, delay_s: float) -> None:
        self.slept_s = delay_s
        await self._steps.get()
        self.clock.advance(self._step_s)

    async def pass_time(self, *, steps: int = 1, step_s: float = STEP_S) -> None:
        """Let the worker sleep `steps` times, each for `step_s`."""
        self._step_s = step_s
        for _ in range(steps):
            await self._steps.put(None)
            for _ in range(5):
                await asyncio.sleep(0)


async def running(catalogue: Catalogue) -> asyncio.Task[None]:
    task = asyncio.create_task(catalogue.sessions.run())
    await asyncio.sleep(0)
    return task


async def test_a_silent_broker_is_unregistered_and_one_that_is_heard_is_not() -> None:
    catalogue = Catalogue(broker(1), broker(2))
    task = await running(catalogue)
    for _ in range(8):
        catalogue.sessions.hear(broker(1))
        await catalogue.pass_time()
    assert list(catalogue.registered) == [1]
    task.cancel()


async def test_everybody_has_one_timeout_from_the_leaders_beginning() -> None:
    catalogue = Catalogue(broker(1), broker(2))
    task = await running(catalogue)
    await catalogue.pass_time(steps=4)
    assert sorted(catalogue.registered) == [1, 2]
    await catalogue.pass_time(steps=1)
    assert catalogue.registered == {}
    task.cancel()


async def test_the_leader_before_was_silent_for_long_enough_already() -> None:
    catalogue = Catalogue(broker(1), broker(2), deposed=2)
    task = await running(catalogue)
    await asyncio.sleep(0)
    assert list(catalogue.registered) == [1]
    catalogue.sessions.hear(broker(2))
    catalogue.registered[2] = broker(2)
    await catalogue.pass_time(steps=3)
    assert sorted(catalogue.registered) == [1, 2], "it lives after all"
    task.cancel()


async def test_a_silent_broker_is_noticed_soon_after_its_timeout() -> None:
    catalogue = Catalogue(broker(1))
    task = await running(catalogue)
    assert catalogue.slept_s <= TIMEOUT_S / 10
    task.cancel()


async def test_who_was_paused_itself_declares_nobody_dead() -> None:
    catalogue = Catalogue(broker(1))
    task = await running(catalogue)
    catalogue.sessions.hear(broker(1))
    await catalogue.pass_time(step_s=TIMEOUT_S * 10)
    assert list(catalogue.registered) == [1]
    await catalogue.pass_time(steps=5)
    assert catalogue.registered == {}, "now it really was silent"
    task.cancel()


async def test_an_unregistration_that_failed_is_made_later() -> None:
    catalogue = Catalogue(broker(1))
    catalogue.failures = 1
    task = await running(catalogue)
    await catalogue.pass_time(steps=5)
    assert list(catalogue.registered) == [1]
    await catalogue.pass_time()
    assert catalogue.registered == {}
    task.cancel()


def test_a_node_id_of_a_live_broker_elsewhere_is_refused() -> None:
    catalogue = Catalogue(broker(1, life=1, host="a"))
    with pytest.raises(InvalidRequest, match=r"node\.id=1"):
        catalogue.sessions.hear(broker(1, life=2, host="b"))
    catalogue.clock.advance(TIMEOUT_S + 1)
    catalogue.sessions.hear(broker(1, life=2, host="b"))


def test_a_broker_that_starts_again_at_its_address_is_welcome_at_once() -> None:
    catalogue = Catalogue(broker(1, life=1))
    catalogue.sessions.hear(broker(1, life=2))


def test_a_broker_that_said_goodbye_is_not_waited_for() -> None:
    catalogue = Catalogue(broker(1))
    catalogue.sessions.hear(broker(1))
    catalogue.sessions.forget(1)
    assert catalogue.sessions.silent() == []
    catalogue.clock.advance(TIMEOUT_S + 1)
    assert catalogue.sessions.silent() == [1]
