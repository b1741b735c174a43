"""How a broker stays registered: by beats, and at once when it was put out."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

from diskless.cluster.membership import Membership
from metadata.clients.routed_client import RoutedClient
from metadata.leadership.candidate import Candidate
from metadata.operations import RegisteredBroker
from wal.errors import NotCoordinator

SESSION_MS = 4800
"""A look every tenth of a second."""


class Setting:
    """The catalogue's leader, this broker's replica of what it has written, and time.

    Time passes with sleeps; `at` says what happens when.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.at: dict[float, Callable[[], None]] = {}
        self.beats_at: list[float] = []
        self.brokers: dict[int, RegisteredBroker] = {}
        self.is_away = False

    async def register_broker(self, broker: RegisteredBroker, *, timeout_ms: int) -> None:
        self.beats_at.append(round(self.now_s, 3))
        if self.is_away:
            raise NotCoordinator("nobody leads")
        self.brokers[broker.broker_id] = broker

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for time in [time for time in self.at if time <= self.now_s + 1e-6]:
            self.at.pop(time)()
        await asyncio.sleep(0)

    async def beats(self, seconds: float) -> Sequence[float]:
        """When the broker told that it is there, in that time."""
        membership = Membership(
            cast(RoutedClient, self),
            candidate=Candidate(broker_id=7, host="here", port=9092, incarnation=UUID(int=1)),
            rack="",
            endpoints=(),
            session_timeout_ms=SESSION_MS,
            registered=lambda: self.brokers,
            sleep=self.sleep,
        )
        running = asyncio.create_task(membership.run())
        while self.now_s < seconds - 1e-6:  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return [at for at in self.beats_at if at < seconds]


async def test_a_broker_tells_three_times_a_session_that_it_is_there() -> None:
    assert await Setting().beats(4.8) == [0.0, 1.6, 3.2]


async def test_one_that_was_put_out_comes_back_when_it_reads_that() -> None:
    setting = Setting()
    setting.at = {0.5: setting.brokers.clear}
    assert await setting.beats(2.0) == [0.0, 0.5]


async def test_one_that_was_put_out_while_nobody_could_be_told_comes_back_too() -> None:
    setting = Setting()

    def away() -> None:
        setting.is_away = True

    def back() -> None:
        setting.is_away = False
        setting.brokers.clear()

    setting.at = {1.0: away, 1.65: back}
    assert await setting.beats(3.0) == [0.0, 1.6, 1.7]


async def test_one_that_nobody_took_in_waits_for_its_next_beat() -> None:
    setting = Setting()
    setting.is_away = True
    assert await setting.beats(3.2) == [0.0, 1.6]
