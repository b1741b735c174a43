"""Brokers of one bucket log in to each other, and nobody else comes in as one of them."""

import http.client
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.cli.cli import main
from diskless.sasl.broker_secrets import broker_password
from diskless.sasl.cluster_secret import decode_secret
from metadata.clients.sasl_login import LoginRefused
from metadata.operations import WHATEVER_IS_DUE
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.ports import own_port
from tiering.coordinator_client import CoordinatorClient
from wal.errors import InvalidSettings
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.client_security import ClientSecurity
from wal.security.secret import Secret
from wal.security.security_protocol import SecurityProtocol

BROKERS: Final = (1, 2)
PASSWORD: Final = "pass word"
TIMEOUT_S: Final = 60.0
SHARED: Final = {
    "diskless.metadata.log": "object",
    "diskless.metadata.topic.num.partitions": "3",
    "diskless.metadata.follow.interval.ms": "50",
    "wal.commit.interval.ms": "5",
    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "1",
    "authorizer": "acl",
    "super.users": "User:admin",
    "bootstrap.admin": "admin",
    "http.listen": "127.0.0.1:0",
    "http.authentication": "required",
}


class SaslCluster:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.bucket: Final = directory / "bucket"
        password = directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        self.brokers: list[LiveBroker] = []
        self.inside: list[str] = []
        self.outside: list[str] = []
        for node_id in BROKERS:
            inside, outside = own_port(), own_port()
            self.inside.append(f"127.0.0.1:{inside}")
            self.outside.append(f"127.0.0.1:{outside}")
            settings = {
                **SHARED,
                "node.id": str(node_id),
                "object.store.url": f"file://{self.bucket}",
                "listeners": f"CLIENTS://127.0.0.1:{outside},BROKERS://127.0.0.1:{inside}",
                "bootstrap.admin.password": f"file:{password}",
            }
            broker = LiveBroker(directory / f"data-{node_id}", settings)
            self.brokers.append(stack.enter_context(broker))
        self.client: Final = {
            "bootstrap.servers": ",".join(self.outside),
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
        self.admin: Final = AdminClient(self.client)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    with ExitStack() as stack:
        found = SaslCluster(tmp_path_factory.mktemp("sasl"), stack)
        until(
            lambda: len(found.admin.list_topics(timeout=TIMEOUT_S).brokers) == len(BROKERS),
            "the cluster",
        )
        yield found


def as_user(user: str, password: str, mechanism: SaslMechanism) -> ClientSecurity:
    login = ClientLogin(mechanism=mechanism, user=user, password=Secret(password), source="here")
    return ClientSecurity(protocol=SecurityProtocol.SASL_PLAINTEXT, login=login)


def test_brokers_with_rules_work_together(cluster: SaslCluster) -> None:
    cluster.admin.create_topics([NewTopic("made", 6)])["made"].result(TIMEOUT_S)
    for address in cluster.outside:
        producer = Producer({**cluster.client, "bootstrap.servers": address})
        for partition in range(6):
            producer.produce("made", b"record", partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        asked = WHATEVER_IS_DUE._replace(include_partial=True, topics=["made"])
        admin = as_user("admin", PASSWORD, SaslMechanism.SCRAM_SHA_256)
        planned = CoordinatorClient(address, admin).plan_segments(asked)
        assert {plan.partition.partition for plan in planned.plans} == set(range(6))
    name = "diskless_authentications_total"
    labels = {"mechanism": "SCRAM-SHA-512", "result": "success"}
    for broker in cluster.brokers:
        assert broker.broker.base.registry.get_sample_value(name, labels)


def status(broker: LiveBroker, token: str, path: str = "/metrics") -> int:
    """Of a request at the HTTP port of a broker."""
    assert broker.broker.base.http is not None
    connection = http.client.HTTPConnection(
        "127.0.0.1", broker.broker.base.http.port, timeout=TIMEOUT_S
    )
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status


def granted(broker: LiveBroker, user: str, password: str) -> str:
    """A token for a password."""
    assert broker.broker.base.http is not None
    form = {"grant_type": "client_credentials", "client_id": user, "client_secret": password}
    url = f"http://127.0.0.1:{broker.broker.base.http.port}/v1/oauth/tokens"
    with urllib.request.urlopen(url, urllib.parse.urlencode(form).encode()) as answer:
        return str(json.loads(answer.read())["access_token"])


def test_a_token_of_one_broker_is_good_at_all_and_ends_at_all(
    cluster: SaslCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def all_answer(token: str, wanted: int) -> bool:
        return all(status(broker, token) == wanted for broker in cluster.brokers)

    properties = tmp_path / "admin.properties"
    properties.touch(mode=0o600)
    told = {key: value for key, value in cluster.client.items() if key != "bootstrap.servers"}
    properties.write_text("".join(f"{key}={value}\n" for key, value in told.items()))

    def by(broker: int, *command: str) -> int:
        at = ("--bootstrap", cluster.outside[broker], "--command-config", str(properties))
        return main([*command, *at])

    assert by(0, "acl", "add", "ann", "describe", "cluster") == 0
    capsys.readouterr()
    assert by(0, "token", "create", "ann") == 0
    made = capsys.readouterr().out.strip()
    until(lambda: all_answer(made, 200), "a token at all brokers")
    assert by(1, "token", "revoke", made.split("_")[1]) == 0
    until(lambda: all_answer(made, 401), "its end at all brokers")

    password = tmp_path / "password"
    password.touch(mode=0o600)
    for verb, word in (("add", "one"), ("passwd", "two")):
        password.write_text(word)
        assert by(0, "user", verb, "ann", "--password-file", str(password)) == 0
        if verb == "add":
            given = granted(cluster.brokers[0], "ann", word)
            until(lambda: all_answer(given, 200), "a token at all brokers")  # noqa: B023
    until(lambda: all_answer(given, 401), "its end with the password")


def test_nobody_else_comes_in_as_a_broker(cluster: SaslCluster) -> None:
    (stored,) = (cluster.bucket / "meta" / "secret").iterdir()
    secret = decode_secret(stored.read_bytes())
    password = broker_password(secret)
    scram = SaslMechanism.SCRAM_SHA_512
    CoordinatorClient(cluster.inside[0], as_user("__broker", password, scram)).connect()
    refused = [
        (cluster.inside, "", scram),
        (cluster.inside, "0" * 64, scram),
        (cluster.inside, secret.key.hex(), scram),
        # Its password counts there alone, and by one mechanism.
        (cluster.inside, password, SaslMechanism.SCRAM_SHA_256),
        (cluster.inside, password, SaslMechanism.PLAIN),
        (cluster.outside, password, scram),
    ]
    for addresses, wrong, mechanism in refused:
        with pytest.raises(LoginRefused, match="refused __broker"):
            CoordinatorClient(addresses[0], as_user("__broker", wrong, mechanism)).connect()


def test_brokers_need_their_mechanism(tmp_path: Path) -> None:
    settings = {
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path / 'bucket'}",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{own_port()}",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }
    told = "brokers log in to each other on SASL_PLAINTEXT by SCRAM-SHA-512"
    with pytest.raises(ExceptionGroup) as refused, LiveBroker(tmp_path / "data", settings):
        pass
    assert refused.group_contains(InvalidSettings, match=told)
