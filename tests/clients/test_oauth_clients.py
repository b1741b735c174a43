"""Stock clients log in by tokens: call-backs, the grant of client credentials, refusals."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from diskless.cli.cli import main
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.java_client import scenario
from tests.support.clients.jvm import KAFKA_VERSIONS, JvmUnavailable, KafkaTools
from tests.support.ports import own_port
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.security.authorization_server import (
    AUDIENCE,
    CLIENT,
    ISSUER,
    AuthorizationServer,
    Issuer,
)
from wal.errors import InvalidSettings

pytestmark = pytest.mark.clients

MECHANISM = "OAUTHBEARER"


class Secured(NamedTuple):
    """A broker that takes the tokens of an authorization server."""

    broker: LiveBroker
    issuer: Issuer
    server: AuthorizationServer
    bootstrap: str


def settings(keys: Path) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": f"{MECHANISM},SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": "1",
        "sasl.oauthbearer.jwks.endpoint.url": f"file:{keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("oauth")
    issuer = Issuer()
    keys = directory / "keys.json"
    keys.write_bytes(issuer.key_set())
    plain, sasl = own_port(), own_port()
    made = {
        **settings(keys),
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
    }
    with (
        AuthorizationServer(issuer) as server,
        LiveBroker(directory / "data", made, port=plain) as broker,
    ):
        for topic in ("librdkafka", "kafka-python", "aiokafka", "oidc"):
            assert main(["topic", "create", topic, "--bootstrap", broker.bootstrap]) == 0
        for resource in ("topic:*", "group:*"):
            rule = ["acl", "add", "ann", "all", resource, "--bootstrap", broker.bootstrap]
            assert main(rule) == 0
        yield Secured(broker, issuer, server, f"127.0.0.1:{sasl}")


def librdkafka(secured: Secured, token: str, lives_s: float = 3_600) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "oauth_cb": lambda _: (token, time.time() + lives_s),
    }


def round_trip(config: dict[str, Any], topic: str) -> bytes | None:
    producer = confluent_kafka.Producer(config)
    producer.produce(topic, b"value")
    assert producer.flush(60) == 0
    reading = {**config, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(reading)
    consumer.subscribe([topic])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    return message.value()


def test_librdkafka_logs_in_by_a_call_back(secured: Secured) -> None:
    assert round_trip(librdkafka(secured, secured.issuer.token()), "librdkafka") == b"value"


def test_librdkafka_asks_the_authorization_server(secured: Secured) -> None:
    config = {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT[0],
        "sasl.oauthbearer.client.secret": CLIENT[1],
        "sasl.oauthbearer.token.endpoint.url": f"{secured.server.url}/token",
    }
    assert round_trip(config, "oidc") == b"value"


@pytest.mark.exhaustive
@pytest.mark.jvm
@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_java_asks_the_authorization_server(secured: Secured, version: str) -> None:
    url = f"{secured.server.url}/token"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    security = "org.apache.kafka.common.security.oauthbearer"
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": MECHANISM,
        "sasl_login_callback_handler_class": f"{security}.OAuthBearerLoginCallbackHandler",
        "sasl_oauthbearer_token_endpoint_url": url,
    }
    module = f"{security}.OAuthBearerLoginModule required"
    if version.startswith("3."):
        of_client = f'clientId="{CLIENT[0]}" clientSecret="{CLIENT[1]}"'
        settings["sasl_jaas_config"] = f"{module} {of_client};"
    else:
        settings["sasl_jaas_config"] = f"{module};"
        settings["sasl_oauthbearer_client_credentials_client_id"] = CLIENT[0]
        settings["sasl_oauthbearer_client_credentials_client_secret"] = CLIENT[1]
    topic = f"java-{version}"
    assert main(["topic", "create", topic, "--bootstrap", secured.broker.bootstrap]) == 0
    record = {"key": None, "value": "dmFsdWU=", "headers": [], "timestamp": 1}
    try:
        tools = KafkaTools(version, allowed)
    except JvmUnavailable as missing:
        pytest.skip(str(missing))
    with closing(tools):
        sent = json.dumps(record).encode()
        scenario(tools, "produce", secured.bootstrap, topic, "0", stdin=sent, **settings)
        (read,) = scenario(tools, "read", secured.bootstrap, topic, "0", "0", "1", **settings)
    assert read["value"] == record["value"]


def test_kafka_python_logs_in(secured: Secured) -> None:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return secured.issuer.token()

    how = {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": MECHANISM,
        "sasl_oauth_token_provider": Provider(),
    }
    producer = KafkaProducer(**how)
    producer.send("kafka-python", b"value").get(60)
    producer.close()
    consumer = KafkaConsumer(
        "kafka-python", **how, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert next(iter(consumer)).value == b"value"
    consumer.close()


def test_aiokafka_logs_in(secured: Secured) -> None:
    class Provider(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return secured.issuer.token()

    async def run() -> bytes:
        how = {
            "bootstrap_servers": secured.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": MECHANISM,
            "sasl_oauth_token_provider": Provider(),
        }
        async with aiokafka.AIOKafkaProducer(**how) as producer:
            await producer.send_and_wait("aiokafka", b"value")
        async with aiokafka.AIOKafkaConsumer(
            "aiokafka", **how, auto_offset_reset="earliest"
        ) as consumer:
            return bytes((await consumer.getone()).value)

    assert asyncio.run(run()) == b"value"


def errors_of(config: dict[str, Any]) -> list[confluent_kafka.KafkaError]:
    found: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({**config, "error_cb": found.append})
    until(lambda: producer.poll(0.05) >= 0 and len(found) > 0, "an error of the client")
    return found


@pytest.mark.exhaustive
def test_bad_tokens_are_told_alike(secured: Secured) -> None:
    tokens = [
        secured.issuer.token(exp=1),
        secured.issuer.token(aud="else"),
        Issuer().token(),
        secured.issuer.token(sub="__broker"),
    ]
    texts = set()
    for token in tokens:
        error = errors_of(librdkafka(secured, token))[0]
        assert error.name() == "_AUTHENTICATION"
        texts.add(error.str().split(": ", 1)[1].split(" (after")[0])
    assert len(texts) == 1


def test_who_has_a_token_has_the_rights_of_its_user(secured: Secured) -> None:
    bob = librdkafka(secured, secured.issuer.token(sub="bob"))
    shown = confluent_kafka.Producer(bob).list_topics("librdkafka", timeout=60)
    error = shown.topics["librdkafka"].error
    assert error is not None
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.exhaustive
def test_a_producer_outlives_its_tokens(secured: Secured) -> None:
    """Sessions end with their tokens; the client logs in again on its connection (KIP-368)."""
    given = []

    def fresh(_: str) -> tuple[str, float]:
        ends_at = int(time.time()) + 3
        given.append(ends_at)
        return secured.issuer.token(exp=ends_at), ends_at

    config = {**librdkafka(secured, ""), "oauth_cb": fresh}
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({**config, "error_cb": errors.append})

    def went_on() -> bool:
        producer.produce("librdkafka", b"more")
        assert producer.flush(60) == 0
        return len(given) >= 4

    until(went_on, "four tokens")
    assert not [error for error in errors if error.name() == "_AUTHENTICATION"]


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_commands_log_in_by_token(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*lines: str) -> int:
        properties = ("security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={MECHANISM}", *lines)
        config = written(tmp_path / "properties", "\n".join(properties))
        at = ["--bootstrap", secured.bootstrap, "--command-config", config]
        return main(["topic", "list", *at])

    url = "sasl.oauthbearer.token.endpoint.url"
    client = f"sasl.oauthbearer.client.id={CLIENT[0]}"
    right = f"sasl.oauthbearer.client.secret={CLIENT[1]}"
    assert listed(f"{url}={secured.server.url}/token", client, right) == 0
    token = written(tmp_path / "token", secured.issuer.token())
    assert listed(f"{url}=file:{token}") == 0
    assert "librdkafka" in capsys.readouterr().out
    wrong = "sasl.oauthbearer.client.secret=wrong"
    assert listed(f"{url}={secured.server.url}/token", client, wrong) == 1
    assert "gives client no token: status 401" in capsys.readouterr().err
    old = secured.issuer.token(exp=1)
    written(tmp_path / "token", old)
    assert listed(f"{url}=file:{token}") == 1
    told = capsys.readouterr().err
    assert "issuer, audience and time" in told
    assert old not in told


async def test_a_session_lives_as_long_as_its_token_and_no_longer(secured: Secured) -> None:
    host, _, port = secured.bootstrap.rpartition(":")
    client = await RawClient.connect((host, int(port)))
    await client.call(17, 1, mechanism=MECHANISM)
    token = secured.issuer.token(exp=int(time.time()) + 100)
    answer = await client.call(36, 2, auth_bytes=f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    assert answer.error_code == 0
    assert 0 < answer.session_lifetime.total_seconds() <= 100
    await client.close()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "whose tokens"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:/not-there/keys.json"}, "No such file"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience"),
        (
            {
                "listeners": "SASL_PLAINTEXT://0.0.0.0:{port}",
                "advertised.listeners": "SASL_PLAINTEXT://127.0.0.1:{port}",
                "authorizer": "none",
            },
            "OAUTHBEARER send passwords and tokens",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_broker_does_not_start_with_half_of_it(
    tmp_path: Path, changed: dict[str, str], expected: str
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(Issuer().key_set())
    port = own_port()
    made = {**settings(keys), "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}", **changed}
    made = {key: value.format(port=port) for key, value in made.items()}
    with (
        pytest.raises((InvalidSettings, ExceptionGroup)) as raised,
        LiveBroker(tmp_path / "data", made),
    ):
        pass
    error = raised.value
    failure = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    assert isinstance(failure, InvalidSettings)
    assert expected in str(failure)
