"""Tells whether a client has a backlog: many requests unanswered now, or a moment ago.

Its turns come behind those of others then (`diskless.loop.turns`), and it reads in turns too.
"""

from typing import Final

BACKLOG_REQUESTS: Final = 8
"""Who has more requests unanswered has a backlog, and its turns behind others. So has who sent more
than these before it was answered, be it answered at once. Kafka's clients have five in flight; a
client with hundreds waits for commits, and gains nothing from a turn a millisecond sooner."""

BACKLOG_KEPT_S: Final = 1.0
"""For how long it has one after that, so that nobody changes sides with every answer."""


class Backlog:
    """The backlog of one connection; times are of the monotonic clock."""

    __slots__ = ("_started_in_a_row", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._started_in_a_row = 0
        """Requests since a turn left nothing for the next."""

    def begin(self, now: float) -> None:
        """It has one from now on, for a while."""
        self.until = now + BACKLOG_KEPT_S

    def started(self) -> None:
        """A request was started."""
        self._started_in_a_row += 1

    def turn_ended(self, unanswered: int, now: float, *, is_more: bool) -> None:
        """A turn of the connection ended; `is_more`: something is left for the next one."""
        if max(self._started_in_a_row, unanswered) > BACKLOG_REQUESTS:
            self.begin(now)
        if not is_more:
            self._started_in_a_row = 0
