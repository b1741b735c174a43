"""The TCP server with real sockets: slow clients, limits, stopping; on both event loops."""

import asyncio
import struct

import pytest

from diskless.listeners.listeners import bind_listener
from diskless.server.registry import ApiRegistry, Reply, Request
from tests.support.brokers.kafka_fakes import connected, running_broker
from tests.support.brokers.server_tests import call_private, on_both_loops, private_api
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import (
    RawClient,
    a_batch,
    fetch_frame,
    frame,
    produce_frame,
    request_body,
)
from wal.clock import ManualClock
from wal.errors import InvalidSettings

# --- slow clients


@on_both_loops
async def test_a_request_that_trickles_in_is_cut_off_at_its_deadline():
    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        slow = await broker.connect()
        await until(lambda: broker.open_connections == 1)
        (connection,) = broker.server._connections
        started = frame(3, 9, 1, b"\x00\x01\x00\x00\x00")
        sent = 0
        while not broker.metrics.cut:
            await slow.send(started[sent : sent + 1])
            sent += 1
            await until(lambda sent=sent: connection._receiver._builder.received_bytes == sent)
            clock.advance(2)
            broker.server.sweep()
        assert await slow.is_closed_by_server()
        assert broker.metrics.cut == {"slow request": 1}
        assert clock.monotonic() == 32


@on_both_loops
async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not():
    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        broker.topics.add("t")
        broker.manager.hold = True
        idle = await broker.connect()
        await idle.call(18, 0)
        waiting = await broker.connect()
        await waiting.send(produce_frame(1, [a_batch()]))
        await until(lambda: len(broker.manager.held) == 1)
        clock.advance(601)
        broker.server.sweep()
        assert await idle.is_closed_by_server()
        broker.manager.release_held()
        assert (await waiting.receive())[0] == 1
        assert not broker.metrics.cut


@on_both_loops
async def test_a_consumer_that_does_not_read_holds_one_answer_and_loses_none():
    megabyte = bytes(1 << 20)
    async with running_broker() as broker:
        broker.topics.add("t")
        broker.manager.fetch_records = [megabyte]
        greedy = await broker.connect()
        greedy.writer.transport.pause_reading()
        await greedy.send(*(fetch_frame(i) for i in range(100)))
        await until(lambda: broker.server.statistics().unsent_bytes > 0)
        other = await broker.connect()
        for _ in range(20):
            await other.call(18, 0)
        # What the sockets of both ends hold is the kernel's; beyond that there is one answer.
        assert broker.server.statistics().unsent_bytes <= 2 * len(megabyte)
        started = broker.metrics.answered["Fetch"]
        assert started < 50
        greedy.writer.transport.resume_reading()
        assert [(await greedy.receive())[0] for _ in range(100)] == list(range(100))
        await until(lambda: broker.server.statistics().unsent_bytes == 0)


@on_both_loops
async def test_a_client_that_asks_and_asks_and_never_reads_is_not_read_any_more():
    async with running_broker() as broker:
        for number in range(100):
            broker.topics.add(f"topic-{number}", partitions=20)
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await until(lambda: broker.open_connections == 1)
        (connection,) = broker.server._connections
        everything = frame(3, 1, 1, struct.pack(">i", -1))
        sent = 0
        async with asyncio.timeout(60):
            while connection._transport.is_reading():
                client.writer.write(everything * 20)
                sent += 20
                await asyncio.sleep(0)
        client.writer.write(everything * 20)
        sent += 20
        answered = broker.metrics.answered["Metadata"]
        assert answered < sent
        assert broker.server.statistics().request_bytes_held < 2 << 20
        client.writer.transport.abort()
        await until(lambda: broker.open_connections == 0)
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


@on_both_loops
async def test_answers_that_are_never_read_are_given_up_after_the_idle_time():
    clock = ManualClock()
    async with running_broker(clock=clock) as broker:
        broker.topics.add("t")
        broker.manager.fetch_records = [bytes(1 << 20)]
        client = await broker.connect()
        client.writer.transport.pause_reading()
        await client.send(*(fetch_frame(i) for i in range(100)))
        await until(lambda: broker.server.statistics().unsent_bytes > 0)
        clock.advance(601)
        broker.server.sweep()
        await until(lambda: broker.open_connections == 0)
        assert broker.metrics.cut == {"slow reader": 1}
        assert broker.server.statistics().unsent_bytes == 0
        client.writer.transport.abort()


@on_both_loops
async def test_fetches_that_start_together_share_the_room_for_answers():
    mib = 1 << 20
    async with running_broker(fetched_max_bytes=8 * mib) as broker:
        broker.topics.add("t")
        manager = broker.manager
        manager.fetch_records = [bytes(3 * mib)]
        manager.fetch_gate.clear()
        clients = [await broker.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            await client.send(fetch_frame(number, max_bytes=3 * mib))
            await until(lambda number=number: len(manager.fetches_granted) == number + 1)
        little = 64 << 10
        assert manager.fetches_granted == [
            (3 * mib, granted) for granted in (3 * mib, mib, little, little)
        ]
        assert broker.server.statistics().reserved_bytes == 4 * mib + 2 * little
        manager.fetch_records = [bytes(5)]
        manager.fetch_gate.set()
        for client in clients:
            await client.receive()
        assert broker.server.statistics().reserved_bytes == 0
        await clients[0].send(fetch_frame(9, max_bytes=3 * mib))
        await clients[0].receive()
        assert manager.fetches_granted[-1] == (5, 5)


@on_both_loops
async def test_an_answer_that_is_not_read_leaves_less_to_others_until_it_is():
    mib = 1 << 20
    async with running_broker(fetched_max_bytes=16 * mib) as broker:
        broker.topics.add("t")
        manager = broker.manager
        manager.fetch_records = [bytes(8 * mib)]
        greedy, other = await broker.connect(), await broker.connect()
        greedy.writer.transport.pause_reading()
        await greedy.send(fetch_frame(1, max_bytes=8 * mib))
        await until(lambda: broker.server.statistics().unsent_bytes > mib)
        assert broker.server.statistics().reserved_bytes == 0, "counted once, where it is now"
        unsent = broker.server.statistics().unsent_bytes
        await other.send(fetch_frame(2, max_bytes=8 * mib))
        await other.receive()
        assert manager.fetches_granted[-1] == (8 * mib, max(8 * mib - unsent, 64 << 10))
        greedy.writer.transport.resume_reading()
        await greedy.receive()
        await until(lambda: broker.server.statistics().unsent_bytes == 0)
        await other.send(fetch_frame(3, max_bytes=8 * mib))
        await other.receive()
        assert manager.fetches_granted[-1] == (8 * mib, 8 * mib)


@on_both_loops
async def test_a_client_that_goes_gives_back_what_was_reserved_for_it():
    async with running_broker() as broker:
        broker.topics.add("t")
        broker.manager.fetch_records = [bytes(1 << 20)]
        broker.manager.fetch_gate.clear()
        client = await broker.connect()
        await client.send(fetch_frame(1), fetch_frame(2))
        await until(lambda: broker.server.statistics().reserved_bytes == 1 << 20)
        client.writer.transport.abort()
        await until(lambda: broker.server.statistics().reserved_bytes == 0)
        assert broker.server.statistics().request_bytes_held == 0


# --- limits


@on_both_loops
async def test_no_more_requests_are_read_than_one_connection_may_have_unanswered():
    async with connected(partitions=1, queued_max_requests=4) as (broker, client):
        broker.manager.hold = True
        await client.send(*(produce_frame(i, [a_batch()]) for i in range(50)))
        await until(lambda: len(broker.manager.held) == 4)
        await (await broker.connect()).call(18, 0)
        assert len(broker.manager.appended) == 4
        for number in range(50):
            await until(lambda: len(broker.manager.held) > 0)
            assert len(broker.manager.held) <= 4
            broker.manager.release_held()
            assert (await client.receive())[0] == number


@on_both_loops
async def test_past_the_budget_of_request_memory_nobody_is_read_until_some_is_written():
    async with running_broker(queued_max_request_bytes=1 << 20) as broker:
        broker.topics.add("t")
        broker.manager.hold = broker.manager.keeps_memory = True
        first = await broker.connect()
        second = await broker.connect()
        frames = [produce_frame(i, [a_batch(300_000)]) for i in range(20)]
        sending = asyncio.ensure_future(first.send(*frames[:10]))
        other = asyncio.ensure_future(second.send(*frames[10:]))
        answered = 0
        while answered < 20:
            await until(lambda: bool(broker.manager.held))
            held = broker.server.statistics().request_bytes_held
            assert held <= (1 << 20) + 2 * (128 << 10) + 300_100
            broker.manager.release_held()
            answered += 1
        await asyncio.gather(sending, other)
        assert [(await first.receive())[0] for _ in range(10)] == list(range(10))
        assert [(await second.receive())[0] for _ in range(10)] == list(range(10, 20))
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_what_is_written_makes_room_long_before_it_is_answered():
    async with connected(partitions=1, queued_max_request_bytes=2 << 20) as (broker, client):
        broker.manager.hold = True
        await client.send(*(produce_frame(i, [a_batch(300_000)]) for i in range(20)))
        await until(lambda: len(broker.manager.held) == 20)
        await until(lambda: broker.server.statistics().request_bytes_held < 20 * 4096)
        for number in range(20):
            broker.manager.release_held()
            assert (await client.receive())[0] == number
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_unanswered_requests_are_memory_although_their_bytes_are_written():
    """Small ones keep more than their bytes: an outage does not pile them up without end."""
    async with running_broker(queued_max_request_bytes=2 << 20) as broker:
        broker.topics.add("t")
        broker.manager.hold = True
        clients = [await broker.connect() for _ in range(3)]
        frames = [produce_frame(i, [a_batch(), a_batch()]) for i in range(200)]
        for client in clients:
            await client.send(*frames)
        await until(lambda: broker.server.statistics().connections_waiting > 0)
        assert 200 <= len(broker.manager.held) < 600
        answered = 0
        while answered < 600:
            await until(lambda: bool(broker.manager.held))
            assert broker.server.statistics().request_bytes_held < 3 << 19
            broker.manager.release_held()
            answered += 1
        for client in clients:
            assert [(await client.receive())[0] for _ in range(200)] == list(range(200))
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_buffers_that_idle_connections_were_left_with_go_back():
    async with connected() as (broker, client):
        await client.call(18, 0)
        (connection,) = broker.server._connections
        assert len(connection.get_buffer(-1)) > 0  # and then the socket had nothing
        assert broker.server.statistics().request_bytes_held > 0
        broker.server.sweep()
        assert broker.server.statistics().request_bytes_held == 0
        await client.call(18, 0)


@on_both_loops
async def test_frames_that_fill_the_budget_together_are_completed_one_by_one():
    async with running_broker(queued_max_request_bytes=1 << 20) as broker:
        broker.topics.add("t")
        clients = [await broker.connect() for _ in range(5)]
        frames = [produce_frame(i, [a_batch(2 << 20, fill=i)]) for i in range(5)]
        # All halves first: more than the budget, and not one complete request.
        halves = [
            asyncio.ensure_future(client.send(data[: 1 << 20]))
            for client, data in zip(clients, frames, strict=True)
        ]
        await until(lambda: broker.server.statistics().request_bytes_held >= 1 << 20)
        rest = [
            asyncio.ensure_future(client.send(data[1 << 20 :]))
            for client, data in zip(clients, frames, strict=True)
        ]
        answers = await asyncio.gather(*(client.receive() for client in clients))
        assert [number for number, _ in answers] == [0, 1, 2, 3, 4]
        await asyncio.gather(*halves, *rest)
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_a_sender_that_stalls_with_the_budget_in_hand_is_cut_off_and_the_next_goes_on():
    clock = ManualClock()
    async with running_broker(clock=clock, queued_max_request_bytes=1 << 20) as broker:
        broker.topics.add("t")
        stalled = await broker.connect()
        data = produce_frame(1, [a_batch(3 << 20)])
        await stalled.send(data[: 3 << 19])
        await until(lambda: broker.server.statistics().request_bytes_held >= 3 << 19)
        patient = await broker.connect()
        large = produce_frame(1, [a_batch(100_000)])
        await patient.send(large[:10])
        await until(lambda: broker.server.statistics().connections_waiting == 1)
        await patient.send(large[10:])
        clock.advance(30 * 5)
        broker.server.sweep()
        assert await stalled.is_closed_by_server()
        assert broker.metrics.cut == {"slow request": 1}
        assert (await patient.receive())[0] == 1


@on_both_loops
async def test_hundreds_that_wait_for_the_budget_go_on_when_it_is_free_again():
    async with running_broker(queued_max_request_bytes=1 << 20) as broker:
        broker.topics.add("t")
        broker.manager.hold = broker.manager.keeps_memory = True
        large = await broker.connect()
        await large.send(produce_frame(1, [a_batch(2 << 20)]))
        await until(lambda: bool(broker.manager.held))
        clients = [await broker.connect() for _ in range(300)]
        data = produce_frame(1, [a_batch(70_000)])
        for client in clients:
            await client.send(data[:10])
        await until(lambda: broker.server.statistics().connections_waiting >= 300)
        for client in clients:
            client.writer.write(data[10:])
        broker.manager.hold = False
        broker.manager.release_held()
        assert [(await client.receive())[0] for client in clients] == [1] * 300
        assert (await large.receive())[0] == 1
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_who_has_nothing_unanswered_is_served_however_much_others_hold():
    async with running_broker(queued_max_request_bytes=1 << 20) as broker:
        broker.topics.add("t")
        broker.manager.hold = broker.manager.keeps_memory = True
        large = await broker.connect()
        await large.send(produce_frame(1, [a_batch(2 << 20)]))
        await until(lambda: bool(broker.manager.held))
        broker.manager.hold = False
        other = await broker.connect()
        for number in range(20):
            await other.call(18, 0)
            await other.send(produce_frame(number, [a_batch(65_000)]))
            assert (await other.receive())[0] == number
        assert len(broker.manager.held) == 1
        broker.manager.release_held()
        await large.receive()
        assert broker.server.statistics().request_bytes_held == 0


@on_both_loops
async def test_one_connection_too_many_is_closed_and_a_free_place_is_used_again():
    async with running_broker(max_connections=2) as broker:
        first, second = await broker.connect(), await broker.connect()
        await second.call(18, 0)
        third = await broker.connect()
        assert await third.is_closed_by_server()
        assert broker.metrics.refused == {"max.connections": 1}
        await first.close()
        await until(lambda: broker.open_connections == 1)
        fourth = await broker.connect()
        await fourth.call(18, 0)


@on_both_loops
async def test_one_address_may_not_take_all_connections():
    async with running_broker(max_connections_per_ip=1) as broker:
        first = await broker.connect()
        await first.call(18, 0)
        second = await broker.connect()
        assert await second.is_closed_by_server()
        assert broker.metrics.refused == {"max.connections.per.ip": 1}


@on_both_loops
async def test_an_address_in_use_is_a_setting_that_cannot_be():
    async with running_broker() as broker:
        host, port = broker.server.address
        with pytest.raises(InvalidSettings, match=f"{host}:{port}"):
            bind_listener(host, port)


# --- stopping


@on_both_loops
async def test_stopping_answers_what_was_asked_and_ends_parked_fetches():
    async with running_broker() as broker:
        broker.topics.add("t")
        broker.manager.hold = True
        address = broker.server.address
        consumer, producer = await RawClient.connect(address), await RawClient.connect(address)
        await consumer.send(fetch_frame(1, max_wait_ms=3_600_000, min_bytes=1 << 19))
        await producer.send(produce_frame(2, [a_batch()]))
        await until(lambda: bool(broker.manager.held) and broker.manager.fetches_running == 1)
        asyncio.get_running_loop().call_later(0.05, broker.manager.release_held)
    assert (await consumer.receive())[0] == 1
    assert (await producer.receive())[0] == 2
    assert await consumer.is_closed_by_server()
    assert await producer.is_closed_by_server()
    assert broker.manager.fetches_cancelled == 0
    assert broker.open_connections == 0
    await consumer.close()
    await producer.close()


@on_both_loops
async def test_stopping_cuts_off_at_its_deadline_what_does_not_end():
    started = asyncio.Event()

    async def hang(request: Request) -> Reply:
        started.set()
        await asyncio.Event().wait()
        return None

    apis = ApiRegistry([private_api(hang)])
    async with running_broker(apis=apis, stop_timeout_ms=50) as broker:
        client = await RawClient.connect(broker.server.address)
        await call_private(client)
        await started.wait()
    assert await client.is_closed_by_server()
    assert broker.server.statistics().request_bytes_held == 0
    await client.close()


@on_both_loops
async def test_requests_are_answered_while_another_waits_for_its_commit():
    async with running_broker() as broker:
        broker.topics.add("t")
        broker.manager.hold = True
        producer, other = await broker.connect(), await broker.connect()
        await producer.send(produce_frame(1, [a_batch()]))
        await until(lambda: bool(broker.manager.held))
        body = request_body(3, 1, topics=None)
        await other.send(frame(3, 1, 2, body))
        assert (await other.receive())[0] == 2
        broker.manager.release_held()
        assert (await producer.receive())[0] == 1
