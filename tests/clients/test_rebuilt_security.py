"""A rebuilt cluster has lost its users and rules: it starts closed, and is opened again."""

import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from diskless.cli.cli import main
from tests.support.brokers.live_broker import LiveBroker
from tests.support.ports import own_port

pytestmark = pytest.mark.clients

TIMEOUT_S: Final = 60.0
SETTINGS: Final = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer": "acl",
    "super.users": "User:admin",
    "connection.failed.authentication.delay.ms": "1",
}


def client(broker: LiveBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"of {user}",
    }


def produced(broker: LiveBroker, user: str) -> KafkaError | None:
    """Why a record was not taken; None: it was."""
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.append(error)

    producer = Producer(client(broker, user))
    producer.produce("orders", b"one", on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


def diskless(tmp_path: Path, broker: LiveBroker, *arguments: str) -> None:
    """As admin."""
    told = client(broker, "admin")
    file = tmp_path / "admin.properties"
    file.touch(mode=0o600)
    file.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
    place = ("--bootstrap", broker.bootstrap, "--command-config", str(file))
    assert main([*arguments, *place]) == 0


def test_a_rebuilt_cluster_starts_closed_and_is_opened_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for user in ("admin", "shop"):
        file = tmp_path / user
        file.touch(mode=0o600)
        file.write_text(f"of {user}")
    first = (
        "user",
        "add",
        "admin",
        "--data",
        str(data),
        "--password-file",
        str(tmp_path / "admin"),
    )
    shop = ("user", "add", "shop", "--password-file", str(tmp_path / "shop"))
    rule = ("acl", "add", "shop", "write", "topic:orders")
    settings = {**SETTINGS, "listeners": f"SASL_PLAINTEXT://127.0.0.1:{own_port()}"}
    assert main([*first]) == 0
    with LiveBroker(data, settings) as broker:
        admin = AdminClient(client(broker, "admin"))
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(TIMEOUT_S)
        diskless(tmp_path, broker, *shop)
        diskless(tmp_path, broker, *rule)
        assert produced(broker, "shop") is None
    shutil.rmtree(data / "metadata")
    shutil.rmtree(data / "objects" / "meta" / "snapshots", ignore_errors=True)
    assert main(["rebuild", "--data", str(data)]) in (0, 3)
    assert main([*first]) == 0
    with LiveBroker(data, settings) as broker:
        # The first user is there again, and nobody else.
        with pytest.raises(KafkaException):
            AdminClient({**client(broker, "shop"), "log_level": 0}).list_topics(timeout=2)
        diskless(tmp_path, broker, *shop)
        diskless(tmp_path, broker, *rule)
        refused = produced(broker, "shop")
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        diskless(tmp_path, broker, "acl", "remove", "--user", "*", "--operation", "all", "--deny")
        assert produced(broker, "shop") is None
    # What is not the first start any more passes such a file over.
    assert main([*first]) == 0
    with LiveBroker(data, settings) as broker:
        assert produced(broker, "shop") is None
