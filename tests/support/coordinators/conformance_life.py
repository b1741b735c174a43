"""One life of a broker's coordinators, which ends as a test says."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from prometheus_client import CollectorRegistry

from diskless.api import RunningOperations, coordinator_apis
from diskless.authorization import AllowEverything
from diskless.replica.timestamp_search import TimestampSearch
from diskless.request_metrics import RequestMetrics
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_settings import ServerSettings
from metadata import operations as ops
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.local_client import LocalClient
from metadata.clients.wire_client import WireClient
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.leadership.candidate import Candidate
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from tests.support.brokers.listeners import plain_listener
from tests.support.coordinators.contender import until
from tests.support.logs.log_media import TICK_S, Medium, sleep_a_little
from tests.support.stores.stepped_store import Fate, Steps
from wal.chunks.buffer import BufferPool
from wal.clock import ManualClock
from wal.failpoint import FailpointError


class World(Protocol):
    """What is the same in all lives."""

    coordinators: int
    over_the_wire: bool
    medium: Medium
    settings: CoordinatorSettings
    search: TimestampSearch
    clock: ManualClock
    rng: random.Random

    def snapshots(self, index: int) -> SnapshotStore: ...


class BrokerLife:
    """A broker between a start and an end: its metadata partitions, and its listener if any."""

    def __init__(
        self,
        world: World,
        broker_id: int,
        directory: Path,
        past: Sequence[UUID] = (),
    ) -> None:
        self.broker_id = broker_id
        self.directory = directory
        self.steps = Steps()
        self.incarnation = UUID(int=world.rng.getrandbits(128), version=4)
        self.past: Final = (*past, self.incarnation)
        self._world = world
        self._stack = AsyncExitStack()
        self.partitions: list[MetadataPartition] = []
        self.local: LocalClient
        self.client: CoordinatorClient
        self.task: asyncio.Task[None]

    def _candidate(self) -> Candidate:
        return Candidate(
            broker_id=self.broker_id,
            host=f"broker-{self.broker_id}",
            port=9092,
            incarnation=self.incarnation,
            past_incarnations=self.past[:-1],
        )

    async def start(self) -> None:
        """Follow every metadata partition, and stand for it."""
        async with AsyncExitStack() as stack:
            for index in range(self._world.coordinators):
                partition = await self._partition(index)
                self.partitions.append(await stack.enter_async_context(partition))
            self.local = LocalClient(self.partitions, rng=self._world.rng)
            self.task = asyncio.create_task(self._run())
            stack.push_async_callback(self._end)
            self.client = await self._connected(stack) if self._world.over_the_wire else self.local
            self._stack = stack.pop_all()

    async def _partition(self, index: int) -> MetadataPartition:
        world = self._world
        return MetadataPartition(
            Replica(
                self.directory / str(index),
                settings=world.settings,
                coordinator_id=index,
                snapshots=world.snapshots(index),
                catalogue=self.partitions[ops.CATALOGUE].replica if self.partitions else None,
                sleep=sleep_a_little,
            ),
            await world.medium.open(index, self.steps),
            candidate=self._candidate,
            workers=lambda _: (),
            clock=world.clock,
            rng=world.rng,
            settings=world.settings,
            lease_ms=world.medium.lease_ms,
            sleep=sleep_a_little,
        )

    async def _connected(self, stack: AsyncExitStack) -> CoordinatorClient:
        world = self._world
        running = await stack.enter_async_context(RunningOperations())
        server = KafkaServer(
            [plain_listener()],
            apis=ApiRegistry(
                coordinator_apis(self.local, world.search, running, AllowEverything())
            ),
            settings=ServerSettings(),
            pool=BufferPool(8 << 20),
            clock=world.clock,
            metrics=RequestMetrics(CollectorRegistry()),
        )
        host, port = (await stack.enter_async_context(server)).address
        client = WireClient(host, port, clock=world.clock, rng=world.rng)
        return await stack.enter_async_context(client)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for partition in self.partitions:
                tasks.create_task(partition.run())

    async def _end(self) -> None:
        self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as errors:
            # A broker that a case let die at a failpoint.
            if errors.split(FailpointError)[1] is not None:
                raise

    async def lead(self) -> None:
        """Return when every metadata partition is led here."""
        await until(
            lambda: self.task.done() or self.is_leading,
            f"broker {self.broker_id} leads",
        )
        if self.task.done():
            self.task.result()

    @property
    def is_leading(self) -> bool:
        """Whether every metadata partition is led here."""
        return all(partition.coordinator is not None for partition in self.partitions)

    async def stop(self) -> None:
        """A clean stop; one that died at a failpoint is only cleaned up."""
        await self._stack.aclose()

    def pause(self) -> None:
        """Nothing of this broker reaches the store of its logs until it is told to go on."""
        self.steps.held = True

    def go_on(self) -> None:
        self.steps.held = False
        self._let(Fate.OK)

    async def die(self) -> None:
        """Nothing more of this broker reaches the store, so it resigns nothing."""
        self.pause()
        self.task.cancel()
        while not self.task.done():
            self._let(Fate.AWAY)
            await asyncio.wait([self.task], timeout=TICK_S)
        self.steps.held = False
        await self._stack.aclose()

    def _let(self, fate: Fate) -> None:
        for waiting in [each for each in self.steps.waiting if not each.fate.done()]:
            waiting.decide(fate)
