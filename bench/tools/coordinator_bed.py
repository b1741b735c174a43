"""One metadata partition as a broker has it, without the broker: what the group measures on.

    async with coordinating(directory) as bed:
        await bed.client.commit_file(...)

`client` is the very RoutedClient that the broker's write and read paths call: routing, the
coordinator's pipeline, the metadata log and SQLite are all in what is measured; sockets and the
upload of objects are not, the coordinator never asks for those. The background workers do not run;
what they cost is measured where they are the subject. `run` gives the event loop and the garbage
collector the broker's settings.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

import uvloop

from metadata.clients.local_client import LocalClient
from metadata.clients.routed_client import PeerAddress, RoutedClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.leadership.candidate import Candidate
from metadata.log.local_log import LOG_DIRECTORY, LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CreateTopic, TopicDescription
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition

CLOCK: Final = SystemClock()
CLUSTER_ID: Final = "bench"

_GC_THRESHOLDS: Final = (20_000, 20, 50)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """A coordinator that leads, and what a broker reaches it by."""

    client: RoutedClient
    coordinator: PartitionCoordinator
    partition: MetadataPartition

    async def topic(self, name: str, partitions: int) -> list[TopicIdPartition]:
        """The partitions of a new topic, or of the one there is."""
        topic = self.client.topics().get(name)
        if topic is None:
            (created,) = await self.client.create_topics(
                [CreateTopic(name=name, partition_count=partitions)]
            )
            assert isinstance(created, TopicDescription), created
            topic = created
        assert topic.partition_count == partitions
        return [TopicIdPartition(topic.topic_id, index) for index in range(partitions)]


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `main` to its end on the broker's event loop."""
    thresholds = gc.get_threshold()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def settle() -> None:
    """As the broker does when it is ready: the collector need not look at what is there already."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


@asynccontextmanager
async def coordinating(
    directory: Path,
    log: MetadataLog | None = None,
    *,
    lease_ms: int = 0,
    snapshots: SnapshotStore | None = None,
) -> AsyncIterator[Bed]:
    """Lead a metadata partition whose state is in `directory`: on `log`, else on a local log there.

    `log` is closed with it.
    """
    rng = random.Random(1)
    settings = CoordinatorSettings()
    if log is None:
        log = await LocalMetadataLog.open(directory / LOG_DIRECTORY, rng=rng)
    myself = Candidate(broker_id=0, host="127.0.0.1", port=9092, incarnation=UUID(int=1))
    partition = MetadataPartition(
        Replica(directory, settings=settings, snapshots=snapshots),
        log,
        candidate=lambda: myself,
        workers=lambda _: (),
        clock=CLOCK,
        rng=rng,
        settings=settings,
        lease_ms=lease_ms,
    )
    async with partition:
        serving = asyncio.create_task(partition.run())
        try:
            await _until_ready(partition, serving)
            assert partition.coordinator is not None
            local = LocalClient([partition], rng=rng)
            async with RoutedClient(local, connect=_nobody_else, clock=CLOCK, rng=rng) as client:
                yield Bed(client=client, coordinator=partition.coordinator, partition=partition)
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def _until_ready(partition: MetadataPartition, serving: asyncio.Task[None]) -> None:
    ready = asyncio.create_task(partition.ready())
    await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        ready.cancel()
        serving.result()


def _nobody_else(address: PeerAddress) -> NoReturn:
    raise AssertionError(f"{address}: there is one broker")
