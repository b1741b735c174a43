"""Closes connections so that clients can read what they were sent last.

A socket that is closed while bytes of its client are unread, or come later, is answered with a
reset, and on a slow network the reset may throw away an answer that the client has not read. So a
connection ends in two steps: our half is closed behind the last answer (over TLS behind
close_notify, which `tls_stream` sends), and what still comes is read and thrown away until the
client closes its half. Only then is the socket closed.

After the first step the connection's protocol is told that it is lost. So a connection that lingers
is not counted as one, holds no memory of requests and gets no turn. It ends, whatever its client
does, when

- the client has acknowledged everything and LINGER_S have passed since the first step;
- the client has not acknowledged everything after `unsent_max_s`;
- it has sent more than DISCARDED_BYTES_MAX;
- it is the oldest of more than LINGERING_MAX;
- the server stops, and the client's system has acknowledged the end of our half: whatever comes
  then, the client reads its answers and the end of the stream.

Source of the sequence: RFC 9112, section 9.6, "Tear-down", which HTTP servers follow.

Invariants: of each transport that is taken over, its protocol is told once that it is lost; nobody
but this module touches it after that.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Final

from wal.clock import Clock, Sleep

LINGER_S: Final = 2.0
"""For a client to see that our half is closed, and to close its own."""

DISCARDED_BYTES_MAX: Final = 8 << 20
"""What a client may have on its way: some Produce requests of a megabyte, or a full window."""

LINGERING_MAX: Final = 256
"""At once in a process: the descriptors that connections may take beyond those counted."""

_LOOKED_AT_EVERY_S: Final = 0.01
"""At a stop."""

_DISCARDED: Final = memoryview(bytearray(64 << 10))
"""Where everything goes that nobody reads."""


class Lingering:
    """The connections of one server that are about to be closed, on its event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        outstanding_bytes: Callable[[asyncio.Transport], int],
        unsent_max_s: float,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`unsent_max_s`: how long a client may take for the last answers.

        `outstanding_bytes` of a transport are those that its client has not acknowledged; the end
        of our half counts as one.
        """
        self._clock = clock
        self._outstanding_bytes = outstanding_bytes
        self._unsent_max_s = unsent_max_s
        self._sleep = sleep
        self._ends: dict[_End, None] = {}
        """The oldest first."""
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._ends)

    def close(self, transport: asyncio.Transport) -> None:
        """Close `transport` behind what was written to it.

        One that cannot close half of itself does the same by its own means (`TlsStream`).
        """
        if self._is_stopped or transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            # The client has reset it.
            transport.abort()
            return
        end = _End(transport, self._clock.monotonic(), self._ended)
        self._ends[end] = None
        protocol = transport.get_protocol()
        transport.set_protocol(end)
        transport.resume_reading()
        loop = asyncio.get_running_loop()
        loop.call_soon(functools.partial(protocol.connection_lost, None))
        if len(self._ends) > LINGERING_MAX:
            next(iter(self._ends)).cut()

    def sweep(self, now: float) -> None:
        """Close those whose time is up."""
        for end in list(self._ends):
            lingered_s = now - end.since
            if lingered_s < LINGER_S:
                break
            if not self._outstanding_bytes(end.transport) or lingered_s >= self._unsent_max_s:
                end.cut()

    async def stop(self) -> None:
        """Returns when each client's system has all it was sent, after LINGER_S at the latest."""
        until = self._clock.monotonic() + LINGER_S
        while self._ends:
            is_over = self._clock.monotonic() >= until
            for end in list(self._ends):
                if is_over or not self._outstanding_bytes(end.transport):
                    end.cut()
            if self._ends:
                await self._sleep(_LOOKED_AT_EVERY_S)

    def end(self) -> None:
        """Close all at once, and let nothing linger from now on."""
        self._is_stopped = True
        for end in list(self._ends):
            end.cut()

    def _ended(self, end: "_End") -> None:
        self._ends.pop(end, None)


class _End(asyncio.BufferedProtocol):
    """The last protocol of a transport: it throws away what it receives."""

    def __init__(
        self, transport: asyncio.Transport, since: float, ended: "Callable[[_End], None]"
    ) -> None:
        self.transport: Final = transport
        self.since: Final = since
        self._ended = ended
        self._discarded_bytes = 0

    def cut(self) -> None:
        """Close it now."""
        self._ended(self)
        self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _DISCARDED

    def buffer_updated(self, nbytes: int) -> None:
        self._discarded_bytes += nbytes
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.cut()

    def eof_received(self) -> bool:
        # The client has closed its half: the transport closes itself.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(self)
