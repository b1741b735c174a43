"""One client's connection: frames in, answers out in the order of the requests.

How it works. The socket receives straight into pooled fragments. Once eight bytes of a frame are
there, its length, API key and version decide whether the rest is wanted at all; nothing is
allocated for it before. A complete frame is detached from the receiving chain, its handler is
called at once, and a *slot* is queued for its answer. Reading goes on while handlers wait, so a
producer with many requests in flight is not held up by the 10-250 ms that a commit takes, and since
handlers are called in the order of arrival, Produce batches enter the write queue in that order.
Answers leave from the head of the queue only.

Fetch is different: its answer may be tens of MiB. Such a request (`Api.starts_in_turn`) begins when
it has reached the head of the queue and the client reads what it was sent before. So a client that
does not read holds one answer and no more. When another answer becomes ready behind a parked Fetch,
the Fetch is told to end early, for it would hold that answer up.

Back pressure, each a reason to stop reading until it has passed: too many requests unanswered, too
many answers unsent, too much memory held by requests in the whole broker (`RequestBudget`): receive
buffers until their last owner let go, the rest of a request until it is answered.

Answers share `queued.max.response.bytes`: a Fetch reserves what it is about to read when it knows
how much that is, and not while it waits for data; with little left it is granted little. What it
did not use goes back when its answer is built, the rest when the socket has taken it. When nothing
is left, clients that do not read are not read from; at twice as much the server cuts them off.

A handler whose client is over its quota mutes the connection (`Request.mute`): nothing is read, and
nothing that was received is begun, until the time is up. So does the server when clients connect
too fast. Answers go out meanwhile, the one that
tells of the wait first of all. A mute connection is not idle, and does not hold up a stop.

Invariants: one answer per request (none for acks=0), in request order; what a request was charged
and has reserved goes back once, when it is answered or its handler is done; a client that goes away
cancels its waiting Fetch, never an append; no exception of a handler reaches the event loop.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

import structlog

from diskless.ports import Buffer, ClientInfo, EarlyEnd, ServerMetrics
from diskless.protocol.header import (
    FRAME_BYTES_MIN,
    FRAME_LENGTH_BYTES,
    FRAME_START,
    read_request_header,
    response_start,
)
from diskless.protocol.wire import ProtocolError, Reader
from diskless.server.connection_limits import plain_address
from diskless.server.registry import Api, ApiRegistry, Deferred, MustClose, Reply, Request
from diskless.server.request_budget import RequestBudget
from diskless.server.server_settings import ServerSettings
from wal.chunks.buffer import BufferPool, ChainBuilder, FragmentChain
from wal.chunks.chunk_directory import BATCH_OVERHEAD_BYTES
from wal.clock import Clock
from wal.errors import DisklessError

_READ_BYTES_MIN: Final = 4 << 10
_READ_BYTES_MAX: Final = 128 << 10

_JOINED_BYTES_MAX: Final = 16 << 10
"""Answers up to this size are joined: one small copy is cheaper than a vectored write."""

_FETCH_BYTES_MIN: Final = 64 << 10
"""What a Fetch may bring even when the broker holds too many answers."""

_REQUEST_OVERHEAD_BYTES: Final = 2 << 10
"""What an unanswered request keeps besides its bytes: its slot, its future, its place in queues."""

_MIB: Final = 1 << 20

_TLS_HANDSHAKE: Final = b"\x16\x03"

_log = structlog.get_logger("diskless.server.connection")


class ProblemLog:
    """At most one line a second about bad clients, however many there are."""

    _INTERVAL_S: Final = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_at = clock.monotonic()
        self._suppressed = 0

    def connection_cut(self, client: ClientInfo, reason: str, detail: str) -> None:
        now = self._clock.monotonic()
        if now < self._next_at:
            self._suppressed += 1
            return
        _log.warning(
            "connection cut",
            reason=reason,
            detail=detail,
            host=client.host,
            client_id=client.client_id,
            suppressed=self._suppressed,
        )
        self._next_at = now + self._INTERVAL_S
        self._suppressed = 0


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    def admit(self, connection: "Connection", host: str) -> str | float:
        """Count the connection in: for how many seconds to be mute; or the limit against it."""
        ...

    def lost(self, connection: "Connection", host: str) -> None:
        """The connection ended, admitted or not."""
        ...


@dataclass(slots=True, kw_only=True)
class Shared:
    """What all connections of a server have in common."""

    owner: ConnectionOwner
    apis: ApiRegistry
    settings: ServerSettings
    pool: BufferPool
    clock: Clock
    metrics: ServerMetrics
    budget: RequestBudget
    problems: ProblemLog
    tasks: asyncio.TaskGroup
    running: set[asyncio.Task[None]] = field(default_factory=set)
    """Those of `tasks` that run handlers."""
    unsent_bytes: int = 0
    """Answers handed to sockets whose clients do not keep up."""
    reserved_bytes: int = 0
    """Answers that wait to be handed to their sockets, and what may be read for those to come."""


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = (
        "api",
        "charged_bytes",
        "correlation_id",
        "is_done",
        "received_at",
        "reply",
        "reply_bytes",
        "request",
        "reserved_bytes",
        "version",
        "waits_for",
        "wake",
    )

    def __init__(
        self, api: Api, version: int, correlation_id: int, charged_bytes: int, received_at: float
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.charged_bytes = charged_bytes
        """Counted by the budget of requests until this slot is done with."""
        self.reserved_bytes = 0
        """This slot's part of `Shared.reserved_bytes`."""
        self.received_at = received_at
        self.request: Request | None = None
        """Kept only while a request waits for its turn to start."""
        self.wake = EarlyEnd()
        self.waits_for: asyncio.Future[Any] | None = None
        """What to cancel when the client goes; None where nothing may be cancelled."""
        self.is_done = False
        self.reply: Reply = None
        self.reply_bytes = 0


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket. Made by the server, driven by the event loop."""

    def __init__(self, shared: Shared, connection_id: int) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._id = connection_id
        self._client = ClientInfo(connection_id, "", "")
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False

        self._builder = ChainBuilder(shared.pool)
        self._read_bytes = _READ_BYTES_MIN
        self._announced: tuple[Api, int, int] | None = None
        """API, version and whole size of the frame that is being received."""
        self._partial_since: float | None = None
        """Since when the client owes us the rest of a frame."""
        self._is_reading = True
        self._is_processing = False

        self._slots: deque[_Slot] = deque()
        self._done = 0
        self._ready_bytes = 0
        self._is_flushing = False
        self._is_flush_due = False
        self._is_write_blocked = False
        self._unsent_bytes = 0
        self.unread_since: float | None = None
        """When it was first noticed that the client has not read everything since."""

        self._last_activity = shared.clock.monotonic()
        self._mute_until = 0.0
        """Monotonic; 0.0: not mute. A timer is set while it is."""
        self._mute_timer: asyncio.TimerHandle | None = None
        self._has_been_mute = False
        """By a handler: its client tends to exceed its quota."""
        self._is_finishing = False
        self._is_closed = False

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods of asyncio.Transport, but not the class.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        host = plain_address(str(peer[0])) if isinstance(peer, tuple) and peer else "local"
        self._client = ClientInfo(self._id, "", host)
        admitted = self._shared.owner.admit(self, host)
        if isinstance(admitted, str):
            self._shared.metrics.connection_refused(admitted)
            self._is_closed = True
            self._transport.abort()
            return
        self._is_admitted = True
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._shared.metrics.connection_opened()
        if admitted:
            # Not paused here: uvloop begins to read after this, whatever it was told before.
            now = self._shared.clock.monotonic()
            self._mute_until = now + admitted
            self._set_mute_timer(now)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._is_closed:
            return memoryview(bytearray(_READ_BYTES_MIN))
        wanted = self._read_bytes
        if self._shared.budget.is_spent_for(self._id):
            wanted = _READ_BYTES_MIN
        if not self._has_been_mute:
            return self._builder.writable(wanted)
        # No more than the frame, so that nothing is kept in memory while it is mute again.
        wanted = self._missing_bytes() or _READ_BYTES_MIN
        return self._builder.writable(min(wanted, self._read_bytes))[:wanted]

    def _missing_bytes(self) -> int:
        """Of the frame whose start is known; 0: of none."""
        if self._announced is None:
            return 0
        return max(self._announced[2] - self._builder.received_bytes, 0)

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        # A buffer is pinned by the smallest request in it, so an occasional small request shall
        # not sit in a large one, while a busy connection shall need few system calls.
        if nbytes >= self._read_bytes:
            self._read_bytes = min(self._read_bytes * 2, _READ_BYTES_MAX)
        elif nbytes < self._read_bytes // 4:
            self._read_bytes = max(self._read_bytes // 2, _READ_BYTES_MIN)
        self._builder.commit(nbytes)
        self._last_activity = self._shared.clock.monotonic()
        self._process()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_blocked = True
        if self._transport is not None:
            self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._count_unsent(0)
        self.unread_since = None
        self._last_activity = self._shared.clock.monotonic()
        self._flush()
        if not self._is_reading:
            self._process()

    def connection_lost(self, exc: Exception | None) -> None:
        was_admitted, self._is_admitted = self._is_admitted, False
        self._transport = None
        if was_admitted:
            self._abandon()
            self._count_unsent(0)
            self._shared.metrics.connection_closed()
            self._shared.owner.lost(self, self._client.host)

    # --- called by the server

    def sweep(self, now: float) -> None:
        """Cut the connection off when its client has been too slow or silent for too long."""
        self._look_for_unread(now)
        if self._is_closed:
            # Closing waits for the last answers to be read; somebody who never does shall not
            # keep the socket.
            if now - self._last_activity > self._settings.request_receive_timeout_ms / 1000:
                self.abort()
            return
        if not self._builder.received_bytes:
            # A read that found nothing leaves its buffer behind; idle clients shall hold none.
            self._builder.release()
        if self._partial_since is not None:
            announced = self._announced[2] if self._announced is not None else 0
            allowed_s = (1 + announced // _MIB) * self._settings.request_receive_timeout_ms / 1000
            if now - self._partial_since > allowed_s:
                self._cut("slow request", f"incomplete after {allowed_s:g} s")
                return
        if now - self._last_activity > self._settings.idle_max_ms / 1000:
            if self._is_write_blocked:
                self._cut("slow reader", "answers are not read")
            elif not self._slots and not self._mute_until:
                self.close()

    def cut_as_slow_reader(self) -> None:
        """What it was sent and has not read is needed for others."""
        if not self._is_closed:
            self._cut("slow reader", f"{self._unsent_bytes} bytes of answers are not read")
        self._count_unsent(0)
        self.abort()

    def _look_for_unread(self, now: float) -> None:
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._count_unsent(size)
        if not size:
            self.unread_since = None
        elif self.unread_since is None:
            self.unread_since = now

    def finish(self) -> None:
        """Read nothing more, answer what was asked, then close."""
        self._is_finishing = True
        self._pause_reading()
        for slot in self._slots:
            slot.wake.set()
        self._flush()

    def close(self) -> None:
        """End the connection now; what was handed to the socket is still sent if it fits."""
        self._is_closed = True
        if self._transport is None:
            return
        if self._is_write_blocked:
            self._transport.abort()
        else:
            self._transport.close()
        self._abandon()

    def abort(self) -> None:
        """End the connection without sending anything more."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- called by handlers

    def mute(self, until: float) -> None:
        """See `Request.mute`."""
        if self._is_closed or until <= self._mute_until:
            return
        self._mute_until = until
        if self._mute_timer is None:
            self._set_mute_timer(self._shared.clock.monotonic())
        self._has_been_mute = True
        self._shared.budget.completed(self._id)
        self._pause_reading()

    def _set_mute_timer(self, now: float) -> None:
        delay_s = max(self._mute_until - now, 0.0)
        self._mute_timer = asyncio.get_running_loop().call_later(delay_s, self._mute_timer_fired)

    def _mute_timer_fired(self) -> None:
        now = self._shared.clock.monotonic()
        if now < self._mute_until:
            # It was made longer since, or the loop's clock is not ours.
            self._set_mute_timer(now)
            return
        self._mute_until = 0.0
        self._mute_timer = None
        self._last_activity = now
        self._process()

    # --- receiving

    def _process(self) -> None:
        """Start every request that is complete, as far as limits allow; then read on, or not."""
        if self._is_processing:
            return
        self._is_processing = True
        try:
            # An answer that can be given at once makes room for another request.
            self._start_requests()
            while self._flush():
                self._start_requests()
        except ProtocolError as error:
            self._cut("bad request", str(error))
        finally:
            self._is_processing = False
        if self._is_closed:
            return
        must_pause = self._is_full() or self._is_finishing or self._mute_until
        if must_pause or self._is_over_budget():
            self._pause_reading()
        else:
            self._resume_reading()

    def _start_requests(self) -> None:
        """Raises ProtocolError."""
        while not (self._is_closed or self._is_finishing or self._mute_until or self._is_full()):
            frame = self._next_frame()
            if frame is None:
                return
            self._dispatch(frame)

    def _is_over_budget(self) -> bool:
        """Whether the whole broker holds too much; then we are called again when it does not."""
        must_wait = self._shared.budget.must_wait(
            self._id, self._process_soon, is_partial=self._builder.received_bytes > 0
        )
        if must_wait:
            # All who wait go on at once, so each begins with little.
            self._read_bytes = _READ_BYTES_MIN
        return must_wait

    def _process_soon(self) -> None:
        # Not at once: answers given there may let the next one go on, and so on, level by level.
        asyncio.get_running_loop().call_soon(self._process)

    def _is_full(self) -> bool:
        return (
            len(self._slots) >= self._settings.queued_max_requests
            or self._ready_bytes > self._settings.queued_max_response_bytes
            or (self._is_write_blocked and self._is_room_for_answers_spent())
        )

    def _is_room_for_answers_spent(self) -> bool:
        held = self._shared.unsent_bytes + self._shared.reserved_bytes
        return held > self._settings.fetched_max_bytes

    def _next_frame(self) -> FragmentChain | None:
        """The next complete frame with its length in front. Raises ProtocolError."""
        received = self._builder.received_bytes
        if self._announced is None:
            if received < FRAME_START.size:
                return None
            self._announced = self._check_start(self._builder.copy_bytes(0, FRAME_START.size))
        if received < self._announced[2]:
            return None
        return self._builder.take(self._announced[2])

    def _check_start(self, start: bytes) -> tuple[Api, int, int]:
        """Decide from the first bytes of a frame whether the rest is wanted."""
        length, key, version = FRAME_START.unpack(start)
        if length < FRAME_BYTES_MIN or length > self._settings.request_max_bytes:
            if start.startswith(_TLS_HANDSHAKE):
                raise ProtocolError("a TLS handshake on a plain-text listener")
            raise ProtocolError(f"a frame of {length} bytes")
        api = self._shared.apis.find(key)
        if api is None:
            raise ProtocolError(f"unknown API key {key}")
        if version < api.min_version or (version > api.max_version and not api.answers_any_version):
            raise ProtocolError(f"{api.name} v{version} is not served")
        if not api.reads_frame and length > self._settings.control_request_max_bytes:
            raise ProtocolError(f"a {api.name} request of {length} bytes")
        return api, version, FRAME_LENGTH_BYTES + length

    def _dispatch(self, frame: FragmentChain) -> None:
        """Read the header and start the handler, or queue the request for its turn."""
        assert self._announced is not None
        api, version, size = self._announced
        self._announced = None
        self._partial_since = None
        shared = self._shared
        shared.budget.completed(self._id)
        shared.metrics.request_received(api.name, size)
        try:
            reader = Reader(frame.views())
            correlation_id, client_id = _read_header(reader, api, version)
            if client_id != self._client.client_id:
                self._client = self._client._replace(client_id=client_id)
            # Who reads from the frame keeps its buffers, which are counted where they are lent out.
            charged = _REQUEST_OVERHEAD_BYTES + (0 if api.reads_frame else reader.remaining)
            slot = _Slot(api, version, correlation_id, charged, self._last_activity)
            self._slots.append(slot)
            shared.budget.charge(charged)
            request = Request(
                version=version,
                client=self._client,
                body=b"",
                wake=slot.wake,
                reserve=functools.partial(self._reserve, slot),
                mute=self.mute,
            )
            if api.reads_frame:
                request.frame = frame
                request.reader = reader
            else:
                request.body = frame.copy_bytes(reader.position, reader.remaining)
            if api.starts_in_turn:
                slot.request = request
            else:
                self._start(slot, request)
        finally:
            frame.release()

    def _pause_reading(self) -> None:
        self._partial_since = None
        if not self._builder.received_bytes:
            self._builder.release()
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._builder.received_bytes:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._last_activity
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self._partial_since = (
                self._shared.clock.monotonic() if self._builder.received_bytes else None
            )
            self._transport.resume_reading()

    # --- running handlers

    def _start(self, slot: _Slot, request: Request) -> None:
        """Call the handler; its answer comes now, through a future's callback, or from a task."""
        try:
            outcome = slot.api.handler(request)
        except Exception as error:
            self._failed(slot, error)
            return
        if request.batch_count:
            charged = request.batch_count * BATCH_OVERHEAD_BYTES
            slot.charged_bytes += charged
            self._shared.budget.charge(charged)
        if outcome is None or isinstance(outcome, list):
            self._succeeded(slot, outcome)
            return
        if not isinstance(outcome, Deferred):
            outcome = Deferred(outcome, _as_it_is, None)
        waits_for: asyncio.Future[Any]
        if isinstance(outcome.awaitable, asyncio.Future):
            waits_for = outcome.awaitable
            waits_for.add_done_callback(functools.partial(self._future_done, slot, outcome))
        else:
            waits_for = task = self._shared.tasks.create_task(
                self._run(slot, outcome), name=f"{slot.api.name}-{self._id}"
            )
            self._shared.running.add(task)
            task.add_done_callback(functools.partial(self._task_done, slot, outcome.awaitable))
        if slot.api.starts_in_turn:
            slot.waits_for = waits_for

    async def _run(self, slot: _Slot, deferred: Deferred) -> None:
        """The task of one request; raises only its own cancellation, for the group's sake."""
        try:
            try:
                reply = deferred.encode(await deferred.awaitable)
            except DisklessError as error:
                reply = _refusal(deferred, error)
        except Exception as error:
            self._failed(slot, error)
        else:
            self._succeeded(slot, reply)

    def _task_done(self, slot: _Slot, awaitable: object, task: "asyncio.Task[None]") -> None:
        self._shared.running.discard(task)
        if task.cancelled():
            # A task that is cancelled before its first step never touches what it was made for.
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            self._failed(slot, None)

    def _future_done(self, slot: _Slot, deferred: Deferred, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self._failed(slot, None)
            return
        try:
            try:
                reply = deferred.encode(future.result())
            except DisklessError as error:
                reply = _refusal(deferred, error)
        except Exception as error:
            self._failed(slot, error)
        else:
            self._succeeded(slot, reply)

    def _succeeded(self, slot: _Slot, reply: Reply) -> None:
        if self._finish_abandoned(slot):
            return
        slot.is_done = True
        slot.reply = reply
        slot.reply_bytes = sum(map(len, reply)) if reply is not None else 0
        self._done += 1
        self._ready_bytes += slot.reply_bytes
        self._set_reserved(slot, slot.reply_bytes)
        head = self._slots[0]
        if head is not slot and head.api.starts_in_turn:
            head.wake.set()
        # A commit answers many requests of a connection, each through a callback of its own; they
        # leave in one write. While requests are being read, that ends with a flush anyway.
        if not self._is_processing and not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_due)

    def _failed(self, slot: _Slot, error: Exception | None) -> None:
        """`error` is None when the handler was cancelled."""
        if isinstance(error, ProtocolError):
            self._cut("bad request", str(error))
        elif isinstance(error, MustClose):
            self._cut("no answer possible", str(error))
        elif error is not None:
            # Not through the rate limit: this is our own bug, and the traceback is what finds it.
            _log.error(
                "handler failed",
                api=slot.api.name,
                version=slot.version,
                host=self._client.host,
                exc_info=error,
            )
            self._cut("handler failed", f"{slot.api.name} v{slot.version}")
        else:
            self.close()
        self._finish_abandoned(slot)

    def _finish_abandoned(self, slot: _Slot) -> bool:
        """Whether nobody waits for this answer any more; what it holds is given back then."""
        if not self._is_closed and self._transport is not None:
            return False
        if not slot.is_done:
            slot.is_done = True
            self._give_back(slot)
        return True

    # --- answering

    def _flush_due(self) -> None:
        self._is_flush_due = False
        if self._flush() and not self._is_reading:
            self._process()

    def _flush(self) -> bool:
        """Send what is ready from the head of the queue; start what waits for its turn there.

        Gives whether anything was answered, and so whether there may be room for more requests.
        """
        if self._is_flushing:
            return False
        self._is_flushing = True
        answered = False
        buffers: list[Buffer] = []
        size = 0
        try:
            while self._slots and not self._is_write_blocked and not self._is_closed:
                head = self._slots[0]
                if head.is_done:
                    self._slots.popleft()
                    size += self._answer(head, buffers)
                    answered = True
                    if size > _JOINED_BYTES_MAX:
                        self._write(buffers, size)
                        buffers, size = [], 0
                elif head.request is not None:
                    request, head.request = head.request, None
                    if self._done:
                        head.wake.set()
                    self._start(head, request)
                else:
                    break
            if buffers:
                self._write(buffers, size)
        finally:
            self._is_flushing = False
        self._close_if_finished()
        return answered and not self._is_closed

    def _answer(self, slot: _Slot, buffers: list[Buffer]) -> int:
        """Append the answer with its header to `buffers`; gives how many bytes that are."""
        size = 0
        if slot.reply is not None:
            api = slot.api
            start = response_start(
                slot.correlation_id,
                slot.reply_bytes,
                flexible=api.has_flexible_response_header and api.is_flexible(slot.version),
            )
            buffers.append(start)
            buffers += slot.reply
            size = len(start) + slot.reply_bytes
        self._done -= 1
        self._ready_bytes -= slot.reply_bytes
        shared = self._shared
        self._last_activity = now = shared.clock.monotonic()
        shared.metrics.request_answered(slot.api.name, slot.reply_bytes, now - slot.received_at)
        self._give_back(slot)
        return size

    def _write(self, buffers: list[Buffer], size: int) -> None:
        if self._transport is None:
            return
        if size <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def _reserve(self, slot: _Slot, wanted_bytes: int) -> int:
        """How much of `wanted_bytes` may be read for this answer; see `Request.reserve`."""
        shared = self._shared
        held = shared.unsent_bytes + shared.reserved_bytes - slot.reserved_bytes
        granted = min(wanted_bytes, max(self._settings.fetched_max_bytes - held, _FETCH_BYTES_MIN))
        if not slot.is_done:
            self._set_reserved(slot, granted)
        return granted

    def _set_reserved(self, slot: _Slot, count: int) -> None:
        self._shared.reserved_bytes += count - slot.reserved_bytes
        slot.reserved_bytes = count

    def _give_back(self, slot: _Slot) -> None:
        self._set_reserved(slot, 0)
        charged, slot.charged_bytes = slot.charged_bytes, 0
        self._shared.budget.answered(charged)

    def _count_unsent(self, size: int) -> None:
        self._shared.unsent_bytes += size - self._unsent_bytes
        self._unsent_bytes = size

    # --- ending

    def _cut(self, reason: str, detail: str) -> None:
        """Close because of something the client (or a handler) did."""
        if self._is_closed:
            return
        self._shared.metrics.connection_cut(reason)
        self._shared.problems.connection_cut(self._client, reason, detail)
        self.close()

    def _close_if_finished(self) -> None:
        if self._is_finishing and not self._slots and not self._is_closed:
            self.close()

    def _abandon(self) -> None:
        """Nobody reads an answer any more: cancel what only waits, let the rest run its course."""
        self._is_closed = True
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._builder.release()
        self._shared.budget.abandoned(self._id)
        self._partial_since = None
        while self._slots:
            slot = self._slots.popleft()
            if slot.is_done or slot.request is not None:
                slot.request = None
                slot.reply = None
                slot.is_done = True
                self._give_back(slot)
            elif slot.waits_for is not None:
                slot.waits_for.cancel()


def _read_header(reader: Reader, api: Api, version: int) -> tuple[int, str]:
    """Correlation id and client id. Raises ProtocolError."""
    reader.skip(FRAME_START.size)
    if version > api.max_version:
        # Not even the form of its header is known; only what stands in front of it is.
        return reader.int32(), ""
    return read_request_header(reader, flexible=api.is_flexible(version))


def _refusal(deferred: Deferred, error: DisklessError) -> Reply:
    """Say it in the API's own words; raise what cannot be said."""
    if deferred.refuse is None or isinstance(error, ProtocolError | MustClose):
        raise error
    return deferred.refuse(error)


def _as_it_is(reply: Reply) -> Reply:
    return reply
