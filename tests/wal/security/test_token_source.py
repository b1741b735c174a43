"""Tokens of a client: from a file or an endpoint, and what neither is followed nor told."""

from pathlib import Path

import pytest

from tests.support.security.authorization_server import CLIENT, AuthorizationServer, Issuer
from wal.clock import ManualClock
from wal.errors import InvalidSettings
from wal.security.client_security import read_client_security
from wal.security.secret import Secret
from wal.security.token_source import TokenSource, TokenUnavailable

ISSUED = Issuer()
MARKER = "nobody-may-see-this"
SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
URL = "sasl.oauthbearer.token.endpoint.url"


def source(url: str, clock: ManualClock, secret: str = CLIENT[1]) -> TokenSource:
    return TokenSource(
        url, client_id=CLIENT[0], client_secret=Secret(secret), what="here", clock=clock
    )


def test_a_token_is_used_until_its_time_is_nearly_over() -> None:
    clock = ManualClock()
    with AuthorizationServer(ISSUED) as server:
        server.lives_s = 100
        tokens = source(f"{server.url}/token", clock)
        first = tokens.token()
        clock.advance(79)
        assert tokens.token() == first
        assert server.asked == ["/token"]
        clock.advance(2)
        tokens.token()
        assert server.asked == ["/token"] * 2


def test_a_refused_client_is_told_so_and_not_its_secret() -> None:
    with AuthorizationServer(ISSUED) as server:
        tokens = source(f"{server.url}/token", ManualClock(), MARKER)
        with pytest.raises(TokenUnavailable, match=r"gives client no token: status 401") as error:
            tokens.token()
    assert MARKER not in str(error.value)
    with pytest.raises(TokenUnavailable):
        tokens.token()


@pytest.mark.parametrize(
    "answer",
    [{}, [], {"access_token": 1}, {"access_token": "a\nb"}, {"access_token": "ä"}],
    ids=str,
)
def test_what_is_no_token_is_none(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuthorizationServer(ISSUED) as server:
        monkeypatch.setattr(server, "granted", lambda *_: (200, answer))
        with pytest.raises(TokenUnavailable):
            source(f"{server.url}/token", ManualClock()).token()


def test_a_file_is_read_for_each_log_in_by_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = TokenSource(f"file:{file}", what="here")
    with pytest.raises(TokenUnavailable):
        tokens.token()
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        file.chmod(0o600)
        assert tokens.token() == text
    file.chmod(0o644)
    with pytest.raises(TokenUnavailable, match="chmod 600"):
        tokens.token()


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/token",
        "http://127.0.0.1.example/token",
        "ftp://127.0.0.1/token",
        f"https://me:{MARKER}@issuer.example/token",
        "file://elsewhere/token",
        "issuer.example",
        "https://[",
    ],
)
def test_a_secret_goes_over_tls_or_nowhere(url: str) -> None:
    """CVE-2025-27817: of URLs in a client's settings, those that can be meant."""
    with pytest.raises(InvalidSettings, match="here") as error:
        source(url, ManualClock())
    assert MARKER not in str(error.value)


@pytest.mark.parametrize(
    "lines",
    [
        "sasl.oauthbearer.method=oidc\nsasl.oauthbearer.client.id=client\n"
        f"sasl.oauthbearer.client.secret={CLIENT[1]}\nsasl.oauthbearer.scope=s\n",
        "sasl.oauthbearer.client.credentials.client.id=client\n"
        f"sasl.oauthbearer.client.credentials.client.secret={CLIENT[1]}\n",
        "sasl.login.callback.handler.class=org.apache.kafka.Whatever\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        f'required clientId="client" clientSecret="{CLIENT[1]}" scope="s";\n',
    ],
    ids=["librdkafka", "Kafka 4", "JAAS"],
)
def test_properties_say_where_tokens_are_from(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    with AuthorizationServer(ISSUED) as server:
        path.write_text(f"{SASL}{lines}{URL}={server.url}/token\n")
        path.chmod(0o600)
        login = read_client_security(path).login
        assert login is not None
        assert login.tokens is not None
        assert login.tokens.token().count(".") == 2
    path.chmod(0o644)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        read_client_security(path)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", f"write {URL}"),
        (f"{URL}=https://h/t", "id and secret"),
        (f"{URL}=https://h/t\nsasl.jaas.config=x", "OAuthBearerLoginModule"),
        (f"{URL}=https://h/t\nsasl.oauthbearer.assertion.file=x", "is not known here"),
    ],
)
def test_what_is_missing_is_told(lines: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(SASL + lines)
    path.chmod(0o600)
    with pytest.raises(InvalidSettings, match=told):
        read_client_security(path)
