"""Knows which brokers are alive, as the leader of the catalogue hears it.

Every broker says every few seconds that it is there (`register_broker`). The first time, and when
it comes back elsewhere or in another life, that becomes a record of the catalogue, from which all
brokers know it; the beats in between are only remembered here. A broker that was silent for the
session timeout is unregistered, by a record as well.

A new leader has heard no broker yet, so every registered one gets one session timeout from then on.
So it is after this process itself was paused: nobody could be heard meanwhile. The exception is the
broker that led before and did not resign. It was silent for a lease already, that is why there is
another leader; so it leaves the cluster at once, and comes back when it reads that, if it is alive.

Failure cases: two live brokers with one node id would answer for each other; the second is refused
until the first has been silent long enough, unless it is at the same address, where only one can
be. A clock that jumps does not matter: time is monotonic.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from metadata.operations import RegisteredBroker
from wal.clock import Clock, Sleep
from wal.errors import CommitOutcomeUnknown, InvalidRequest, Retriable

_CHECKS_PER_SESSION: Final = 12
"""A dead broker is out of the cluster that much later at most."""
_PAUSE_OF_SESSION: Final = 1 / 4
"""Who comes this much too late from its sleep was paused, and may have missed a beat."""

_logger = logging.getLogger(__name__)


class BrokerSessions:
    """The sessions of one term of a catalogue leader; also a background worker of it."""

    def __init__(
        self,
        registered: Callable[[], Mapping[int, RegisteredBroker]],
        unregister: Callable[[Sequence[int]], Awaitable[None]],
        *,
        clock: Clock,
        timeout_ms: int,
        deposed: int | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`registered` are the brokers of the catalogue as of now; `deposed` led it before."""
        self._registered = registered
        self._unregister = unregister
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._sleep = sleep
        self._began_at = clock.monotonic()
        self._heard_at: dict[int, float] = {} if deposed is None else {deposed: -math.inf}

    def hear(self, broker: RegisteredBroker) -> None:
        """A broker is alive. Raises InvalidRequest when its node id is another live broker's."""
        known = self._registered().get(broker.broker_id)
        if (
            known is not None
            and known.incarnation != broker.incarnation
            and (known.host, known.port) != (broker.host, broker.port)
            and not self._is_silent(known.broker_id)
        ):
            raise InvalidRequest(
                f"node.id={broker.broker_id} is in use by a live broker at "
                f"{known.host}:{known.port}: every broker of a cluster needs its own"
            )
        self._heard_at[broker.broker_id] = self._clock.monotonic()

    def forget(self, broker_id: int) -> None:
        """A broker has said that it stops."""
        self._heard_at.pop(broker_id, None)

    def silent(self) -> Sequence[int]:
        """Registered brokers whose session is over."""
        return [broker_id for broker_id in self._registered() if self._is_silent(broker_id)]

    def _is_silent(self, broker_id: int) -> bool:
        heard_at = self._heard_at.get(broker_id, self._began_at)
        return self._clock.monotonic() - heard_at > self._timeout_s

    async def run(self) -> None:
        """Unregister who is silent, until cancelled."""
        interval_s = self._timeout_s / _CHECKS_PER_SESSION
        while True:
            await self._unregister_silent()
            slept_at = self._clock.monotonic()
            await self._sleep(interval_s)
            overslept_s = self._clock.monotonic() - slept_at - interval_s
            if overslept_s > self._timeout_s * _PAUSE_OF_SESSION:
                self._began_at = self._clock.monotonic()
                self._heard_at.clear()

    async def _unregister_silent(self) -> None:
        silent = self.silent()
        if not silent:
            return
        _logger.warning("brokers %s are silent and leave the cluster", silent)
        try:
            await self._unregister(silent)
        except (Retriable, CommitOutcomeUnknown) as error:
            _logger.warning("brokers %s could not be unregistered: %s", silent, error)
