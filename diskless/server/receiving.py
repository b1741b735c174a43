"""The receiving side of one connection: where the socket writes to, and frames taken off it.

The socket receives straight into pooled fragments. Once eight bytes of a frame are there, its
length, API key and version decide whether the rest is wanted at all; nothing is allocated for it
before. A complete frame is detached from the receiving chain without a copy.

How much is read at a time follows the client: a buffer is pinned by the smallest request in it, so
an occasional small request must not sit in a large one, while a busy connection needs few system
calls. A client that fills what it is given gets up to SIZE_MAX: batches of a megabyte then arrive
in two or three calls.

A client that has sent a part of a frame owes the rest of it, as long as it is read from. How long
it may take is in `socket.request.receive.timeout.ms`, for each MiB of the frame.
"""

import asyncio
from typing import Final, NamedTuple

from diskless.protocol.header import (
    FRAME_BYTES_MIN,
    FRAME_LENGTH_BYTES,
    FRAME_START,
    read_request_header,
)
from diskless.protocol.wire import ProtocolError, Reader
from diskless.sasl.login import Login
from diskless.server.registry import Api, ApiRegistry
from diskless.server.server_settings import ServerSettings
from wal.chunks.buffer import SIZE_MAX, Borrower, BufferPool, ChainBuilder, FragmentChain
from wal.clock import Clock

_READ_BYTES_MIN: Final = 4 << 10
_READ_BYTES_MAX: Final = 128 << 10
_READS_OF_BUDGET: Final = 128
"""A read may be larger where the memory of all requests is at least this many times as much."""
_MIB: Final = 1 << 20

_TLS_HANDSHAKE: Final = b"\x16\x03"


class FrameStart(NamedTuple):
    """What the first eight bytes of a frame say."""

    api: Api
    version: int
    size_bytes: int
    """Of the whole frame, its length included."""


class FrameReceiver:
    """Receives one connection's frames: `buffer`, `commit`, then `take_frame` while `has_frame`."""

    def __init__(
        self,
        transport: asyncio.ReadTransport,
        pool: BufferPool,
        borrower: Borrower,
        *,
        apis: ApiRegistry,
        settings: ServerSettings,
        clock: Clock,
        login: Login | None = None,
    ) -> None:
        """`transport` is being read from. `login` refuses what it is not the time for."""
        self._transport = transport
        self._builder = ChainBuilder(pool, borrower)
        self._apis = apis
        self._settings = settings
        self._clock = clock
        self._login = login
        share = settings.queued_max_request_bytes // _READS_OF_BUDGET
        self._read_bytes_max: Final = min(max(share, _READ_BYTES_MAX), SIZE_MAX)
        self._is_reading = True
        self._read_bytes = _READ_BYTES_MIN
        self._start: FrameStart | None = None
        """Of the frame that is being received."""
        self._owed_since: float | None = None
        """Since when the client owes us the rest of it."""

    @property
    def frame_bytes(self) -> int:
        """Size of the frame that is being received; 0 while it is not known."""
        return self._start.size_bytes if self._start is not None else 0

    @property
    def has_begun_produce(self) -> bool:
        """Whether a Produce is there that nobody took yet, whole or in part."""
        return self._start is not None and self._start.api.reads_frame

    def buffer(self, *, little: bool, no_more_than_the_frame: bool) -> memoryview:
        """Returns where to receive to: about as much as this client sends, or a `little`."""
        wanted = _READ_BYTES_MIN if little else self._read_bytes
        if not no_more_than_the_frame:
            return self._builder.writable(wanted)
        missing = self.frame_bytes - self._builder.received_bytes
        wanted = missing if missing > 0 else _READ_BYTES_MIN
        return self._builder.writable(min(wanted, self._read_bytes))[:wanted]

    def commit(self, received_bytes: int) -> None:
        """The socket wrote `received_bytes` to the last `buffer`."""
        if received_bytes >= self._read_bytes:
            self._read_bytes = min(self._read_bytes * 2, self._read_bytes_max)
        elif received_bytes < self._read_bytes // 4:
            self._read_bytes = max(self._read_bytes // 2, _READ_BYTES_MIN)
        self._builder.commit(received_bytes)

    def read_little(self) -> None:
        """Begin with little again: many who waited go on at once."""
        self._read_bytes = _READ_BYTES_MIN

    def is_within_frame(self) -> bool:
        """Whether a frame that was looked at goes on beyond what was received of it."""
        return self._start is not None and self._builder.received_bytes < self._start.size_bytes

    def has_frame(self) -> bool:
        """Whether a frame is complete. Raises ProtocolError."""
        received = self._builder.received_bytes
        if self._start is None:
            if received < FRAME_START.size:
                return False
            self._start = self._check_start(self._builder.copy_bytes(0, FRAME_START.size))
        return received >= self._start.size_bytes

    def has_more_than(self, frames: int) -> bool:
        """Whether more than a number of frames are complete, by their lengths alone."""
        received = self._builder.received_bytes
        end = 0
        for _ in range(frames + 1):
            if end + FRAME_LENGTH_BYTES > received:
                return False
            length = self._builder.copy_bytes(end, FRAME_LENGTH_BYTES)
            # A length that cannot be is refused when its frame has its turn.
            end += FRAME_LENGTH_BYTES + int.from_bytes(length, "big")
        return end <= received

    def take_frame(self) -> tuple[FrameStart, FragmentChain]:
        """The frame that `has_frame` found, with its length in front."""
        start, self._start = self._start, None
        assert start is not None
        self._owed_since = None
        return start, self._builder.take(start.size_bytes)

    # --- when to read

    def stop(self) -> None:
        """Read no more until what was received is taken; the client still owes what it owes."""
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def pause(self) -> None:
        """Stop for a reason that is not the client's: it owes nothing meanwhile."""
        self._owed_since = None
        self.release_if_empty()
        self.stop()

    def resume(self, received_at: float) -> None:
        """Read. What was received in part came at `received_at`, if it was read all the time."""
        if not self._builder.received_bytes:
            self._owed_since = None
        elif self._owed_since is None:
            self._owed_since = received_at if self._is_reading else self._clock.monotonic()
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    def overdue_s(self, now: float) -> float | None:
        """Returns how long the client had for a frame that should be complete by now and is not."""
        if self._owed_since is None:
            return None
        mebibytes = 1 + self.frame_bytes // _MIB
        allowed_s = mebibytes * self._settings.request_receive_timeout_ms / 1000
        return allowed_s if now - self._owed_since > allowed_s else None

    def release_if_empty(self) -> None:
        """Keep no buffer for a client that sends nothing, or is not read from."""
        if not self._builder.received_bytes:
            self._builder.release()

    def release(self) -> None:
        """Forget everything that was received."""
        self._builder.release()
        self._start = None
        self._owed_since = None

    def _check_start(self, start: bytes) -> FrameStart:
        """Decide from the first bytes of a frame whether the rest is wanted."""
        length, key, version = FRAME_START.unpack(start)
        if length < FRAME_BYTES_MIN or length > self._settings.request_max_bytes:
            if start.startswith(_TLS_HANDSHAKE):
                raise ProtocolError("a TLS handshake on a plain-text listener")
            raise ProtocolError(f"a frame of {length} bytes")
        if self._login is not None:
            self._login.check(key, length)
        api = self._apis.find(key)
        if api is None:
            raise ProtocolError(f"unknown API key {key}")
        if version not in api.versions and (
            version < api.min_version or not api.answers_any_version
        ):
            raise ProtocolError(f"{api.name} v{version} is not served")
        if not api.reads_frame and length > self._settings.control_request_max_bytes:
            raise ProtocolError(f"a {api.name} request of {length} bytes")
        return FrameStart(api, version, FRAME_LENGTH_BYTES + length)


def read_header(reader: Reader, api: Api, version: int) -> tuple[int, str]:
    """Correlation id and client id of a frame. Raises ProtocolError."""
    reader.skip(FRAME_START.size)
    if api.answers_any_version and version > api.max_version:
        # Not even the form of its header is known; only what stands in front of it is.
        return reader.int32(), ""
    return read_request_header(reader, flexible=api.is_flexible(version))
