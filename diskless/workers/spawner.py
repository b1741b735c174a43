"""Forks the workers of a broker, from a process that has one thread and no event loop.

A broker that has been running cannot be forked: its threads would be gone in the child, and what
they held locked would stay so. So the command forks a *spawner* before anything else is made, and
that forks a worker each time the head asks for one. A worker has the configuration and all imports
from there; what the head made later (listening sockets, sockets to the head) is handed over with
the request.

    head ── request, sockets ──▶ spawner ── fork ──▶ worker

Nothing is on disk, so nothing is left over after SIGKILL of anybody. The spawner ends when the head
is gone, which it sees at its socket. Signals are the head's business: the spawner ignores those
that end a process group.

Failure case: a spawner that died. The head hears of it with the next request.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wal.errors import StorageFailed

_REQUEST_BYTES_MAX: Final = 64 << 10
_DESCRIPTORS_MAX: Final = 64


class Birth(NamedTuple):
    """What a worker is given when it begins."""

    facts: bytes
    """What the head wrote."""
    descriptors: Sequence[int]
    """What the head handed over; the worker's."""


class Spawner:
    """The head's end. Make it while the process has one thread."""

    def __init__(self, live: Callable[[Birth], int]) -> None:
        """`live` is the life of a worker; it gives the exit status."""
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid: Final = os.fork()
        if self.pid == 0:
            ours.close()
            _never_return(_fork_for_ever, theirs, live)
        theirs.close()
        self._requests: Final = ours

    def spawn(self, facts: bytes, descriptors: Sequence[int]) -> None:
        """Have a worker made; the descriptors stay open here. Raises StorageFailed."""
        assert len(facts) <= _REQUEST_BYTES_MAX
        assert len(descriptors) <= _DESCRIPTORS_MAX
        try:
            socket.send_fds(self._requests, [facts], descriptors)
        except OSError as error:
            raise StorageFailed(f"no worker can be started: {error}") from error

    def close(self) -> None:
        """End the spawner; workers go on."""
        self._requests.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _never_return(
    work: Callable[[socket.socket, Callable[[Birth], int]], int],
    requests: socket.socket,
    live: Callable[[Birth], int],
) -> None:
    """Run `work`, and end this process with its status."""
    status = 1
    try:
        status = work(requests, live)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _fork_for_ever(requests: socket.socket, live: Callable[[Birth], int]) -> int:
    """Returns when the head is gone; in a worker, when that has ended."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    # Whoever ends is the head's to notice, by the socket between them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        facts, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, _DESCRIPTORS_MAX)
        if not facts:
            return 0
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            return live(Birth(facts, descriptors))
        for one in descriptors:
            os.close(one)
