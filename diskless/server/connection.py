"""One client's connection: frames in, answers out in the order of the requests.

How it works. `diskless/server/receiving.py` takes frames off the socket. For each one a *slot* is
added to the queue of responses (`diskless/server/responses.py`), and its handler is called in the
order of arrival (`diskless/server/handlers.py`). Reading goes on while handlers wait, so a producer
with many requests in flight is not held up by the 10-250 ms that a commit takes, and since handlers
are called in the order of arrival, Produce batches enter the write queue in that order. Answers
leave from the head of the queue only.

All of that happens in turns of the loop (`diskless/loop/turns.py`): a turn answers what is ready,
then starts what was received, a little of it. While something is left for the next turn, nothing
more is read. What became ready is encoded in the turn that sends it: a commit answers thousands of
requests at once.

Fetch is different: its answer may be tens of MiB. Such a request (`Api.starts_in_turn`) begins when
it is at the head of the queue and the client reads what it was sent before. So a client that does
not read holds one answer. When another is ready behind a parked Fetch, that is told to end early.

Back pressure, each a reason to read and start no more until it has passed: too many requests
unanswered, too many answers unsent, a handler at work in slices, and the memory of requests in the
whole broker, of which every connection and every address has its share
(`diskless/server/request_budget.py`): receive buffers until their last owner let go, the rest of a
request until it is answered. A client that keeps its own answers from leaving, because it does not
read or because it asks on behind a Fetch that waits, gets a small share
(UNREAD_REQUESTS_SHARE_BYTES) and no more. Answers have shares too
(`diskless/server/response_budget.py`). Who is cut off for not reading, and when, is in
`diskless/server/unread.py`.

A muted connection (`diskless/server/throttle.py`) is not idle, and does not hold up a stop. Of a
client that has not logged in, `diskless/sasl/login.py` says what is received, and then who it is.

Invariants: one answer per request (none for acks=0), in request order; what a request was charged
and has reserved goes back once, when it is answered or its handler is done; no exception of a
handler reaches the event loop.
"""

import asyncio
import functools
from collections.abc import Hashable
from typing import Final, cast

from diskless.listeners.acceptor import Admission
from diskless.listeners.tls_listener import PRINCIPAL
from diskless.loop.backlog import BACKLOG_REQUESTS, Backlog
from diskless.loop.turns import Turn
from diskless.ports import ANONYMOUS, ClientInfo
from diskless.protocol.wire import ProtocolError, Reader
from diskless.quotas.request_meter import RequestMeter
from diskless.server.handlers import Handlers
from diskless.server.receiving import FrameReceiver, FrameStart, read_header
from diskless.server.registry import MustClose, Request
from diskless.server.request_budget import RequestAccount
from diskless.server.response_budget import ResponseAccount
from diskless.server.responses import Outbox, ResponseQueue, Slot
from diskless.server.shared import Shared
from diskless.server.throttle import Throttle
from diskless.server.unread import (
    UNREAD_REQUESTS_SHARE_BYTES,
    ReadProgress,
    unsent_and_unread,
)
from wal.chunks.buffer import FragmentChain

_REQUEST_OVERHEAD_BYTES: Final = 2 << 10
"""What an unanswered request keeps besides its bytes: its slot, its future, its place in queues."""

_REFUSED_READ_BYTES: Final = 4 << 10


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket. Made by the server, driven by the event loop."""

    # From when it has its transport:
    owner: Hashable
    """Whose memory it counts as: its address."""
    requests: RequestAccount
    responses: ResponseAccount
    _receiver: FrameReceiver
    _outbox: Outbox
    _queue: ResponseQueue
    _handlers: Handlers

    def __init__(
        self, shared: Shared["Connection"], client: ClientInfo, admission: Admission
    ) -> None:
        """The admission ends with the connection."""
        self._shared = shared
        self._settings = shared.settings
        self._client = client
        self._admission = admission
        self._transport: asyncio.Transport | None = None
        self._is_write_blocked = False
        self._is_in_turn = self._is_arriving = False
        self._is_finishing = self._is_closed = False
        self._progress = ReadProgress()
        self._backlog = Backlog()
        self._throttle = Throttle(shared.clock, self._is_heard_again)
        rules = shared.logins.get(client.listener)
        host, held = client.host, admission.held_back
        self._login = rules.login(host, self._logged_in, self._refused, held) if rules else None
        self._meter = RequestMeter(
            shared.limits, shared.processor_time, lambda: self._client, self.mute
        )
        self._last_activity = shared.clock.monotonic()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods of asyncio.Transport, but not the class.
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info(PRINCIPAL) if self._login is None else None
        if name is not None:
            self._client = self._client._replace(user=name)
        shared = self._shared
        shared.made(self)
        self.owner = host = self._client.host
        self.requests = shared.budget.open(host, self._go_on)
        self.responses = shared.responses.open(host)
        self._receiver = FrameReceiver(
            self._transport,
            shared.pool,
            self.requests,
            apis=shared.apis,
            settings=self._settings,
            clock=shared.clock,
            login=self._login,
        )
        self._outbox = Outbox(self._transport)
        self._queue = ResponseQueue(self.requests, self.responses, self._head_is_done)
        self._handlers = Handlers(
            shared.handlers,
            self._client.connection_id,
            self._queue,
            go_on=self._go_on,
            failed=self._failed,
            meter=self._meter,
        )
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        delay_s = self._admission.heard_at - shared.clock.monotonic()
        if self._login is not None:
            self._login.begin(delay_s)
        if delay_s > 0:
            # Not paused here: uvloop begins to read after this, whatever it was told before.
            self._throttle.delay(delay_s)
        if name is not None:
            self._belongs_to(name, "TLS", is_again=False)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._is_closed:
            return memoryview(bytearray(_REFUSED_READ_BYTES))
        return self._receiver.buffer(
            little=self.requests.is_at_limit() or self._admission.must_log_in,
            # So that nothing is kept in memory while it is muted again.
            no_more_than_the_frame=self._throttle.was_over_quota,
        )

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        self._receiver.commit(nbytes)
        self._last_activity = self._shared.clock.monotonic()
        is_done = self._receiver.is_within_frame()
        if is_done:
            # Nothing to start; and what becomes ready to be answered asks for its own turn.
            self._read_on()
        else:
            if not self.has_backlog() and self._receiver.has_more_than(BACKLOG_REQUESTS):
                # Known before its first request begins.
                self._backlog.begin(self._last_activity)
            is_done = self._shared.turns.begin(self)
        self._note_arrival()
        if self._is_arriving:
            self._shared.arrivals.last_at = self._last_activity
        if not is_done and not self._is_closed:
            # What is received now is for its next turn; more has time until then.
            self._receiver.stop()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_blocked = True
        if self._transport is not None:
            self.responses.set_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self.responses.set_unsent(0)
        self._progress.reset()
        self._last_activity = self._shared.clock.monotonic()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._abandon()
        self._shared.turns.forget(self)
        self.responses.set_unsent(0)
        self._admission.end()
        if self._client.user != ANONYMOUS:
            self._shared.audit.logged_out(self._client)
        self._shared.lost(self)

    def _note_arrival(self) -> None:
        """Say when a Produce has begun to arrive, and when it was taken or will not end."""
        is_arriving = not self._is_closed and self._receiver.has_begun_produce
        if is_arriving != self._is_arriving:
            self._is_arriving = is_arriving
            self._shared.arrivals.unfinished += 1 if is_arriving else -1

    # --- turns

    def _go_on(self) -> None:
        """There is, or may be, something to do."""
        self._shared.turns.enqueue(self)

    def has_backlog(self) -> bool:
        """Whether it had many requests unanswered lately; see `diskless.loop.turns`."""
        return self._backlog.until > self._last_activity

    def take_turn(self, turn: Turn) -> bool:
        """Answer what is ready, start what is complete, then read; see `TurnTaker`."""
        return self._queue.drop(turn) if self._is_closed else self._work(turn)

    def _work(self, turn: Turn) -> bool:
        self._is_in_turn = True
        self._meter.begin()
        is_more = True
        try:
            while is_more and not turn.is_over():
                # An answer that can be given at once makes room for another request.
                is_more = self._answer_next(turn) or self._start_next(turn)
        except ProtocolError as error:
            self._cut("bad request", str(error))
        finally:
            self._is_in_turn = False
        self._meter.end()
        self._note_arrival()
        if not self._is_closed:
            self._outbox.send()
            self._backlog.turn_ended(len(self._queue), self._last_activity, is_more=is_more)
            self._shared.turns.served(self, self._last_activity)
            if self._is_finishing and not len(self._queue) and not self._is_write_blocked:
                self.close()
        if self._is_closed:
            return len(self._queue) > 0
        if is_more:
            self._receiver.stop()
        else:
            self._read_on()
        return is_more

    def _read_on(self) -> None:
        """Read what comes next, unless there is a reason to wait."""
        size_bytes = self._receiver.frame_bytes
        if self._is_held_up() or not self._admission.may_hold(size_bytes, self._go_on):
            self._receiver.pause()
        elif self.requests.must_wait(size_bytes):
            self._receiver.read_little()
            self._receiver.pause()
        else:
            self._receiver.resume(self._last_activity)

    # --- requests

    def _start_next(self, turn: Turn) -> bool:
        """Start the next request that is complete; whether there was one that may be started.

        Raises ProtocolError.
        """
        if self._is_closed or self._is_held_up() or not self._receiver.has_frame():
            return False
        if len(self._queue) and self.requests.must_wait(self._receiver.frame_bytes):
            return False
        start, frame = self._receiver.take_frame()
        self._dispatch(start, frame, turn)
        return True

    def _is_held_up(self) -> bool:
        """Whether nothing may be started, whatever memory there is."""
        queue = self._queue
        if self._is_finishing or self._throttle.is_muted or self._handlers.beginning:
            return True
        if self._login is not None and self._login.is_busy:
            return True
        if len(queue) >= self._settings.queued_max_requests:
            return True
        head = queue.head
        if self._is_write_blocked or (head is not None and head.api.starts_in_turn):
            # The client itself keeps its answers from leaving.
            share = UNREAD_REQUESTS_SHARE_BYTES
            return self.requests.charged_bytes > share or queue.ready_bytes > share
        return queue.ready_bytes > self._settings.queued_max_response_bytes

    def _dispatch(self, start: FrameStart, frame: FragmentChain, turn: Turn) -> None:
        """Read the header and start the handler, or queue the request for its turn to start."""
        api, version, size = start
        self._backlog.started()
        self.requests.completed()
        self._shared.metrics.request_received(api.name, size)
        try:
            reader = Reader(frame.views())
            correlation_id, client_id = read_header(reader, api, version)
            if client_id != self._client.client_id:
                self._client = self._client._replace(client_id=client_id)
            slot = Slot(api, version, correlation_id, self._last_activity)
            # Who reads from the frame keeps its buffers, which are counted where they are lent out.
            body_bytes = 0 if api.reads_frame else reader.remaining
            self._queue.add(slot, _REQUEST_OVERHEAD_BYTES + body_bytes)
            request = Request(
                version=version,
                client=self._client.asking(correlation_id),
                body=b"",
                wake=slot.wake,
                reserve=functools.partial(self._queue.reserve, slot),
                mute=self.mute,
                login=self._login,
            )
            if api.reads_frame:
                request.frame = frame
                request.reader = reader
            else:
                request.body = frame.copy_bytes(reader.consumed, reader.remaining)
                request.read_turn = self._shared.read_turns.of(self.has_backlog)
            if api.starts_in_turn:
                slot.request = request
            else:
                self._handlers.start(slot, request, turn)
        finally:
            if not (self._handlers.beginning and api.reads_frame):
                frame.release()

    def _logged_in(self, user: str | None) -> None:
        self._is_finishing = self._is_finishing or user is None
        if user is not None:
            assert self._login is not None
            is_again = user == self._client.user
            self._client = self._client._replace(user=user)
            self._belongs_to(user, self._login.mechanism, is_again=is_again)

    def _refused(self) -> None:
        assert self._login is not None
        self._shared.audit.login_failed(self._client, self._login.mechanism)

    def _belongs_to(self, user: str, mechanism: str, *, is_again: bool) -> None:
        self._shared.audit.logged_in(self._client, mechanism, is_again=is_again)
        if not self._admission.belongs_to(user):
            self._shared.metrics.connection_refused("max.connections.per.user")
            self._cut("too many connections", f"of User:{user}; see max.connections.per.user")

    def mute(self, until: float) -> None:
        """See `Request.mute`."""
        if not self._is_closed and self._throttle.mute(until):
            self.requests.completed()
            self._receiver.pause()

    def _is_heard_again(self, now: float) -> None:
        self._meter.has_muted = False
        self._last_activity = now
        self._go_on()

    # --- responses

    def _head_is_done(self) -> None:
        # What one commit answers leaves in one turn; a turn of ours goes on to it by itself.
        if not self._is_in_turn:
            self._go_on()

    def _answer_next(self, turn: Turn) -> bool:
        """Answer the head of the queue, or start it where it waits for that; whether it could."""
        head = self._queue.head
        if head is None or self._is_write_blocked or self._is_closed:
            return False
        if head.is_done:
            if head.outcome is None or self._handlers.encode(head, turn):
                self._answer(self._queue.take())
        elif head.request is not None:
            request, head.request = head.request, None
            if self._queue.done or self._is_finishing:
                head.wake.set()
            self._handlers.start(head, request, turn)
        else:
            return False
        return True

    def _answer(self, slot: Slot) -> None:
        self._last_activity = now = self._shared.clock.monotonic()
        took_s = now - slot.received_at
        self._shared.metrics.request_answered(slot.api.name, slot.reply_bytes, took_s)
        self._meter.answered()
        if self._meter.has_muted:
            slot.tell_throttled(self._throttle.left_ms)
        self._outbox.add(slot)

    # --- called by the server

    @property
    def client(self) -> ClientInfo:
        return self._client

    @property
    def unread_since(self) -> float | None:
        """Since when the client has read nothing; None: there is nothing to read."""
        return self._progress.since

    def sweep(self, now: float) -> None:
        """Cut the connection off when its client has been too slow or silent for too long."""
        self._look_for_unread(now)
        silent_s = now - self._last_activity
        if self._is_finishing and self._progress.is_stuck(now):
            self.abort()
        if self._is_closed:
            # Closing waits for the last answers to be read, but not for ever.
            if silent_s > self._settings.request_receive_timeout_ms / 1000:
                self.abort()
            return
        # A read that found nothing leaves its buffer behind; idle clients must hold none.
        self._receiver.release_if_empty()
        if self._login is not None and self._login.is_overdue(now):
            self._cut("slow log-in", "not logged in yet")
            return
        overdue_s = self._receiver.overdue_s(now)
        if overdue_s is not None:
            self._cut("slow request", f"incomplete after {overdue_s:g} s")
        elif silent_s > self._settings.idle_max_ms / 1000:
            if self._is_write_blocked:
                self._cut("slow reader", "answers are not read")
            elif not len(self._queue) and not self._throttle.is_muted:
                self.close()

    def _look_for_unread(self, now: float) -> None:
        unsent, unread = unsent_and_unread(self._transport)
        self.responses.set_unsent(unsent)
        self._progress.look(unread, now)

    def cut_as_slow_reader(self) -> None:
        """Cuts off a client that does not read: others need the memory."""
        self._cut("slow reader", f"{self.responses.unsent_bytes} bytes are not read")
        self.responses.set_unsent(0)
        self.abort()

    def finish(self) -> None:
        """Read nothing more, answer what was asked, then close."""
        self._is_finishing = True
        self._receiver.pause()
        head = self._queue.head
        if head is not None:
            head.wake.set()
        self._go_on()

    # --- ending

    def _failed(self, slot: Slot, error: Exception | None) -> None:
        """Close because of what a handler raised. None stands for its cancellation."""
        if isinstance(error, ProtocolError):
            self._cut("bad request", str(error))
        elif isinstance(error, MustClose):
            self._cut("no answer possible", str(error))
        elif error is not None:
            self._shared.problems.handler_failed(self._client, slot.api.name, slot.version, error)
            self._cut("handler failed", f"{slot.api.name} v{slot.version}")
        else:
            self.close()

    def _cut(self, reason: str, detail: str) -> None:
        """Close because of something the client (or a handler) did."""
        if self._is_closed:
            return
        self._shared.metrics.connection_cut(reason)
        self._shared.problems.connection_cut(self._client, reason, detail)
        self.close()

    def close(self) -> None:
        """End the connection now; its client can read what fits into the socket: see Lingering."""
        if self._transport is None or self._is_closed:
            return
        if self._is_write_blocked:
            self._transport.abort()
        else:
            self._outbox.send()
            self._shared.lingering.close(self._transport)
        self._abandon()

    def abort(self) -> None:
        """End the connection without sending anything more."""
        if self._transport is not None:
            self._transport.abort()
            self._abandon()

    def _abandon(self) -> None:
        """Nobody reads an answer any more."""
        self._is_closed = True
        self._note_arrival()
        self._throttle.cancel()
        self._receiver.release()
        self.requests.close()
        self._outbox.clear()
        self._queue.close()
        if len(self._queue):
            self._go_on()
