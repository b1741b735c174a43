"""A broker of two workers whose clients log in and have rules, and what is asked of it."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from demo.broker_process import BrokerProcess
from metadata.acls import PatternType, Permission
from metadata.scram.credentials import ScramMechanism, salt_password
from tests.support.ports import own_port
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.questions.worker_clients import produce
from tests.support.security.certificates import Certificates

CONNECTIONS: Final = 6
PENDING: Final = 8
PER_USER: Final = 20
REAUTH_MS: Final = 1_000
QUOTA: Final = 10_000.0
PRODUCE, FETCH, METADATA, SASL_HANDSHAKE, CREATE_TOPICS = 0, 1, 3, 17, 19
CREATE_ACLS, DELETE_ACLS, SASL_AUTHENTICATE, ALTER_QUOTAS, ALTER_USERS = 30, 31, 36, 49, 51
NONE, TOPIC_REFUSED, CLUSTER_REFUSED, LOGIN_FAILED = 0, 29, 31, 58
TOPIC, WRITE = 2, 4
ANN, PASSWORD = "ann", "a secret of ann's"
TOPICS: Final = ("open", "shut", "given")


class SecuredWorkers:
    """A broker of two workers; who comes through the plain listener may do everything."""

    def __init__(self, place: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.certificates: Final = Certificates(place / "certificates")
        self.ports: Final = {name: own_port() for name in ("PLAINTEXT", "SASL_SSL", "SSL", "SHORT")}
        self.audit: Final = place / "audit"
        self.log: Final = place / "broker.log"
        password = place / "password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD)
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        settings = {
            "broker.workers": "2",
            "broker.workers.active.min": "2",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "SHORT:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,"
            "SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.short.connections.max.reauth.ms": str(REAUTH_MS),
            "max.connections.per.user": str(PER_USER),
            "bootstrap.admin": ANN,
            "bootstrap.admin.password": f"file:{password}",
            "connection.failed.authentication.delay.ms": "0",
            "max.connections.unauthenticated.per.ip": str(PENDING),
            "authorizer": "acl",
            "super.users": "User:ANONYMOUS",
            "audit.log.file": str(self.audit),
            "wal.commit.interval.ms": "5",
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
            **self.certificates.listener(),
            **more,
        }
        self.process: Final = BrokerProcess(place / "data", place, settings)

    @property
    def plain(self) -> str:
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    async def connect(self, listener: str, keys: str | None = None) -> RawClient:
        """Over TLS, but for the plain listener."""
        tls = None if listener == "PLAINTEXT" else self.certificates.context(keys)
        name = None if tls is None else "localhost"
        port = self.ports[listener]
        return RawClient(
            *await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        )

    def keys(self) -> bytes:
        return Path(self.certificates.server).read_bytes()

    def put_keys(self, content: bytes) -> None:
        """In the file, half written as they may be."""
        Path(self.certificates.server).write_bytes(content)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[RawClient]:
        client = await self.connect("PLAINTEXT")
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def logged_in(
        self, user: str = ANN, password: str = PASSWORD, count: int = CONNECTIONS
    ) -> AsyncIterator[Sequence[RawClient]]:
        clients: list[RawClient] = []
        try:
            for _ in range(count):
                clients.append(await self.connect("SASL_SSL"))
                assert await log_in(clients[-1], user, password) == NONE
            yield clients
        finally:
            for client in clients:
                await client.close()

    def notes(self, event: str, **wanted: object) -> Sequence[Mapping[str, Any]]:
        """Those whose line is whole; the last one may be on its way."""
        lines = self.audit.read_text().splitlines(keepends=True)
        notes = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            note
            for note in notes
            if note["event"] == event and all(note[key] == wanted[key] for key in wanted)
        ]


async def log_in(
    client: RawClient, user: str, password: str, *, lifetimes: list[timedelta] | None = None
) -> int:
    """By PLAIN; the code of the answer, whose lifetime is added to `lifetimes`."""
    chosen = await client.call(SASL_HANDSHAKE, 1, mechanism="PLAIN")
    assert int(chosen.error_code) == NONE
    token = f"\0{user}\0{password}".encode()
    answer = await client.call(SASL_AUTHENTICATE, 2, auth_bytes=token)
    if lifetimes is not None:
        lifetimes.append(answer.session_lifetime)
    return int(answer.error_code)


async def refused_by_all(
    broker: SecuredWorkers, user: str, password: str, count: int = CONNECTIONS
) -> None:
    for _ in range(count):
        client = await broker.connect("SASL_SSL")
        assert await log_in(client, user, password) == LOGIN_FAILED
        assert await client.is_closed_by_server()
        await client.close()


async def written(client: RawClient, topic: str) -> int:
    """The code of the answer to a Produce of one record."""
    with contextlib.suppress(AssertionError):
        await produce(client, topic, b"a value")
        return NONE
    return TOPIC_REFUSED


def rule(user: str, topic: str) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": topic,
        "resource_pattern_type": int(PatternType.LITERAL),
        "principal": f"User:{user}",
        "host": "*",
        "operation": WRITE,
        "permission_type": int(Permission.ALLOW),
    }


async def add_rule(client: RawClient, user: str, topic: str) -> None:
    answer = await client.ask(CREATE_ACLS, 2, creations=[rule(user, topic)])
    assert [int(one.error_code) for one in answer.results] == [NONE]


async def remove_rule(client: RawClient, user: str, topic: str) -> None:
    found = {
        {
            "resource_type": "resource_type_filter",
            "resource_name": "resource_name_filter",
            "resource_pattern_type": "pattern_type_filter",
            "principal": "principal_filter",
            "host": "host_filter",
        }.get(key, key): value
        for key, value in rule(user, topic).items()
    }
    answer = await client.ask(DELETE_ACLS, 2, filters=[found])
    assert [len(one.matching_acls) for one in answer.filter_results] == [1]


async def set_password(client: RawClient, user: str, password: str | None) -> None:
    """None: there is no such user any more."""
    mechanism = ScramMechanism.SHA_512
    salt, iterations = b"salt of a test's", 4096
    if password is None:
        deleted = [{"name": user, "mechanism": int(mechanism)}]
        answer = await client.ask(ALTER_USERS, 0, deletions=deleted, upsertions=[])
    else:
        one = {"name": user, "mechanism": int(mechanism), "iterations": iterations, "salt": salt}
        one |= {"salted_password": salt_password(mechanism, password, salt, iterations)}
        answer = await client.ask(ALTER_USERS, 0, deletions=[], upsertions=[one])
    assert [int(one.error_code) for one in answer.results] == [NONE]


@contextlib.contextmanager
def paused(worker: int) -> Iterator[None]:
    """Who connects meanwhile is let in by the other one."""
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def workers_among(notes: Sequence[Mapping[str, Any]]) -> set[int]:
    return {note["connection"] >> 32 for note in notes}
