"""Every limit on what a client may take, against real sockets; the rest is in test_server.py."""

import asyncio
import socket
import struct

from tests.support.brokers.kafka_fakes import connected, running_broker
from tests.support.brokers.server_tests import on_both_loops
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import RawClient, fetch_frame, frame
from wal.clock import ManualClock

MIB = 1 << 20


@on_both_loops
async def test_addresses_with_a_limit_of_their_own():
    overrides = "127.0.0.2:2, 127.0.0.3:0"
    async with running_broker(
        max_connections_per_ip=1, max_connections_per_ip_overrides=overrides
    ) as broker:
        good = [
            await broker.connect("127.0.0.1"),
            await broker.connect("127.0.0.2"),
            await broker.connect("127.0.0.2"),
        ]
        bad = [
            await broker.connect("127.0.0.1"),
            await broker.connect("127.0.0.2"),
            await broker.connect("127.0.0.3"),
        ]
        for client in bad:
            assert await client.is_closed_by_server()
        assert broker.metrics.refused == {"max.connections.per.ip": 3}
        for client in good:
            await client.call(18, 0)


@on_both_loops
async def test_who_connects_too_fast_is_answered_later_and_not_turned_away():
    clock = ManualClock()
    async with running_broker(clock=clock, max_connection_creation_rate=4) as broker:
        first = [await broker.connect() for _ in range(4)]
        for client in first:
            await client.call(18, 0)
        late = [await broker.connect() for _ in range(2)]
        for client in late:
            await client.send(frame(18, 0, 1, b""))
        await until(lambda: len(paused(broker)) == 2)
        assert broker.metrics.answered["ApiVersions"] == 4
        # Others are served meanwhile.
        await first[0].call(18, 0)
        for answered, client in enumerate(late, start=6):
            clock.advance(0.25)
            assert (await client.receive())[0] == 1
            assert broker.metrics.answered["ApiVersions"] == answered
        assert not broker.metrics.refused
        assert not paused(broker)


def paused(broker):
    return [one for one in broker.server._connections if not one._transport.is_reading()]


@on_both_loops
async def test_connections_that_are_not_heard_yet_do_not_hold_up_a_stop():
    clock = ManualClock()
    async with running_broker(clock=clock, max_connection_creation_rate=1) as broker:
        clients = [await RawClient.connect(broker.server.address) for _ in range(5)]
        await until(lambda: broker.open_connections == 5)
        clients[0].writer.transport.abort()
        await until(lambda: broker.open_connections == 4)
    assert broker.open_connections == 0
    for client in clients:
        await client.close()


@on_both_loops
async def test_a_client_that_says_nothing_is_closed_after_the_idle_time():
    clock = ManualClock()
    async with running_broker(clock=clock, idle_max_ms=5_000) as broker:
        silent = await broker.connect()
        await until(lambda: broker.open_connections == 1)
        clock.advance(5.1)
        broker.server.sweep()
        assert await silent.is_closed_by_server()
        assert not broker.metrics.cut, "that is no fault"


@on_both_loops
async def test_the_server_looks_after_hundreds_of_connections_by_itself():
    clock = ManualClock()
    # It looks every quarter of the shorter time.
    async with running_broker(clock=clock, idle_max_ms=40) as broker:
        clients = [await broker.connect() for _ in range(600)]
        await until(lambda: broker.open_connections == 600)
        clock.advance(0.05)
        for client in clients:
            assert await client.is_closed_by_server()
        await until(lambda: broker.open_connections == 0)


@on_both_loops
async def test_a_tls_client_is_cut_off_by_its_first_bytes():
    async with connected() as (broker, client):
        await client.send(bytes.fromhex("16030102000100"), b"\x01")
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"bad request": 1}


@on_both_loops
async def test_half_a_length_is_a_request_that_must_come_to_its_end():
    clock = ManualClock()
    async with connected(clock=clock, request_receive_timeout_ms=1_000) as (broker, client):
        await client.send(b"\x00\x00")
        await until(lambda: broker.server.statistics().request_bytes_held > 0)
        clock.advance(1.1)
        broker.server.sweep()
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"slow request": 1}
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_a_request_larger_than_allowed_costs_the_connection_and_no_memory():
    async with connected(request_max_bytes=64 << 10) as (broker, client):
        await client.send(struct.pack(">ihhi", (64 << 10) + 1, 0, 9, 1))
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"bad request": 1}
        assert broker.pool.statistics().in_use_bytes == 0


@on_both_loops
async def test_a_client_that_does_not_read_is_not_read_from_when_answers_take_all_the_room():
    async with running_broker(fetched_max_bytes=MIB) as broker:
        broker.topics.add("t")
        manager = broker.manager
        manager.fetch_records = [bytes(8 * MIB)]
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await client.send(fetch_frame(1, max_bytes=8 * MIB))
        await until(lambda: broker.server.statistics().unsent_bytes > MIB)
        (connection,) = broker.server._connections
        # It asks on; nothing of that is read.
        await client.send(*(frame(18, 0, number, b"") for number in range(2, 100)))
        await until(lambda: not connection._transport.is_reading())
        answered = broker.metrics.answered["ApiVersions"]
        assert answered < 98
        client.writer.transport.resume_reading()
        assert [(await client.receive())[0] for _ in range(99)] == list(range(1, 100))
        assert broker.server.statistics().unsent_bytes == 0


@on_both_loops
async def test_those_who_have_not_read_for_longest_are_cut_off_when_answers_take_too_much():
    clock = ManualClock()
    async with running_broker(clock=clock, fetched_max_bytes=4 * MIB) as broker:
        broker.topics.add("t")
        broker.manager.fetch_records = [bytes(8 * MIB)]
        clients = []
        for number in range(3):
            # The fakes answer with more than was granted, as one large batch does.
            client = await broker.connect()
            client.writer.transport.pause_reading()
            clients.append(client)
            before = broker.server.statistics().unsent_bytes
            await client.send(fetch_frame(number))
            await until(lambda before=before: broker.server.statistics().unsent_bytes > before)

            # Each makes room for the next one, once a look finds that nothing of its answer moves.
            while broker.metrics.cut.total() < number:
                clock.advance(0.01)
                broker.server.sweep()
                await asyncio.sleep(0)
            await until(lambda: broker.server.statistics().unsent_bytes <= 2 * 4 * MIB)
        broker.server.sweep()
        assert broker.metrics.cut == {"slow reader": 2}
        await until(lambda: broker.open_connections == 1)
        clients[-1].writer.transport.resume_reading()
        assert (await clients[-1].receive())[0] == 2
        for client in clients:
            client.writer.transport.abort()


@on_both_loops
async def test_a_few_who_do_not_read_are_left_alone():
    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        broker.topics.add("t")
        broker.manager.fetch_records = [bytes(8 * MIB)]
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await client.send(fetch_frame(1))
        await until(lambda: broker.server.statistics().unsent_bytes > 0)
        for _ in range(10):
            clock.advance(10)
            broker.server.sweep()
        assert not broker.metrics.cut
        client.writer.transport.resume_reading()
        assert (await client.receive())[0] == 1


@on_both_loops
async def test_a_hundred_too_many_leave_the_broker_well():
    async with running_broker(max_connections=20) as broker:
        good = await broker.connect()
        sockets = []
        for _ in range(100):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(broker.server.address)
            sockets.append(one)
        await until(lambda: broker.metrics.refused.total() > 0)
        await good.call(18, 0)
        assert len(broker.server._connections) <= 20
        for one in sockets:
            one.close()
        await until(lambda: broker.open_connections == 1)
        await good.call(18, 0)
