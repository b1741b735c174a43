"""Listeners of tests, each on a free port of the loopback address."""

from diskless.listeners.endpoints import Endpoint
from diskless.listeners.listeners import Listener, bind_listener
from wal.security.security_protocol import SecurityProtocol


def plain_listener(name: str = "PLAINTEXT") -> Listener:
    """Bound, without anybody behind it yet."""
    bound = bind_listener("127.0.0.1", 0)
    return Listener(
        name=name,
        protocol=SecurityProtocol.PLAINTEXT,
        address=bound.getsockname()[:2],
        socket=bound,
        advertised=Endpoint(name, *bound.getsockname()[:2]),
        inter_broker_rank=0,
    )
