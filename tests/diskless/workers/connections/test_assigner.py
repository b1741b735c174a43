"""A head accepts, and hands each connection to a worker, over real sockets."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from diskless.addresses import bound_socket
from diskless.shared.connection_counts import ConnectionCounts
from diskless.workers.connections.accepted import AcceptedConnection, AcceptedConnections
from diskless.workers.connections.assigner import UNTAKEN_MAX, Assigner
from diskless.workers.connections.balance import Balance, Load
from tests.support.loops.until import until
from wal.clock import ManualClock


class Worker:
    """What of a worker takes connections; they stay as they come."""

    def __init__(self, fd: int, number: int, end: socket.socket) -> None:
        self.clients: list[AcceptedConnection] = []
        self.counts = ConnectionCounts(fd, number)
        self.taker = AcceptedConnections(end, admit=self.admit, took=self.counts.took)

    def admit(self, connection: AcceptedConnection) -> None:
        self.clients.append(connection)
        self.counts.changed(len(self.clients))

    def end(self) -> None:
        self.taker.close()
        for connection in self.clients:
            connection.client.close()


class Head:
    """Two listeners, and workers that begin and end."""

    def __init__(self) -> None:
        listeners = [bound_socket("127.0.0.1", 0) for _ in range(2)]
        self.addresses = [listener.getsockname() for listener in listeners]
        self.fd = ConnectionCounts.make(2)
        self.assigner = Assigner(
            listeners, ConnectionCounts(self.fd), Balance(2, 0.7), clock=ManualClock(), backlog=128
        )
        self.assigner.start()
        self.workers: list[Worker] = []
        self.clients: list[socket.socket] = []

    def worker(self, number: int) -> Worker:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        worker = Worker(self.fd, number, theirs.dup())
        self.assigner.began(number, ours, theirs)
        self.workers.append(worker)
        return worker

    def connect(self, listener: int = 0) -> socket.socket:
        client = socket.create_connection(self.addresses[listener])
        client.setblocking(False)
        self.clients.append(client)
        return client

    def close(self) -> None:
        self.assigner.stop()
        for worker in self.workers:
            worker.end()
        for client in self.clients:
            client.close()
        for number in (1, 2):
            self.assigner.gone(number)
        os.close(self.fd)


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    head = Head()
    yield head
    head.close()


async def test_connections_one_at_a_time_are_divided_evenly(head: Head) -> None:
    first, second = head.worker(1), head.worker(2)
    for one in (first, second):
        one.taker.start()
    for count in range(1, 11):
        head.connect()
        await until(lambda count=count: len(first.clients) + len(second.clients) == count)
    assert len(first.clients) == len(second.clients) == 5


async def test_a_burst_is_divided_evenly_before_anybody_has_taken_any(head: Head) -> None:
    first, second = head.worker(1), head.worker(2)
    for _ in range(20):
        head.connect()
    await asyncio.sleep(0)
    for one in (first, second):
        one.taker.start()
    await until(lambda: len(first.clients) + len(second.clients) == 20)
    assert len(first.clients) == len(second.clients) == 10


async def test_a_connection_comes_with_its_listener_and_the_address_of_its_client(
    head: Head,
) -> None:
    worker = head.worker(1)
    worker.taker.start()
    client = head.connect(listener=1)
    await until(lambda: bool(worker.clients))
    ((listener, served, host),) = worker.clients
    assert (listener, host) == (1, "127.0.0.1")
    assert served.getpeername() == client.getsockname()
    assert served.gettimeout() == 0
    served.send(b"hello")
    async with asyncio.timeout(60):
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b"hello"


async def test_who_takes_nothing_is_given_little_and_what_it_was_given_goes_to_another(
    head: Head,
) -> None:
    stuck, second = head.worker(1), head.worker(2)
    second.taker.start()
    for _ in range(3 * UNTAKEN_MAX):
        head.connect()
        await asyncio.sleep(0.0001)
    await until(lambda: len(second.clients) == 3 * UNTAKEN_MAX)
    # It is left alone until it says how much it does.
    head.connect()
    await until(lambda: len(second.clients) == 3 * UNTAKEN_MAX + 1)
    stuck.taker.start()
    head.assigner.told(1, Load(0.0, is_short=False))
    head.connect()
    await until(lambda: len(stuck.clients) == 1)


async def test_connections_wait_until_somebody_can_take_them(head: Head) -> None:
    for _ in range(UNTAKEN_MAX + 5):
        head.connect()
    await asyncio.sleep(0.02)
    worker = head.worker(1)
    await asyncio.sleep(0.02)
    assert worker.clients == []
    worker.taker.start()
    await until(lambda: len(worker.clients) == UNTAKEN_MAX + 5)


async def test_what_a_worker_had_not_taken_when_it_ended_goes_to_the_next_one(head: Head) -> None:
    first = head.worker(1)
    clients = [head.connect() for _ in range(3)]
    await until(lambda: head.assigner.on_their_way == 3)
    second = head.worker(2)
    head.assigner.gone(1)
    second.taker.start()
    await until(lambda: len(second.clients) == 3)
    assert first.clients == []
    addresses = {one.client.getpeername() for one in second.clients}
    assert addresses == {client.getsockname() for client in clients}


async def test_without_another_one_they_are_closed(head: Head) -> None:
    head.worker(1)
    client = head.connect()
    await until(lambda: head.assigner.on_their_way == 1)
    head.assigner.gone(1)
    async with asyncio.timeout(60):
        assert not await asyncio.get_running_loop().sock_recv(client, 1)
    again = head.worker(1)
    again.taker.start()
    head.connect()
    await until(lambda: len(again.clients) == 1)
