"""Who shows a certificate and has to log in as well: who it is, and what it may before that."""

import socket
import ssl
from pathlib import Path

import pytest

from diskless.sasl.failure_delay import FailureDelay
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.questions.kafka_raw_client import frame
from tests.support.security.certificates import Certificates

HANDSHAKE = frame(17, 1, 1, b"\0\x05PLAIN")


def authenticate(token: bytes) -> bytes:
    return frame(36, 0, 2, len(token).to_bytes(4, "big") + token)


def test_a_certificate_is_no_log_in(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailureDelay, "failed", lambda *_: 3_600.0)
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("pencil")
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        **certificates.listener(ssl_client_auth="required"),
        "sasl.enabled.mechanisms": "PLAIN",
        "bootstrap.admin": "ann",
        "bootstrap.admin.password": f"file:{password}",
        "authorizer": "none",
    }
    context = certificates.context(certificates.signed("of-a-machine"))
    with LiveBroker(tmp_path / "data", settings) as broker:
        server = broker.broker.server

        def connected() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", broker.port), 60)
            return context.wrap_socket(plain, server_hostname="localhost")

        def users() -> list[str]:
            return [one.client.user for one in server.connections]

        with connected() as client:
            client.sendall(HANDSHAKE)
            assert client.recv(4)
            assert (users(), server._pending.places) == (["ANONYMOUS"], 1)
            client.recv(1_000)
            client.sendall(authenticate(b"\0ann\0pencil"))
            assert client.recv(4)
            assert (users(), server._pending.places) == (["ann"], 0)
            assert server._limits._per_user == {"ann": 1}
        # Who guesses does not save the time by not waiting for the answer.
        with connected() as client:
            client.sendall(HANDSHAKE + authenticate(b"\0ann\0pen"))
            until(lambda: failures(broker) == 1, "the failure")
        until(lambda: not server.connections, "the end of the connection")
        assert server._pending.places == 1


def failures(broker: LiveBroker) -> float:
    labels = {"mechanism": "PLAIN", "result": "failure"}
    found = broker.broker.base.registry.get_sample_value("diskless_authentications_total", labels)
    return found or 0.0
