"""The sink, with the durable work of a broker and nothing else before each acknowledgement.

What a request brings is received into memory that a disk takes as it is. Requests that are there
together are one object: their bytes are written to a chunk file, over what it held; to a new file
past the page cache, which is synced, linked to its name and whose directory is synced; then a
record of them is appended to a log, which is synced; then all are answered. Nothing is decoded,
checked, decided or remembered: no batch, no offset, no SQLite.

So it says what acknowledgements behind a stored object and a synced commit leave of a client, on
one machine and by one event loop with threads. It seals as a broker does: at once when nothing is
under way and no request is half received, else when there are CHUNK_BYTES; OBJECTS_MAX are under
way at a time, and they are logged in the order in which they were sealed.

    python -m bench.speed.durable_sink TOPIC PARTITIONS DIRECTORY

prints its port, then serves until it is killed.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from bench.speed.sink import Sink, listen
from wal.private_copy import BLOCK_BYTES, aligned_buffer

CHUNK_BYTES: Final = 8 << 20
OBJECTS_MAX: Final = 4
CHUNK_FILES: Final = 32
"""Written over in turn: their pages are in the page cache."""
_RECORD: Final = bytes(100)


class Received(NamedTuple):
    """A Produce request that is whole, and who waits for its answer."""

    frame: memoryview
    """Starts at a block; behind its end is memory up to the next one."""
    length_bytes: int
    sink: "DurableSink"
    answer: bytes


class Durability:
    """Makes requests durable, one object for those that are there together; on the event loop."""

    def __init__(self, directory: Path, tasks: asyncio.TaskGroup) -> None:
        """One of `tasks` that fails ends the server."""
        self._tasks = tasks
        for name in ("chunks", "drafts", "objects"):
            (directory / name).mkdir(parents=True)
        self._directory = directory
        self._log = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        self._logged_bytes = 0
        self._threads = ThreadPoolExecutor(OBJECTS_MAX)
        self._log_thread = ThreadPoolExecutor(1)
        self._queue: list[Received] = []
        self._queued_bytes = 0
        self._sealed = 0
        self._under_way: deque[asyncio.Task[None]] = deque()
        self._free: dict[int, list[memoryview]] = {}
        self.half_received = 0
        """Requests that have begun to arrive."""

    def memory(self, length_bytes: int) -> memoryview:
        """For a frame of this length, in whole blocks; it was used before if there is some."""
        size = -(-length_bytes // BLOCK_BYTES) * BLOCK_BYTES
        free = self._free.setdefault(size, [])
        return free.pop() if free else aligned_buffer(size)

    def arrived(self, request: Received) -> None:
        self._queue.append(request)
        self._queued_bytes += request.length_bytes
        self.seal_if_due()

    def seal_if_due(self) -> None:
        is_full = self._queued_bytes >= CHUNK_BYTES
        is_whole = not self._under_way and not self.half_received
        if not self._queue or len(self._under_way) == OBJECTS_MAX or not (is_full or is_whole):
            return
        requests, self._queue, self._queued_bytes = self._queue, [], 0
        before = self._under_way[-1] if self._under_way else None
        number, self._sealed = self._sealed, self._sealed + 1
        self._under_way.append(
            self._tasks.create_task(self._make_durable(number, requests, before))
        )

    async def _make_durable(
        self, number: int, requests: Sequence[Received], before: "asyncio.Task[None] | None"
    ) -> None:
        loop = asyncio.get_running_loop()
        frames = [request.frame for request in requests]
        await loop.run_in_executor(self._threads, self._store, number, frames)
        if before is not None:
            await before
        await loop.run_in_executor(self._log_thread, self._append, len(requests))
        for request in requests:
            request.sink.write(request.answer)
            self._free[len(request.frame)].append(request.frame)
        self._under_way.popleft()
        self.seal_if_due()

    def _store(self, number: int, frames: Sequence[memoryview]) -> None:
        chunk = self._directory / "chunks" / str(number % CHUNK_FILES)
        to = os.open(chunk, os.O_RDWR | os.O_CREAT)
        os.pwritev(to, frames, 0)
        os.close(to)
        draft = self._directory / "drafts" / str(number)
        to = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        os.writev(to, frames)
        os.fdatasync(to)
        os.close(to)
        os.link(draft, self._directory / "objects" / str(number))
        parent = os.open(self._directory / "objects", os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        os.unlink(draft)

    def _append(self, requests: int) -> None:
        record = _RECORD * requests
        os.pwritev(self._log, [record], self._logged_bytes)
        os.fdatasync(self._log)
        self._logged_bytes += len(record)


class DurableSink(Sink):
    """One connection, whose requests are received into memory of their own."""

    def __init__(self, topic: bytes, partitions: int, port: int, durability: Durability) -> None:
        super().__init__(topic, partitions, port, 0)
        self._durability = durability
        self._length = bytearray()
        self._frame: memoryview | None = None
        self._filled = self._length_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._buffer[: 4 - len(self._length)]
        return self._frame[self._filled : self._length_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is None:
            self._length += self._buffer[:nbytes]
            if len(self._length) == 4:
                self._length_bytes = int.from_bytes(self._length, "big")
                self._length.clear()
                self._frame = self._durability.memory(self._length_bytes)
                self._filled = 0
                self._durability.half_received += 1
            return
        self._filled += nbytes
        if self._filled == self._length_bytes:
            frame, self._frame = self._frame, None
            self._durability.half_received -= 1
            is_produce, answer = self.answer_to(bytes(frame[: min(self._length_bytes, 256)]))
            if is_produce:
                received = Received(frame, self._length_bytes, self, answer)
                self._durability.arrived(received)
            else:
                self.write(answer)


async def serve(topic: str, partitions: int, directory: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        durability = Durability(Path(directory), tasks)
        await listen(lambda port: DurableSink(topic.encode(), partitions, port, durability))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
