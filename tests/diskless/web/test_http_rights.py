"""The HTTP port of a broker with users and rules: who is let in, and what they see."""

import base64
import http.client
import json
import random
import socket
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError

from demo.lake import open_duckdb
from diskless.cli.cli import main
from diskless.iceberg.served_tables import ServedTable
from diskless.sasl.failure_delay import FailureDelay
from metadata.access_tokens import AlterAccessToken, new_token
from metadata.scram.credentials import ITERATIONS_MIN, ScramMechanism
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.security.authorization_server import AUDIENCE, ISSUER, Issuer
from tests.support.security.certificates import Certificates
from tiering.coordinator_client import CoordinatorClient
from wal.coordinates import ObjectKey
from wal.errors import InvalidSettings

with warnings.catch_warnings():
    # kafka-python reads its schemas by functions that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from diskless.cli.user.user_client import UserClient

USER, PASSWORD = "ann", "pa+s%s word="


class Tables:
    """Two tables, of which only the names and one file matter."""

    store_url = "file:///lake"

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata

    def tables(self) -> list[ServedTable]:
        return [
            ServedTable("topics", name, ObjectKey(f"tables/{name}/metadata/1.json"))
            for name in ("hidden", "open", "shown")
        ]

    def table(self, namespace: str, name: str) -> ServedTable | None:
        return next((one for one in self.tables() if one[:2] == (namespace, name)), None)

    async def metadata(self, table: ServedTable) -> bytes:
        return self._metadata


METADATA = {
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": "file:///lake/t",
    "last-sequence-number": 0,
    "last-updated-ms": 1,
    "last-column-id": 1,
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "x", "type": "long", "required": False}],
        }
    ],
    "current-schema-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "default-spec-id": 0,
    "last-partition-id": 999,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "default-sort-order-id": 0,
    "properties": {},
    "snapshots": [],
}


class Port(NamedTuple):
    """A broker whose HTTP port asks who is there."""

    broker: LiveBroker
    issuer: Issuer
    certificates: Certificates
    address: tuple[str, int]
    audit: Path

    def ask(
        self,
        path: str,
        token: str = "",
        *,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        keys: str | None = None,
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            *self.address, context=self.certificates.context(keys), timeout=120
        )
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body=body, headers={**sent, **(headers or {})})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def granted(self, user: str, password: str, **form: str) -> tuple[int, Any]:
        fields = {
            "grant_type": "client_credentials",
            "client_id": user,
            "client_secret": password,
            "scope": "catalog",
        }
        body = urllib.parse.urlencode({**fields, **form})
        status, content = self.ask("/v1/oauth/tokens", method="POST", body=body)
        return status, json.loads(content)

    def noted(self, principal: str, operation: str) -> list[tuple[str, str, str]]:
        """Mechanism, result and resource of what the audit log has of it."""
        notes = map(json.loads, self.audit.read_text().splitlines())
        return [
            (note["mechanism"], note["result"], note["resource"])
            for note in notes
            if (note["principal"], note["operation"]) == (f"User:{principal}", operation)
        ]

    def token(self) -> str:
        status, answer = self.granted(USER, PASSWORD)
        assert status == 200, answer
        return str(answer["access_token"])


def set_password(broker: LiveBroker, user: str, password: str) -> None:
    with UserClient(broker.bootstrap) as users:
        mechanisms = [ScramMechanism.SHA_256]
        users.set_password(user, password, mechanisms, ITERATIONS_MIN, random.Random(user))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    directory = tmp_path_factory.mktemp("http")
    certificates = Certificates(directory / "keys")
    issuer = Issuer()
    keys = directory / "keys.json"
    keys.write_bytes(issuer.key_set())
    made = {
        "http.listen": "127.0.0.1:0",
        "http.security.protocol": "SSL",
        "http.authentication": "required",
        "listener.name.http.ssl.keystore.location": certificates.server,
        "listener.name.http.ssl.truststore.location": certificates.authority,
        "listener.name.http.ssl.client.auth": "requested",
        "listener.name.http.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/, DEFAULT",
        "connection.failed.authentication.delay.ms": "0",
        "sasl.oauthbearer.jwks.endpoint.url": f"file:{keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
        "audit.log.file": str(directory / "audit.jsonl"),
    }
    with LiveBroker(directory / "data", made) as broker:
        at = ["--bootstrap", broker.bootstrap]
        set_password(broker, USER, PASSWORD)
        assert main(["acl", "add", USER, "read", "topic:open", *at]) == 0
        assert main(["acl", "add", USER, "describe", "topic:shown", *at]) == 0
        assert main(["acl", "add", "prometheus", "describe", "cluster", *at]) == 0
        base = broker.broker.base
        assert base.catalogue is not None
        assert base.http is not None
        base.catalogue.open(Tables(json.dumps(METADATA).encode()))
        address = ("localhost", base.http.port)
        yield Port(broker, issuer, certificates, address, directory / "audit.jsonl")


PROTECTED = (
    "/metrics",
    "/v1/config",
    "/v1/namespaces",
    "/v1/namespaces/topics",
    "/v1/namespaces/topics/tables",
    "/v1/namespaces/topics/tables/open",
    "/v1/nothing",
)


def other_mac(token: str) -> str:
    payload, _, mac = token.rpartition(".")
    return f"{payload}.{'B' if mac[0] == 'A' else 'A'}{mac[1:]}"


@pytest.mark.parametrize("path", PROTECTED)
def test_nobody_is_told_anything_but_health(port: Port, path: str) -> None:
    forged = [
        "",
        "x",
        "dsk_",
        "dsk_e30.e30",
        "dsk_" + "a" * 9_000,
        Issuer().token(),
        port.issuer.token(exp=1),
        port.issuer.token(sub="__broker"),
        other_mac(port.token()),
    ]
    answers = {port.ask(path, token) for token in forged}
    assert {status for status, _ in answers} == {401}
    assert len(answers) == 1
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert port.ask(path, headers={"Authorization": f"Basic {basic}"})[0] == 401


def test_health_is_for_everybody(port: Port) -> None:
    assert port.ask("/livez") == (200, b"live\n")
    assert port.ask("/readyz") == (200, b"ready\n")


def test_a_password_gets_a_token_for_a_while(port: Port) -> None:
    status, answer = port.granted(USER, PASSWORD)
    assert status == 200
    assert (answer["token_type"], answer["expires_in"]) == ("bearer", 3_600)
    assert port.ask("/v1/config", answer["access_token"])[0] == 200
    assert PASSWORD not in answer["access_token"]
    until(lambda: ("HTTP", "ok", "") in port.noted(USER, "login"), "a note of the log-in")
    for encode in (str, urllib.parse.quote_plus):
        basic = base64.b64encode(f"{encode(USER)}:{encode(PASSWORD)}".encode()).decode()
        status, _ = port.ask(
            "/v1/oauth/tokens",
            method="POST",
            body="grant_type=client_credentials",
            headers={"Authorization": f"Basic {basic}"},
        )
        assert status == 200


def test_a_refused_password_is_told_the_same_whatever_the_cause(port: Port) -> None:
    answers = [
        port.granted(USER, "wrong"),
        port.granted("nobody", PASSWORD),
        port.granted("", ""),
        port.granted("__broker", "x"),
        port.granted(USER, "x" * 5_000),
    ]
    assert {status for status, _ in answers} == {401}
    assert {json.dumps(answer) for _, answer in answers} == {
        json.dumps({"error": "invalid_client", "error_description": "invalid client"})
    }
    refused = ("HTTP", "failed", "")
    until(lambda: refused in port.noted("ANONYMOUS", "login"), "a note of a refusal")
    assert port.granted(USER, PASSWORD, grant_type="password")[0] == 400
    assert port.ask("/v1/oauth/tokens", method="POST", body="\xff")[0] in (400, 401)
    assert port.ask("/v1/oauth/tokens", method="POST", body="x" * 9_000)[0] == 413
    assert port.ask("/v1/oauth/tokens")[0] == 401


def test_who_has_too_many_refusals_to_wait_for_is_told_so(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as limit:
        limit.setattr(FailureDelay, "is_at_limit", lambda _, address: address == "127.0.0.1")
        answers = [port.granted(USER, password) for password in (PASSWORD, "wrong")]
        assert [status for status, _ in answers] == [429, 429]
        assert answers[0] == answers[1]
    assert port.granted(USER, PASSWORD)[0] == 200


def test_a_changed_password_ends_its_tokens(port: Port) -> None:
    set_password(port.broker, "carl", "one")
    token = port.granted("carl", "one")[1]["access_token"]
    assert port.ask("/v1/config", token)[0] == 200
    set_password(port.broker, "carl", "two")
    until(lambda: port.ask("/v1/config", token)[0] == 401, "the end of a token")
    token = port.granted("carl", "two")[1]["access_token"]
    with UserClient(port.broker.bootstrap) as users:
        users.remove("carl")
    until(lambda: port.ask("/v1/config", token)[0] == 401, "the end of a token")


def test_tokens_are_made_listed_and_revoked(
    port: Port, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def token(*arguments: str) -> int:
        return main(["token", *arguments, "--bootstrap", port.broker.bootstrap])

    capsys.readouterr()
    assert token("create", USER, "--days", "1") == 0
    first = capsys.readouterr().out.strip()
    assert token("create", USER) == 0
    second = capsys.readouterr().out.strip()
    for made in (first, second):
        status, content = port.ask("/v1/namespaces/topics/tables", made)
        assert status == 200
        assert [row["name"] for row in json.loads(content)["identifiers"]] == ["open", "shown"]
    name = first.split("_")[1]
    assert port.ask("/v1/config", f"dskt_{name}_{second.rpartition('_')[2]}")[0] == 401
    assert port.ask("/v1/config", first + "A")[0] == 401
    assert token("list", USER) == 0
    listed = capsys.readouterr().out
    assert name in listed
    assert first.rpartition("_")[2] not in listed
    assert token("list", "eve") == 0
    assert name not in capsys.readouterr().out
    assert token("revoke", name) == 0
    until(lambda: port.ask("/v1/config", first)[0] == 401, "the end of a token")
    assert port.ask("/v1/config", second)[0] == 200
    assert token("revoke", name) == 1
    assert token("revoke", USER) == 0
    until(lambda: port.ask("/v1/config", second)[0] == 401, "the end of a token")
    ids = [made.split("_")[1] for made in (first, second)]
    for operation in ("CreateAccessToken", "RevokeAccessToken"):
        wanted = [("", "ok", f"token:{USER}/{each}") for each in ids]
        until(
            lambda: port.noted("ANONYMOUS", operation) == wanted,  # noqa: B023
            f"notes of {operation}",
        )
    for refused in (("__broker",), (USER, "--days", "0"), (USER, "--days", "1000")):
        assert token("create", *refused) == 1
    # The log has what it needs to know a token by, and not the token.
    assert main(["metadata", "dump", "--bootstrap", port.broker.bootstrap, "--type", "1017"]) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert first.rpartition("_")[2] not in shown


def test_a_token_ends_with_its_time(port: Port) -> None:
    clock = port.broker.broker.base.clock
    text, stored = new_token(
        USER, random.Random(1), now_ms=clock.now_ms(), ends_at_ms=clock.now_ms() + 2_000
    )
    brokers = CoordinatorClient(port.broker.bootstrap)
    assert brokers.alter_access_tokens([AlterAccessToken(stored, is_revoked=False)]) == [None]
    until(lambda: port.ask("/v1/config", text)[0] == 401, "the end of a token")


@pytest.mark.parametrize("by", ["password", "authorization server", "certificate"])
def test_lists_show_what_may_be_described(port: Port, by: str) -> None:
    token, keys = "", None
    if by == "certificate":
        keys = port.certificates.signed("ann")
    else:
        token = port.token() if by == "password" else port.issuer.token(sub=USER)
    status, content = port.ask("/v1/namespaces/topics/tables", token, keys=keys)
    assert status == 200
    assert [row["name"] for row in json.loads(content)["identifiers"]] == ["open", "shown"]


def test_what_may_not_be_seen_looks_like_what_there_is_not(port: Port) -> None:
    token = port.token()
    for method in ("GET", "HEAD"):
        for token_of in (token, port.issuer.token(sub="eve")):
            hidden, absent = (
                port.ask(f"/v1/namespaces/topics/tables/{name}", token_of, method=method)
                for name in ("hidden", "absent")
            )
            assert hidden[0] == absent[0] == 404
            assert hidden[1].replace(b"hidden", b"absent") == absent[1]
    # Who sees no table of a namespace sees no namespace.
    eve = port.issuer.token(sub="eve")
    assert json.loads(port.ask("/v1/namespaces", eve)[1]) == {"namespaces": []}
    there, nowhere = (
        port.ask(f"/v1/namespaces/{name}/tables", eve) for name in ("topics", "nowhere")
    )
    assert there[0] == nowhere[0] == 404
    assert there[1].replace(b"topics", b"nowhere") == nowhere[1]


def test_to_load_a_table_takes_read(port: Port) -> None:
    token = port.token()
    assert port.ask("/v1/namespaces/topics/tables/open", token)[0] == 200
    assert port.ask("/v1/namespaces/topics/tables/shown", token)[0] == 403
    assert port.ask("/v1/namespaces/topics/tables/shown", token, method="HEAD")[0] == 200


def test_metrics_take_describe_on_the_cluster(port: Port) -> None:
    assert port.ask("/metrics", port.token())[0] == 403
    status, content = port.ask("/metrics", port.issuer.token(sub="prometheus"))
    assert status == 200
    assert b'diskless_tls_certificate_expiry_seconds{listener="HTTP"}' in content


def test_pyiceberg_reads_with_a_password_and_with_a_token(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"https://{port.address[0]}:{port.address[1]}"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", port.certificates.authority)
    for how in (
        {"credential": f"{USER}:{PASSWORD}", "scope": "catalog"},
        {"token": port.issuer.token(sub=USER)},
    ):
        # By the key that PyIceberg asks for, so that it does not warn of asking there.
        how = {**how, "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
        catalogue = RestCatalog("lake", uri=uri, **how)
        assert catalogue.list_tables("topics") == [("topics", "open"), ("topics", "shown")]
        assert str(catalogue.load_table("topics.open").metadata.table_uuid).startswith("9c12")
        with pytest.raises(NoSuchTableError):
            catalogue.load_table("topics.hidden")
        with pytest.raises(ForbiddenError):
            catalogue.load_table("topics.shown")
    with pytest.raises(UnauthorizedError):
        RestCatalog("lake", uri=uri, token="no").list_tables("topics")


def a_table(directory: Path, rows: int) -> bytes:
    """The metadata of a table with the numbers from 0 on, whose files are there."""
    directory.mkdir()
    catalogue = SqlCatalog("made", uri=f"sqlite:///{directory}/c", warehouse=directory.as_uri())
    catalogue.create_namespace("topics")
    content = pa.table({"x": range(rows)})
    table = catalogue.create_table("topics.open", content.schema)
    table.append(content)
    catalogue.close()
    return Path(urllib.parse.urlsplit(table.metadata_location).path).read_bytes()


def test_duckdb_reads_with_a_password_and_with_tokens(
    port: Port, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue = port.broker.broker.base.catalogue
    assert catalogue is not None
    catalogue.open(Tables(a_table(tmp_path / "lake", 100)))
    uri = f"https://{port.address[0]}:{port.address[1]}"
    capsys.readouterr()
    assert main(["token", "create", USER, "--bootstrap", port.broker.bootstrap]) == 0
    secrets = [
        f"TOKEN '{capsys.readouterr().out.strip()}'",
        f"TOKEN '{port.issuer.token(sub=USER)}'",
        f"CLIENT_ID '{USER}', CLIENT_SECRET '{PASSWORD}', "
        f"OAUTH2_SERVER_URI '{uri}/v1/oauth/tokens'",
    ]
    reads = "SELECT sum(x) FROM lake.topics.{}"

    def attached(lake: duckdb.DuckDBPyConnection, secret: str) -> None:
        lake.execute(f"SET ca_cert_file = '{port.certificates.authority}'")
        lake.execute("SET enable_server_cert_verification = true")
        lake.execute(f"CREATE SECRET known (TYPE iceberg, {secret})")
        lake.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', SECRET known)")

    for secret in secrets:
        with open_duckdb() as lake:
            attached(lake, secret)
            assert lake.sql(reads.format("open")).fetchall() == [(4_950,)]
            for other in ("shown", "hidden"):
                with pytest.raises(duckdb.Error):
                    lake.sql(reads.format(other))
    with open_duckdb() as lake, pytest.raises(duckdb.Error, match=r"401|nauthorized"):
        attached(lake, "TOKEN 'no'")


def test_plain_text_is_not_answered(port: Port) -> None:
    connection = http.client.HTTPConnection(*port.address, timeout=120)
    connection.request("GET", "/livez")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()


def test_a_replaced_certificate_is_shown_from_the_next_connection_on(port: Port) -> None:
    def shown() -> bytes:
        context = port.certificates.context()
        with (
            socket.create_connection(port.address, 120) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""

    before = shown()
    port.certificates.signed("server", "localhost", "127.0.0.1")
    port.broker.run(port.broker.broker.base.tls.reload())
    assert shown() != before


@pytest.mark.parametrize(
    ("settings", "is_fine"),
    [
        ({}, False),
        ({"http.authentication": "required"}, False),
        ({"http.security.protocol": "SSL"}, False),
        ({"http.security.protocol": "SSL", "http.authentication": "required"}, True),
        ({"http.security.protocol": "SSL", "ssl.client.auth": "required"}, True),
        ({"security.allow.insecure": "http"}, True),
    ],
    ids=str,
)
def test_beyond_loopback_the_port_asks_or_it_is_said_that_it_does_not(
    tmp_path: Path, settings: dict[str, str], is_fine: bool
) -> None:
    certificates = Certificates(tmp_path / "keys")
    made = {
        "http.listen": "0.0.0.0:0",
        "authorizer": "none",
        **certificates.listener(),
        **settings,
    }
    if not is_fine:
        with pytest.raises(InvalidSettings, match=r"http\.authentication=required"):
            LiveBroker(tmp_path / "data", made).__enter__()
        return
    with LiveBroker(tmp_path / "data", made) as broker:
        base = broker.broker.base
        assert base.http is not None
        base.health.stopping()
        is_tls = base.http_keys is not None
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        has_to_show = settings.get("ssl.client.auth") == "required"
        keys = certificates.signed("probe") if has_to_show else None
        context = {"context": certificates.context(keys)} if is_tls else {}
        connection = kind("localhost", base.http.port, timeout=120, **context)  # type: ignore[arg-type]
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (503, b"not ready\n")
        connection.close()


def test_an_authorizer_is_chosen_where_the_port_asks(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "keys")
    made = {
        "http.listen": "0.0.0.0:0",
        "http.security.protocol": "SSL",
        "http.authentication": "required",
        **certificates.listener(),
    }
    with pytest.raises((InvalidSettings, ExceptionGroup)) as raised:
        LiveBroker(tmp_path / "data", made).__enter__()
    error = raised.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert "authorizer=" in str(error)
