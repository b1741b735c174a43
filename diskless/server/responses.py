"""The responses of one connection: a queue in the order of the requests, without a socket.

Every request has a *slot* from its arrival until its answer is handed to the socket. A slot is done
when its answer is there, or what the answer is made of: that is encoded when the slot has reached
the head of the queue, which is the only place that answers leave from. Small answers are collected
and leave together, in one write (`Outbox`).

A queue that is closed belongs to a client that is gone. Whatever is answered from then on gives
back what it holds, at once; the slots in the queue are dropped in turns of the event loop.

Invariants: answers are taken in the order in which slots were added; what a slot was charged and
has reserved goes back once, when it is taken, dropped or given up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps
from diskless.loop.turns import Turn
from diskless.ports import Buffer
from diskless.protocol.header import response_start
from diskless.protocol.throttle_time import with_throttle_time
from diskless.protocol.wire import ProtocolError
from diskless.server.registry import Api, Deferred, MustClose, Reply, Request
from diskless.server.request_budget import REQUEST_COST_BYTES, RequestAccount
from diskless.server.response_budget import ResponseAccount
from wal.errors import DisklessError

_JOINED_BYTES_MAX: Final = 16 << 10
"""Answers up to this size are joined: one small copy is cheaper than a vectored write."""


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one request in the order of answers."""

    api: Api
    version: int
    correlation_id: int
    received_at: float
    charged_bytes: int = 0
    """Counted in the connection's account of requests until this slot is done with."""
    reserved_bytes: int = 0
    """This slot's part of what the connection's account of answers has reserved."""
    request: Request | None = None
    """Kept only while a request waits for its turn to start."""
    wake: EarlyEnd = field(default_factory=EarlyEnd)
    waits_for: asyncio.Future[Any] | None = None
    """What to cancel when the client goes; None where nothing may be cancelled."""
    is_done: bool = False
    outcome: tuple[Deferred, asyncio.Future[Any]] | None = None
    """Of a slot that is done and not encoded: the future is done too."""
    reply: Reply = None
    reply_bytes: int = 0

    def encoded(self) -> Reply | Steps[Reply]:
        """The answer of a slot with an `outcome`, or the work of encoding it.

        Raises what the handler, or the encoding of its result, failed with.
        """
        assert self.outcome is not None
        deferred, future = self.outcome
        try:
            return deferred.encode(future.result())
        except DisklessError as error:
            return refusal(deferred, error)

    def tell_throttled(self, throttle_ms: int) -> None:
        """Have the answer say how long its client has to be quiet, where it can say so."""
        if self.reply:
            api, flexible = self.api, self.api.is_flexible(self.version)
            self.reply = with_throttle_time(
                api.key, self.version, self.reply, throttle_ms, flexible=flexible
            )

    def cancel(self) -> None:
        """Stop what the slot waits for, if that may be stopped."""
        if self.waits_for is not None and not self.is_done:
            self.waits_for.cancel()


class ResponseQueue:
    """The slots of one connection, and what they count as."""

    def __init__(
        self,
        requests: RequestAccount,
        responses: ResponseAccount,
        head_is_done: Callable[[], None],
    ) -> None:
        """`head_is_done` is called when the answer comes that is the next to be sent."""
        self._requests = requests
        self._responses = responses
        self._head_is_done = head_is_done
        self._slots: deque[Slot] = deque()
        self.is_closed = False
        """Nobody waits for an answer any more."""
        self.done = 0
        """Slots whose answers are there."""
        self.ready_bytes = 0
        """Answers that are there and wait for others before them."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def head(self) -> Slot | None:
        return self._slots[0] if self._slots else None

    # --- what slots hold

    def add(self, slot: Slot, charged_bytes: int) -> None:
        """Queue a slot that keeps `charged_bytes` in memory."""
        self._slots.append(slot)
        self.charge(slot, charged_bytes)

    def charge(self, slot: Slot, charged_bytes: int) -> None:
        """The slot keeps `charged_bytes` more."""
        slot.charged_bytes += charged_bytes
        self._requests.charge(charged_bytes)

    def reserve(self, slot: Slot, wanted_bytes: int) -> int:
        """Returns how much of `wanted_bytes` may be read for this answer; see `Request.reserve`."""
        granted = self._responses.grant(wanted_bytes, instead_of=slot.reserved_bytes)
        if not slot.is_done:
            self._set_reserved(slot, granted)
        return granted

    def _set_reserved(self, slot: Slot, count: int) -> None:
        self._responses.reserve(count - slot.reserved_bytes)
        slot.reserved_bytes = count

    def _give_back(self, slot: Slot) -> None:
        if slot.reserved_bytes:
            self._set_reserved(slot, 0)
        if slot.charged_bytes:
            charged, slot.charged_bytes = slot.charged_bytes, 0
            self._requests.answered(charged)

    # --- answers come

    def answered(self, slot: Slot, reply: Reply) -> None:
        """The answer of `slot` is there."""
        if not self.give_up(slot):
            self.encoded(slot, reply)
            self._set_reserved(slot, slot.reply_bytes)
            self._done(slot)

    def settled(self, slot: Slot, deferred: Deferred, future: "asyncio.Future[Any]") -> None:
        """The result for the answer of `slot` is there."""
        if not self.give_up(slot):
            slot.outcome = deferred, future
            self._done(slot)

    def give_up(self, slot: Slot) -> bool:
        """Whether nobody waits for this answer any more; what it holds is given back then."""
        if self.is_closed and not slot.is_done:
            slot.is_done = True
            self._give_back(slot)
        return self.is_closed

    def encoded(self, slot: Slot, reply: Reply) -> None:
        """`reply` is the answer of `slot`."""
        slot.outcome = None
        slot.reply = reply
        slot.reply_bytes = sum(map(len, reply)) if reply is not None else 0
        self.ready_bytes += slot.reply_bytes

    def not_done_yet(self, slot: Slot) -> None:
        """The result for the answer of `slot` is there, but takes longer to encode."""
        slot.outcome = None
        slot.is_done = False
        self.done -= 1

    def _done(self, slot: Slot) -> None:
        slot.is_done = True
        self.done += 1
        head = self._slots[0]
        if head is slot:
            self._head_is_done()
        elif head.api.starts_in_turn:
            head.wake.set()

    # --- answers leave

    def take(self) -> Slot:
        """Take the head, which is done, off the queue."""
        slot = self._slots.popleft()
        self.done -= 1
        self.ready_bytes -= slot.reply_bytes
        self._requests.moved_bytes += slot.reply_bytes + REQUEST_COST_BYTES
        self._give_back(slot)
        return slot

    def close(self) -> None:
        """The client is gone: cancel what only waits, let the rest run its course."""
        self.is_closed = True
        if self._slots:
            # A Fetch waits at the head alone; work in slices further back is cancelled by `drop`.
            self._slots[0].cancel()

    def drop(self, turn: Turn) -> bool:
        """Forget the slots of a closed queue; whether something is left of it."""
        while self._slots:
            if turn.is_over():
                return True
            slot = self._slots.popleft()
            if slot.is_done or slot.request is not None:
                slot.request = None
                slot.is_done = True
                self._give_back(slot)
            else:
                # What still runs gives back what it was charged when it is done.
                slot.cancel()
        return False


class Outbox:
    """Collects answers, and hands them to the socket."""

    __slots__ = ("_buffers", "_size_bytes", "_transport")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._buffers: list[Buffer] = []
        self._size_bytes = 0

    def add(self, slot: Slot) -> None:
        """Add the answer of `slot` with its header; what is much leaves at once."""
        if slot.reply is None:
            return
        api = slot.api
        start = response_start(
            slot.correlation_id,
            slot.reply_bytes,
            flexible=api.has_flexible_response_header and api.is_flexible(slot.version),
        )
        self._buffers.append(start)
        self._buffers += slot.reply
        self._size_bytes += len(start) + slot.reply_bytes
        if self._size_bytes > _JOINED_BYTES_MAX:
            self.send()

    def send(self) -> None:
        """Hand over what was collected."""
        if not self._buffers:
            return
        buffers, size_bytes = self._buffers, self._size_bytes
        self.clear()
        if size_bytes <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def clear(self) -> None:
        self._buffers = []
        self._size_bytes = 0


def refusal(deferred: Deferred, error: DisklessError) -> Reply | Steps[Reply]:
    """Say it in the API's own words; raise what cannot be said."""
    if deferred.refuse is None or isinstance(error, ProtocolError | MustClose):
        raise error
    return deferred.refuse(error)
