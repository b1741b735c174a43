"""The workers of a head: started, told the news, served, started again, and stopped.

    head ── birth (spawner) ──▶ worker 1..N
         ── line: news, stop ──▶
         ── accepted connections ──▶
         ◀── doors: connections for calls and clients ──

A worker that ends takes its connections with it and nothing else: what it had acknowledged is
committed, and what it had not is in its chunks, which its next life commits. It is started again
with a growing pause, for ever. What keeps the first life of a worker from starting ends the start
of the broker, once it was tried a few times: the processes of an earlier head may still be ending.

At a stop, workers end first, while the head still commits for them. Who does not end in time is
killed, and the next start recovers its chunks.

Failure case: the spawner is gone; no worker could be started again, and the broker ends.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from diskless.shared.shared_counts import SharedCounts
from diskless.shared.shared_descriptors import SharedDescriptors
from diskless.workers import line
from diskless.workers.birth_facts import BirthFacts
from diskless.workers.connections.assigner import Assigner
from diskless.workers.connections.balance import Load
from diskless.workers.doors import DoorKeeper, Note
from diskless.workers.head_news import HeadNews
from diskless.workers.line import Line
from diskless.workers.security.head_security import HeadSecurity
from diskless.workers.spawner import Spawner
from metadata.coordinator.metadata_partition import MetadataPartition
from wal.errors import DisklessError, OutOfBounds, StorageFailed

START_TIMEOUT_S: Final = 60.0
START_ATTEMPTS: Final = 5
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 10.0
STEADY_S: Final = 30.0
"""Who lived for so long is started again at once when it ends."""
PAGE_TIMEOUT_S: Final = 2.0
HEAD_LANE: Final = 0
LOOK_EVERY_S: Final = 1.0
"""At the loads."""

_ID: Final = struct.Struct(">Q")
_READ: Final = struct.Struct(">QIqI")
_ANSWER: Final = struct.Struct(">QB")
_SIZE: Final = struct.Struct(">I")
CORES: Final = struct.Struct(">d")
READ_WELL, READ_OUT_OF_BOUNDS, READ_FAILED = range(3)

log = structlog.get_logger(__name__)

Came = Callable[[Note, socket.socket], None]
FactsOf = Callable[[int, int], BirthFacts]
"""Given the number of a worker, and of its life."""


class _Life:
    """One life of a worker, as the head sees it."""

    def __init__(
        self,
        number: int,
        came: Came,
        partitions: Sequence[MetadataPartition],
        security: HeadSecurity,
        told: Callable[[int, Load], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        ours_line, line_end = socket.socketpair()
        ours_doors, doors_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.accepted: Final = socket.socketpair(type=socket.SOCK_SEQPACKET)
        """What leads to it, and the worker's end."""
        self._ends: Final = (line_end, doors_end)
        self.number: Final = number
        self.line: Final = Line(ours_line, self._received, self._lost)
        self._keeper = DoorKeeper(ours_doors, came)
        self._partitions = partitions
        self._security = security
        self._told = told
        self._reads: set[asyncio.Task[None]] = set()
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._page_id = 0
        self.pid = 0
        self.ready: asyncio.Future[str | None] = loop.create_future()
        """None: it serves; else why it does not."""
        self.ended: asyncio.Future[None] = loop.create_future()
        self.began_at: Final = loop.time()

    def send(self, message: bytes) -> None:
        self.line.send(message)

    @property
    def descriptors(self) -> Sequence[int]:
        """The ends that the worker is born with."""
        return [end.fileno() for end in (*self._ends, self.accepted[1])]

    def born(self) -> None:
        """The worker has its ends now."""
        for end in self._ends:
            end.close()

    def stop(self) -> None:
        self.send(line.frame(line.STOP))

    def kill(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def page(self) -> bytes | None:
        """Its metrics; None: it did not say in time."""
        if self.ended.done():
            return None
        self._page_id += 1
        page: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pages[self._page_id] = page
        self.send(line.frame(line.PAGE_WANTED, _ID.pack(self._page_id)))
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                return await page
        except TimeoutError:
            return None
        finally:
            self._pages.pop(self._page_id, None)

    def _received(self, kind: int, content: memoryview) -> None:
        if kind == line.HELLO:
            (self.pid,) = _ID.unpack(content)
        elif kind == line.READY and not self.ready.done():
            self.ready.set_result(None)
        elif kind == line.FAILED and not self.ready.done():
            self.ready.set_result(str(content, "utf-8"))
        elif kind == line.LOAD:
            self._told(self.number, Load.decode(content))
        elif kind == line.SYNC:
            self.send(line.frame(line.SYNCED, bytes(content)))
        elif kind == line.READ_LOG:
            read = asyncio.get_running_loop().create_task(self._read_log(bytes(content)))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
        elif kind == line.PAGE:
            (page_id,) = _ID.unpack_from(content)
            page = self._pages.get(page_id)
            if page is not None and not page.done():
                page.set_result(bytes(content[_ID.size :]))
        else:
            answer = self._security.answer(kind, content)
            if answer is not None:
                self.send(answer)

    async def _read_log(self, content: bytes) -> None:
        read_id, index, offset, max_bytes = _READ.unpack(content)
        status, parts = READ_WELL, list[bytes]()
        try:
            for batch in await self._partitions[index].log.read_encoded(offset, max_bytes):
                parts += (_SIZE.pack(len(batch)), bytes(batch))
        except OutOfBounds as error:
            status, parts = READ_OUT_OF_BOUNDS, [str(error).encode()]
        except DisklessError as error:
            status, parts = READ_FAILED, [str(error).encode()]
        self.send(line.frame(line.LOG_READ, _ANSWER.pack(read_id, status) + b"".join(parts)))

    def _lost(self) -> None:
        """Its end of the line is closed, by itself or by its death; or it takes no news."""
        if self.ended.done():
            return
        self._keeper.close()
        self.kill()
        for read in self._reads:
            read.cancel()
        for page in self._pages.values():
            if not page.done():
                page.cancel()
        if not self.ready.done():
            self.ready.set_result("it ended before it was ready")
        self.ended.set_result(None)

    def close(self) -> None:
        """The head has no more to do with it."""
        self.line.close()
        for end in self.accepted:
            end.close()
        self._lost()


class WorkerGroup:
    """All workers of a head. `start` them, `keep` them until cancelled, `stop` them."""

    def __init__(
        self,
        count: int,
        spawner: Spawner,
        *,
        facts_of: FactsOf,
        assigner: Assigner,
        news: HeadNews,
        came: Came,
        partitions: Sequence[MetadataPartition],
        security: HeadSecurity,
        shared: SharedDescriptors,
        stop_timeout_s: float,
    ) -> None:
        """`came` is given the connections that workers open; `shared` is closed by the group."""
        self.count: Final = count
        self._spawner = spawner
        self._facts_of = facts_of
        self._assigner = assigner
        self._news = news
        self._came = came
        self._partitions = partitions
        self._security = security
        self._shared: Final = shared
        self._stop_timeout_s = stop_timeout_s
        self._lives: dict[int, _Life] = {}
        self._lives_begun = 0
        self._is_stopping = False
        self.restarts = 0
        self._names: Final = SharedCounts(shared.names, HEAD_LANE)

    async def start(self) -> None:
        """Returns when all of them serve. Raises StorageFailed."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, self.count + 1):
                tasks.create_task(self._first_life(number))

    async def keep(self) -> None:
        """Start again who ends, until cancelled. Raises StorageFailed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_loads(), name="worker-loads")
            for number in range(1, self.count + 1):
                tasks.create_task(self._keep(number), name=f"worker-{number}")

    async def stop(self) -> None:
        """End all; returns when none is left."""
        self._is_stopping = True
        for life in self._lives.values():
            life.stop()
        ended = [life.ended for life in self._lives.values()]
        if ended:
            _, late = await asyncio.wait(ended, timeout=self._stop_timeout_s)
            if late:
                log.warning("workers killed that did not stop in time", count=len(late))
        for life in self._lives.values():
            life.close()
        self._shared.close()

    def look_at_keys(self) -> None:
        """The files of keys and certificates may be others than before."""
        for life in self._lives.values():
            life.send(line.frame(line.LOOK_AT_KEYS))

    async def pages(self) -> Mapping[str, bytes | None]:
        """The metrics of all that live, by names that are never used again."""
        lives = [life for life in self._lives.values() if life.ready.done()]
        pages = await asyncio.gather(*(life.page() for life in lives))
        return {
            f"worker-{life.number}-{life.pid}": page
            for life, page in zip(lives, pages, strict=True)
            if page is not None or not life.ended.done()
        }

    async def _first_life(self, number: int) -> None:
        for attempt in range(START_ATTEMPTS):
            problem = await self._begin(number)
            if problem is None:
                return
            await asyncio.sleep(RETRY_FIRST_S * 2**attempt)
        raise StorageFailed(f"worker {number} does not start: {problem}")

    async def _begin(self, number: int) -> str | None:
        """A new life; returns when it serves, or why it does not. Raises StorageFailed."""
        await self._news.prepare()
        life = _Life(number, self._came, self._partitions, self._security, self._assigner.told)
        self._lives_begun += 1
        self._spawner.spawn(
            self._facts_of(number, self._lives_begun).encode(),
            [*self._shared, *life.descriptors],
        )
        life.born()
        self._lives[number] = life
        self._news.join(life.send)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                problem = await asyncio.shield(life.ready)
        except TimeoutError:
            problem = f"it is not ready after {START_TIMEOUT_S:.0f} s"
        if problem is not None:
            self._news.leave(life.send)
            life.close()
        else:
            self._assigner.began(number, *life.accepted)
        return problem

    async def _look_at_loads(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            wanted = self._assigner.look()
            if wanted is not None:
                content = CORES.pack(wanted.difference_cores)
                self._lives[wanted.number].send(line.frame(line.GIVE_UP, content))

    async def _keep(self, number: int) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            life = self._lives[number]
            await asyncio.shield(life.ended)
            self._news.leave(life.send)
            # Its connections are no longer there; those that it had not taken go to others.
            self._names.forget(number)
            self._assigner.gone(number)
            life.close()
            if self._is_stopping:
                return
            self.restarts += 1
            lived_s = asyncio.get_running_loop().time() - life.began_at
            pause_s = RETRY_FIRST_S if lived_s > STEADY_S else min(2 * pause_s, RETRY_MAX_S)
            log.error("worker ended, starting it again", worker=number, pid=life.pid)
            await asyncio.sleep(pause_s)
            problem = await self._begin(number)
            if problem is not None:
                log.error("worker does not start", worker=number, problem=problem)
