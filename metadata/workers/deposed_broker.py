"""Unregisters a broker that led a metadata partition and fell silent.

The leader of the catalogue hears a broker every few seconds, so clients would be sent to a dead one
for the rest of its session. Whoever has come to lead another metadata partition instead of it knows
earlier: it asks for the broker to be unregistered, once, in the life in which it led. A broker that
lives reads that and comes back within a moment (diskless/cluster/membership.py).

The catalogue's own new leader does the same by itself (metadata/workers/broker_sessions.py).

Failure case: the catalogue has no leader, or does not answer: the session ends by itself.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from metadata.operations import Leader, RegisteredBroker
from wal.errors import CommitOutcomeUnknown, Retriable

_logger = logging.getLogger(__name__)


class DeposedBroker:
    """A background worker of a leader that nobody resigned to."""

    def __init__(
        self,
        deposed: Leader,
        registered: Callable[[], Mapping[int, RegisteredBroker]],
        register: Callable[[RegisteredBroker], Awaitable[None]],
    ) -> None:
        """`registered` as far as the catalogue was read; `register` asks its leader."""
        self._deposed = deposed
        self._registered = registered
        self._register = register

    async def run(self) -> None:
        """Ask once."""
        broker = self._registered().get(self._deposed.broker_id)
        if broker is None or broker.incarnation != self._deposed.incarnation:
            return
        try:
            # One without a host says that it stops.
            await self._register(broker._replace(host="", port=0))
        except (Retriable, CommitOutcomeUnknown) as error:
            _logger.info("broker %d is silent, and stays for now: %s", broker.broker_id, error)
