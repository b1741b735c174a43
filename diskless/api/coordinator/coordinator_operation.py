"""Serves an operation of the coordinators that this broker leads.

Each API of this kind decodes with its `Operation` (metadata/messages/codec.py), calls the broker's
`CoordinatorClient`, and encodes. What they share is here:

- The operation is a task of its own, which `RunningOperations` owns. TimeoutMs bounds how long its
  answer is waited for; the operation itself goes on, since a commit that was begun may be durable
  already. When the time is up, every entry says REQUEST_TIMED_OUT. At zero or less the operation is
  begun and not waited for.
- Tasks are made in the order in which requests arrive, so a connection's commits reach the
  coordinator in their order.
- Requests of very many entries are read, served and answered a part at a time.
- Bytes that are no request close the connection: there is no answer that would fit.
- Asks for CLUSTER_ACTION, as KIP-1164 has it, or for what an API says instead; who may not is told
  so in every entry.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Self, TypeVar, cast

import structlog

from diskless.api.access import Access, AllowedRows
from diskless.authorization import AclOperation
from diskless.loop.long_rows import as_list
from diskless.loop.long_work import PORTION_TOPICS, Steps, in_portions
from diskless.ports import ClientInfo
from diskless.server.registry import Api, Deferred, MustClose, Outcome, ReplySteps, Request
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.codec import Operation
from wal.errors import DisklessError, InvalidRequest

FIRST_OWN_KEY: Final = 10_000
"""API keys from here on are ours, and ApiVersions does not list them."""

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_Entry = TypeVar("_Entry")

Call = Callable[[_Asked, int], Coroutine[Any, Any, Sequence[_Answer]]]
"""Carries out a request; given its TimeoutMs too."""
Check = Callable[[Any], Any]
"""An entry as it is passed on, or a DisklessError about it alone."""
Refusal = Callable[[ClientInfo, Any], DisklessError | None]
"""Returns why a client may not ask this, or None if it may."""

_log = structlog.get_logger("diskless.coordinator")


class RunningOperations:
    """Owns operations that outlive the wait for them; a context manager.

    Leaving it cancels what still runs and sees it end. What an operation raises after nobody waits
    for it is logged unless it is a DisklessError, which its sender finds out by asking again.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, _Answer], name: str) -> "asyncio.Task[_Answer]":
        """Begin `work`; it goes on, waited for or not."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, DisklessError):
            _log.error("operation failed", operation=task.get_name(), exc_info=error)


def coordinator_api(
    operation: Operation[_Asked, _Answer],
    call: Call[_Asked, _Answer],
    running: RunningOperations,
    access: Access,
    *,
    refusal: Refusal | None = None,
) -> Api:
    """An API that answers with what `call` gives for a request and its TimeoutMs.

    `refusal` None: CLUSTER_ACTION is needed.
    """
    return client_api(operation, lambda _: call, running, access, refusal=refusal)


def client_api(
    operation: Operation[_Asked, _Answer],
    call_of: Callable[[ClientInfo], Call[_Asked, _Answer]],
    running: RunningOperations,
    access: Access,
    *,
    refusal: Refusal | None,
) -> Api:
    """The same where it matters who asks."""

    def handle(request: Request) -> Steps[Outcome]:
        try:
            asked, timeout_ms = yield from operation.decode_in_steps(request.body)
        except InvalidRequest as error:
            raise MustClose(str(error)) from error
        if isinstance(asked, list):
            asked = cast(_Asked, as_list(asked))

        def encode(answers: Sequence[_Answer]) -> ReplySteps:
            return [*(yield from operation.encode_in_steps(asked, answers))]

        def refuse(error: DisklessError) -> ReplySteps:
            return [*(yield from operation.encode_failure_in_steps(asked, error))]

        if refusal is None:
            refused = access.refused_cluster(request.client, AclOperation.CLUSTER_ACTION)
        else:
            refused = refusal(request.client, asked)
        if refused is not None:
            return (yield from refuse(refused))
        call = call_of(request.client)
        task = running.start(call(asked, timeout_ms), operation.name)
        return Deferred(answers_in_time(task, timeout_ms), encode, refuse)

    async def answers_in_time(
        task: "asyncio.Task[Sequence[_Answer]]", timeout_ms: int
    ) -> Sequence[_Answer]:
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000) as deadline:
                return await asyncio.shield(task)
        except TimeoutError:
            if not deadline.expired():
                raise
            text = f"{operation.name} took longer than {timeout_ms} ms"
            raise operation.unanswered(text) from None

    return Api(
        key=operation.key,
        name=operation.name,
        versions=range(1),
        flexible_from=0,
        handler=handle,
        is_advertised=operation.key < FIRST_OWN_KEY,
    )


def passed_on(
    operation: Operation[_Asked, _Answer],
    client: CoordinatorClient,
    *,
    check: Check | None = None,
    portion: int | None = PORTION_TOPICS,
) -> Call[_Asked, _Answer]:
    """`client` answers, a portion of very many entries at a time (None: all at once).

    `check` gives an entry as it is passed on; a DisklessError that it raises is the entry's answer.
    """

    async def call(asked: _Asked, timeout_ms: int) -> Sequence[_Answer]:
        async def answered(entries: Sequence[Any]) -> Sequence[_Answer]:
            share = operation.request.share(asked, entries)
            return await client.call(operation, share, timeout_ms=timeout_ms)

        async def checked(entries: Sequence[Any]) -> Sequence[_Answer]:
            assert check is not None
            return await _checked(operation, entries, check, answered)

        if portion is None:
            return await client.call(operation, asked, timeout_ms=timeout_ms)
        entries = operation.request.entries(asked)
        return await in_parts(operation, entries, answered if check is None else checked, portion)

    return call


async def in_parts(
    operation: Operation[_Asked, _Answer],
    rows: Sequence[_Entry],
    call: Callable[[Sequence[_Entry]], Awaitable[Sequence[_Answer]]],
    size: int,
) -> Sequence[_Answer]:
    """`await call(rows)`, of very many rows for some at a time.

    What such a call raises is then the answer to its rows alone: others are served all the same.
    """
    if len(rows) <= size:
        return await call(rows)

    async def answered(some: Sequence[_Entry]) -> Sequence[_Answer]:
        try:
            return await call(some)
        except DisklessError as error:
            return [operation.failed(error)] * len(some)

    return await in_portions(answered, rows, size)


async def _checked(
    operation: Operation[Any, _Answer],
    entries: Sequence[Any],
    check: Check,
    call: Callable[[Sequence[Any]], Awaitable[Sequence[_Answer]]],
) -> Sequence[_Answer]:
    """Answers to all entries; those that `check` raises a DisklessError about are not passed on."""
    refused: dict[int, DisklessError] = {}
    wanted = []
    for position, entry in enumerate(entries):
        try:
            wanted.append(check(entry))
        except DisklessError as error:
            refused[position] = error
    answers = await call(wanted) if wanted else ()
    rows = AllowedRows(entries, wanted, refused)
    return rows.merged(answers, lambda _, error: operation.failed(error))
