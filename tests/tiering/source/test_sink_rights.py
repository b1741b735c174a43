"""What a sink may do is what its principal may: topics, sink ids, quotas; and no private key."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from metadata import operations as ops
from metadata.acls import AclBinding
from metadata.messages.sinks import COMMIT_SINK_HERE, CommitSinkAt
from metadata.scram.credentials import ScramMechanism, credential_of, salt_password
from metadata.sink_operations import CommitSink, CommitStaged
from tests.support.brokers.live_broker import LiveBroker
from tests.support.ports import own_port
from tiering.coordinator_client import CoordinatorClient
from tiering.source.options import parse_sink_options
from tiering.source.writing.exactly_once import ExactlyOnceStreamSink, StagedMessage
from wal.errors import (
    ClusterAuthorizationFailed,
    Overloaded,
    TopicAuthorizationFailed,
)
from wal.security.client_security import read_client_security

SCHEMA = StructType().add("value", "binary")
ALLOW, LITERAL, TOPIC, READ, WRITE = 3, 3, 2, 3, 4


class Served(NamedTuple):
    broker: LiveBroker
    sasl: str
    directory: Path

    def properties(self, user: str) -> str:
        path = self.directory / user
        lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-512")
        login = (f"sasl.username={user}", f"sasl.password=of {user}")
        path.write_text("\n".join((*lines, *login)))
        path.chmod(0o600)
        return str(path)

    def sink(self, user: str, topic: str, sink_id: str) -> ExactlyOnceStreamSink:
        given = {
            "bootstrap": self.sasl,
            "topic": topic,
            "sink.id": sink_id,
            "commandConfig": self.properties(user),
        }
        return ExactlyOnceStreamSink(parse_sink_options(given), SCHEMA)

    def client(self, user: str) -> CoordinatorClient:
        return CoordinatorClient(self.sasl, read_client_security(Path(self.properties(user))))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("rights")
    plain, sasl = own_port(), own_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer": "acl",
        "super.users": "User:ANONYMOUS",
        "num.partitions": "1",
    }
    with LiveBroker(directory / "data", settings, port=plain) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic("ours", 1), NewTopic("theirs", 1)]).values():
            future.result(30)
        client = broker.broker.coordination.client
        mechanism = ScramMechanism.SHA_512
        users = [
            ops.AlterScramCredential(
                user=user,
                mechanism=mechanism.value,
                credential=credential_of(
                    mechanism,
                    salt_password(mechanism, f"of {user}", b"salt", 4_096),
                    b"salt",
                    4_096,
                ),
            )
            for user in ("ann", "bob")
        ]
        assert broker.run(client.alter_scram_credentials(users)) == [None, None]
        rules = [
            AclBinding(TOPIC, "ours", LITERAL, f"User:{user}", "*", operation, ALLOW)
            for user in ("ann", "bob")
            for operation in (WRITE,)
        ]
        rules.append(AclBinding(TOPIC, "theirs", LITERAL, "User:ann", "*", READ, ALLOW))
        assert broker.run(client.create_acls(rules)) == [None] * 3
        yield Served(broker, f"127.0.0.1:{sasl}", directory)


def row(value: bytes = b"a") -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array([value], pa.binary())})


def test_a_sink_needs_write_on_its_topic(served: Served) -> None:
    writer = served.sink("ann", "ours", "of-ann")
    message = writer.write(row())
    assert isinstance(message, StagedMessage)
    writer.commit([message], 0)
    for user, topic in (("ann", "theirs"), ("bob", "theirs")):
        with pytest.raises(TopicAuthorizationFailed):
            served.sink(user, topic, "another")


def test_a_sink_id_is_its_first_users(served: Served) -> None:
    writer = served.sink("ann", "ours", "mine")
    staged = writer.write(row())
    bobs = served.sink("bob", "ours", "mine")
    writer.commit([staged], 0)
    with pytest.raises(ClusterAuthorizationFailed, match="belongs to another principal"):
        served.sink("bob", "ours", "mine")
    with pytest.raises(ClusterAuthorizationFailed, match="belongs to another principal"):
        bobs.commit([bobs.write(row(b"b"))], 1)
    served.sink("bob", "ours", "bobs").commit([], 0)


def test_what_brokers_ask_each_other_stays_theirs(served: Served) -> None:
    asked = CommitSinkAt(0, CommitSink("mine-too", "User:ann", 0, bytes(16), ()))
    with pytest.raises(ClusterAuthorizationFailed, match="CLUSTER_ACTION"):
        served.client("ann")._call(COMMIT_SINK_HERE, asked)


def test_commits_count_in_the_quota_of_their_principal(served: Served) -> None:
    client = served.broker.broker.coordination.client

    def limit(rate: float | None) -> None:
        asked = ops.AlterClientQuotas(
            entity=(("user", "ann"),), changes={"producer_byte_rate": rate}
        )
        assert served.broker.run(client.alter_client_quotas([asked])) == [None]

    limit(1.0)
    try:
        writer = served.sink("ann", "ours", "limited")
        first, second = writer.write(row(b"1")), writer.write(row(b"2"))
        writer.commit([first], 0)
        assert isinstance(second, StagedMessage)
        asked = CommitStaged("limited", 1, bytes(16), ["ours"], second.staged.files)
        with pytest.raises(Overloaded, match="over the quota of ann"):
            served.client("ann").commit_staged(asked)
        limit(None)
        writer.commit([second], 1)
    finally:
        limit(None)
