"""How a connection ends for its client, and what one may cost whose client does not end it.

With real sockets, on both event loops.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from diskless.listeners import lingering
from diskless.listeners.lingering import DISCARDED_BYTES_MAX, LINGER_S, Lingering
from diskless.server.registry import ApiRegistry, Reply, Request
from diskless.server.unread import unacknowledged_bytes
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.brokers.server_tests import call_private, on_both_loops, private_api
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import RawClient, a_batch, frame, produce_frame
from wal.clock import ManualClock

DEADLINE_S = 60
MORE = b"".join(frame(18, 0, number, b"") for number in range(10, 3_000))
"""Requests that a client has on its way."""


async def _given_up(broker: Broker, client: RawClient) -> None:
    """Have the broker answer what `client` has asked, and close; it asks for more meanwhile."""
    broker.topics.add("t")
    broker.manager.hold = True
    await client.send(produce_frame(1, [a_batch()]))
    await until(lambda: len(broker.manager.held) == 1)
    (connection,) = broker.server.connections
    connection.finish()
    await client.send(MORE)
    broker.manager.release_held()


async def _rest(client: RawClient) -> bytes:
    """What is left of the stream; ConnectionError where that has no end."""
    async with asyncio.timeout(DEADLINE_S):
        return await client.reader.read()


async def _send_until_refused(client: RawClient) -> int:
    """How many bytes could be sent before the client's system was told that nobody reads."""
    sent = 0
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(ConnectionError):
            while True:
                await client.send(b"\xff" * (1 << 20))
                sent += 1 << 20
    return sent


@on_both_loops
async def test_a_client_that_asks_for_more_reads_its_last_answer_and_the_end_of_the_stream():
    async with running_broker() as broker:
        client = await broker.connect()
        await _given_up(broker, client)
        assert (await client.receive())[0] == 1
        await client.send(MORE)
        assert await _rest(client) == b""
        await client.close()
        await until(lambda: not len(broker.server._lingering))


@on_both_loops
async def test_one_that_lingers_has_no_place_and_no_memory_and_is_cut_when_its_time_is_over():
    clock = ManualClock()
    async with running_broker(clock=clock, max_connections=1) as broker:
        client = await broker.connect()
        await _given_up(broker, client)
        await until(lambda: len(broker.server._lingering) == 1 and not broker.open_connections)
        assert broker.server.statistics().request_bytes_held == 0
        assert broker.pool.statistics().in_use_bytes == 0
        other = await broker.connect()
        await other.send(frame(18, 0, 5, b""))
        assert (await other.receive())[0] == 5

        (end,) = broker.server._lingering._ends
        await until(lambda: not unacknowledged_bytes(end.transport))
        clock.advance(LINGER_S - 0.1)
        broker.server.sweep()
        assert len(broker.server._lingering) == 1
        clock.advance(0.1)
        broker.server.sweep()
        assert not len(broker.server._lingering)
        # Nobody reads what it sends now: its system is told so.
        await _send_until_refused(client)


@on_both_loops
async def test_one_that_keeps_sending_is_read_from_up_to_a_bound():
    async with running_broker(clock=ManualClock()) as broker:
        client = await broker.connect()
        await _given_up(broker, client)
        assert await _send_until_refused(client) >= DISCARDED_BYTES_MAX >> 1
        assert not len(broker.server._lingering)
        assert broker.pool.statistics().in_use_bytes == 0


@on_both_loops
async def test_of_too_many_the_oldest_goes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lingering, "LINGERING_MAX", 2)
    async with running_broker(clock=ManualClock()) as broker:
        for number in range(3):
            await broker.connect()
            await until(lambda: broker.open_connections == 1)
            (connection,) = broker.server.connections
            connection.finish()
            await until(lambda: not broker.open_connections)
            if not number:
                (oldest,) = broker.server._lingering._ends
        assert len(broker.server._lingering) == 2
        assert oldest not in broker.server._lingering._ends


@on_both_loops
async def test_a_stop_waits_for_the_system_of_a_client_and_not_for_the_client():
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(
            running_broker(clock=ManualClock(), stop_timeout_ms=3_600_000)
        )
        client = await RawClient.connect(broker.server.address)
        stack.push_async_callback(client.close)
        await client.send(frame(18, 0, 1, b""), MORE)
        await until(lambda: broker.metrics.received["ApiVersions"] > 0)
        async with asyncio.timeout(DEADLINE_S):
            await broker.server._stop()
        assert not len(broker.server._lingering)
        assert (await client.receive())[0] == 1
        # All that was taken is answered; then the stream ends, and is not broken off.
        await _rest(client)


@on_both_loops
async def test_an_answer_that_is_larger_than_the_socket_takes_is_read_whole_before_the_end():
    size = 32 << 20

    async def large(request: Request) -> Reply:
        return [bytes(size)]

    async with running_broker(apis=ApiRegistry([private_api(large)])) as broker:
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await call_private(client)
        await until(lambda: broker.metrics.received["Private"] == 1)
        (connection,) = broker.server.connections
        connection.finish()
        await until(lambda: connection._is_write_blocked)
        client.writer.transport.resume_reading()
        correlation_id, answer = await client.receive()
        assert (correlation_id, len(answer)) == (9, size)
        assert await _rest(client) == b""


@on_both_loops
async def test_who_does_not_read_the_last_answer_is_not_waited_for():
    async def large(request: Request) -> Reply:
        return [bytes(32 << 20)]

    clock = ManualClock()
    async with running_broker(clock=clock, apis=ApiRegistry([private_api(large)])) as broker:
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await call_private(client)
        await until(lambda: broker.metrics.received["Private"] == 1)
        (connection,) = broker.server.connections
        await until(lambda: connection._is_write_blocked)
        connection.finish()
        seen = -1
        while seen != (size := unacknowledged_bytes(connection._transport)):
            seen = size
            await asyncio.sleep(0.05)
        broker.server.sweep()
        clock.advance(LINGER_S)
        assert broker.open_connections == 1
        broker.server.sweep()
        await until(lambda: not broker.open_connections)


class _Told(asyncio.BufferedProtocol):
    """Who spoke through a transport."""

    def __init__(self) -> None:
        self.made = asyncio.get_running_loop().create_future()
        self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(1))

    def buffer_updated(self, nbytes: int) -> None:
        (self.made.result()).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


@contextlib.asynccontextmanager
async def _pair() -> AsyncIterator[tuple[asyncio.Transport, _Told, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as client:
        told = _Told()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: told, listener.accept()[0])
        yield told.made.result(), told, client


@on_both_loops
async def test_who_has_not_acknowledged_the_last_answer_has_longer():
    clock = ManualClock()
    here = Lingering(clock, outstanding_bytes=lambda transport: 1, unsent_max_s=30)
    async with _pair() as (transport, told, _):
        here.close(transport)
        clock.advance(LINGER_S)
        here.sweep(clock.monotonic())
        assert len(here) == 1
        await until(lambda: told.lost == 1)
        clock.advance(30 - LINGER_S)
        here.sweep(clock.monotonic())
        assert not len(here)
        await asyncio.sleep(0)
        assert told.lost == 1


@on_both_loops
async def test_a_stop_ends_who_does_not_acknowledge_when_the_time_is_over():
    clock = ManualClock()

    async def sleep(delay_s: float) -> None:
        clock.advance(delay_s)

    here = Lingering(clock, outstanding_bytes=lambda transport: 1, unsent_max_s=30, sleep=sleep)
    async with _pair() as (transport, _, client):
        here.close(transport)
        await here.stop()
        assert clock.monotonic() >= LINGER_S
        assert not len(here)
        assert await asyncio.to_thread(client.recv, 1) == b""
