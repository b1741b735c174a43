"""How many bytes of requests the whole broker holds, and who has to wait when it is too many.

Counted is what was really received, not what a length field announces: an announcement costs its
sender nothing, and must cost others nothing.

Past the limit connections stop reading, in the middle of a frame if need be. That could lock up:
when all the bytes belong to unfinished frames, no answer will ever free any. So when no finished
request is left, the one in the middle of a frame that has waited longest may go on beyond the limit
until that frame is complete. A client that stalls in that position runs into its receive deadline,
and the next one gets its turn.
"""

from collections.abc import Callable


class RequestBudget:
    """Bytes received and not answered, over all connections of a server."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._partial_bytes = 0
        self._complete_bytes = 0
        self._waiting: dict[int, Callable[[], None]] = {}
        self._waiting_partial: dict[int, None] = {}
        """Those of `_waiting` that are in the middle of a frame, in the same order."""
        self._favoured: int | None = None

    @property
    def used_bytes(self) -> int:
        return self._partial_bytes + self._complete_bytes

    @property
    def waiting(self) -> int:
        """Connections that do not read because of the limit."""
        return len(self._waiting)

    def received(self, count: int) -> None:
        """`count` bytes came in that belong to no complete request yet."""
        self._partial_bytes += count

    def completed(self, connection: int, count: int) -> None:
        """`count` of the received bytes turned out to be a complete request."""
        self._partial_bytes -= count
        self._complete_bytes += count
        if self._favoured == connection:
            self._favoured = None

    def answered(self, count: int) -> None:
        """A complete request of `count` bytes is done with."""
        self._complete_bytes -= count
        self._resume()

    def abandoned(self, connection: int, count: int) -> None:
        """A connection ends with `count` bytes that belong to no complete request."""
        self._partial_bytes -= count
        self._forget(connection)
        if self._favoured == connection:
            self._favoured = None
        self._resume()

    def must_wait(self, connection: int, resume: Callable[[], None], *, is_partial: bool) -> bool:
        """Whether this connection may not read now; if so, `resume` is called once it may.

        `is_partial`: it has received the beginning of a frame.
        """
        if self.used_bytes < self._limit_bytes or self._favoured == connection:
            return False
        if is_partial and self._is_stuck():
            self._favoured = connection
            return False
        self._waiting[connection] = resume
        if is_partial:
            self._waiting_partial[connection] = None
        return True

    def _is_stuck(self) -> bool:
        """No answer will free anything, and nobody has been let go on."""
        return self._complete_bytes <= 0 and self._favoured is None

    def _resume(self) -> None:
        while self._waiting and self.used_bytes < self._limit_bytes:
            connection = next(iter(self._waiting))
            self._forget(connection)()
        if self._waiting_partial and self._is_stuck():
            self._favoured = next(iter(self._waiting_partial))
            self._forget(self._favoured)()

    def _forget(self, connection: int) -> Callable[[], None]:
        self._waiting_partial.pop(connection, None)
        return self._waiting.pop(connection, _nothing)


def _nothing() -> None:
    """What to call for a connection that does not wait."""
