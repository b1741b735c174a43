"""The HTTP server beside the broker: what it answers, and that nobody keeps others out of it."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from diskless.health.http_server import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HttpAnswer,
    HttpRequest,
    HttpServer,
    bind_http,
    plain,
)
from diskless.metrics import REST_SHARE, MetricsOf, MetricsPage
from tests.support.brokers.live_broker import until
from tests.support.security.certificates import Certificates
from wal.clock import ManualClock

TIMEOUT_S = 120


async def echo(request: HttpRequest) -> HttpAnswer:
    return plain(HTTPStatus.OK, f"{request.path} {request.accept}\n")


async def failing(_: HttpRequest) -> HttpAnswer:
    raise RuntimeError("a bug")


ROUTES = {"/echo": echo, "/failing": failing}


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(bind_http("127.0.0.1", 0), ROUTES) as server:
        yield server


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), TIMEOUT_S)


def received(connection: socket.socket) -> str:
    """All that comes until the server closes."""
    pieces = []
    while piece := connection.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces).decode()


def ask(server: HttpServer, request: str) -> str:
    with connect(server) as connection:
        connection.sendall(request.encode())
        return received(connection)


def test_a_route_sees_path_and_accept(server: HttpServer) -> None:
    answer = ask(server, "GET /echo?verbose=1 HTTP/1.1\r\nHost: h\r\nACCEPT: text/plain\r\n\r\n")
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert body == "/echo text/plain\n"
    assert f"Content-Length: {len(body)}" in head
    assert "Connection: close" in head


def test_a_tree_serves_what_is_below_it_and_sees_host_and_target() -> None:
    async def tell(request: HttpRequest) -> HttpAnswer:
        return plain(HTTPStatus.OK, f"{request.host} {request.target}")

    listener = bind_http("127.0.0.1", 0)
    with HttpServer(listener, ROUTES, trees={"/v1/": tell}) as server:
        asked = "GET /v1/a%2Fb?c=d HTTP/1.1\r\nHost: h:1\r\n\r\n"
        assert ask(server, asked).endswith("h:1 /v1/a%2Fb?c=d")
        assert "404 Not Found" in ask(server, "GET /v1 HTTP/1.1\r\n\r\n")
        assert "405 Method" in ask(server, "POST /v1/a HTTP/1.1\r\n\r\n")
        twice = "GET /v1/a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"
        assert "400 Bad Request" in ask(server, twice)


def test_a_head_request_gets_everything_but_the_body(server: HttpServer) -> None:
    answer = ask(server, "HEAD /echo HTTP/1.1\r\n\r\n")
    assert "200 OK" in answer
    assert answer.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /", 404),
        ("GET /echo/more", 404),
        ("POST /nowhere", 404),
        ("POST /echo", 405),
        ("DELETE /echo", 405),
        ("GET echo", 400),
        ("GET http://[/echo", 400),
        ("\x16\x03\x01", 400),
    ],
)
def test_what_is_not_there_is_told_from_what_is_not_done(
    server: HttpServer, request_line: str, status: int
) -> None:
    answer = ask(server, f"{request_line} HTTP/1.1\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert ("Allow: GET, HEAD" in answer) == (status == 405)
    assert ("/echo\n" in answer) == (status == 404)


def test_a_head_that_is_too_large_is_refused_before_it_is_stored(server: HttpServer) -> None:
    answer = ask(server, "GET /echo HTTP/1.1\r\nX: " + "x" * (2 * HEAD_BYTES_MAX))
    assert answer.startswith("HTTP/1.1 431 ")


def test_a_route_that_fails_is_an_answer_and_the_next_one_is_served(
    server: HttpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "GET /failing HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 500 ")
    assert "a bug" in capsys.readouterr().out
    assert ask(server, "GET /echo HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 200 ")


def test_however_many_say_nothing_a_newcomer_is_served(server: HttpServer) -> None:
    with ExitStack() as open_connections:
        silent = [
            open_connections.enter_context(connect(server)) for _ in range(2 * CONNECTIONS_MAX)
        ]
        assert ask(server, "GET /echo HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 200 ")
        # The oldest of them were cut for it, and one of the last is served when it speaks.
        for connection in silent[:CONNECTIONS_MAX]:
            assert not received(connection)
        silent[-1].sendall(b"GET /echo HTTP/1.1\r\n\r\n")
        assert received(silent[-1]).startswith("HTTP/1.1 200 ")


def test_who_does_not_finish_its_request_is_cut_at_a_deadline() -> None:
    with (
        HttpServer(bind_http("127.0.0.1", 0), ROUTES, receive_timeout_s=2) as server,
        connect(server) as connection,
    ):
        connection.sendall(b"GET ")
        assert not received(connection)
        assert ask(server, "GET /echo HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 200 ")


def test_an_end_does_not_wait_for_who_says_nothing() -> None:
    with HttpServer(bind_http("127.0.0.1", 0), ROUTES) as server:
        connection = connect(server)
        until(lambda: server.connection_count == 1, "a connection")
    with connection:
        assert not received(connection)


async def test_a_page_of_metrics_is_followed_by_a_rest_of_four_times_its_cost() -> None:
    clock = ManualClock()
    slept: list[float] = []

    async def sleep(delay: float, /) -> None:
        slept.append(delay)
        clock.advance(delay)

    def slow() -> float:
        clock.advance(0.5)
        return 1

    page = MetricsPage(CollectorRegistry(), clock=clock, sleep=sleep)
    page.add([MetricsOf(slow).gauge("diskless_slow", "Takes half a second", float)])
    for _ in range(3):
        content_type, body = await page.render("")
    assert slept == [0, 0.5 * REST_SHARE, 0.5 * REST_SHARE]
    assert content_type.startswith("text/plain")
    assert b"diskless_slow 1.0" in body.splitlines()


def test_handshakes_begin_no_faster_than_their_rate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    keys = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keys.load_cert_chain(certificates.server)

    def served(**more: Any) -> None:
        with HttpServer(bind_http("127.0.0.1", 0), ROUTES, sleep=sleep, **more) as server:
            for _ in range(3):
                with (
                    connect(server) as plain_socket,
                    certificates.context().wrap_socket(plain_socket, server_hostname="localhost")
                    if more
                    else plain_socket as client,
                ):
                    client.sendall(b"GET /echo HTTP/1.1\r\n\r\n")
                    assert received(client).startswith("HTTP/1.1 200")

    served()
    assert waits == [], "plain text costs less"
    served(tls=lambda: keys, handshakes_per_s=1e-6)
    assert [round(wait, -5) for wait in waits] == [1e6, 2e6, 3e6]
