"""The worker's end of the line: takes news into what is known, and asks the head small things.

Invariant: what was asked is answered in any order, and given up only with the worker itself.

Failure cases:

- The head is gone. A worker must not answer anybody when another head may have taken over. The
  kernel closes what a process had when it dies; a thread waits for just that, and ends the worker
  at once, whatever its event loop is doing (`end_with`): nothing is finished, nobody is told, and
  the chunks are recovered by the next head's worker.
- The head is there and silent: it was stopped, or something holds its event loop. The worker could
  go on answering Fetch from what it knows, and its consumers would stay, and hear of nothing new,
  while the other brokers go on. So it ends as well (`end_in_silence`), and they look elsewhere.
"""

import asyncio
import os
import select
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from diskless.workers import line as messages
from diskless.workers.connections.balance import Load
from diskless.workers.group import (
    CORES,
    READ_OUT_OF_BOUNDS,
    READ_WELL,
)
from diskless.workers.known import Known
from diskless.workers.line import Line, frame
from diskless.workers.news import (
    ClusterNews,
    TopicNews,
    decode_ends,
    decode_logs,
    decode_quotas,
)
from diskless.workers.security.head_security import decode_delay, encode_failure
from diskless.workers.security.known_rights import KnownRights
from diskless.workers.security.security_news import RuleNews, SecretNews, decode_users
from wal.errors import OutOfBounds, StorageFailed

_ID: Final = struct.Struct(">Q")
_READ: Final = struct.Struct(">QIqI")
_ANSWER: Final = struct.Struct(">QB")
_SIZE: Final = struct.Struct(">I")


HEAD_LOST: Final = 86
HEAD_SILENT: Final = 87
"""Exit statuses."""
_ASK_EVERY_S: Final = 1.0

log = structlog.get_logger(__name__)


def end_with(head: socket.socket, end: Callable[[int], object] = os._exit) -> None:
    """Call `end` as soon as the other end of `head` is closed."""

    def wait() -> None:
        poll = select.poll()
        # Only hanging up is waited for, and that is always told.
        poll.register(head.fileno(), 0)
        poll.poll()
        end(HEAD_LOST)

    threading.Thread(target=wait, name="life-line", daemon=True).start()


class HeadLine:
    """On the event loop of a worker."""

    def __init__(
        self,
        end: socket.socket,
        *,
        metadata_partitions: int,
        page: Callable[[], Awaitable[bytes]],
        ended: Callable[[int], object] = os._exit,
    ) -> None:
        """`page` renders the metrics; `ended` is called when the head is gone."""
        self._page = page
        self._ended = ended
        self.stopping: Final = asyncio.Event()
        """The head wants this worker to end."""
        self.told: Final = asyncio.Event()
        """All that the head knew at the beginning has arrived."""
        self._next_id = 0
        self._syncs: dict[int, asyncio.Future[None]] = {}
        self._reads: dict[int, asyncio.Future[Sequence[bytes]]] = {}
        self._delays: dict[int, asyncio.Future[float]] = {}
        self._pages: set[asyncio.Task[None]] = set()
        self.keys_changed: Final = asyncio.Event()
        """The files of keys and certificates are to be looked at."""
        self.giving_up: Final[asyncio.Queue[float]] = asyncio.Queue()
        """A connection is to be given up: `GivingUp.difference_cores`."""
        self.rights: Final = KnownRights(self.take)
        self.known: Final = Known(
            metadata_partitions, refresh=self.take, read_log=self.read_log, synced=self.synced
        )
        self._line = Line(end, self._received, self._lost)
        self.take()

    def take(self) -> None:
        """Take the news that have arrived."""
        self._line.take()

    def hello(self) -> None:
        self._line.send(frame(messages.HELLO, _ID.pack(os.getpid())))

    def ready(self) -> None:
        self._line.send(frame(messages.READY))

    def failed(self, why: str) -> None:
        self._line.send(frame(messages.FAILED, why.encode()))

    def synced(self) -> "asyncio.Future[None]":
        """Done when all was taken that the head had told when it was asked."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sync_id = self._new_id()
        self._syncs[sync_id] = done
        self._line.send(frame(messages.SYNC, _ID.pack(sync_id)))
        return done

    async def end_in_silence(self, after_s: float) -> None:
        """Ask the head for a sign of life again and again; end the worker when none comes.

        Seconds count only as this process is awake for them: one that was paused with its head, as
        a machine is that sleeps, asks for as long again.
        """
        step_s = min(_ASK_EVERY_S, after_s)
        while True:
            answered, silent_s = self.synced(), 0.0
            while not answered.done():
                if silent_s >= after_s:
                    log.error("the head is silent, the worker ends", after_s=after_s)
                    self._ended(HEAD_SILENT)
                    return
                await asyncio.sleep(step_s)
                self.take()
                silent_s += step_s
            await asyncio.sleep(step_s)

    def read_log(
        self, index: int, offset: int, max_bytes: int
    ) -> "asyncio.Future[Sequence[bytes]]":
        """Batches of a metadata log, as `MetadataLog.read_encoded` gives them."""
        done: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()
        read_id = self._new_id()
        self._reads[read_id] = done
        content = _READ.pack(read_id, index, offset, max_bytes)
        self._line.send(frame(messages.READ_LOG, content))
        return done

    def tell_load(self, load: Load) -> None:
        self._line.send(frame(messages.LOAD, load.encode()))

    def send(self, message: bytes) -> None:
        """Send what is not answered."""
        self._line.send(message)

    async def hold_back(self, address: str) -> float:
        """See `Delays`: the head counts for all workers."""
        delay: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        ask_id = self._new_id()
        self._delays[ask_id] = delay
        self._line.send(frame(messages.LOGIN_FAILED, encode_failure(ask_id, address)))
        return await delay

    def succeeded(self, address: str) -> None:
        """See `Delays`."""
        self._line.send(frame(messages.LOGGED_IN, address.encode()))

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _lost(self) -> None:
        self._ended(HEAD_LOST)

    def _received(self, kind: int, content: memoryview) -> None:
        known = self.known
        if kind == messages.ENDS:
            known.take_ends(decode_ends(content))
        elif kind == messages.LOGS:
            known.take_logs(decode_logs(content))
            self.told.set()
        elif kind == messages.TOPICS:
            known.take_topics(TopicNews.decode(bytes(content)))
        elif kind == messages.QUOTAS:
            known.take_quotas(decode_quotas(bytes(content)))
        elif kind == messages.CLUSTER:
            known.take_cluster(ClusterNews.decode(bytes(content)))
        elif kind in (messages.RULES, messages.USERS, messages.SECRETS):
            self._rights_changed(kind, bytes(content))
        elif kind == messages.GIVE_UP:
            self.giving_up.put_nowait(*CORES.unpack(content))
        elif kind == messages.LOOK_AT_KEYS:
            self.keys_changed.set()
        elif kind == messages.DELAY:
            ask_id, delay_s = decode_delay(content)
            delay = self._delays.pop(ask_id)
            if not delay.done():
                delay.set_result(delay_s)
        elif kind == messages.SYNCED:
            sync = self._syncs.pop(_ID.unpack(content)[0])
            if not sync.done():
                sync.set_result(None)
        elif kind == messages.LOG_READ:
            self._log_read(content)
        elif kind == messages.STOP:
            self.stopping.set()
        elif kind == messages.PAGE_WANTED:
            task = asyncio.get_running_loop().create_task(self._send_page(bytes(content)))
            self._pages.add(task)
            task.add_done_callback(self._pages.discard)

    def _rights_changed(self, kind: int, content: bytes) -> None:
        if kind == messages.RULES:
            self.rights.take_rules(RuleNews.decode(content))
        elif kind == messages.USERS:
            self.rights.take_users(decode_users(content))
        else:
            self.rights.take_secrets(SecretNews.decode(content))

    def _log_read(self, content: memoryview) -> None:
        read_id, status = _ANSWER.unpack_from(content)
        at = _ANSWER.size
        read = self._reads.pop(read_id)
        if read.done():
            return
        if status != READ_WELL:
            problem = str(content[at:], "utf-8")
            kind = OutOfBounds if status == READ_OUT_OF_BOUNDS else StorageFailed
            read.set_exception(kind(problem))
            return
        batches = []
        while at < len(content):
            (size,) = _SIZE.unpack_from(content, at)
            at += _SIZE.size
            batches.append(bytes(content[at : at + size]))
            at += size
        read.set_result(batches)

    async def _send_page(self, page_id: bytes) -> None:
        self._line.send(frame(messages.PAGE, page_id + await self._page()))
