"""The brokers as the clients of one listener reach them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from diskless.listeners.endpoints import Endpoint
from diskless.ports import BrokerEndpoint


class ReachableBroker(NamedTuple):
    """A live broker with all its listeners."""

    node_id: int
    rack: str
    """Empty when it has none."""
    endpoints: Sequence[Endpoint]


def brokers_at(listener: str, brokers: Iterable[ReachableBroker]) -> Sequence[BrokerEndpoint]:
    """Those that have the listener, by ascending node id."""
    return sorted(
        BrokerEndpoint(broker.node_id, endpoint.host, endpoint.port, broker.rack or None)
        for broker in brokers
        for endpoint in broker.endpoints
        if endpoint.listener == listener
    )
