"""Accepts the connections of a broker of several processes, in its head, and assigns each a worker.

    listeners ──▶ head: accept, `Balance.order` ──▶ worker: limits, handshake, requests

The workers could wait at the listening sockets themselves, but the system wakes whoever it likes:
all connections that come one at a time may be one worker's. Here the head knows how many each has,
and what each has to do.

Invariants: a connection is in one process at a time. The limits are asked by the worker, which has
the quotas and sees the others' counts.

Failure cases: nobody serves, or nobody takes what was handed over: connections wait in the system's
queue. A worker stands still, or has died: what it has not taken is given to another.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from diskless.listeners.listening import Listening
from diskless.shared.connection_counts import ConnectionCount, ConnectionCounts
from diskless.workers.connections.accepted import AcceptedConnection, Untaken, hand_over, take
from diskless.workers.connections.balance import Balance, GivingUp, Load
from wal.clock import Clock

UNTAKEN_MAX: Final = 32
"""Of one worker; more are left to the system's queue."""
TAKEN_WITHIN_S: Final = 0.25
"""Who takes nothing for so long stands still."""
_PAUSE_S: Final = 0.005

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Way:
    """To one worker."""

    end: socket.socket
    other_end: socket.socket
    """The worker's, which the head has, too."""
    given: int = 0
    seen_taken: int = 0
    is_watched: bool = False


class Assigner:
    """On the event loop of the head."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        counts: ConnectionCounts,
        balance: Balance,
        *,
        clock: Clock,
        backlog: int,
    ) -> None:
        """`listeners` in the order of the configuration; they are closed by `stop`."""
        self._listening = [
            Listening(
                listener, partial(self._accepted, index), backlog=backlog, pause_s=self._wait_s
            )
            for index, listener in enumerate(listeners)
        ]
        self._counts = counts
        self._balance = balance
        self._clock = clock
        self._ways: dict[int, _Way] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def active(self) -> int:
        """How many workers are given connections."""
        return self._balance.active

    @property
    def on_their_way(self) -> int:
        """Connections that were given to workers and not taken."""
        rows = self._counts.rows()
        return sum(self._untaken(number, rows) for number in self._ways)

    def start(self) -> None:
        for one in self._listening:
            one.start()

    def stop(self) -> None:
        for one in self._listening:
            one.stop()

    def began(self, number: int, end: socket.socket, other_end: socket.socket) -> None:
        """This worker serves; both ends of what leads to it are closed when it is `gone`."""
        for one in (end, other_end):
            one.setblocking(False)
        self._ways[number] = _Way(end, other_end)
        self._balance.began(number, self._clock.monotonic())

    def gone(self, number: int) -> None:
        """This worker has no connections any more, if it ever had any."""
        self._balance.gone(number)
        self._counts.forget(number)
        way = self._ways.pop(number, None)
        if way is not None:
            self._take_back(way)
            way.end.close()
            way.other_end.close()

    def told(self, number: int, load: Load) -> None:
        """A worker has told its load."""
        self._balance.told(number, load, self._clock.monotonic())

    def look(self) -> GivingUp | None:
        """See `Balance.look`."""
        connections = self._connections(self._counts.rows())
        return self._balance.look(connections, self._clock.monotonic())

    def _connections(self, rows: Sequence[ConnectionCount]) -> Mapping[int, int]:
        """Those on their way too."""
        return {
            number: rows[number - 1].connections + self._untaken(number, rows)
            for number in self._ways
        }

    def _untaken(self, number: int, rows: Sequence[ConnectionCount]) -> int:
        return self._ways[number].given - rows[number - 1].taken

    def _wait_s(self) -> float:
        rows = self._counts.rows()
        has_room = any(self._untaken(number, rows) < UNTAKEN_MAX for number in self._ways)
        return 0.0 if has_room else _PAUSE_S

    def _accepted(self, listener: int, client: socket.socket, host: str) -> None:
        self._assign(AcceptedConnection(listener, client, host))

    def _assign(self, connection: AcceptedConnection) -> None:
        rows = self._counts.rows()
        for number in self._balance.order(self._connections(rows), self._clock.monotonic()):
            way = self._ways[number]
            if self._untaken(number, rows) < UNTAKEN_MAX and hand_over(way.end, connection):
                way.given += 1
                self._watch(number, way)
                return
        log.error("a connection was closed: no worker could take it", host=connection.host)
        connection.client.close()

    def _watch(self, number: int, way: _Way) -> None:
        """See after a while whether the worker takes what it is given."""
        if not way.is_watched:
            way.is_watched = True
            way.seen_taken = self._counts.rows()[number - 1].taken
            self._loop.call_later(TAKEN_WITHIN_S, self._see, number, way)

    def _see(self, number: int, way: _Way) -> None:
        way.is_watched = False
        if self._ways.get(number) is not way:
            return
        rows = self._counts.rows()
        if not self._untaken(number, rows):
            return
        if rows[number - 1].taken == way.seen_taken:
            self._balance.stuck(number)
            self._take_back(way)
        else:
            self._watch(number, way)

    def _take_back(self, way: _Way) -> None:
        """Give to others what is on its way."""
        found = []
        with contextlib.suppress(EOFError, Untaken):
            while (connection := take(way.other_end)) is not None:
                found.append(connection)
        way.given -= len(found)
        for connection in found:
            self._assign(connection)
