"""The TCP server: accepts connections, counts them, cuts off the slow ones, stops cleanly.

    async with KafkaServer(listeners, apis=..., ...) as server:
        ...  # server.address is where the first of them listens

The broker enters it last and leaves it first: while it stops, requests under way still need
everything behind the handlers. Leaving it closes the listeners, lets every connection answer what
it was asked (a waiting Fetch ends early), and aborts what is left at `server.stop.timeout.ms`. A
connection that ends lingers (`diskless/listeners/lingering.py`), and counts no more.

Every task of a request belongs to the server's task group, so no request outlives the server.
"""

import asyncio
import functools
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import structlog

from diskless.audit.audit_log import UNNOTED, SessionAudit
from diskless.listeners.acceptor import Acceptor, Admission
from diskless.listeners.connection_limits import (
    ALONE,
    ConnectionLimits,
    ListenerLimits,
    OtherCounts,
    parse_ip_overrides,
)
from diskless.listeners.handshakes import Handshakes
from diskless.listeners.lingering import Lingering
from diskless.listeners.listeners import Listener
from diskless.listeners.listening import Listening
from diskless.listeners.pending_logins import PendingLogins
from diskless.listeners.tls_keys import TlsKeys
from diskless.listeners.tls_listener import TlsListener
from diskless.listeners.tls_settings import TlsSettings
from diskless.listeners.tls_stream import Scratch
from diskless.loop.long_work import LongWork
from diskless.loop.read_turns import ReadTurns
from diskless.loop.turns import Turns
from diskless.ports import ClientInfo
from diskless.quotas.request_meter import ClientLimits, NoLimits
from diskless.sasl.login import LoginRules
from diskless.server.connection import Connection
from diskless.server.handlers import HandlerTasks
from diskless.server.problem_log import ProblemLog
from diskless.server.registry import ApiRegistry
from diskless.server.request_budget import RequestBudget
from diskless.server.response_budget import ResponseBudget
from diskless.server.server_metrics import ServerMetrics
from diskless.server.server_settings import ServerSettings
from diskless.server.shared import Shared
from diskless.server.unread import UnreadCutter, unacknowledged_bytes
from diskless.shared.connection_counts import ConnectionCounts
from wal.chunks.buffer import BufferPool
from wal.clock import Clock
from wal.write_path.seal_policy import Arrivals

_SWEEP_INTERVAL_MAX_S: Final = 1.0

_SWEEP_STEP: Final = 250
"""Connections that are looked at, between which others have a turn."""

_CUT_STEP: Final = 16
"""Connections that are cut off, likewise."""

_UNLIMITED: Final = 2**31 - 1

_TLS_DEFAULTS: Final = TlsSettings()
_NO_LIMITS: Final = NoLimits()

OPEN: Final = "open"
HANDSHAKE: Final = "handshake"
"""States of a connection, for the metrics."""

_log = structlog.get_logger("diskless.server.server")


def _nobody(connections: int) -> None:
    """Nobody is told how many there are."""


def _ignored(number: int) -> None:
    """Nobody is told that a connection is gone."""


def _nobody_else() -> int:
    return 0


class ServerStatistics(NamedTuple):
    """What the server holds now."""

    connections: int
    by_state: Mapping[tuple[str, ...], int]
    """Connections by listener and state, those in the middle of a handshake too."""
    request_bytes_held: int
    """Receive buffers lent out, and what unanswered requests keep besides them."""
    connections_waiting: int
    """Not read from because of `queued.max.request.bytes`."""
    unsent_bytes: int
    """Handed to sockets whose clients do not keep up."""
    reserved_bytes: int
    """Answers on their way to their sockets, and what is being read for others."""


class KafkaServer:
    """Listens from `async with` to its end."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        apis: ApiRegistry,
        settings: ServerSettings,
        pool: BufferPool,
        clock: Clock,
        metrics: ServerMetrics,
        tls: TlsSettings = _TLS_DEFAULTS,
        logins: Mapping[str, LoginRules] = MappingProxyType({}),
        pending_per_ip_max: int = 20,
        long_work: LongWork | None = None,
        arrivals: Arrivals | None = None,
        limits: ClientLimits = _NO_LIMITS,
        audit: SessionAudit = UNNOTED,
        listener_limits: Mapping[str, ListenerLimits] = MappingProxyType({}),
        other_connections: OtherCounts = ALONE,
        processes: int = 1,
        first_connection: int = 1,
        ended: Callable[[int], None] = _ignored,
        processor_time: Callable[[], float] = time.thread_time,
        accepts: bool = True,
        counts: ConnectionCounts | None = None,
    ) -> None:
        """Made on the event loop that it serves on.

        `listeners` are the server's, once that is entered. `apis` may still grow until then. `pool`
        is the server's alone: what it lends is the memory of requests. `long_work` belongs to the
        event loop; `arrivals` hears of Produce requests that have begun to arrive. Without one of
        them the server makes its own. `logins` has the rules of listeners whose clients must log
        in; of one address, `pending_per_ip_max` may be at it. `limits` are the quotas of clients;
        `audit` is told who comes and goes; `other_connections` are those of other processes of the
        broker that accept, and `counts` how many each has; `processor_time` is what
        the event loop's thread has taken. Connections are numbered from `first_connection`; `ended`
        is told the number of each that is gone. What comes through a listener without a socket is
        accepted by another process (`admit`); without `accepts`, there are only connections that
        were admitted elsewhere (`take`).
        """
        self._listeners = listeners
        self._accepted = listeners if accepts else ()
        self._settings = settings
        self._clock = clock
        self._connections: set[Connection] = set()
        self._open = Counter({listener.name: 0 for listener in listeners})
        """Connections by listener."""
        self._handed = ConnectionLimits(
            connections_max=_UNLIMITED,
            per_ip_max=_UNLIMITED,
            per_ip_overrides={},
            creations_per_s=_UNLIMITED,
            now=clock.monotonic(),
        )
        """Of connections that were admitted elsewhere."""
        self._acceptors: dict[str, Acceptor] = {}
        """By the name of their listener."""
        self._handshakes = Handshakes(
            at_once=tls.handshakes_max,
            per_address=tls.handshakes_per_address_max,
            per_s=tls.handshakes_per_s,
            clock=clock,
        )
        self._handshake_timeout_s = tls.handshake_timeout_ms / 1000
        self._scratch = Scratch()
        self._limits = ConnectionLimits(
            connections_max=settings.max_connections,
            per_ip_max=settings.max_connections_per_ip,
            per_ip_overrides=parse_ip_overrides(settings.max_connections_per_ip_overrides),
            creations_per_s=settings.max_connection_creation_rate,
            now=clock.monotonic(),
            per_user_max=settings.max_connections_per_user,
            listeners=listener_limits,
            quota=limits.connected,
            changed=_nobody if counts is None else counts.changed,
            elsewhere=_nobody_else if counts is None else counts.elsewhere,
            others=other_connections,
        )
        self._pending = PendingLogins(
            connections_max=settings.max_connections,
            per_ip_max=pending_per_ip_max,
            others=other_connections,
            processes=processes,
            token_max=max((rules.receive_max_bytes for rules in logins.values()), default=0),
            has_tls=any(one.tls is not None for one in listeners if one.name in logins),
        )
        self._ids = itertools.count(first_connection)
        self._ended = ended
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._stack = AsyncExitStack()
        self._tasks = asyncio.TaskGroup()
        self._lingering = Lingering(
            clock,
            outstanding_bytes=unacknowledged_bytes,
            unsent_max_s=settings.request_receive_timeout_ms / 1000,
        )
        turns = Turns(clock, asyncio.get_running_loop())
        self._shared = Shared(
            made=self._made,
            lost=self._lost,
            apis=apis,
            settings=settings,
            pool=pool,
            clock=clock,
            metrics=metrics,
            budget=RequestBudget(settings.queued_max_request_bytes, pool, turns.enqueue),
            responses=ResponseBudget(settings.fetched_max_bytes, clock),
            arrivals=arrivals or Arrivals(),
            logins=logins,
            lingering=self._lingering,
            turns=turns,
            read_turns=ReadTurns(clock, lambda: turns.are_others_served),
            problems=ProblemLog(clock),
            limits=limits,
            audit=audit,
            processor_time=processor_time,
            handlers=HandlerTasks(
                group=self._tasks, long_work=long_work or LongWork(clock.monotonic)
            ),
        )
        self._unread = UnreadCutter(
            self._shared.budget, self._shared.responses, settings.unread_max_ms / 1000
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(self._tasks)
            sweeper = tasks.create_task(self._sweep_for_ever(), name="connection-sweeper")
            stack.callback(sweeper.cancel)
            stack.push_async_callback(self._stop)
            for listener in self._accepted:
                acceptor = self._acceptors[listener.name] = self._acceptor(listener)
                if listener.socket is not None:
                    listening = Listening(
                        listener.socket, acceptor.admit, backlog=self._settings.backlog
                    )
                    stack.callback(listening.stop)
                    listening.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        return self._listeners[0].address

    @property
    def connections(self) -> Sequence[Connection]:
        """Those that have a transport."""
        return list(self._connections)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether connections wait for the memory of requests."""
        return self._shared.budget.waiting > 0

    def admit(self, listener: str, client: socket.socket, host: str) -> None:
        """Serve a connection of `listener` that another process has accepted, or close it."""
        self._acceptors[listener].admit(client, host)

    def take(
        self, end: socket.socket, *, host: str, user: str, listener: str, number: int | None = None
    ) -> None:
        """Serve a connection whose client is known: another process has admitted it.

        `number`: what it is known by there.
        """
        number = next(self._ids) if number is None else number
        client = ClientInfo(number, "", host, user=user, listener=listener)
        admission = Admission(self._handed, host, self._clock.monotonic(), listener)
        connection = Connection(self._shared, client, admission)
        loop = asyncio.get_running_loop()
        task = self._tasks.create_task(self._connect(loop, end, connection))
        task.add_done_callback(functools.partial(self._taken, end, admission))

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, end: socket.socket, connection: Connection
    ) -> None:
        try:
            await loop.connect_accepted_socket(lambda: connection, end)
        except OSError as error:
            raise asyncio.CancelledError from error

    def _taken(self, end: socket.socket, admission: Admission, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            end.close()
            admission.end()

    def statistics(self) -> ServerStatistics:
        shared = self._shared
        by_state: dict[tuple[str, ...], int] = {
            (listener.name, OPEN): self._open[listener.name] for listener in self._accepted
        }
        by_state |= {
            (listener.name, HANDSHAKE): acceptor.connecting
            for listener in self._accepted
            if listener.tls is not None
            and (acceptor := self._acceptors.get(listener.name)) is not None
        }
        return ServerStatistics(
            connections=len(self._connections),
            by_state=by_state,
            request_bytes_held=shared.budget.used_bytes,
            connections_waiting=shared.budget.waiting,
            unsent_bytes=shared.responses.unsent_bytes,
            reserved_bytes=shared.responses.reserved_bytes,
        )

    def sweep(self) -> None:
        """Cut off connections whose time is up; the server does this by itself as well."""
        for _ in self._sweep_in_steps():
            pass

    def _sweep_in_steps(self) -> Iterator[None]:
        """The same a few connections at a time, for thousands take milliseconds."""
        now = self._clock.monotonic()
        self._lingering.sweep(now)
        for number, connection in enumerate(list(self._connections), start=1):
            connection.sweep(now)
            if not number % _SWEEP_STEP:
                yield
        for number, _ in enumerate(self._unread.cut(self._connections, now), start=1):
            if not number % _CUT_STEP:
                yield

    # --- called by connections

    def _made(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._open[connection.client.listener] += 1
        self._all_gone.clear()

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._open[connection.client.listener] -= 1
        self._ended(connection.client.connection_id)
        if not self._connections:
            self._all_gone.set()

    # --- own work

    def _acceptor(self, listener: Listener) -> Acceptor:
        must_log_in = listener.name in self._shared.logins

        def make(admission: Admission) -> Connection:
            if must_log_in:
                admission.until_log_in(self._pending.begin(admission.host))
            client = ClientInfo(next(self._ids), "", admission.host, listener=listener.name)
            return Connection(self._shared, client, admission)

        metrics = self._shared.metrics
        return Acceptor(
            name=listener.name,
            limits=self._limits,
            clock=self._clock,
            refused=metrics.connection_refused,
            refusal=self._pending.refusal if must_log_in else lambda address: None,
            make=make,
            tasks=self._tasks,
            tls=None if listener.tls is None else self._tls_listener(listener.tls),
            handshaken=functools.partial(metrics.handshake_ended, listener.name),
        )

    def _tls_listener(self, keys: TlsKeys) -> TlsListener:
        return TlsListener(
            keys=keys,
            handshakes=self._handshakes,
            scratch=self._scratch,
            timeout_s=self._handshake_timeout_s,
            close=self._lingering.close,
        )

    async def _sweep_for_ever(self) -> None:
        shortest_ms = min(
            self._settings.idle_max_ms,
            self._settings.request_receive_timeout_ms,
            self._settings.unread_max_ms,
        )
        interval_s = min(shortest_ms / 4000, _SWEEP_INTERVAL_MAX_S)
        while True:
            await asyncio.sleep(interval_s)
            for _ in self._sweep_in_steps():
                await asyncio.sleep(0)

    async def _stop(self) -> None:
        for acceptor in self._acceptors.values():
            await acceptor.stop()
        for connection in list(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(self._settings.stop_timeout_ms / 1000):
                await self._all_gone.wait()
                await self._lingering.stop()
        except TimeoutError:
            if self._connections:
                await self._abort_all()
        finally:
            self._lingering.end()
        await self._shared.turns.empty()

    async def _abort_all(self) -> None:
        _log.warning("connections aborted at stop", count=len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        await self._all_gone.wait()
        # Handlers that clients no longer wait for may still be waiting for a store that is out.
        for task in self._shared.handlers.running:
            task.cancel()
