"""Clients that connect, ask what the broker can do, and leave; so many a second.

    python -m bench.connections.storm HOST:PORT RATE SECONDS     prints how many were answered

A process of its own, and little of one: its share of the machine shall not be what is measured.
"""

import selectors
import socket
import sys
import time
from typing import Final

from bench.tools.raw_client import API_VERSIONS

ANSWER_TIMEOUT_S: Final = 10.0
_TICK_S: Final = 0.01


def storm(bootstrap: str, rate: float, seconds: float) -> int:
    """How many were answered. Raises TimeoutError when the last ones are not."""
    host, _, port = bootstrap.rpartition(":")
    selector = selectors.DefaultSelector()
    started = time.perf_counter()
    begun = answered = 0
    while True:
        now = time.perf_counter() - started
        while now < seconds and begun < now * rate:
            client = socket.create_connection((host, int(port)))
            client.sendall(API_VERSIONS)
            selector.register(client, selectors.EVENT_READ)
            begun += 1
        if now >= seconds and not selector.get_map():
            return answered
        if now > seconds + ANSWER_TIMEOUT_S:
            raise TimeoutError(f"{begun - answered} of {begun} connections were not answered")
        for key, _ in selector.select(_TICK_S):
            client = key.fileobj  # type: ignore[assignment]
            if client.recv(1 << 16):
                answered += 1
            selector.unregister(client)
            client.close()
        # Not for every answer: in ticks, as many at once as come in one.
        time.sleep(_TICK_S)


if __name__ == "__main__":
    print(storm(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
