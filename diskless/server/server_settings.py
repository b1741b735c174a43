"""The configuration section of the TCP server: sizes, numbers and times, all finite by default."""

from dataclasses import dataclass

from diskless.listeners.connection_limits import parse_ip_overrides
from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits of connections and requests; `diskless.config` fills it."""

    request_max_bytes: int = setting(
        "socket.request.max.bytes",
        100 << 20,
        minimum=1 << 10,
        maximum=1 << 30,
        why="smaller: large batches are refused; larger: one client may hold that much memory",
    )
    control_request_max_bytes: int = setting(
        "socket.control.request.max.bytes",
        4 << 20,
        minimum=1 << 10,
        maximum=64 << 20,
        why="all but Produce; a byte of such a request unfolds into some fifty bytes of values",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        64 << 20,
        minimum=1 << 20,
        why="memory of requests that are not in a chunk yet or not answered, over all connections, "
        "half of it for those of one address; one request of 64 KiB for each connection may be "
        "beyond; smaller: connections wait for each other; larger: more memory while the store is "
        "slow",
    )
    queued_max_requests: int = setting(
        "connection.queued.max.requests",
        2_000,
        minimum=1,
        maximum=100_000,
        why="received and unanswered, per connection; smaller: a client that writes to many "
        "partitions at once waits for commits; what they hold counts in queued.max.request.bytes",
    )
    queued_max_response_bytes: int = setting(
        "connection.queued.max.response.bytes",
        1 << 20,
        minimum=1 << 10,
        why="answers kept for one client that does not read; past this its requests wait",
    )
    write_buffer_bytes: int = setting(
        "socket.write.buffer.bytes",
        16 << 10,
        minimum=1 << 10,
        why="unsent bytes past which nothing more is answered on a connection, beside the 128 KiB "
        "that the system takes; larger: more is done for clients that do not read",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        55 << 20,
        minimum=1 << 10,
        why="the most one Fetch answers with; every client that reads slowly may hold that much",
    )
    fetched_max_bytes: int = setting(
        "queued.max.response.bytes",
        128 << 20,
        minimum=1 << 20,
        why="answers being read and not sent yet, over all connections, half of it for those of "
        "one address; past this a Fetch is answered with little, and past twice this who does not "
        "read is cut off",
    )
    max_connections: int = setting(
        "max.connections",
        10_000,
        minimum=1,
        is_per_listener=True,
        why="one more is closed before anything is read; lowered at start to what the process's "
        "limit of open files leaves room for; of a listener: of it alone",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        1_000,
        minimum=0,
        why="as max.connections, for one address; 0: only addresses that have an override",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        "",
        why="ADDRESS:COUNT, separated by commas: addresses with a limit of their own, such as a "
        "proxy that many clients share",
    )
    max_connections_per_user: int = setting(
        "max.connections.per.user",
        1_000,
        minimum=0,
        why="of one user who has logged in or shown a certificate, at this broker; one more is "
        "closed; fewer: large applications run against it; more: one user can take all places; "
        "0: no limit",
    )
    max_connection_creation_rate: int = setting(
        "max.connection.creation.rate",
        2_000,
        minimum=1,
        is_per_listener=True,
        why="a second, over all addresses, or of one listener; who connects faster is read from "
        "later; smaller: after a restart it takes longer until all clients are back",
    )
    idle_max_ms: int = setting(
        "connections.max.idle.ms",
        600_000,
        minimum=10,
        why="without a request, or without reading its answers; clients reconnect quietly",
    )
    unread_max_ms: int = setting(
        "connections.unread.max.ms",
        10_000,
        minimum=10,
        why="to read nothing of what was sent, for a client that holds more memory than its share "
        "while others wait for it; smaller: clients that pause for a moment are cut off then; "
        "larger: others wait longer for clients that never read",
    )
    request_receive_timeout_ms: int = setting(
        "socket.request.receive.timeout.ms",
        30_000,
        minimum=10,
        why="to send a request, for each MiB of it; smaller: clients on slow links are cut off",
    )
    stop_timeout_ms: int = setting(
        "server.stop.timeout.ms",
        10_000,
        minimum=0,
        why="for requests under way when the broker stops; then they are cut off",
    )
    backlog: int = setting(
        "socket.listen.backlog.size", 511, minimum=1, why="connects waiting to be accepted"
    )

    def __post_init__(self) -> None:
        """Raises: InvalidSettings."""
        parse_ip_overrides(self.max_connections_per_ip_overrides)
