"""Log lines that clients cause: at most one a second of each kind, however many clients there are.

Who can make the broker write a line can make it write a million. So a line that was left out is
counted, and the next one of its kind says how many there were (`suppressed`).
"""

import structlog

from diskless.logs import Pace
from diskless.ports import ClientInfo
from wal.clock import Clock

_log = structlog.get_logger("diskless.server.connection")


class ProblemLog:
    """The lines of all connections of a server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cuts = Pace()
        self._failures: dict[str, Pace] = {}
        """By API; so there are no more of them than there are APIs."""

    def connection_cut(self, client: ClientInfo, reason: str, detail: str) -> None:
        """Log a warning about what a client did."""
        suppressed = self._cuts.take_turn(self._clock.monotonic())
        if suppressed is not None:
            _log.warning(
                "connection cut",
                reason=reason,
                detail=detail,
                host=client.host,
                client_id=client.client_id,
                suppressed=suppressed,
            )

    def handler_failed(
        self, client: ClientInfo, api_name: str, version: int, error: Exception
    ) -> None:
        """Log a bug of our own with its traceback; one API never hides the bug of another."""
        pace = self._failures.get(api_name)
        if pace is None:
            pace = self._failures[api_name] = Pace()
        suppressed = pace.take_turn(self._clock.monotonic())
        if suppressed is not None:
            _log.error(
                "handler failed",
                api=api_name,
                version=version,
                host=client.host,
                suppressed=suppressed,
                exc_info=error,
            )
