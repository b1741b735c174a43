"""kafka-python leaves the socket of a refused connection to the collector; this closes it.

A collected socket warns in whatever test runs then, and warnings are errors. Nothing else of the
client is changed.
"""

import warnings
from functools import wraps
from typing import Any

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.inet import KafkaNetSocket

_connect = KafkaNetSocket.sock_connect


@wraps(_connect)
async def _connect_or_close(
    self: KafkaNetSocket, net: Any, sock: Any, *where: Any, **limits: Any
) -> Any:
    try:
        return await _connect(self, net, sock, *where, **limits)
    except BaseException:
        sock.close()
        raise


def close_refused_sockets() -> None:
    """From now on, in this process."""
    KafkaNetSocket.sock_connect = _connect_or_close
