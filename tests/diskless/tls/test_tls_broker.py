"""A broker with a TLS listener, stock clients, and those that it must not listen to."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.security.certificates import LONG_AGO, Certificates

LISTENER = {"listeners": "SSL://127.0.0.1:0"}


def librdkafka(certificates: Certificates, broker: LiveBroker, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": certificates.authority,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def handshakes(broker: LiveBroker, result: str) -> float:
    value = broker.broker.base.registry.get_sample_value(
        "diskless_tls_handshakes_total", {"listener": "SSL", "result": result}
    )
    return value or 0.0


def test_records_go_in_and_out_over_tls(tmp_path: Path, certificates: Certificates) -> None:
    sent = [bytes([number % 251]) * (number * 900) for number in range(400)]
    with LiveBroker(tmp_path / "data", {**LISTENER, **certificates.listener()}) as broker:
        options = librdkafka(certificates, broker)
        producer = Producer({**options, "message.max.bytes": "2000000"})
        for value in sent:
            producer.produce("t", value, partition=0)
        assert producer.flush(60) == 0
        consumer = Consumer({**options, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        received: list[bytes] = []
        while len(received) < len(sent):
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            received.append(message.value())
        consumer.close()
        assert received == sent
        assert handshakes(broker, "complete") >= 2


@contextmanager
def secured(broker: LiveBroker, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", broker.port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        yield client


def ask(client: socket.socket) -> bytes:
    """ApiVersions: the first of the answer; nothing: it hung up."""
    client.sendall(bytes.fromhex("0000000a00120000000000010000"))
    try:
        return client.recv(4)
    except ConnectionError:
        return b""


def exchange(broker: LiveBroker, context: ssl.SSLContext) -> bytes:
    with secured(broker, context) as client:
        return ask(client)


def refusal(broker: LiveBroker, context: ssl.SSLContext) -> str:
    """What the server says to a client that it does not let in."""
    with secured(broker, context) as client, pytest.raises(ssl.SSLError) as refused:
        # Nothing is sent: what a closed socket has not read makes the system drop the alert.
        client.recv(4)
    return str(refused.value).lower()


def test_who_has_no_certificate_that_is_trusted_is_told_and_refused(
    tmp_path: Path, certificates: Certificates
) -> None:
    other = Certificates(tmp_path / "other")
    mine = certificates.signed("alice")
    settings = certificates.listener(ssl_client_auth="required")
    with LiveBroker(tmp_path / "data", {**LISTENER, **settings}) as broker:
        assert exchange(broker, certificates.context(mine))
        stranger = certificates.context()
        stranger.load_cert_chain(other.signed("alice"))
        late = certificates.context(certificates.signed("late", expires_at=LONG_AGO))
        for context, alert in (
            (certificates.context(), "certificate required"),
            (stranger, "unknown ca"),
            (late, "certificate expired"),
        ):
            assert alert in refusal(broker, context)
        until(lambda: handshakes(broker, "expired") == 1, "that it is counted by itself")
        assert handshakes(broker, "failed") == 2
        with pytest.raises(ssl.SSLCertVerificationError):
            exchange(broker, other.context())
        until(lambda: handshakes(broker, "failed") == 3, "the client's own refusal")


def test_a_user_has_no_more_connections_than_their_number(
    tmp_path: Path, certificates: Certificates
) -> None:
    keys = certificates.listener(ssl_client_auth="required", max_connections_per_user="2")
    alice, bob = (certificates.context(certificates.signed(name)) for name in ("alice", "bob"))
    with LiveBroker(tmp_path / "data", {**LISTENER, **keys}) as broker:
        with secured(broker, alice) as first, secured(broker, alice) as second:
            assert ask(first)
            assert ask(second)
            assert not exchange(broker, alice)
            assert exchange(broker, bob)
        until(lambda: broker.broker.server.statistics().connections == 0, "their end")
        assert exchange(broker, alice)
        labels = {"reason": "max.connections.per.user"}
        registry = broker.broker.base.registry
        assert registry.get_sample_value("diskless_connections_refused_total", labels) == 1


def test_plain_text_and_old_versions_are_refused(
    tmp_path: Path, certificates: Certificates
) -> None:
    old = certificates.context()
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with LiveBroker(tmp_path / "data", {**LISTENER, **certificates.listener()}) as broker:
        with pytest.raises(ssl.SSLError):
            exchange(broker, old)
        with socket.create_connection(("127.0.0.1", broker.port), 60) as plain:
            plain.sendall(bytes.fromhex("0000000a00120000000000010000"))
            answer = plain.recv(100)
            assert not answer or answer[0] == 0x15, "a TLS alert, and nothing in plain text"
        until(lambda: handshakes(broker, "plaintext") == 1, "the refusal")
        assert exchange(broker, certificates.context())


def test_a_client_is_who_its_certificate_says(tmp_path: Path, certificates: Certificates) -> None:
    mine = certificates.signed("alice", common_name="Alice")
    settings = certificates.listener(
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=([A-Z_][a-z_]*),.*$/$1/L",
    )
    with LiveBroker(tmp_path / "data", {**LISTENER, **settings}) as broker:

        def users() -> set[str]:
            return {one._client.user for one in broker.broker.server._connections}

        with (
            secured(broker, certificates.context(mine)) as alice,
            secured(broker, certificates.context()) as nobody,
        ):
            assert ask(alice)
            assert ask(nobody)
            assert users() == {"alice", "ANONYMOUS"}
        nameless = certificates.context(certificates.signed("bob", common_name="42"))
        assert exchange(broker, nameless) == b""
        assert handshakes(broker, "nameless") == 1
        # The name of the brokers has their rights, and no certificate gives it.
        pretender = certificates.context(certificates.signed("eve", common_name="__broker"))
        assert exchange(broker, pretender) == b""
        assert handshakes(broker, "nameless") == 2
