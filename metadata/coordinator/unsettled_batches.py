"""Keeps batches of sinks out of segments until they are *settled*: noted as complete in the bucket.

A rebuild of lost metadata keeps the batches of a sink that are noted, and all segments, which do
not say which batch their records are of. It leaves out a batch that is not known as complete:
nobody was answered, and the driver writes it again. If a segment had a part of that batch, the part
would be there twice.

- At its home a batch is settled when it is complete and noted (metadata/coordinator/sink_notes.py).
- A coordinator with a share asks the home, which names a batch only when it is both.

Only the last batch of a sink, and the last share, can be unsettled: a home decides on none before
the one before it is noted. What is settled stays so; each leader finds it out anew, for what lies
behind its plans.

It is asked when segments are planned. Failure cases: a home that cannot be asked, or a note that
cannot be put, holds up the segments of the partitions that the batch has records in, from the
batch on. Everything else is planned.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from metadata.coordinator.sink_notes import SinkNotes
from metadata.replica.replica import Replica
from metadata.sink_operations import Sink, SinkRange, home_of_share, sink_of_share
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, NotCoordinator

ASKED_AT_ONCE: Final = 16
SETTLED_WITHIN_S: Final = 5.0
"""Plans wait no longer; who was asked least is asked first the next time."""

AskHome = Callable[[int, str], Awaitable[Sink | None]]
"""Which batch of a sink is the last complete one, as its home knows it. Raises as calls of
coordinators do."""

_logger = logging.getLogger(__name__)


async def _ask_nobody(home: int, sink_id: str) -> Sink | None:
    raise NotCoordinator(f"coordinator {home} cannot be asked about sink {sink_id} here")


class UnsettledBatches:
    """Of one coordinator, for one term."""

    def __init__(self, replica: Replica, notes: SinkNotes) -> None:
        self._replica = replica
        self._notes = notes
        self._ask_home: AskHome = _ask_nobody
        self._settled_shares: dict[str, int] = {}
        """By name, the time of the decision."""
        self._tries: Mapping[str, int] = {}
        """By name of what is not settled, how often that was looked into."""

    def ask_homes(self, ask: AskHome) -> None:
        """Until this is called no home can be asked."""
        self._ask_home = ask

    async def settle(self) -> None:
        """Finds out what is settled, and notes what is complete here. Raises nothing of it."""
        sinks = self._replica.image.sinks
        self._settled_shares = {
            name: decided_ms for name, decided_ms in self._settled_shares.items() if name in sinks
        }
        waiting = [sink for sink, unplanned in self._unsettled() if unplanned]
        tries = {sink.sink_id: self._tries.get(sink.sink_id, 0) for sink in waiting}
        self._tries = tries
        waiting.sort(key=lambda sink: tries[sink.sink_id])
        queue = iter(waiting)

        async def work() -> None:
            for sink in queue:
                tries[sink.sink_id] += 1
                try:
                    await self._settle(sink)
                except DisklessError as error:
                    _logger.warning("a batch of %s is not rolled yet: %s", sink.sink_id, error)

        try:
            async with asyncio.timeout(SETTLED_WITHIN_S), asyncio.TaskGroup() as tasks:
                for _ in range(min(ASKED_AT_ONCE, len(waiting))):
                    tasks.create_task(work())
        except TimeoutError:
            _logger.warning("%d batches of sinks are looked into for too long", len(waiting))

    def held_from(self) -> Mapping[TopicIdPartition, int]:
        """By partition, the first offset that may not be planned yet; nothing is said of others."""
        held: dict[TopicIdPartition, int] = {}
        for _, unplanned in self._unsettled():
            for partition, base_offset, _ in unplanned:
                held[partition] = min(base_offset, held.get(partition, base_offset))
        return held

    async def _settle(self, sink: Sink) -> None:
        """Raises as calls of coordinators, and ObjectStoreUnavailable."""
        name = sink.sink_id
        sink_id = sink_of_share(name)
        if sink_id is None:
            # Of one that is open there is nothing to note yet.
            async with self._notes.turn(name):
                return
        known = await self._ask_home(home_of_share(name), sink_id)
        if known is not None and known.committed_at_ms >= sink.committed_at_ms:
            self._settled_shares[name] = sink.committed_at_ms

    def _unsettled(self) -> Iterator[tuple[Sink, list[SinkRange]]]:
        """With what no plan has of them."""
        image = self._replica.image
        for name, sink in image.sinks.items():
            is_settled = (
                name not in image.open_batches and self._notes.has_noted(sink)
                if sink_of_share(name) is None
                else self._settled_shares.get(name) == sink.committed_at_ms
            )
            if not is_settled:
                yield sink, [item for item in sink.ranges if self._is_unplanned(item)]

    def _is_unplanned(self, item: SinkRange) -> bool:
        state = self._replica.image.partitions.get(item.partition)
        return state is not None and item.last_offset >= state.planned_end_offset
