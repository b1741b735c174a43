"""kafka-acls and kafka-configs of users, of both lines that are in use, by log-in over TLS.

Skipped where Java, its compiler or Maven are missing, or the jars cannot be had.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from metadata.acls import AclBinding
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import KafkaTools
from tests.support.clients.kafka_commands import KafkaCommands
from tests.support.ports import own_port
from tests.support.security.certificates import Certificates

pytestmark = [pytest.mark.clients, pytest.mark.jvm, pytest.mark.exhaustive]

READ, WRITE, DESCRIBE, CREATE = 3, 4, 8, 5
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Secured(NamedTuple):
    broker: LiveBroker
    properties: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory: Path = tmp_path_factory.mktemp("java")
    certificates = Certificates(directory / "certificates")
    password = directory / "password"
    password.touch(mode=0o600)
    password.write_text("of admin")
    properties = directory / "admin.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required username="admin" password="of admin";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
    )
    settings = {
        "listeners": f"SASL_SSL://127.0.0.1:{own_port()}",
        "authorizer": "acl",
        "super.users": "User:admin",
        "bootstrap.admin": "admin",
        "bootstrap.admin.password": f"file:{password}",
        **certificates.listener(),
    }
    with LiveBroker(directory / "data", settings) as broker:
        yield Secured(broker, str(properties))


def test_kafka_acls_adds_lists_and_removes_rules(tools: KafkaTools, secured: Secured) -> None:
    kafka = KafkaCommands(tools, secured.broker.bootstrap)
    client = secured.broker.broker.coordination.client
    as_admin = ("--command-config", secured.properties)
    rule = AclBinding(2, "orders", 3, "User:shop", "*", WRITE, 3)
    producer = {rule._replace(operation=operation) for operation in (WRITE, DESCRIBE, CREATE)}
    denial = AclBinding(3, "g-", 4, "User:bob", "10.0.0.1", READ, 2)
    allow = ("--add", "--allow-principal", "User:shop", "--producer", "--topic", "orders")
    kafka("AclCommand", *allow, *as_admin)
    kafka(
        *("AclCommand", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1"),
        *("--operation", "Read", "--group", "g-", "--resource-pattern-type", "prefixed"),
        *as_admin,
    )
    assert client.acls() == {*producer, denial}
    listing = ("--list", "--group", "g-1", "--resource-pattern-type", "match")
    listed = kafka("AclCommand", *listing, *as_admin)
    assert "User:bob" in listed.stdout
    assert "DENY" in listed.stdout
    assert "User:shop" not in listed.stdout
    kafka("AclCommand", "--remove", "--force", "--topic", "orders", *as_admin)
    assert client.acls() == {denial}
    removal = ("--remove", "--force", "--group", "g-", "--resource-pattern-type", "prefixed")
    kafka("AclCommand", *removal, *as_admin)
    assert not client.acls()


def test_kafka_configs_adds_shows_and_removes_users(tools: KafkaTools, secured: Secured) -> None:
    kafka = KafkaCommands(tools, secured.broker.bootstrap)
    client = secured.broker.broker.coordination.client
    entity = ("--entity-type", "users", "--entity-name", "jim")
    as_admin = ("--command-config", secured.properties)
    added = "SCRAM-SHA-256=[iterations=4096,password=of jim]"
    kafka("ConfigCommand", "--alter", "--add-config", added, *entity, *as_admin)
    assert "jim" in {user for user, _ in client.scram_credentials()}
    shown = kafka("ConfigCommand", "--describe", *entity, *as_admin)
    assert "SCRAM-SHA-256=iterations=4096" in shown.stdout
    kafka("ConfigCommand", "--alter", "--delete-config", "SCRAM-SHA-256", *entity, *as_admin)
    assert "jim" not in {user for user, _ in client.scram_credentials()}
