"""Ten thousand connections over four workers: spread, answered, and gone when their clients are."""

import asyncio
import os
import resource
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from demo.broker_process import BrokerProcess
from tests.support.brokers.killed_workers import workers_of
from tests.support.brokers.live_broker import until
from tests.support.questions.kafka_raw_client import frame

pytestmark = [pytest.mark.clients, pytest.mark.exhaustive]

FILES_MAX: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
CONNECTIONS: Final = min(10_000, (FILES_MAX - 1_500) // 2) if FILES_MAX > 0 else 10_000
"""A worker has two descriptors for one whose requests are relayed, and others besides."""
WORKERS: Final = 4
API_VERSIONS: Final = frame(18, 0, 7, b"")


def sockets_of(pid: int) -> int:
    found = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += os.readlink(f"/proc/{pid}/fd/{entry}").startswith("socket:")
        except OSError:
            continue
    return found


async def answered(client: socket.socket) -> int:
    """The correlation id of the next answer."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, API_VERSIONS)
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4]):
        found += await loop.sock_recv(client, 64 << 10)
    return int(struct.unpack_from(">i", found, 4)[0])


async def test_ten_thousand_connections_are_spread_over_four_workers(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    settings = {
        "broker.workers": str(WORKERS),
        "max.connections": str(CONNECTIONS + 100),
        "max.connections.per.ip": str(CONNECTIONS + 100),
        "max.connection.creation.rate": str(CONNECTIONS),
    }
    with BrokerProcess(tmp_path / "data", tmp_path, settings) as broker, ExitStack() as stack:
        broker.start()
        host, _, port = broker.bootstrap.rpartition(":")
        before = {worker: sockets_of(worker) for worker in workers_of(broker)}
        assert len(before) == WORKERS
        clients: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            client.setblocking(False)
            clients.append(client)

        def counts() -> list[int]:
            return [sockets_of(worker) - there for worker, there in before.items()]

        until(lambda: sum(counts()) >= CONNECTIONS, "all connections to be taken")
        assert min(counts()) > CONNECTIONS // WORKERS // 2
        async with asyncio.timeout(240):
            for start in range(0, CONNECTIONS, 500):
                some = clients[start : start + 500]
                assert set(await asyncio.gather(*map(answered, some))) == {7}
        stack.close()
        until(lambda: sum(counts()) < 100, "nothing to be left of them")
        broker.stop()
