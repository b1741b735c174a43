"""A broker that knows the two private segment operations only, over real sockets and handlers.

The coordinator behind it is a dictionary with the coordinator's rules: plans stay until committed,
a segment is committed once, and again with equal content is a duplicate.
"""

import asyncio
import itertools
import struct
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from diskless.api.access import Access
from diskless.api.coordinator.segments import commit_segments_handler, plan_segments_handler
from diskless.authorization import AllowEverything
from diskless.ports import ClientInfo
from metadata.messages.segments import COMMIT_SEGMENTS_KEY, PLAN_SEGMENTS_KEY
from metadata.operations import RolledSegment, SegmentCommit, SegmentPlan
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, Rejected


class FakeCoordinator:
    """Plans to give out, segments that were committed."""

    def __init__(
        self,
        plans: Iterable[SegmentPlan],
        partial: Iterable[SegmentPlan] = (),
        outstanding_max: int = 1000,
    ) -> None:
        self.plans = {plan.object_key: plan for plan in plans}
        self.partial = iter(partial)
        """Planned only when rests are asked for, each when there is room; may never end."""
        self._outstanding_max = outstanding_max
        self.committed: dict[ObjectKey, RolledSegment] = {}
        self.commit_calls = 0
        self.duplicates = 0
        self.refused: dict[ObjectKey, DisklessError] = {}
        self.raised: list[DisklessError] = []
        """Errors for the next calls, whatever they are."""

    async def plan_segments(self, *, include_partial: bool = False) -> Sequence[SegmentPlan]:
        self._raise()
        if include_partial:
            room = self._outstanding_max - len(self.plans)
            self.plans |= {plan.object_key: plan for plan in itertools.islice(self.partial, room)}
        return list(self.plans.values())

    async def commit_segments(self, segments: Sequence[RolledSegment]) -> Sequence[SegmentCommit]:
        self._raise()
        self.commit_calls += 1
        return [self._commit(segment) for segment in segments]

    def _commit(self, segment: RolledSegment) -> SegmentCommit:
        if error := self.refused.get(segment.object_key):
            self.plans.pop(segment.object_key)
            return SegmentCommit(error=error)
        known = self.committed.get(segment.object_key)
        if known is not None:
            self.duplicates += known == segment
            return SegmentCommit(
                is_duplicate=known == segment,
                error=None if known == segment else Rejected("other content"),
            )
        plan = self.plans.pop(segment.object_key, None)
        if plan is None or (plan.base_offset, plan.last_offset) != (
            segment.base_offset,
            segment.last_offset,
        ):
            return SegmentCommit(error=Rejected("not planned"))
        self.committed[segment.object_key] = segment
        return SegmentCommit()

    def _raise(self) -> None:
        if self.raised:
            raise self.raised.pop(0)


class FakeBroker:
    """Serves a coordinator on a port of its own, from a thread, inside a `with` block."""

    def __init__(self, coordinator: FakeCoordinator, object_store_url: str) -> None:
        access = Access(AllowEverything())
        self._handlers = {
            PLAN_SEGMENTS_KEY: plan_segments_handler(coordinator, object_store_url, access),
            COMMIT_SEGMENTS_KEY: commit_segments_handler(coordinator, access),
        }
        self.requests: list[int] = []
        self.close_instead_of_answering = 0
        """So many answers are not sent; the connection ends instead."""
        self.bootstrap = ""
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._answer(reader, writer)
            except (asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.bootstrap = f"{host}:{port}"
        self._is_up.set()
        await self._stop.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(length)
            key, version, correlation_id, client_length = struct.unpack_from(">hhih", frame)
            assert (version, frame[10 : 10 + client_length]) == (0, b"diskless-tier")
            self.requests.append(key)
            client = ClientInfo(1, "diskless-tier", "127.0.0.1")
            answer = await self._handlers[key](frame[10 + client_length :], client)
            if self.close_instead_of_answering:
                self.close_instead_of_answering -= 1
                return
            writer.write(struct.pack(">ii", len(answer) + 4, correlation_id) + answer)
            await writer.drain()
