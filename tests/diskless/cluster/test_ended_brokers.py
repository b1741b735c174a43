"""Brokers whose process has ended: who is knocked at, and who leaves the cluster."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from diskless.cluster.ended_brokers import EndedBrokers
from metadata.operations import RegisteredBroker
from wal.errors import CommitFailed


def broker(broker_id: int, *, life: int = 1) -> RegisteredBroker:
    return RegisteredBroker(broker_id, "h", 9092, "", UUID(int=life), "")


class Catalogue:
    """Who is registered, who waits to be fed, and whose listener is gone."""

    def __init__(self, *brokers: RegisteredBroker) -> None:
        self.registered = {one.broker_id: one for one in brokers}
        self.fed: set[int] = set()
        self.refusing: set[int] = set()
        self.knocked: list[int] = []
        self.failures = 0
        self._looks: asyncio.Queue[None] = asyncio.Queue(1)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self._looks.put(None)
            for _ in range(5):
                await asyncio.sleep(0)

    async def is_refused(self, one: RegisteredBroker) -> bool:
        self.knocked.append(one.broker_id)
        return one.broker_id in self.refusing

    async def unregister(self, broker_ids: Sequence[int]) -> None:
        if self.failures:
            self.failures -= 1
            raise CommitFailed("not now")
        for broker_id in broker_ids:
            del self.registered[broker_id]

    async def sleep(self, _: float) -> None:
        await self._looks.get()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        worker = EndedBrokers(
            lambda: self.registered,
            fed=lambda: self.fed,
            is_refused=self.is_refused,
            unregister=self.unregister,
            sleep=self.sleep,
        )
        task = asyncio.create_task(worker.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_broker_that_is_fed_no_more_and_refuses_leaves_the_cluster() -> None:
    catalogue = Catalogue(broker(1), broker(2))
    catalogue.fed, catalogue.refusing = {1, 2}, {1, 2}
    async with catalogue.running():
        await catalogue.look()
        assert catalogue.knocked == [], "who is fed lives"
        catalogue.fed = {1}
        await catalogue.look()
        assert catalogue.knocked == [2]
        assert list(catalogue.registered) == [1]


async def test_a_broker_that_is_paused_is_left_to_its_session() -> None:
    catalogue = Catalogue(broker(2))
    catalogue.fed = {2}
    async with catalogue.running():
        await catalogue.look()
        catalogue.fed = set()
        await catalogue.look(3)
        assert catalogue.knocked == [2, 2, 2]
        assert list(catalogue.registered) == [2]
        catalogue.refusing = {2}
        await catalogue.look()
        assert not catalogue.registered, "it was killed while it was paused"


async def test_who_was_not_fed_in_this_life_is_not_knocked_at() -> None:
    catalogue = Catalogue(broker(2))
    catalogue.refusing = {2}
    async with catalogue.running():
        await catalogue.look()
        assert catalogue.knocked == [], "it may be cut off from here, and reach the store"
        catalogue.fed = {2}
        await catalogue.look()
        catalogue.registered[2], catalogue.fed = broker(2, life=2), set()
        await catalogue.look()
        assert catalogue.knocked == [], "another life of it has just begun"
        assert list(catalogue.registered) == [2]


async def test_one_that_was_put_out_and_came_back_unfed_is_left_alone() -> None:
    catalogue = Catalogue(broker(2))
    catalogue.fed, catalogue.refusing = {2}, {2}
    async with catalogue.running():
        await catalogue.look()
        catalogue.fed = set()
        await catalogue.look()
        assert not catalogue.registered
        catalogue.registered[2] = broker(2)
        await catalogue.look(3)
        assert list(catalogue.registered) == [2]
        assert catalogue.knocked == [2]


async def test_one_that_registered_anew_while_it_was_knocked_at_stays() -> None:
    catalogue = Catalogue(broker(2))
    catalogue.fed = {2}

    async def is_refused(one: RegisteredBroker) -> bool:
        catalogue.registered[2] = broker(2, life=2)
        return True

    catalogue.is_refused = is_refused  # type: ignore[method-assign]
    async with catalogue.running():
        await catalogue.look()
        catalogue.fed = set()
        await catalogue.look(2)
        assert list(catalogue.registered) == [2]


async def test_what_could_not_be_written_is_tried_again() -> None:
    catalogue = Catalogue(broker(2))
    catalogue.fed, catalogue.refusing, catalogue.failures = {2}, {2}, 1
    async with catalogue.running():
        await catalogue.look()
        catalogue.fed = set()
        await catalogue.look()
        assert list(catalogue.registered) == [2]
        await catalogue.look()
        assert not catalogue.registered
