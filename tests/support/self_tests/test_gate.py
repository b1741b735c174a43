"""A gate does to connections what it is told to."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.brokers.gate import Gate


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def connected(gate: Gate, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(("127.0.0.1", gate.port), timeout=60)
    server, _ = listener.accept()
    server.settimeout(60)
    return client, server


def test_what_is_held_comes_late_and_in_order(listener: socket.socket) -> None:
    with Gate(listener.getsockname()) as gate:
        first, first_server = connected(gate, listener)
        gate.hold()
        second, second_server = connected(gate, listener)
        with closing(first), closing(second), closing(first_server), closing(second_server):
            for client in (first, second):
                client.sendall(b"late")
            first_server.sendall(b"answer")
            for end in (first, first_server, second_server):
                end.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    end.recv(100)
                end.settimeout(60)
            gate.let_go()
            assert first.recv(100) == b"answer"
            assert [end.recv(100) for end in (first_server, second_server)] == [b"late"] * 2


def test_some_connections_are_reset_and_others_go_on(listener: socket.socket) -> None:
    with Gate(listener.getsockname()) as gate:
        some = [connected(gate, listener) for _ in range(2)]
        lost = iter((True, False))
        gate.reset(lambda: next(lost))
        (client, server), (second, second_server) = some
        with closing(client), closing(server):
            for end in (client, server):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)
        with closing(second), closing(second_server):
            second.sendall(b"x")
            assert second_server.recv(1) == b"x"
        client, server = connected(gate, listener)
        with closing(client), closing(server):
            gate.cut()
            assert client.recv(1) == b""
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", gate.port))
