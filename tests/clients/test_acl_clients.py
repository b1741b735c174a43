"""Rules and stock clients: seen and changed by admin clients, obeyed by consumers and producers.

Nobody logs in here, so everybody is ANONYMOUS. What no rule names is open: the cluster, too, so
that everybody may change the rules.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as confluent
from kafka import admin as python
from kafka.errors import NoError

from diskless.cli.cli import main
from metadata.acls import AclBinding, AclFilter, Permission
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients import stock_clients as clients
from tests.support.clients.stock_clients import KafkaAdminClient

pytestmark = pytest.mark.clients

SETTINGS = {
    "authorizer": "acl",
    "allow.everyone.if.no.acl.found": "true",
    "wal.commit.interval.ms": "5",
}
ME = "User:ANONYMOUS"
TOPIC, READ, WRITE = 2, 3, 4


@pytest.fixture(autouse=True)
def no_rules_left(broker: LiveBroker) -> Iterator[None]:
    yield
    broker.run(broker.broker.coordination.client.delete_acls([AclFilter()]))


def known(broker: LiveBroker) -> frozenset[AclBinding]:
    return broker.broker.coordination.client.acls()


def deny(broker: LiveBroker, name: str, operation: int, resource_type: int = TOPIC) -> None:
    rule = AclBinding(resource_type, name, 3, ME, "*", operation, Permission.DENY)
    client = broker.broker.coordination.client
    assert broker.run(client.create_acls([rule])) == [None]


def python_rule(name: str, permission: str = "ALLOW") -> python.ACL:
    return python.ACL(
        principal="User:ann",
        host="*",
        operation=python.ACLOperation.READ,
        permission_type=python.ACLPermissionType[permission],
        resource_pattern=python.ResourcePattern(python.ResourceType.TOPIC, name),
    )


def test_kafka_pythons_admin_makes_finds_and_deletes_rules(
    broker: LiveBroker, python_admin: KafkaAdminClient, topic: str
) -> None:
    rules = [python_rule(topic), python_rule(topic, "DENY")]
    assert python_admin.create_acls(rules) == {"succeeded": rules, "failed": []}
    wanted = python.ACLFilter(
        principal="User:ann",
        host="*",
        operation=python.ACLOperation.ANY,
        permission_type=python.ACLPermissionType.ANY,
        resource_pattern=python.ResourcePatternFilter(
            python.ResourceType.TOPIC, topic, python.ACLResourcePatternType.MATCH
        ),
    )
    found, error = python_admin.describe_acls(wanted)
    assert error is NoError
    assert {*found} == {*rules}
    ((_, gone, error),) = python_admin.delete_acls([wanted])
    assert error is NoError
    assert {*gone} == {*rules}
    assert not known(broker)


def test_librdkafkas_admin_makes_finds_and_deletes_rules(
    broker: LiveBroker, admin: confluent.AdminClient, topic: str
) -> None:
    rule = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        topic,
        confluent.ResourcePatternType.PREFIXED,
        "User:ann",
        "10.0.0.1",
        confluent.AclOperation.ALL,
        confluent.AclPermissionType.DENY,
    )
    for made in admin.create_acls([rule]).values():
        assert made.result(clients.TIMEOUT_S) is None
    assert known(broker) == {AclBinding(2, topic, 4, "User:ann", "10.0.0.1", 2, 2)}
    wanted = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(clients.TIMEOUT_S) == [rule]
    (gone,) = admin.delete_acls([wanted]).values()
    assert gone.result(clients.TIMEOUT_S) == [rule]
    assert not known(broker)


def test_a_running_producer_is_refused_from_the_moment_its_right_goes(
    broker: LiveBroker, topic: str
) -> None:
    running = Producer({"bootstrap.servers": broker.bootstrap, "logger": clients.QUIET})
    told: list[KafkaError | None] = []

    def send(producer: Producer) -> KafkaError | None:
        producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
        until(lambda: producer.flush(0.1) == 0, "an answer", deadline_s=clients.TIMEOUT_S)
        return told[-1]

    assert send(running) is None
    deny(broker, topic, WRITE)
    refused = send(running)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    broker.run(broker.broker.coordination.client.delete_acls([AclFilter(resource_name=topic)]))
    # The one that was refused waits for new metadata before it tries that topic again.
    other = Producer({"bootstrap.servers": broker.bootstrap, "logger": clients.QUIET})
    assert send(other) is None
    assert len(clients.ConfluentKafka().read(broker.bootstrap, topic, 2)) == 2


def test_a_running_consumer_is_refused_from_the_moment_its_right_goes(
    broker: LiveBroker, topic: str
) -> None:
    records = [clients.Record(b"k", b"v%d" % number) for number in range(3)]
    clients.ConfluentKafka().produce(broker.bootstrap, topic, records)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"group-{topic}",
            "auto.offset.reset": "earliest",
            "logger": clients.QUIET,
        }
    )
    with closing(consumer):
        consumer.subscribe([topic])
        assert len(consumer.consume(3, clients.TIMEOUT_S)) == 3
        deny(broker, topic, READ)
        errors = []

        def is_refused() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                errors.append(message.error().code())
            return bool(errors)

        until(is_refused, "the refusal", deadline_s=clients.TIMEOUT_S)
        assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(KafkaException) as refused:
            consumer.commit(asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        broker.run(broker.broker.coordination.client.delete_acls([AclFilter(resource_name=topic)]))
        clients.ConfluentKafka().produce(broker.bootstrap, topic, records[:1])
        found = []

        def has_read() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
            return bool(found)

        until(has_read, "a record after the right is back", deadline_s=clients.TIMEOUT_S)
        assert found == [b"v0"]


def test_the_command_adds_lists_explains_and_removes_rules(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str, status: int = 0) -> str:
        assert main(["acl", *arguments, "--bootstrap", broker.bootstrap]) == status
        return capsys.readouterr().out

    added = said("add", "ann", "read,write", "topic:a", "topic:web-*")
    assert "ann may READ topic:a\n" in added
    assert "ann may WRITE topic:web-*" in added
    assert said("add", "*", "write", "topic:web-1", "--deny", "--host", "10.0.0.1").startswith(
        "everybody may not WRITE topic:web-1 from 10.0.0.1"
    )
    assert len(known(broker)) == 5
    listed = said("list", "--resource", "topic:web-1")
    assert [line.split() for line in listed.splitlines()[1:]] == [
        ["topic:web-*", "ann", "READ", "allow", "*"],
        ["topic:web-*", "ann", "WRITE", "allow", "*"],
        ["topic:web-1", "*", "WRITE", "deny", "10.0.0.1"],
    ]
    assert len(said("list", "--user", "ann", "--deny").splitlines()) == 1
    explained = said("explain", "ann", "describe", "topic:a")
    assert "ann may DESCRIBE topic:a: this rule decides" in explained
    assert "ann may READ topic:a" in explained
    assert "no rule allows it" in said("explain", "bob", "read", "topic:a", status=1)
    assert "allow.everyone" in said("explain", "bob", "read", "topic:new")
    assert "for single hosts" in said("explain", "ann", "write", "topic:web-1")
    denied = said("explain", "ann", "write", "topic:web-1", "--host", "10.0.0.1", status=1)
    assert "everybody may not WRITE topic:web-1" in denied
    assert "removed: ann may READ topic:a" in said("remove", "--resource", "topic:a")
    assert said("remove", "--resource", "topic:a") == "no such rules\n"
    said("remove", status=2)
    said("add", "ann", "fly", "topic:a", status=2)
    said("explain", "ann", "read,write", "topic:a", status=2)
    assert len(known(broker)) == 3
