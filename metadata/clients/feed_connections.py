"""The connections through which this broker is fed by leaders of metadata partitions.

A metadata partition that is followed has a connection of its own: an answer may take as long as
there is nothing new, and answers leave a connection in the order of its requests. It is made when
its leader is asked first, and again for another leader or after an answer that did not come.

Failure case: a leader that cannot be reached, or does not answer, is an error of that call; its
connection is closed.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

from metadata.clients.routed_client import PeerAddress
from metadata.clients.wire_client import WireClient
from metadata.feed_operations import FedObjects, FollowLog
from metadata.messages.feeds import FOLLOW_METADATA_LOG
from metadata.messages.shapes import Addressed
from metadata.operations import Leader
from wal.errors import CommitFailed


class _Connected(NamedTuple):
    address: PeerAddress
    client: WireClient


class FeedConnections:
    """At most one connection for each metadata partition. Enter it; leaving closes them."""

    def __init__(
        self,
        connect: Callable[[PeerAddress], WireClient],
        address_of: Callable[[Leader], PeerAddress],
    ) -> None:
        self._connect: Final = connect
        self._address_of: Final = address_of
        self._connected: dict[int, _Connected] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for coordinator in list(self._connected):
            await self._close(coordinator)

    async def ask(
        self, leader: Leader, coordinator: int, asked: FollowLog, *, timeout_ms: int
    ) -> FedObjects:
        """See `AskLeader` (metadata/coordinator/feeding/feed.py). One call at a time of each."""
        address = self._address_of(leader)
        connected = self._connected.get(coordinator)
        if connected is None or connected.address != address:
            await self._close(coordinator)
            connected = _Connected(address, self._connect(address))
            self._connected[coordinator] = connected
        try:
            (fed,) = await connected.client.call(
                FOLLOW_METADATA_LOG, Addressed(coordinator, [asked]), timeout_ms=timeout_ms
            )
        except CommitFailed:
            # What was sent would be answered first, if ever.
            await self._close(coordinator)
            raise
        return fed

    async def _close(self, coordinator: int) -> None:
        connected = self._connected.pop(coordinator, None)
        if connected is not None:
            await connected.client.__aexit__()
