"""Takes a broker out of the cluster soon after its process has ended, as the catalogue's leader.

A broker that dies says nothing, and clients would be sent to it for the rest of its session. But
every broker waits at the leader of the catalogue to be fed (metadata/coordinator/feeding/feeds.py).
One that waits no more has ended, is paused or cut off, or reads the store for a while. So somebody
knocks at its listener, every `LOOK_S`: where nobody listens any more, the system refuses the
connection at once, and the broker is unregistered.

Brokers that led something are noticed in another way as well (metadata/workers/deposed_broker.py).

Invariants:
- A refused connection alone counts. An answer, silence or a missing route say nothing, and the
  session decides (metadata/workers/broker_sessions.py).
- Only a broker is tried that was fed since it registered, in the same life: one that is cut off
  from this leader by a firewall that refuses for it comes back when it reads that it was put out,
  and is then left alone.

Failure cases: a machine that dies refuses nothing, and the session decides. An operation that fails
is tried again, as long as the broker is refused.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from metadata.operations import RegisteredBroker
from wal.clock import Sleep
from wal.errors import CommitOutcomeUnknown, Retriable

LOOK_S: Final = 0.25

_logger = logging.getLogger(__name__)


class EndedBrokers:
    """A background worker of the catalogue's leader, in one term of it."""

    def __init__(
        self,
        registered: Callable[[], Mapping[int, RegisteredBroker]],
        *,
        fed: Callable[[], Collection[int]],
        is_refused: Callable[[RegisteredBroker], Awaitable[bool]],
        unregister: Callable[[Sequence[int]], Awaitable[None]],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`registered` and `fed` are as of now; `is_refused` knocks, and does not take long."""
        self._registered = registered
        self._fed = fed
        self._is_refused = is_refused
        self._unregister = unregister
        self._sleep = sleep
        self._was_fed: dict[int, UUID] = {}
        """The life in which each broker was fed last."""

    async def run(self) -> None:
        """Unregister who has ended, until cancelled."""
        while True:
            await self._sleep(LOOK_S)
            missed = self._missed()
            refused = await asyncio.gather(*(self._is_refused(broker) for broker in missed))
            if any(refused):
                await self._take_out(
                    [broker for broker, has_ended in zip(missed, refused, strict=True) if has_ended]
                )

    def _missed(self) -> Sequence[RegisteredBroker]:
        """Brokers that were fed in this life, and are not any more."""
        registered, fed = self._registered(), self._fed()
        self._was_fed = {
            broker_id: broker.incarnation if broker_id in fed else self._was_fed[broker_id]
            for broker_id, broker in registered.items()
            if broker_id in fed or broker_id in self._was_fed
        }
        return [
            broker
            for broker_id, broker in registered.items()
            if broker_id not in fed and self._was_fed.get(broker_id) == broker.incarnation
        ]

    async def _take_out(self, ended: Sequence[RegisteredBroker]) -> None:
        # One that has come back meanwhile is registered in another life.
        registered = self._registered()
        gone = [one.broker_id for one in ended if registered.get(one.broker_id) == one]
        if not gone:
            return
        _logger.warning("brokers %s have ended and leave the cluster", gone)
        try:
            await self._unregister(gone)
        except (Retriable, CommitOutcomeUnknown) as error:
            _logger.warning("brokers %s could not be unregistered: %s", gone, error)
            return
        for broker_id in gone:
            self._was_fed.pop(broker_id, None)
