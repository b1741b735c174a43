"""The metrics interface of the TCP server: its connections and requests."""

from typing import Protocol


class ServerMetrics(Protocol):
    """What the TCP server counts. Every call is made on the event loop and must be cheap."""

    def handshake_ended(self, listener: str, result: str) -> None:
        """Of TLS: `complete`, or why there is no connection."""
        ...

    def connection_refused(self, reason: str) -> None:
        """Closed before anything was read: `max.connections` or `max.connections.per.ip`."""
        ...

    def connection_cut(self, reason: str) -> None:
        """Closed by us: bad bytes, too slow, idle, or a handler that failed."""
        ...

    def request_received(self, api: str, size_bytes: int) -> None: ...

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None:
        """From the last byte of the request to handing the answer to the socket."""
        ...


class Unmeasured:
    """Counts nothing: where what is served was counted by another process."""

    def handshake_ended(self, listener: str, result: str) -> None: ...

    def connection_refused(self, reason: str) -> None: ...

    def connection_cut(self, reason: str) -> None: ...

    def request_received(self, api: str, size_bytes: int) -> None: ...

    def request_answered(self, api: str, size_bytes: int, seconds: float) -> None: ...
