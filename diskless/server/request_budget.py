"""How much memory requests hold in the whole broker, and who has to wait when it is too much.

Counted is what is really held: the receive buffers that are lent out, whole, and what each request
keeps beside them until it is answered (`charge`). The bytes of a Produce request go back when they
are in the chunk file, long before its answer. What a length field announces is not counted: an
announcement costs its sender nothing, and must cost others nothing.

At the limit connections stop reading, in the middle of a frame if need be, and go on when a quarter
of the limit is free again, so that a broker at its limit does not stop and start for every buffer.
Buffers that come back and requests that are answered end the wait; nobody polls.

That could lock up: when most of the memory belongs to unfinished frames, nothing that is released
will ever be enough. So when no buffer is left but such ones, the connection in the middle of a
frame that has waited longest may go on beyond the limit until that frame is complete, then the
next. A client that stalls in that position runs into its receive deadline, and loses its turn.
Buffers of complete frames forbid that: in an outage of the store memory shall not grow by a frame
for every connection.
"""

from collections.abc import Callable
from typing import Final

from wal.chunks.buffer import BufferPool

_LOW_MARK_QUARTERS: Final = 3


class RequestBudget:
    """Memory of requests, over all connections of a server; the pool lends to nobody else."""

    def __init__(self, limit_bytes: int, pool: BufferPool) -> None:
        self._limit_bytes = limit_bytes
        self._low_mark_bytes = limit_bytes * _LOW_MARK_QUARTERS // 4
        self._pool = pool
        self._charged_bytes = 0
        self._is_draining = False
        """The limit was reached, and what is held has not fallen to the mark since."""
        self._waiting: dict[int, Callable[[], None]] = {}
        self._waiting_partial: dict[int, None] = {}
        """Those of `_waiting` that are in the middle of a frame, in the same order."""
        self._favoured: int | None = None
        pool.listen(self._resume)

    @property
    def used_bytes(self) -> int:
        return self._pool.in_use_bytes + self._charged_bytes

    @property
    def waiting(self) -> int:
        """Connections that do not read because of the limit."""
        return len(self._waiting)

    def charge(self, count: int) -> None:
        """A request keeps `count` bytes besides its receive buffers, until `answered`."""
        self._charged_bytes += count

    def answered(self, count: int) -> None:
        """A request for which `count` bytes were charged is done with."""
        self._charged_bytes -= count
        self._resume()

    def completed(self, connection: int) -> None:
        """A frame was received to its end."""
        if self._favoured == connection:
            self._favoured = None

    def abandoned(self, connection: int) -> None:
        """A connection ends; what it had received was released before."""
        self._forget(connection)
        self.completed(connection)
        self._resume()

    def is_spent_for(self, connection: int) -> bool:
        """Whether this connection will have to wait once it has read what it is about to read."""
        return self._favoured != connection and self.used_bytes >= self._limit_bytes

    def must_wait(self, connection: int, resume: Callable[[], None], *, is_partial: bool) -> bool:
        """Whether this connection may not read now; if so, `resume` is called once it may.

        `is_partial`: it has received the beginning of a frame.
        """
        if self._favoured == connection or not self._is_full():
            self._forget(connection)
            return False
        self._waiting[connection] = resume
        if is_partial:
            self._waiting_partial[connection] = None
            if self._is_stuck():
                # In turn: somebody whose last frame was let through queues up again behind others.
                self._favoured = next(iter(self._waiting_partial))
                resume_favoured = self._forget(self._favoured)
                if self._favoured == connection:
                    return False
                resume_favoured()
        return True

    def _is_full(self) -> bool:
        if self.used_bytes >= self._limit_bytes:
            self._is_draining = True
        elif self._is_draining:
            # Unfinished frames above the mark would keep it from ever being reached.
            is_reachable = self._pool.receiving_bytes < self._low_mark_bytes
            mark = self._low_mark_bytes if is_reachable else self._limit_bytes
            self._is_draining = self.used_bytes >= mark
        return self._is_draining

    def _is_stuck(self) -> bool:
        """Nothing that is released can make enough room, and nobody has been let go on."""
        unfinished = self._pool.receiving_bytes
        return (
            self._favoured is None
            and unfinished >= self._low_mark_bytes
            and unfinished == self._pool.in_use_bytes
        )

    def _resume(self) -> None:
        if not self._waiting:
            return
        if not self._is_full():
            while self._waiting:
                self._forget(next(iter(self._waiting)))()
        elif self._waiting_partial and self._is_stuck():
            self._favoured = next(iter(self._waiting_partial))
            self._forget(self._favoured)()

    def _forget(self, connection: int) -> Callable[[], None]:
        self._waiting_partial.pop(connection, None)
        return self._waiting.pop(connection, _nothing)


def _nothing() -> None:
    """What to call for a connection that does not wait."""
