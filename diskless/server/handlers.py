"""Runs the handlers of one connection; what they answer goes to its queue of responses.

A handler says when its answer comes (`diskless.server.registry`): now, through the callback of a
future, or from a task of the server's group. No socket is known here.

A handler whose work takes longer than its first slice (`diskless.loop.long_work`) goes on slice by
slice until it has begun what it was called for. Nothing else that arrives on its connection begins
meanwhile (`beginning`), so that requests take effect in the order of their arrival, whatever their
size.
An answer that takes long to encode is encoded slice by slice too, when it is the next to be sent.

Invariants: every slot is answered, settled, or failed, once; no exception of a handler goes
further than `failed`; a client that goes away cancels its waiting Fetch and work in slices, never
an append, whole or in slices.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from diskless.loop.long_work import LongWork, Unfinished
from diskless.loop.turns import Turn
from diskless.quotas.request_meter import RequestMeter
from diskless.server.registry import Deferred, Outcome, Reply, Request
from diskless.server.responses import ResponseQueue, Slot, refusal
from wal.chunks.sealed_chunk import BATCH_OVERHEAD_BYTES
from wal.errors import DisklessError


@dataclass(slots=True, kw_only=True)
class HandlerTasks:
    """What runs the handlers of all connections of a server."""

    group: asyncio.TaskGroup
    long_work: LongWork
    running: set[asyncio.Task[None]] = field(default_factory=set)
    """Those of `group` that run handlers."""


class Handlers:
    """The handlers of one connection."""

    def __init__(
        self,
        tasks: HandlerTasks,
        connection_id: int,
        responses: ResponseQueue,
        *,
        go_on: Callable[[], None],
        failed: Callable[[Slot, Exception | None], None],
        meter: RequestMeter,
    ) -> None:
        """`go_on` is called when a handler in slices has begun what it was called for.

        `meter` is told what requests take, and what they change. `failed` is given what a handler
        raised, None where it was cancelled, and closes the queue.
        """
        self._tasks = tasks
        self._long_work = tasks.long_work
        self._connection_id = connection_id
        self._responses = responses
        self._go_on = go_on
        self._failed = failed
        self._meter = meter
        self.beginning = 0
        """Handlers that are still at work in slices; nothing else is started meanwhile."""

    def start(self, slot: Slot, request: Request, turn: Turn) -> None:
        """Call the handler; its answer comes now, through a future's callback, or from a task."""
        try:
            called = slot.api.handler(request)
            outcome = self._long_work.begin(called) if isinstance(called, Generator) else called
        except Exception as error:
            self._fail(slot, error)
            return
        if isinstance(outcome, Unfinished):
            self.beginning += 1
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

    def encode(self, slot: Slot, turn: Turn) -> bool:
        """Make the answer of the head of the queue; False where that failed or takes longer."""
        try:
            encoded = slot.encoded()
            reply = self._long_work.begin(encoded) if isinstance(encoded, Generator) else encoded
        except Exception as error:
            self._fail(slot, error)
            return False
        if isinstance(reply, Unfinished):
            self._responses.not_done_yet(slot)
            rest = self._long_work.finish(reply, self._meter)
            turn.task_started()
            run = self._run(slot, Deferred(rest, _as_it_is, None))
            slot.waits_for = self._spawn(slot, run, rest)
            return False
        self._responses.encoded(slot, reply)
        return True

    async def _begin_in_slices(
        self, slot: Slot, request: Request, unfinished: Unfinished[Outcome]
    ) -> None:
        try:
            outcome = await self._long_work.finish(unfinished, self._meter)
        except Exception as error:
            self._fail(slot, error)
            return
        finally:
            self.beginning -= 1
            slot.waits_for = None
        self._begun(slot, request, outcome)
        self._go_on()

    def _begun(self, slot: Slot, request: Request, outcome: Outcome) -> bool:
        """See to the answer that the handler promised; whether that takes a task."""
        if request.changes:
            self._meter.changed(request.changes, request.changed_partitions)
        if request.batch_count:
            self._responses.charge(slot, request.batch_count * BATCH_OVERHEAD_BYTES)
        if outcome is None or isinstance(outcome, list):
            self._responses.answered(slot, outcome)
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
        name = f"{slot.api.name}-{self._connection_id}"
        task = self._tasks.group.create_task(work, name=name)
        self._tasks.running.add(task)
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
                encoded = await self._long_work.run(encoded, self._meter)
        except Exception as error:
            self._fail(slot, error)
        else:
            self._responses.answered(slot, encoded)

    def _task_done(self, slot: Slot, awaitable: object, task: "asyncio.Task[None]") -> None:
        self._tasks.running.discard(task)
        if task.cancelled():
            # A task that is cancelled before its first step never touches what it was made for.
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            self._fail(slot, None)

    def _future_done(self, slot: Slot, deferred: Deferred, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self._fail(slot, None)
            return
        # Asked for also where nobody waits for it any more: asyncio complains otherwise.
        future.exception()
        self._responses.settled(slot, deferred, future)

    def _fail(self, slot: Slot, error: Exception | None) -> None:
        self._failed(slot, error)
        self._responses.give_up(slot)


def _as_it_is(reply: Reply) -> Reply:
    return reply
