"""What a broker refuses to be: open to a network by accident."""

from collections.abc import Collection
from pathlib import Path

import pytest

from diskless.config import load_config
from diskless.listeners.exposure import Allowed, check_exposure, is_loopback
from diskless.listeners.listener_settings import ListenerSettings
from diskless.listeners.listeners import plan_listeners
from diskless.listeners.tls_keys import TlsKeys
from diskless.listeners.tls_settings import TlsSettings
from diskless.tls_memory import TLS_CONNECTION_BYTES, available_memory, fit_tls_memory
from tests.support.brokers.live_broker import LiveBroker
from tests.support.security.certificates import Certificates
from wal.clock import SystemClock
from wal.errors import InvalidSettings


def exposed(
    listeners: str,
    keys: list[TlsKeys] | None = None,
    *,
    passwords: Collection[str] = (),
    http: str = "",
    allowed: Allowed = Allowed.NOTHING,
) -> list[str]:
    names = [entry.partition(":")[0] for entry in listeners.split(",")]
    settings = ListenerSettings(
        listeners=listeners,
        advertised=",".join(f"{name}://h:{port}" for port, name in enumerate(names, start=1)),
        inter_broker_name=names[0],
    )
    planned = plan_listeners(settings)
    return list(
        check_exposure(planned, keys or [], passwords=passwords, http=http, allowed=allowed)
    )


def keys_of(certificates: Certificates, client_auth: str) -> list[TlsKeys]:
    settings = TlsSettings(
        keystore=certificates.server, truststore=certificates.authority, client_auth=client_auth
    )
    return [TlsKeys("SSL", settings, SystemClock())]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host.strip("[]"))
    assert exposed(f"PLAINTEXT://{host}:9092", http="127.0.0.1:1") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "", "[::]", "10.0.0.5", "[2001:db8::1]"])
def test_who_is_not_asked_does_not_come_from_elsewhere(host: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        exposed(f"PLAINTEXT://{host}:9092")
    assert "=PLAINTEXT:SASL_SSL" in str(refused.value)
    assert "security.allow.insecure=true" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert exposed(f"PLAINTEXT://{host}:9092", allowed=Allowed.EVERYTHING) == ["PLAINTEXT"]


def test_tls_alone_tells_nobody_who_a_client_is(certificates: Certificates) -> None:
    for client_auth in ("none", "requested"):
        with pytest.raises(InvalidSettings, match=r"write ssl\.client\.auth=required"):
            exposed("SSL://0.0.0.0:9094", keys_of(certificates, client_auth))
    assert exposed("SSL://0.0.0.0:9094", keys_of(certificates, "required")) == []


def test_passwords_do_not_go_over_a_network_as_they_are() -> None:
    there = "SASL_PLAINTEXT://0.0.0.0:9094"
    assert exposed(there) == []
    with pytest.raises(InvalidSettings, match=r"PLAIN and OAUTHBEARER send passwords"):
        exposed(there, passwords=["SASL_PLAINTEXT"])
    assert exposed("SASL_SSL://0.0.0.0:9094", passwords=["SASL_SSL"]) == []
    assert exposed("SASL_PLAINTEXT://127.0.0.1:9094", passwords=["SASL_PLAINTEXT"]) == []
    inside = {"listeners": "SASL_PLAINTEXT://0.0.0.0:0", "sasl.enabled.mechanisms": "PLAIN"}
    told = {"advertised.listeners": "SASL_PLAINTEXT://127.0.0.1:1"}
    with pytest.raises(InvalidSettings, match=r"PLAIN and OAUTHBEARER send passwords"):
        LiveBroker(Path("/nowhere"), {**inside, **told}).__enter__()


def test_one_open_listener_among_closed_ones_is_refused(certificates: Certificates) -> None:
    keys = keys_of(certificates, "required")
    assert exposed("PLAINTEXT://127.0.0.1:9092,SSL://0.0.0.0:9094", keys) == []
    with pytest.raises(InvalidSettings, match=r"PLAINTEXT://10\.0\.0\.5:9092"):
        exposed("SSL://0.0.0.0:9094,PLAINTEXT://10.0.0.5:9092", keys)


def test_the_port_of_metrics_can_be_allowed_alone() -> None:
    inside = "PLAINTEXT://127.0.0.1:9092"
    with pytest.raises(InvalidSettings, match=r"security\.allow\.insecure=http"):
        exposed(inside, http="0.0.0.0:9644")
    assert exposed(inside, http="0.0.0.0:9644", allowed=Allowed.HTTP) == ["HTTP"]
    with pytest.raises(InvalidSettings, match=r"PLAINTEXT://0\.0\.0\.0:9092"):
        exposed("PLAINTEXT://0.0.0.0:9092", allowed=Allowed.HTTP)


def test_a_broker_that_is_open_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:1",
        "log.level": "warning",
    }
    with pytest.raises(InvalidSettings):
        LiveBroker(tmp_path / "data", settings).__enter__()
    assert not (tmp_path / "data").exists(), "nothing was made before it was refused"
    with LiveBroker(tmp_path / "data", {**settings, "security.allow.insecure": "true"}) as broker:
        assert broker.broker.base.insecure == ["PLAINTEXT"]
    assert "open to other machines" in capsys.readouterr().out


def test_what_a_listener_has_that_is_not_there_is_refused(tmp_path: Path) -> None:
    settings = {"listener.name.outside.ssl.client.auth": "required"}
    with pytest.raises(InvalidSettings, match="listeners has no OUTSIDE"):
        LiveBroker(tmp_path / "data", settings).__enter__()


def test_there_are_no_more_tls_connections_than_memory_is_for() -> None:
    config = load_config(overrides={"listeners": "SSL://127.0.0.1:0", "max.connections": "100"})
    plain = load_config(overrides={"max.connections": "100"})
    little = 2 * 30 * TLS_CONNECTION_BYTES
    assert fit_tls_memory(config, little).server.max_connections == 30
    assert fit_tls_memory(config, 1).server.max_connections == 1
    assert fit_tls_memory(config, 100 * little) is config
    assert fit_tls_memory(config, None) is config
    assert fit_tls_memory(plain, little) is plain
    assert (available_memory() or 0) > 1 << 20
