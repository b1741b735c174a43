"""Clients that begin a handshake and do not go on: what they cost others, and how they end."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.ports import own_port
from tests.support.security.certificates import Certificates

COUNT = 1_000 if IS_EXHAUSTIVE else 150
API_VERSIONS = bytes.fromhex("0000000a00120000000000010000")


def client_hello(certificates: Certificates) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certificates.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@contextmanager
def secured(port: int, certificates: Certificates, address: str) -> Iterator[ssl.SSLSocket]:
    with ExitStack() as stack:
        plain = stack.enter_context(socket.socket())
        plain.settimeout(60)
        plain.bind((address, 0))
        plain.connect(("127.0.0.1", port))
        yield stack.enter_context(
            certificates.context().wrap_socket(plain, server_hostname="localhost")
        )


def ask(client: socket.socket) -> bytes:
    client.sendall(API_VERSIONS)
    return client.recv(100_000)


def by_state(broker: LiveBroker) -> Any:
    found = broker.broker.server.statistics().by_state
    return {state: count for (_, state), count in found.items()}


def test_they_cost_others_nothing_and_have_their_time(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        **certificates.listener(),
        "ssl.handshakes.max": "48",
        "ssl.handshakes.per.ip.max": "16",
        "ssl.handshake.timeout.ms": "600000",
    }
    hello = client_hello(certificates)
    broker = LiveBroker(tmp_path / "data", settings)
    with ExitStack() as stack:
        stack.enter_context(broker)
        before = stack.enter_context(secured(broker.port, certificates, "127.0.0.1"))
        assert ask(before)
        for number in range(COUNT):
            idle = stack.enter_context(socket.socket())
            idle.bind((("127.0.0.2", "127.0.0.3")[number % 2], 0))
            idle.connect(("127.0.0.1", broker.port))
            # Some say nothing at all, some half of a sentence.
            idle.sendall(hello[: (0, 5, len(hello) // 2, len(hello))[number % 4]])
        until(lambda: by_state(broker)["handshake"] == COUNT, "all of them")
        handshakes = broker.broker.server._handshakes
        until(lambda: handshakes.under_way == 32, "two shares of 16")
        assert handshakes.waiting == COUNT - 32
        assert ask(before), "who is connected goes on"
        with secured(broker.port, certificates, "127.0.0.4") as another:
            assert ask(another), "who comes from elsewhere has a share of its own"
        # A stop does not wait ten minutes for them.
        broker.stop()


def test_they_are_cut_off_when_their_time_is_over(
    tmp_path: Path, certificates: Certificates
) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        **certificates.listener(),
        "ssl.handshake.timeout.ms": "50",
    }
    with (
        LiveBroker(tmp_path / "data", settings) as broker,
        socket.create_connection(("127.0.0.1", broker.port), 60) as idle,
    ):
        assert idle.recv(1) == b""
        until(lambda: by_state(broker) == {"open": 0, "handshake": 0}, "its end")
        name = "diskless_tls_handshakes_total"
        labels = {"listener": "SSL", "result": "timeout"}
        assert broker.broker.base.registry.get_sample_value(name, labels) == 1


def test_a_process_takes_new_keys_at_sighup(tmp_path: Path, certificates: Certificates) -> None:
    file, port = tmp_path / "server.pem", own_port()
    os.replace(certificates.signed("before", "localhost"), file)
    keys = certificates.listener(
        ssl_keystore_location=str(file), listeners=f"SSL://127.0.0.1:{port}"
    )
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("diskless"), "serve", "--data", tmp_path / "data",
             "--set", "http.listen=", *words],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            until(lambda: "ready on" in log.read_text() or process.poll() is not None, "a start")

            def shown() -> bytes | None:
                with secured(port, certificates, "127.0.0.1") as client:
                    return client.getpeercert(binary_form=True)

            before = shown()
            os.replace(certificates.signed("after", "localhost"), file)
            assert shown() == before
            process.send_signal(signal.SIGHUP)
            until(lambda: shown() != before, "the new certificate")
        finally:
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
