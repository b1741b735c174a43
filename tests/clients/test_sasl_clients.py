"""Users who come, go and change under clients; what is told to who is not logged in, and shown.

What each client does by each mechanism is in test_secured_clients.py.
"""

import asyncio
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, TopicPartition

from diskless.cli.cli import main
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.ports import own_port
from tests.support.questions.kafka_raw_client import RawClient, frame

pytestmark = pytest.mark.clients

USER, PASSWORD = "ann", "pass word="
MARKER = "marker-5c1f0e"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


class Secured:
    """A broker with a listener where clients log in, and one on loopback for the tests."""

    def __init__(self, broker: LiveBroker, port: int) -> None:
        self.broker = broker
        self.admin = broker.bootstrap
        self.bootstrap = f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    data = tmp_path_factory.mktemp("sasl") / "data"
    password = data.parent / "password"
    password.write_text(f"{PASSWORD}\n", encoding="utf-8")
    password.chmod(0o600)
    assert main(["user", "add", USER, "--data", str(data), "--password-file", str(password)]) == 0
    assert (data / "first-user").stat().st_mode & 0o077 == 0
    plain, sasl = own_port(), own_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connection.failed.authentication.delay.ms": "1",
    }
    with LiveBroker(data, settings, port=plain) as broker:
        assert not (data / "first-user").exists()
        yield Secured(broker, sasl)


def librdkafka(secured: Secured, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    }


def errors_of(config: dict[str, Any]) -> list[confluent_kafka.KafkaError]:
    found: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({**config, "error_cb": found.append})
    until(lambda: producer.poll(0.05) >= 0 and len(found) > 0, "an error of the client")
    return found


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    secured: Secured, mechanism: str
) -> None:
    wrong = librdkafka(secured, mechanism, "other")
    unknown = {**librdkafka(secured, mechanism), "sasl.username": "nobody"}
    texts = set()
    for config in (wrong, unknown):
        error = errors_of(config)[0]
        assert error.name() == "_AUTHENTICATION"
        texts.add(error.str().split(": ", 1)[1].split(" (after")[0])
    assert len(texts) == 1


@pytest.mark.parametrize(
    "frames",
    [
        [frame(3, 0, 1, bytes(4))],
        [frame(17, 1, 1, b"\0\x05PLAIN"), frame(3, 0, 2, bytes(4))],
        [frame(17, 1, 1, b"\0\x05PLAIN"), frame(36, 0, 2, bytes(4)), frame(3, 0, 3, bytes(4))],
        [struct.pack(">ihh", 600 << 10, 36, 0)],
        [frame(17, 0, 1, b"\0\x05PLAIN")],
    ],
    ids=["metadata", "in the middle", "after a failure", "too large", "version 0"],
)
async def test_nothing_is_answered_to_who_is_not_logged_in(
    secured: Secured, frames: Sequence[bytes]
) -> None:
    """Whatever came before it is answered, and the connection closed; no Metadata leaves."""
    host, _, port = secured.bootstrap.rpartition(":")
    client = await RawClient.connect((host, int(port)))
    await client.send(*frames)
    async with asyncio.timeout(60):
        received = await client.reader.read()
    answers = 0
    while received:
        length, correlation_id = struct.unpack(">ii", received[:8])
        answers += 1
        assert correlation_id == answers < len(frames)
        received = received[4 + length :]
    await client.close()


def test_users_come_and_go_through_a_stock_client(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.admin})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    made = UserScramCredentialUpsertion("carl", info, b"one")
    admin.alter_user_scram_credentials([made])["carl"].result(60)
    described = admin.describe_user_scram_credentials(["carl"])["carl"].result(60)
    assert [(one.mechanism, one.iterations) for one in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4_096)
    ]
    as_carl = {**librdkafka(secured, "SCRAM-SHA-256", "one"), "sasl.username": "carl"}
    running = confluent_kafka.Producer(as_carl)
    running.produce("of-carl", b"1")
    assert running.flush(60) == 0
    # The password changes under a client that runs: it goes on, and nobody begins with the old one.
    changed = UserScramCredentialUpsertion("carl", info, b"two")
    admin.alter_user_scram_credentials([changed])["carl"].result(60)
    running.produce("of-carl", b"2")
    assert running.flush(60) == 0
    assert errors_of(as_carl)[0].name() == "_AUTHENTICATION"
    gone = UserScramCredentialDeletion("carl", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([gone])["carl"].result(60)
    assert errors_of({**as_carl, "sasl.password": "two"})[0].name() == "_AUTHENTICATION"


def test_the_commands_add_list_change_and_remove_users(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def user(*arguments: str) -> int:
        return main(["user", *arguments, "--bootstrap", secured.admin])

    secret = tmp_path / "secret"
    secret.write_text(f"{MARKER}\n")
    secret.chmod(0o644)
    assert user("add", "dora", "--password-file", str(secret)) == 2
    assert "chmod 600" in capsys.readouterr().err
    secret.chmod(0o600)
    assert user("add", "dora", "--password-file", str(secret)) == 0
    assert user("add", "dora", "--password-file", str(secret)) == 1
    assert "passwd" in capsys.readouterr().err
    as_dora = {**librdkafka(secured, "PLAIN", MARKER), "sasl.username": "dora"}
    confluent_kafka.Producer(as_dora).list_topics(timeout=60)
    assert user("list") == 0
    listed = capsys.readouterr().out
    assert listed.count("dora") == 2
    secret.write_text("another\n")
    assert user("passwd", "dora", "--password-file", str(secret)) == 0
    assert errors_of(as_dora)[0].name() == "_AUTHENTICATION"
    assert user("remove", "dora") == 0
    assert user("remove", "dora") == 1
    assert user("passwd", "dora", "--password-file", str(secret)) == 1
    assert MARKER not in listed + capsys.readouterr().err


def test_what_is_stored_of_passwords_is_shown_to_nobody(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    client = secured.broker.broker.coordination.client
    secrets = [
        value
        for one in client.scram_credentials().values()
        for value in (one.salt, one.stored_key, one.server_key)
    ]
    assert secrets
    assert main(["metadata", "dump", "--bootstrap", secured.admin, "--type", "1015"]) == 0
    shown = capsys.readouterr().out
    assert "ScramCredentialSet" in shown
    assert not [value for value in secrets if value.hex() in shown]
    consumer = KafkaConsumer(bootstrap_servers=secured.admin, consumer_timeout_ms=5_000)
    partition = TopicPartition("__diskless_metadata", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    end = consumer.end_offsets([partition])[partition]
    seen = b""
    for record in consumer:
        seen += record.value
        if record.offset >= end - 1:
            break
    consumer.close()
    assert b"ScramCredential" not in seen
    assert not [value for value in secrets if value in seen]


def test_the_first_user_is_the_configured_one_where_there_is_none(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"{MARKER}\n")
    password.chmod(0o600)
    bootstrap = {"bootstrap.admin": "root", "bootstrap.admin.password": f"file:{password}"}
    plain, sasl = own_port(), own_port()
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    for number in range(2):
        with LiveBroker(tmp_path / "data", {**bootstrap, "listeners": listeners}) as broker:
            as_root = {
                **librdkafka(Secured(broker, sasl), "SCRAM-SHA-256", MARKER),
                "sasl.username": "root",
            }
            confluent_kafka.Producer(as_root).list_topics(timeout=60)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            shown = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "0")])
            configs = next(iter(shown.values())).result(60)
            assert configs["bootstrap.admin.password"].value is None
            assert configs["bootstrap.admin.password"].is_sensitive
            users = {user for user, _ in broker.broker.coordination.client.scram_credentials()}
            assert users == {"root"}
        # The second time it is passed over, whoever it names.
        bootstrap["bootstrap.admin"] = f"other-{number}"
