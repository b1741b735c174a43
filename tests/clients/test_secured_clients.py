"""Every stock client by every mechanism, over TLS and without: let in, refused, and cut off later.

`make test` has one client for each mechanism, all over TLS, and one that shows a certificate;
`make test-all` has the product, but for tokens with kcat, which cannot be given any: its library
is built without what fetches them (test_oauth_clients.py has a librdkafka that does). Refusals are
counted by the broker, too: a client that only fails by itself is not let in either, and shows
nothing.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from diskless.cli.cli import main
from metadata.acls import AclFilter
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.jvm import KAFKA_VERSIONS, JvmUnavailable
from tests.support.clients.kafkajs import node_process
from tests.support.clients.kcat import kcat_or_skip
from tests.support.ports import own_port
from tests.support.security.authorization_server import AUDIENCE, ISSUER, Issuer
from tests.support.security.certificates import LONG_AGO, Certificates
from tests.support.security.secured_clients import (
    OAUTHBEARER,
    AioKafka,
    KafkaPython,
    Librdkafka,
    SecuredClient,
    Way,
)
from tests.support.security.secured_programs import Java, KafkaJs, KcatProgram

pytestmark = pytest.mark.clients

USER: Final = "ann"
PASSWORD: Final = "pass word="
JAVA: Final = tuple(f"java-{version}" for version in KAFKA_VERSIONS)
CLIENTS: Final = ("librdkafka", "kafka-python", "aiokafka", "kafkajs", "kcat", *JAVA)
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
PROTOCOLS: Final = ("SASL_SSL", "SASL_PLAINTEXT")
ONE_EACH: Final = {
    ("librdkafka", "SCRAM-SHA-512"),
    ("kafka-python", "SCRAM-SHA-256"),
    ("aiokafka", "PLAIN"),
    ("aiokafka", OAUTHBEARER),
}
VALUES: Final = [b"%d" % number * 1_000 for number in range(1, 40)]
TOPICS: Final = "open-"
"""How those begin that everybody may do everything with."""
READ, WRITE, TOPIC = 3, 4, 2


class Secured:
    """A broker with a listener of every protocol; on the plain one everything may be done."""

    def __init__(self, directory: Path) -> None:
        """What its clients and its settings are made of; it does not run yet."""
        self.ports = {name: own_port() for name in ("PLAINTEXT", "SSL", *PROTOCOLS)}
        self.certificates = Certificates(directory / "certificates")
        self.issuer = Issuer(is_rsa=True)
        self._directory = directory
        self.broker: LiveBroker

    @property
    def bootstrap(self) -> str:
        """Of the plain listener."""
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    def settings(self) -> Mapping[str, str]:
        password = self._directory / "password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD)
        keys = self._directory / "keys.json"
        keys.write_bytes(self.issuer.key_set())
        listeners = (f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        return {
            "listeners": ",".join(listeners),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{keys}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "bootstrap.admin": USER,
            "bootstrap.admin.password": f"file:{password}",
            "connection.failed.authentication.delay.ms": "0",
            "authorizer": "acl",
            "super.users": "User:ANONYMOUS",
            "wal.commit.interval.ms": "5",
            "group.initial.rebalance.delay.ms": "0",
            **self.certificates.listener(),
            "listener.name.ssl.ssl.client.auth": "required",
        }

    def open_up(self) -> None:
        """Have everybody be allowed everything with some topics, and groups."""
        at = ("--bootstrap", self.bootstrap)
        for resource in (f"topic:{TOPICS}*", "group:*"):
            assert main(["acl", "add", "*", "all", resource, *at]) == 0

    def take(self, topic: str, operation: int) -> None:
        """Remove the rules that allow it to anybody."""
        gone = AclFilter(resource_type=TOPIC, resource_name=topic, operation=operation)
        rules = self.broker.broker.coordination.client
        self.broker.run(rules.delete_acls([gone]))

    def way(self, protocol: str, mechanism: str = "", **more: str) -> Way:
        bootstrap = f"127.0.0.1:{self.ports[protocol]}"
        known = {"user": USER, "password": PASSWORD} if mechanism else {}
        if mechanism == OAUTHBEARER:
            known["password"] = self.issuer.token()
        ours = self.certificates.authority
        return Way(
            bootstrap, protocol, **{"authority": ours, "mechanism": mechanism, **known, **more}
        )

    def wrong(self, mechanism: str) -> Sequence[Mapping[str, str]]:
        """What is not let in, in place of what `way` has."""
        if mechanism == OAUTHBEARER:
            tokens = (Issuer().token(), self.issuer.token(aud="another"))
            return [{"password": token} for token in tokens]
        return {"password": "other"}, {"user": "nobody"}

    def topic(self, name: str) -> str:
        """A new one with which everybody may do everything."""
        made = f"{TOPICS}{name}"
        assert main(["topic", "create", made, "--bootstrap", self.bootstrap]) == 0
        return made

    def counted(self, name: str, **labels: str) -> float:
        return self.broker.broker.base.registry.get_sample_value(name, labels) or 0.0

    def log_ins(self, mechanism: str, result: str) -> float:
        name = "diskless_authentications_total"
        return self.counted(name, mechanism=mechanism, result=result)

    def handshakes(self, result: str) -> float:
        return self.counted("diskless_tls_handshakes_total", listener="SSL", result=result)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    secured = Secured(directory)
    port = secured.ports["PLAINTEXT"]
    with LiveBroker(directory / "data", secured.settings(), port=port) as secured.broker:
        secured.open_up()
        yield secured


@pytest.fixture(scope="module")
def clients(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], SecuredClient]]:
    """Each by its name, made when it is asked for; what it runs in ends with the module."""
    made: dict[str, SecuredClient] = {}

    def context(way: Way) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=way.authority)
        if way.keys:
            found.load_cert_chain(way.keys)
        return found

    def java(version: str) -> Java:
        try:
            made = Java(version, tmp_path_factory.mktemp("java"))
        except JvmUnavailable as missing:
            pytest.skip(str(missing))
        stack.callback(made.close)
        return made

    makers: dict[str, Callable[[], SecuredClient]] = {
        "librdkafka": Librdkafka,
        "kafka-python": KafkaPython,
        "aiokafka": lambda: AioKafka(context),
        "kafkajs": lambda: KafkaJs(stack.enter_context(node_process())),
        "kcat": lambda: KcatProgram(kcat_or_skip()),
    }

    def client(name: str) -> SecuredClient:
        if name not in made:
            made[name] = makers[name]() if name in makers else java(name.removeprefix("java-"))
        return made[name]

    with ExitStack() as stack:
        yield client


def case(*values: str, is_quick: bool) -> Any:
    marks = [] if is_quick else [pytest.mark.exhaustive]
    if values[0].startswith("java"):
        marks.append(pytest.mark.jvm)
    return pytest.param(*values, marks=marks, id="-".join(values))


EVERY_WAY: Final = [
    case(
        *(client, mechanism, protocol),
        is_quick=(client, mechanism) in ONE_EACH and protocol == "SASL_SSL",
    )
    for client in CLIENTS
    for mechanism in MECHANISMS
    for protocol in PROTOCOLS
    if (client, mechanism) != ("kcat", OAUTHBEARER)
]


@pytest.mark.parametrize(("client", "mechanism", "protocol"), EVERY_WAY)
def test_a_client_logs_in_and_works(
    secured: Secured,
    clients: Callable[[str], SecuredClient],
    client: str,
    mechanism: str,
    protocol: str,
) -> None:
    before = secured.log_ins(mechanism, "success")
    way = secured.way(protocol, mechanism)
    topic = secured.topic(f"{client}-{mechanism}-{protocol}")
    assert clients(client).through(way, topic, VALUES) == VALUES
    assert secured.log_ins(mechanism, "success") > before


REFUSALS: Final = {
    "librdkafka": "_AUTHENTICATION",
    "kafka-python": "",
    "aiokafka": "SaslAuthenticationFailed",
    "kafkajs": "SASL",
    "kcat": "SASL",
    **dict.fromkeys(JAVA, "SaslAuthenticationException"),
}
"""What is in what each library says; kafka-python tries again, without a word, and gives up."""
TOKEN_REFUSALS: Final = {**REFUSALS, "aiokafka": "", "kafkajs": "Closed connection"}
"""A token is refused in a message of the mechanism, which these two do not read: they go on."""


@pytest.mark.parametrize(("client", "mechanism", "protocol"), EVERY_WAY)
def test_a_wrong_password_or_token_and_an_unknown_user_are_refused(
    secured: Secured,
    clients: Callable[[str], SecuredClient],
    client: str,
    mechanism: str,
    protocol: str,
) -> None:
    refusals = TOKEN_REFUSALS if mechanism == OAUTHBEARER else REFUSALS
    known = secured.log_ins(mechanism, "success")
    for wrong in secured.wrong(mechanism):
        before = secured.log_ins(mechanism, "failure")
        told = clients(client).refusal(secured.way(protocol, mechanism, **wrong))
        assert refusals[client] in told, told
        assert secured.log_ins(mechanism, "failure") > before
    assert secured.log_ins(mechanism, "success") == known


SHOWS_A_CERTIFICATE: Final = [case(client, is_quick=client == JAVA[-1]) for client in CLIENTS]


@pytest.mark.parametrize("client", SHOWS_A_CERTIFICATE)
def test_a_client_shows_its_certificate_and_works(
    secured: Secured, clients: Callable[[str], SecuredClient], client: str
) -> None:
    way = secured.way("SSL", keys=secured.certificates.signed(f"of-{client}"))
    assert clients(client).through(way, secured.topic(f"{client}-certificate"), VALUES) == VALUES


@pytest.mark.parametrize("client", [case(one, is_quick=one == "librdkafka") for one in CLIENTS])
def test_expired_and_wrong_certificates_are_refused(
    secured: Secured, clients: Callable[[str], SecuredClient], client: str, tmp_path: Path
) -> None:
    ours, others = secured.certificates, Certificates(tmp_path / "others")
    mine = ours.signed("mine")
    late = ours.signed("late", expires_at=LONG_AGO)
    complete = secured.handshakes("complete")
    for result, wrong in (
        ("expired", {"keys": late}),
        ("failed", {"keys": others.signed("mine")}),
        ("failed", {}),
    ):
        before = secured.handshakes(result)
        assert clients(client).refusal(secured.way("SSL", **wrong))
        until(lambda: secured.handshakes(result) > before, f"a handshake that {result}")  # noqa: B023
    # Who does not trust the broker leaves, with a word or without.
    assert clients(client).refusal(secured.way("SSL", keys=mine, authority=others.authority))
    assert secured.handshakes("complete") == complete


@pytest.mark.parametrize("client", [case(one, is_quick=False) for one in CLIENTS])
def test_a_right_that_goes_is_missed_by_who_runs(
    secured: Secured, clients: Callable[[str], SecuredClient], client: str
) -> None:
    topic = f"private-{client}"
    at = ("--bootstrap", secured.bootstrap)
    assert main(["topic", "create", topic, *at]) == 0
    assert main(["acl", "add", USER, "read,write", f"topic:{topic}", *at]) == 0
    with clients(client).running(secured.way("SASL_SSL", "SCRAM-SHA-512"), topic) as running:
        assert running.write(b"1") is None
        assert running.read() == b"1"
        assert running.write(b"2") is None
        secured.take(topic, WRITE)
        assert is_refusal(running.write(b"3"))
        assert running.read() == b"2"
        secured.take(topic, READ)
        assert is_refusal(running.read())


def is_refusal(told: bytes | str | None) -> bool:
    """Each library has its own spelling of TOPIC_AUTHORIZATION_FAILED."""
    assert isinstance(told, str), told
    words = told.lower().replace("_", "").replace(" ", "")
    return "topicauthorization" in words or "notauthorized" in words
