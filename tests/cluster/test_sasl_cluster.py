"""Brokers of one bucket log in to each other, and nobody else comes in as one of them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.sasl.broker_secrets import broker_password
from diskless.sasl.cluster_secret import decode_secret
from metadata.clients.sasl_login import LoginRefused
from metadata.operations import WHATEVER_IS_DUE
from tests.support.live_broker import LiveBroker, until
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
