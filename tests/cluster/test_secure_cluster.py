"""Three broker processes with SASL_SSL between them, and everything that can happen to that.

One load goes on through all of it, and nothing of it may fail or be there twice.
"""

import os
import random
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from demo.broker_process import run_diskless
from diskless.sasl.broker_secrets import broker_password
from diskless.sasl.cluster_secret import (
    OVERLAP_MS,
    ClusterSecret,
    decode_secret,
    encode_secret,
)
from metadata.clients.sasl_login import LoginRefused
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.gate import Gate
from tests.support.brokers.live_broker import until
from tests.support.clients.steady_load import SteadyLoad, read_back
from tests.support.ports import own_port
from tests.support.security.certificates import Certificates
from tiering.coordinator_client import CoordinatorClient
from wal.clock import SystemClock
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.client_security import ClientSecurity
from wal.security.secret import Secret
from wal.security.security_protocol import SecurityProtocol

BROKERS: Final = (1, 2, 3)
PASSWORD: Final = "pass word"
TIMEOUT_S: Final = 120.0
FAILED_LOG_INS: Final = 'diskless_authentications_total{mechanism="SCRAM-SHA-512",result="failure"}'
SHARED: Final = {
    "diskless.metadata.topic.num.partitions": "3",
    "listener.security.protocol.map": "BROKERS:SASL_SSL,CLIENTS:SASL_SSL",
    "inter.broker.listener.name": "BROKERS",
    "broker.secret.follow.interval.ms": "200",
    "connection.failed.authentication.delay.ms": "1",
    "authorizer": "acl",
    "super.users": "User:admin",
    "bootstrap.admin": "admin",
}


class SecureCluster:
    def __init__(self, directory: Path, stack: ExitStack, workers: int) -> None:
        self.directory: Final = directory
        self._workers: Final = workers
        self.bucket: Final = directory / "bucket"
        self.secrets: Final = self.bucket / "meta" / "secret"
        self.bucket.mkdir(mode=0o700)
        self.secrets.mkdir(parents=True)
        # So old that it may be rotated at once.
        fresh = ClusterSecret.new(SystemClock(), random.Random(1))
        self.first: Final = fresh._replace(made_ms=fresh.made_ms - OVERLAP_MS)
        (self.secrets / "1").write_bytes(encode_secret(self.first))
        self.inside: Final = Certificates(directory / "inside")
        self.outside: Final = Certificates(directory / "outside")
        password = directory / "password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD)
        self._password = password
        self.cluster: Final = Cluster(directory, f"file://{self.bucket}", stack)
        self._ports: Final = {
            (name, node_id): own_port() for name in ("BROKERS", "CLIENTS") for node_id in BROKERS
        }
        self.gates: Final = {
            node_id: stack.enter_context(Gate(self._address("CLIENTS", node_id)))
            for node_id in BROKERS
        }
        self.client: Final = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{gate.port}" for gate in self.gates.values()),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": self.outside.authority,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }

    def start(self, node_id: int) -> None:
        listeners = ",".join(
            f"{name}://127.0.0.1:{self._ports[name, node_id]}" for name in ("CLIENTS", "BROKERS")
        )
        settings = {
            **SHARED,
            "broker.workers": str(self._workers),
            "broker.workers.active.min": str(self._workers),
            "listeners": listeners,
            "advertised.listeners": f"CLIENTS://127.0.0.1:{self.gates[node_id].port}",
            "bootstrap.admin.password": f"file:{self._password}",
        }
        for listener, certificates in (("brokers", self.inside), ("clients", self.outside)):
            for key, value in certificates.listener().items():
                settings[f"listener.name.{listener}.{key}"] = value
        self.cluster.start(node_id, settings)

    def _address(self, listener: str, node_id: int) -> tuple[str, int]:
        return "127.0.0.1", self._ports[listener, node_id]

    def served(self, listener: str) -> set[str]:
        """The certificates that the brokers show."""
        return {ssl.get_server_certificate(self._address(listener, node_id)) for node_id in BROKERS}

    def log_in(self, node_id: int, secret: ClusterSecret) -> None:
        """As a broker. Raises LoginRefused."""
        login = ClientLogin(
            mechanism=SaslMechanism.SCRAM_SHA_512,
            user="__broker",
            password=Secret(broker_password(secret)),
            source="here",
        )
        security = ClientSecurity(
            protocol=SecurityProtocol.SASL_SSL, authorities=self.inside.authority, login=login
        )
        host, port = self._address("BROKERS", node_id)
        CoordinatorClient(f"{host}:{port}", security).connect()

    def lets_in(self, secret: ClusterSecret) -> set[int]:
        """The brokers that take a secret for that of a broker."""
        taking = set()
        for node_id in BROKERS:
            try:
                self.log_in(node_id, secret)
            except LoginRefused:
                continue
            taking.add(node_id)
        return taking

    def failed_log_ins(self) -> float:
        brokers = self.cluster.brokers.values()
        for broker in brokers:
            broker.refresh_counters()
        return sum(broker.counters[FAILED_LOG_INS] for broker in brokers)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.exhaustive)])
def secure(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SecureCluster]:
    with ExitStack() as stack:
        found = SecureCluster(tmp_path, stack, request.param)
        with ThreadPoolExecutor(len(BROKERS)) as starting:
            list(starting.map(found.start, BROKERS))
        yield found


def test_nothing_fails_that_should_not(secure: SecureCluster) -> None:
    admin = AdminClient(secure.client)
    admin.create_topics([NewTopic("load", 6)])["load"].result(TIMEOUT_S)
    with SteadyLoad(secure.client, "load") as load:
        load.more()

        # The leader of the catalogue is killed, and the secret rotated while it is down.
        leader = admin.describe_cluster().result(TIMEOUT_S).controller.id
        assert secure.lets_in(secure.first) == set(BROKERS)
        assert not secure.failed_log_ins()
        secure.cluster.brokers[leader].kill()
        load.more()
        rotation = ["cluster", "rotate-secret", "--object-store", f"file://{secure.bucket}"]
        log = secure.directory / "rotation.log"
        for told in ("made secret 2", "there is secret 2"):
            assert run_diskless(rotation, log, TIMEOUT_S) == 0
            assert told in log.read_text()
        second = decode_secret((secure.secrets / "2").read_bytes())
        load.more()
        secure.start(leader)
        load.more()
        assert not secure.failed_log_ins()
        until(lambda: secure.lets_in(second) == set(BROKERS), "the new secret")
        assert secure.lets_in(secure.first) == set()
        refused = secure.failed_log_ins()

        # New certificates, for brokers and for clients.
        before = secure.served("BROKERS") | secure.served("CLIENTS")
        for certificates in (secure.inside, secure.outside):
            certificates.signed("server", "localhost", "127.0.0.1")
        for broker in secure.cluster.brokers.values():
            os.kill(broker.pid, signal.SIGHUP)
        for listener in ("BROKERS", "CLIENTS"):
            until(lambda: not secure.served(listener) & before, "certificates")  # noqa: B023
        load.more()

        # Clients reach nobody for a while; brokers go on among themselves.
        for gate in secure.gates.values():
            gate.cut()
        known = len(load.delivered)
        for gate in secure.gates.values():
            gate.open()
        load.more()
        assert len(load.delivered) > known
        assert not load.failed
        assert secure.failed_log_ins() == refused
    assert not load.failed
    sent = load.delivered
    assert sorted(read_back(secure.client, "load", len(sent))) == sorted(sent)
