"""Asks a sink's home which batch of it is the last one that is complete and noted.

A coordinator that has a share asks, before it plans the share's records into a segment
(metadata/coordinator/unsettled_batches.py).
"""

from metadata.clients.coordinator_client import CoordinatorClient
from metadata.coordinator.unsettled_batches import AskHome
from metadata.messages.sinks import FIND_SINK_HERE, FindSink
from metadata.sink_operations import Sink
from wal.errors import DisklessError


def home_asker(client: CoordinatorClient, *, timeout_ms: int) -> AskHome:
    """Returns a function whose answer is None where the home cannot be reached, too."""

    async def ask(home: int, sink_id: str) -> Sink | None:
        # Every coordinator is asked that can be reached; the home may be none of them.
        (answer,) = await client.call(FIND_SINK_HERE, FindSink(sink_id), timeout_ms=timeout_ms)
        if isinstance(answer, DisklessError):
            raise answer
        return next((item.sink for item in answer.found if item.coordinator == home), None)

    return ask
