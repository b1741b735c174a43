"""One client's connection: frames in, answers out in the order of the requests.

How it works. `diskless/server/receiving.py` takes frames off the socket. Each one's handler is
called in the order of arrival, and a *slot* is queued for its answer. Reading goes on while
handlers wait, so a producer with many requests in flight is not held up by the 10-250 ms that a
commit takes, and since handlers are called in the order of arrival, Produce batches enter the write
queue in that order. Answers leave from the head of the queue only.

All of that happens in turns of the loop (`diskless/loop/turns.py`): a turn answers what is ready,
then starts what was received, a little of it. While something is left for the next turn, nothing
more is read. What became ready is encoded in the turn that sends it: a commit answers thousands of
requests at once.

Fetch is different: its answer may be tens of MiB. Such a request (`Api.starts_in_turn`) begins when
it has reached the head of the queue and the client reads what it was sent before. So a client that
does not read holds one answer and no more. When another answer becomes ready behind a parked Fetch,
the Fetch is told to end early, for it would hold that answer up.

Back pressure, each a reason to read and start no more until it has passed: too many requests
unanswered, too many answers unsent, and the memory of requests in the whole broker, of which every
connection and every address has its share (`diskless/server/request_budget.py`): receive buffers
until their last owner let go, the rest of a request until it is answered. A client that keeps its
own answers from leaving, because it does not read or because it asks on behind a Fetch that waits,
gets a small share (UNREAD_REQUESTS_SHARE_BYTES) and no more. Answers have shares too
(`diskless/server/response_budget.py`). Who is cut off for not reading, and when, is in
`diskless/server/unread.py`.

A handler whose client is over its quota mutes the connection (`Request.mute`): nothing is read, and
nothing that was received is begun, until the time is up. So does the server when clients connect
too fast. Answers go out meanwhile, the one that
tells of the wait first of all. A mute connection is not idle, and does not hold up a stop.

A handler whose work takes longer than its first slice (`diskless.loop.long_work`) goes on slice by
slice until it has begun what it was called for. Nothing else of its connection begins meanwhile, so
that requests take effect in the order of their arrival, whatever their size. So does an answer that
takes long to encode, when it has reached the head of the queue.

Invariants: one answer per request (none for acks=0), in request order; what a request was charged
and has reserved goes back once, when it is answered or its handler is done; a client that goes away
cancels its waiting Fetch and work in slices, never an append, whole or in slices; no exception of a
handler reaches the event loop.
"""

import asyncio
import functools
from collections.abc import Coroutine, Generator, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from diskless.loop.long_work import LongWork, Unfinished
from diskless.loop.read_turns import ReadTurns
from diskless.loop.turns import Turn, Turns
from diskless.ports import ClientInfo
from diskless.protocol.wire import ProtocolError, Reader
from diskless.server.answers import AnswerQueue, Outbox, Slot, refusal
from diskless.server.connection_limits import plain_address
from diskless.server.problem_log import ProblemLog
from diskless.server.receiving import FrameReceiver, FrameStart, read_header
from diskless.server.registry import ApiRegistry, Deferred, MustClose, Outcome, Reply, Request
from diskless.server.request_budget import RequestAccount, RequestBudget
from diskless.server.response_budget import ResponseAccount, ResponseBudget
from diskless.server.server_metrics import ServerMetrics
from diskless.server.server_settings import ServerSettings
from diskless.server.unread import (
    UNREAD_REQUESTS_SHARE_BYTES,
    ReadProgress,
    kernel_outstanding_bytes,
)
from wal.chunks.buffer import BufferPool, FragmentChain
from wal.chunks.sealed_chunk import BATCH_OVERHEAD_BYTES
from wal.clock import Clock
from wal.errors import DisklessError

_REQUEST_OVERHEAD_BYTES: Final = 2 << 10
"""What an unanswered request keeps besides its bytes: its slot, its future, its place in queues."""

_BACKLOG_REQUESTS: Final = 8
"""Who has more requests unanswered has a backlog, and its turns behind others. So has who sent more
than these before it was answered, be it answered at once. Kafka's clients have five in flight;
whoever has hundreds waits for commits, and gains nothing from a turn a millisecond sooner."""

_BACKLOG_KEPT_S: Final = 1.0
"""For how long it has one after that, so that nobody changes sides with every answer."""

_REFUSED_READ_BYTES: Final = 4 << 10

_MIB: Final = 1 << 20


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
    responses: ResponseBudget
    turns: Turns
    read_turns: ReadTurns
    problems: ProblemLog
    long_work: LongWork
    tasks: asyncio.TaskGroup
    running: set[asyncio.Task[None]] = field(default_factory=set)
    """Those of `tasks` that run handlers."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket. Made by the server, driven by the event loop."""

    owner: Hashable
    """Whose memory it counts as: its address."""
    requests: RequestAccount
    responses: ResponseAccount
    _receiver: FrameReceiver
    _answers: AnswerQueue

    def __init__(self, shared: Shared, connection_id: int) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._id = connection_id
        self._client = ClientInfo(connection_id, "", "")
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False
        """From then on there are accounts, a receiver and a queue of answers."""

        self._partial_since: float | None = None
        """Since when the client owes us the rest of a frame."""
        self._is_reading = True
        self._beginning = 0
        """Handlers that are still at work in slices; nothing else is started meanwhile."""
        self._outbox = Outbox()
        self._is_in_turn = False
        self._started_in_a_row = 0
        """Requests since a turn left nothing for the next."""
        self._backlog_until = 0.0
        """Until when it counts as one with a backlog, on the monotonic clock."""
        self._is_write_blocked = False
        self._progress = ReadProgress()

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
        self.owner = host
        self.requests = self._shared.budget.open(host, self._go_on)
        self.responses = self._shared.responses.open(host)
        self._answers = AnswerQueue(self.requests, self.responses)
        self._receiver = FrameReceiver(
            self._shared.pool, self.requests, self._shared.apis, self._settings
        )
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._shared.metrics.connection_opened()
        if admitted:
            # Not paused here: uvloop begins to read after this, whatever it was told before.
            now = self._shared.clock.monotonic()
            self._mute_until = now + admitted
            self._set_mute_timer(now)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._is_closed:
            return memoryview(bytearray(_REFUSED_READ_BYTES))
        return self._receiver.buffer(
            little=self.requests.is_at_limit(),
            # So that nothing is kept in memory while it is mute again.
            no_more_than_the_frame=self._has_been_mute,
        )

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        self._receiver.commit(nbytes)
        self._last_activity = self._shared.clock.monotonic()
        if not self.has_backlog() and self._receiver.has_more_than(_BACKLOG_REQUESTS):
            # Known before its first request begins.
            self._backlog_until = self._last_activity + _BACKLOG_KEPT_S
        is_done = self._shared.turns.begin(self)
        if not is_done and not self._is_closed:
            # What is received now is for its next turn; more has time until then.
            self._stop_reading()

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
        was_admitted, self._is_admitted = self._is_admitted, False
        self._transport = None
        if was_admitted:
            self._abandon()
            self._shared.turns.forget(self)
            self.responses.set_unsent(0)
            self._shared.metrics.connection_closed()
            self._shared.owner.lost(self, self._client.host)

    # --- called by the server

    @property
    def unread_since(self) -> float | None:
        """Since when the client has read nothing; None while there is nothing to be read."""
        return self._progress.since

    def sweep(self, now: float) -> None:
        """Cut the connection off when its client has been too slow or silent for too long."""
        self._look_for_unread(now)
        if self._is_closed:
            # Closing waits for the last answers to be read; somebody who never does must not keep
            # the socket.
            if now - self._last_activity > self._settings.request_receive_timeout_ms / 1000:
                self.abort()
            return
        # A read that found nothing leaves its buffer behind; idle clients must hold none.
        self._receiver.release_if_empty()
        if self._partial_since is not None:
            announced = self._receiver.frame_bytes
            allowed_s = (1 + announced // _MIB) * self._settings.request_receive_timeout_ms / 1000
            if now - self._partial_since > allowed_s:
                self._cut("slow request", f"incomplete after {allowed_s:g} s")
                return
        if now - self._last_activity > self._settings.idle_max_ms / 1000:
            if self._is_write_blocked:
                self._cut("slow reader", "answers are not read")
            elif not len(self._answers) and not self._mute_until:
                self.close()

    def cut_as_slow_reader(self) -> None:
        """What it was sent and has not read is needed for others."""
        if not self._is_closed:
            unsent = self.responses.unsent_bytes
            self._cut("slow reader", f"{unsent} bytes of answers are not read")
        self.responses.set_unsent(0)
        self.abort()

    def _look_for_unread(self, now: float) -> None:
        transport = self._transport
        unsent = transport.get_write_buffer_size() if transport is not None else 0
        self.responses.set_unsent(unsent)
        if unsent and transport is not None:
            unsent += kernel_outstanding_bytes(transport.get_extra_info("socket").fileno())
        self._progress.look(unsent, now)

    def finish(self) -> None:
        """Read nothing more, answer what was asked, then close."""
        self._is_finishing = True
        self._pause_reading()
        head = self._answers.head
        if head is not None:
            head.wake.set()
        self._go_on()

    def close(self) -> None:
        """End the connection now; what was handed to the socket is still sent if it fits."""
        self._is_closed = True
        if self._transport is None:
            return
        if self._is_write_blocked:
            self._transport.abort()
        else:
            self._outbox.send(self._transport)
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
        self.requests.completed()
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
        self._go_on()

    # --- turns

    def _go_on(self) -> None:
        """There is, or may be, something to do."""
        self._shared.turns.enqueue(self)

    def has_backlog(self) -> bool:
        """Whether it had many requests unanswered lately; see `diskless.loop.turns`."""
        return self._backlog_until > self._last_activity

    def take_turn(self, turn: Turn) -> bool:
        """Answer what is ready, start what is complete, as far as limits allow; then read, or not.

        See `diskless.loop.turns.TurnTaker`.
        """
        return self._drop_answers(turn) if self._is_closed else self._work(turn)

    def _work(self, turn: Turn) -> bool:
        self._is_in_turn = True
        is_more = True
        try:
            while is_more and not turn.is_over():
                # An answer that can be given at once makes room for another request.
                is_more = self._answer_next(turn) or self._start_next(turn)
        except ProtocolError as error:
            self._cut("bad request", str(error))
        finally:
            self._is_in_turn = False
        if self._transport is not None and not self._is_closed:
            self._outbox.send(self._transport)
            self._note_backlog(is_more)
            if self._is_finishing and not len(self._answers):
                self.close()
        if self._is_closed:
            return len(self._answers) > 0
        if is_more:
            self._stop_reading()
        elif self._is_finishing or self._mute_until or self._is_full():
            self._pause_reading()
        elif self.requests.must_wait(self._receiver.frame_bytes):
            self._receiver.read_little()
            self._pause_reading()
        else:
            self._resume_reading()
        return is_more

    def _note_backlog(self, is_more: bool) -> None:
        if max(self._started_in_a_row, len(self._answers)) > _BACKLOG_REQUESTS:
            self._backlog_until = self._last_activity + _BACKLOG_KEPT_S
        if not is_more:
            self._started_in_a_row = 0
        self._shared.turns.served(self, self._last_activity)

    # --- receiving

    def _start_next(self, turn: Turn) -> bool:
        """Start the next request that is complete; whether there was one that may be started.

        Raises ProtocolError.
        """
        if self._is_closed or self._is_finishing or self._mute_until or self._is_full():
            return False
        if not self._receiver.has_frame():
            return False
        if len(self._answers) and self.requests.must_wait(self._receiver.frame_bytes):
            return False
        received = self._receiver.next_frame()
        assert received is not None
        self._dispatch(*received, turn)
        return True

    def _is_full(self) -> bool:
        if self._beginning or len(self._answers) >= self._settings.queued_max_requests:
            return True
        head = self._answers.head
        if self._is_write_blocked or (head is not None and head.api.starts_in_turn):
            # The client itself keeps its answers from leaving.
            share = UNREAD_REQUESTS_SHARE_BYTES
            return self.requests.charged_bytes > share or self._answers.ready_bytes > share
        return self._answers.ready_bytes > self._settings.queued_max_response_bytes

    def _dispatch(self, start: FrameStart, frame: FragmentChain, turn: Turn) -> None:
        """Read the header and start the handler, or queue the request for its turn to start."""
        api, version, size = start
        self._partial_since = None
        self._started_in_a_row += 1
        shared = self._shared
        self.requests.completed()
        shared.metrics.request_received(api.name, size)
        try:
            reader = Reader(frame.views())
            correlation_id, client_id = read_header(reader, api, version)
            if client_id != self._client.client_id:
                self._client = self._client._replace(client_id=client_id)
            slot = Slot(api, version, correlation_id, self._last_activity)
            # Who reads from the frame keeps its buffers, which are counted where they are lent out.
            body_bytes = 0 if api.reads_frame else reader.remaining
            self._answers.add(slot, _REQUEST_OVERHEAD_BYTES + body_bytes)
            request = Request(
                version=version,
                client=self._client,
                body=b"",
                wake=slot.wake,
                reserve=functools.partial(self._reserve, slot),
                read_turn=shared.read_turns.of(self.has_backlog),
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
                self._start(slot, request, turn)
        finally:
            if not (self._beginning and api.reads_frame):
                frame.release()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def _pause_reading(self) -> None:
        """Stop reading for a reason that is not the client's: it owes nothing meanwhile."""
        self._partial_since = None
        self._receiver.release_if_empty()
        self._stop_reading()

    def _resume_reading(self) -> None:
        if not self._receiver.received_bytes:
            self._partial_since = None
        elif self._partial_since is None:
            is_on_time = self._is_reading
            self._partial_since = (
                self._last_activity if is_on_time else self._shared.clock.monotonic()
            )
        if not self._is_reading and self._transport is not None:
            self._is_reading = True
            self._transport.resume_reading()

    # --- running handlers

    def _start(self, slot: Slot, request: Request, turn: Turn) -> None:
        """Call the handler; its answer comes now, through a future's callback, or from a task."""
        long_work = self._shared.long_work
        try:
            called = slot.api.handler(request)
            outcome = long_work.begin(called) if isinstance(called, Generator) else called
        except Exception as error:
            self._failed(slot, error)
            return
        if isinstance(outcome, Unfinished):
            self._beginning += 1
            turn.task_started()
            task = self._spawn(slot, self._begin_in_slices(slot, request, outcome))
            frame = request.frame
            if frame is None:
                slot.waits_for = task
            else:
                # What arrived whole is appended, also when its client does not wait for it.
                task.add_done_callback(lambda _: frame.release())
        elif self._begun(slot, request, outcome):
            turn.task_started()

    async def _begin_in_slices(
        self, slot: Slot, request: Request, unfinished: Unfinished[Outcome]
    ) -> None:
        try:
            outcome = await self._shared.long_work.finish(unfinished)
        except Exception as error:
            self._failed(slot, error)
            return
        finally:
            self._beginning -= 1
            slot.waits_for = None
        self._begun(slot, request, outcome)
        self._go_on()

    def _begun(self, slot: Slot, request: Request, outcome: Outcome) -> bool:
        """See to the answer that the handler promised; whether that takes a task."""
        if request.batch_count:
            self._answers.charge(slot, request.batch_count * BATCH_OVERHEAD_BYTES)
        if outcome is None or isinstance(outcome, list):
            self._succeeded(slot, outcome)
            return False
        if not isinstance(outcome, Deferred):
            outcome = Deferred(outcome, _as_it_is, None)
        waits_for: asyncio.Future[Any]
        is_task = not isinstance(outcome.awaitable, asyncio.Future)
        if isinstance(outcome.awaitable, asyncio.Future):
            waits_for = outcome.awaitable
            waits_for.add_done_callback(functools.partial(self._future_done, slot, outcome))
        else:
            waits_for = self._spawn(slot, self._run(slot, outcome), outcome.awaitable)
        if slot.api.starts_in_turn:
            slot.waits_for = waits_for
        return is_task

    def _spawn(
        self, slot: Slot, work: Coroutine[Any, Any, None], awaitable: object = None
    ) -> "asyncio.Task[None]":
        """Run `work`, which awaits `awaitable`, as a task of its request."""
        task = self._shared.tasks.create_task(work, name=f"{slot.api.name}-{self._id}")
        self._shared.running.add(task)
        task.add_done_callback(functools.partial(self._task_done, slot, awaitable))
        return task

    async def _run(self, slot: Slot, deferred: Deferred) -> None:
        """The task of one request; raises only its own cancellation, for the group's sake."""
        try:
            try:
                encoded = deferred.encode(await deferred.awaitable)
            except DisklessError as error:
                encoded = refusal(deferred, error)
            if isinstance(encoded, Generator):
                slot.waits_for = asyncio.current_task()
                encoded = await self._shared.long_work.run(encoded)
        except Exception as error:
            self._failed(slot, error)
        else:
            self._succeeded(slot, encoded)

    def _task_done(self, slot: Slot, awaitable: object, task: "asyncio.Task[None]") -> None:
        self._shared.running.discard(task)
        if task.cancelled():
            # A task that is cancelled before its first step never touches what it was made for.
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            self._failed(slot, None)

    def _future_done(self, slot: Slot, deferred: Deferred, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self._failed(slot, None)
            return
        # Asked for also where nobody waits for it any more: asyncio complains otherwise.
        future.exception()
        if not self._finish_abandoned(slot):
            self._answers.settled(slot, deferred, future)
            self._answer_is_there(slot)

    def _succeeded(self, slot: Slot, reply: Reply) -> None:
        if self._finish_abandoned(slot):
            return
        self._answers.succeeded(slot, reply)
        self._answer_is_there(slot)

    def _answer_is_there(self, slot: Slot) -> None:
        # A commit answers many requests of a connection, each through a callback of its own; they
        # leave in one turn. In a turn of ours it goes on to the answers by itself.
        if slot is self._answers.head and not self._is_in_turn:
            self._go_on()

    def _failed(self, slot: Slot, error: Exception | None) -> None:
        """`error` is None when the handler was cancelled."""
        if isinstance(error, ProtocolError):
            self._cut("bad request", str(error))
        elif isinstance(error, MustClose):
            self._cut("no answer possible", str(error))
        elif error is not None:
            self._shared.problems.handler_failed(self._client, slot.api.name, slot.version, error)
            self._cut("handler failed", f"{slot.api.name} v{slot.version}")
        else:
            self.close()
        self._finish_abandoned(slot)

    def _finish_abandoned(self, slot: Slot) -> bool:
        """Whether nobody waits for this answer any more; what it holds is given back then."""
        if not self._is_closed and self._transport is not None:
            return False
        if not slot.is_done:
            slot.is_done = True
            self._answers.give_back(slot)
        return True

    # --- answering

    def _answer_next(self, turn: Turn) -> bool:
        """Answer the head of the queue, or start it where it waits for that; whether it could."""
        head = self._answers.head
        if head is None or self._is_write_blocked or self._is_closed:
            return False
        if head.is_done:
            if head.outcome is None or self._encode(head, turn):
                self._answer(self._answers.take())
        elif head.request is not None:
            request, head.request = head.request, None
            if self._answers.done or self._is_finishing:
                head.wake.set()
            self._start(head, request, turn)
        else:
            return False
        return True

    def _encode(self, slot: Slot, turn: Turn) -> bool:
        """Make the answer of the head of the queue; False where that failed or takes longer."""
        long_work = self._shared.long_work
        try:
            encoded = slot.encoded()
            reply = long_work.begin(encoded) if isinstance(encoded, Generator) else encoded
        except Exception as error:
            self._failed(slot, error)
            return False
        if isinstance(reply, Unfinished):
            self._answers.not_done_yet(slot)
            rest = long_work.finish(reply)
            turn.task_started()
            slot.waits_for = self._spawn(
                slot, self._run(slot, Deferred(rest, _as_it_is, None)), rest
            )
            return False
        self._answers.encoded(slot, reply)
        return True

    def _answer(self, slot: Slot) -> None:
        shared = self._shared
        self._last_activity = now = shared.clock.monotonic()
        shared.metrics.request_answered(slot.api.name, slot.reply_bytes, now - slot.received_at)
        self._answers.give_back(slot)
        if self._transport is not None:
            self._outbox.add(slot, self._transport)

    def _reserve(self, slot: Slot, wanted_bytes: int) -> int:
        """How much of `wanted_bytes` may be read for this answer; see `Request.reserve`."""
        granted = self.responses.grant(wanted_bytes, instead_of=slot.reserved_bytes)
        if not slot.is_done:
            self._answers.set_reserved(slot, granted)
        return granted

    # --- ending

    def _cut(self, reason: str, detail: str) -> None:
        """Close because of something the client (or a handler) did."""
        if self._is_closed:
            return
        self._shared.metrics.connection_cut(reason)
        self._shared.problems.connection_cut(self._client, reason, detail)
        self.close()

    def _abandon(self) -> None:
        """Nobody reads an answer any more: cancel what only waits, let the rest run its course."""
        self._is_closed = True
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._receiver.release()
        self.requests.close()
        self._partial_since = None
        self._outbox.clear()
        head = self._answers.head
        if head is None:
            return
        # A Fetch waits at the head alone; work in slices further back is cancelled in a turn.
        _cancel(head)
        self._go_on()

    def _drop_answers(self, turn: Turn) -> bool:
        """Forget the queue of a connection that ended; whether something is left of it."""
        while len(self._answers):
            if turn.is_over():
                return True
            slot = self._answers.drop()
            if slot.is_done or slot.request is not None:
                slot.request = None
                slot.is_done = True
                self._answers.give_back(slot)
            else:
                # What still runs gives back what it was charged when it is done.
                _cancel(slot)
        return False


def _cancel(slot: Slot) -> None:
    """Stop what the slot waits for, if that may be stopped."""
    if slot.waits_for is not None and not slot.is_done:
        slot.waits_for.cancel()


def _as_it_is(reply: Reply) -> Reply:
    return reply
