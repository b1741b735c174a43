"""Ports that nobody else is given while a broker is dead and comes back at its own.

A port that the system chose is anybody's once it is free again: of another test process, or of any
socket that connects. These are below those that the system chooses from; a test process holds a
slice of them for itself, by a lock that ends with it.
"""

import fcntl
import functools
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
END: Final = 32_000
SLICE: Final = 1_000


def own_port() -> int:
    """A port of 127.0.0.1 where nobody listens now; the next one each time, round and round."""
    for _ in range(SLICE):
        port = next(_own_ports())
        with socket.socket() as probe:
            # As servers do, which need not wait for what an earlier one left behind.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@functools.cache
def _own_ports() -> Iterator[int]:
    for first in range(FIRST, END, SLICE):
        path = Path(tempfile.gettempdir(), f"diskless-test-ports-{first}-{os.getuid()}")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return itertools.cycle(range(first, first + SLICE))  # the lock ends with the process
    raise AssertionError("every slice of ports is held by a test process")
