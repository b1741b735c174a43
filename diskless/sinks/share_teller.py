"""Tells other coordinators their shares of batches that a sink's home has decided, to the end.

    Sinks of the home ── ShareTeller ── CommitSharesHere ──▶ each coordinator with a share
            ▲                 │
            └── completed ◀───┘ all have answered

It is a worker of a metadata partition's leader, as that of transactional ids is
(diskless/transactions/transaction_coordinator.py): what is decided is told until everybody has
answered, whoever asked for it and whether anybody waits. A new leader goes on with what its log has
decided and not completed. A coordinator that does not answer holds up the batches that it has
shares of, and no others.

Failure cases: whatever goes wrong is told again, with back-off, until this broker leads no more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import structlog

from metadata.sink_operations import (
    CommitShare,
    OpenBatch,
    SinkCommit,
    SinkRange,
    StoredShare,
)
from wal.clock import Sleep
from wal.errors import DisklessError, NotCoordinator, OutcomeUnknown, Retriable

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0

TellShare = Callable[[int, Sequence[CommitShare]], Awaitable[Sequence[SinkCommit]]]
"""Tells one coordinator. Raises as calls of coordinators do."""

log = structlog.get_logger(__name__)


class SinkStore(Protocol):
    """`metadata.coordinator.sinks.Sinks`: decides, and writes down."""

    def subscribe(self, listener: Callable[[OpenBatch], None]) -> None: ...

    def open_batches(self) -> Sequence[OpenBatch]: ...

    async def complete(
        self, sink_id: str, decided_at_ms: int, ranges: Sequence[SinkRange]
    ) -> None: ...


class ShareTeller:
    """Of the metadata partition `home`, whose sinks `store` has; run `run` while it is led."""

    def __init__(
        self, store: SinkStore, home: int, tell: TellShare, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._store = store
        self._home = home
        self._tell = tell
        self._sleep = sleep
        self._tasks: asyncio.TaskGroup | None = None
        self._telling: set[str] = set()

    async def run(self) -> None:
        """Tell what is decided, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._store.subscribe(self._see_to_it)
                for opened in self._store.open_batches():
                    self._see_to_it(opened)
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    def _see_to_it(self, opened: OpenBatch) -> None:
        """Tell it in a task; a sink has one batch open at most."""
        sink_id = opened.sink.sink_id
        if self._tasks is not None and sink_id not in self._telling:
            self._telling.add(sink_id)
            telling = self._tasks.create_task(self._bring_to_an_end(opened), name=f"sink-{sink_id}")
            telling.add_done_callback(lambda _: self._telling.discard(sink_id))

    async def _bring_to_an_end(self, opened: OpenBatch) -> None:
        async with asyncio.TaskGroup() as tasks:
            answers = [
                tasks.create_task(self._until_committed(opened, share)) for share in opened.shares
            ]
        ranges = [item for answer in answers for item in answer.result()]
        sink = opened.sink
        while True:
            try:
                await self._store.complete(sink.sink_id, sink.committed_at_ms, ranges)
                return
            except NotCoordinator:
                return  # the next leader tells it again
            except (Retriable, OutcomeUnknown) as error:
                log.warning("a batch was not completed", sink_id=sink.sink_id, error=str(error))
            await self._sleep(_RETRY_S)

    async def _until_committed(self, opened: OpenBatch, share: StoredShare) -> Sequence[SinkRange]:
        sink = opened.sink
        told = CommitShare(
            self._home,
            sink.sink_id,
            sink.principal,
            sink.batch_id,
            sink.digest,
            sink.committed_at_ms,
            share.files,
        )
        pause_s = _RETRY_S
        while True:
            error: DisklessError | None
            try:
                (answer,) = await self._tell(share.coordinator, [told])
                error = answer.error
            except DisklessError as raised:
                error = raised
            if error is None:
                return answer.ranges
            if pause_s == _RETRY_S:
                log.warning(
                    "a share of a batch was not committed, telling it again and again",
                    coordinator=share.coordinator,
                    sink_id=sink.sink_id,
                    batch_id=sink.batch_id,
                    error=str(error),
                )
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)
