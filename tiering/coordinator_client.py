"""A small blocking client of the two operations a tiering job needs of a broker.

Used by the job's driver alone, one call at a time, so it is a socket and nothing else: connect when
needed, write one frame, read one frame, check everything about it. Both operations may be repeated:
a plan is durable and the same when asked again, a commit is recognised by its object key. So what
went wrong on the way is always worth another attempt, which is the caller's decision.

Failure cases: BrokerUnreachable (nothing was asked, or no sensible answer came to a question),
CommitOutcomeUnknown (a commit was sent and no answer came), and the errors that the broker's codes
stand for (metadata/messages/errors.py).
"""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from metadata.messages.errors import coordinator_error
from metadata.messages.segments import (
    COMMIT_SEGMENTS_KEY,
    PLAN_SEGMENTS_KEY,
    VERSION,
    PlanSegmentsRequest,
    decode_commit_response,
    decode_plan_response,
    encode_commit_request,
    encode_plan_request,
)
from metadata.operations import RolledSegment, SegmentCommit, SegmentPlan
from wal.errors import CommitOutcomeUnknown, InvalidRequest, InvalidSettings, Retriable

CONNECT_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 60.0
"""Planning reads the coordinator's state; a commit waits for the metadata log."""

RESPONSE_BYTES_MAX: Final = 64 << 20
"""Checked before anything is allocated; brokers answer with a quarter of that."""

CLIENT_ID: Final = b"diskless-tier"

_REQUEST_HEADER: Final = struct.Struct(">ihhih")
"""Frame length, API key, version, correlation id, length of the client id."""
_RESPONSE_HEADER: Final = struct.Struct(">ii")
"""Frame length, correlation id."""


class BrokerUnreachable(Retriable):
    """No broker answered; nothing was changed by asking."""


class PlannedSegments(NamedTuple):
    """What is due, and where its objects lie."""

    object_store_url: str
    plans: Sequence[SegmentPlan]


class CoordinatorClient:
    """A connection to the first broker of `bootstrap` that answers; a context manager.

    `bootstrap` is `host:port`, several of them separated by commas. Raises InvalidSettings when it
    is not.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._addresses = parse_bootstrap(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._disconnect()

    def plan_segments(self, *, include_partial: bool, max_plans: int) -> PlannedSegments:
        """Up to `max_plans` plans that are not committed yet, after planning what is due."""
        request = encode_plan_request(PlanSegmentsRequest(include_partial, max_plans))
        connection = self._connected()
        try:
            response = decode_plan_response(self._ask(connection, PLAN_SEGMENTS_KEY, request))
        except (OSError, InvalidRequest) as error:
            self._disconnect()
            raise BrokerUnreachable(f"no plans came back: {error}") from error
        failure = coordinator_error(
            response.error_code, response.error_message, changes_state=False
        )
        if failure is not None:
            raise failure
        return PlannedSegments(response.object_store_url, response.plans)

    def commit_segments(self, segments: Sequence[RolledSegment]) -> Sequence[SegmentCommit]:
        """Offer segments for their batches; the answers match them by position."""
        request = encode_commit_request(segments)
        connection = self._connected()
        try:
            response = decode_commit_response(self._ask(connection, COMMIT_SEGMENTS_KEY, request))
            if not response.error_code and len(response.results) != len(segments):
                raise InvalidRequest(f"{len(response.results)} answers to {len(segments)} segments")
        except (OSError, InvalidRequest) as error:
            self._disconnect()
            raise CommitOutcomeUnknown(f"no answer to a commit of segments: {error}") from error
        failure = coordinator_error(response.error_code, response.error_message, changes_state=True)
        if failure is not None:
            raise failure
        return [
            SegmentCommit(
                result.is_duplicate,
                coordinator_error(result.error_code, result.error_message, changes_state=True),
            )
            for result in response.results
        ]

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._connect()
        return self._socket

    def _connect(self) -> socket.socket:
        failures = []
        for host, port in self._addresses:
            try:
                connection = socket.create_connection((host, port), self._connect_timeout_s)
            except OSError as error:
                failures.append(f"{host}:{port}: {error}")
                continue
            connection.settimeout(self._request_timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        raise BrokerUnreachable(f"no broker at {'; '.join(failures)}")

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, connection: socket.socket, key: int, body: bytes) -> bytes:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        length = _REQUEST_HEADER.size - 4 + len(CLIENT_ID) + len(body)
        header = _REQUEST_HEADER.pack(length, key, VERSION, self._correlation_id, len(CLIENT_ID))
        connection.sendall(b"".join((header, CLIENT_ID, body)))
        start = _receive(connection, _RESPONSE_HEADER.size)
        length, correlation_id = _RESPONSE_HEADER.unpack(start)
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise InvalidRequest(f"an answer of {length} bytes")
        if correlation_id != self._correlation_id:
            raise InvalidRequest(f"answer {correlation_id} to request {self._correlation_id}")
        return bytes(_receive(connection, length - 4))


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses in `host:port[,host:port…]`. Raises InvalidSettings."""
    addresses = []
    for address in bootstrap.split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidSettings(f"bootstrap address {address!r}: must be host:port")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


def _receive(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise ConnectionResetError("the broker closed the connection")
        view = view[received:]
    return data
