"""The clients of secured_clients.py that are programs: kafkajs, kcat, Java's of any version."""

import base64
import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.brokers.live_broker import until
from tests.support.clients.java_client import scenario
from tests.support.clients.jvm import JavaProcess, KafkaTools
from tests.support.clients.kafkajs import KafkaJsError, NodeProcess
from tests.support.clients.kcat import Kcat
from tests.support.clients.stock_clients import TIMEOUT_S
from tests.support.security.secured_clients import (
    OAUTHBEARER,
    Running,
    SecuredClient,
    Way,
    librdkafka,
)

__all__ = ["Java", "KafkaJs", "KcatProgram"]

_names = itertools.count()
_SECURITY: Final = "org.apache.kafka.common.security"
_TOKEN_MODULE: Final = "oauthbearer.OAuthBearerLoginModule"
_TOKEN_HANDLER: Final = "oauthbearer.OAuthBearerLoginCallbackHandler"
_SASL: Final = "org.apache.kafka.sasl.oauthbearer"
_LOGIN_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


class KafkaJs(SecuredClient):
    """kafkajs. It reads in a group alone."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node

    def _client(self, way: Way, retries: int) -> str:
        """What the driver is to call this way."""
        name = f"way-{next(_names)}"
        options: dict[str, Any] = {
            "brokers": [way.bootstrap],
            "retry": {"initialRetryTime": 50, "maxRetryTime": 500, "retries": retries},
        }
        if way.is_tls:
            options["ssl"] = {"ca": [Path(way.authority).read_text()]}
            if way.keys:
                own = Path(way.keys).read_text()
                options["ssl"] |= {"key": own, "cert": own}
        if way.mechanism == OAUTHBEARER:
            options["sasl"] = {"mechanism": "oauthbearer", "token": way.password}
        elif way.mechanism:
            options["sasl"] = {
                "mechanism": way.mechanism.lower(),
                "username": way.user,
                "password": way.password,
            }
        self._node.call("client", bootstrap=name, options=options)
        return name

    def refusal(self, way: Way) -> str:
        name = self._client(way, retries=1)
        try:
            self._node.call("admin", bootstrap=name, method="listTopics", arguments=[])
        except KafkaJsError as error:
            return str(error)
        finally:
            self._node.call("drop", bootstrap=name)
        raise AssertionError("it was let in")

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningKafkaJs"]:
        name = self._client(way, retries=10)
        try:
            yield _RunningKafkaJs(self._node, name, topic)
        finally:
            self._node.call("drop", bootstrap=name)


class _RunningKafkaJs(Running):
    def __init__(self, node: NodeProcess, client: str, topic: str) -> None:
        self._node = node
        self._client = client
        self._topic = topic
        self._has_joined = False
        self._found: list[bytes] = []

    def write(self, value: bytes) -> str | None:
        record = {"key": None, "value": base64.b64encode(value).decode(), "headers": []}
        try:
            self._node.call(
                "produce",
                bootstrap=self._client,
                topic=self._topic,
                partition=0,
                records=[{**record, "timestamp": 1_700_000_000_000}],
                codec="none",
                acks=-1,
                idempotent=False,
            )
        except KafkaJsError as error:
            return error.type or str(error)
        return None

    def read(self) -> bytes | str:
        if not self._has_joined:
            group = f"group-{self._client}"
            where = {"bootstrap": self._client, "name": self._client, "group": group}
            self._node.call("join", **where, topic=self._topic, autoCommitMs=None, settings={})
            self._has_joined = True
        failures: list[str] = []

        def has_come() -> bool:
            state = self._node.call("state", name=self._client)
            self._found += [base64.b64decode(value) for value in state["read"]]
            failures[:] = [state["failure"]] if state["failure"] else []
            return bool(self._found or failures)

        until(has_come, "what kafkajs reads")
        return self._found.pop(0) if self._found else failures[0]


class KcatProgram(SecuredClient):
    """kcat, whose lines are records. Who writes ends: it tells of no record before that."""

    def __init__(self, kcat: Kcat) -> None:
        self._kcat = kcat

    def through(self, way: Way, topic: str, values: Sequence[bytes]) -> list[bytes | str]:
        with self.running(way, topic) as one:
            assert one.write(b"\n".join(values)) is None
            return [one.read() for _ in values]

    def refusal(self, way: Way) -> str:
        with self.started(way, "-L", "-m", "2") as process:
            _, told = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode != 0, "it was let in"
        return told.decode()

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningKcat"]:
        place = ("-t", topic, "-p", "0")
        with self.started(way, "-C", "-u", "-o", "beginning", *place) as consumer:
            yield _RunningKcat(lambda: self.started(way, "-P", *place), consumer)

    @contextmanager
    def started(self, way: Way, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        pairs = [f"{key}={value}" for key, value in librdkafka(way).items()]
        settings = [word for pair in pairs for word in ("-X", pair)]
        pipe = subprocess.PIPE
        command = [self._kcat.command, *settings, *arguments]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        with process:
            try:
                yield process
            finally:
                process.kill()


class _RunningKcat(Running):
    def __init__(
        self,
        producer: Callable[[], AbstractContextManager[subprocess.Popen[bytes]]],
        consumer: subprocess.Popen[bytes],
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._values: SimpleQueue[bytes | str] = SimpleQueue()
        threading.Thread(target=self._read_values, name="kcat-values", daemon=True).start()
        threading.Thread(target=self._read_errors, name="kcat-errors", daemon=True).start()

    def write(self, value: bytes) -> str | None:
        with self._producer() as process:
            _, told = process.communicate(value + b"\n", timeout=TIMEOUT_S)
        return told.decode() if process.returncode else None

    def read(self) -> bytes | str:
        return self._values.get(timeout=TIMEOUT_S)

    def _read_values(self) -> None:
        assert self._consumer.stdout is not None
        for line in self._consumer.stdout:
            self._values.put(line.rstrip(b"\n"))

    def _read_errors(self) -> None:
        assert self._consumer.stderr is not None
        for line in self._consumer.stderr:
            # It says "% Reached end" too, and what librdkafka logs.
            if b"ERROR" in line and b"Unknown topic" not in line:
                self._values.put(line.decode())


class Java(SecuredClient):
    """kafka-clients of one version."""

    def __init__(self, version: str, directory: Path) -> None:
        """`directory` is where key stores and tokens are put that Java can read.

        Raises JvmUnavailable.
        """
        self._directory = directory
        self._token = directory / "token"
        allowed = f"-D{_SASL}.allowed"
        self._tools = KafkaTools(
            version, f"{allowed}.urls={self._token.as_uri()}", f"{allowed}.files={self._token}"
        )

    def close(self) -> None:
        self._tools.close()

    def _settings(self, way: Way) -> dict[str, str]:
        settings = {"security_protocol": way.protocol}
        if way.is_tls:
            settings |= {
                "ssl_truststore_type": "PEM",
                "ssl_truststore_location": way.authority,
            }
        if way.mechanism == OAUTHBEARER:
            self._token.write_text(way.password)
            settings |= {
                "sasl_mechanism": way.mechanism,
                "sasl_jaas_config": f"{_SECURITY}.{_TOKEN_MODULE} required;",
                "sasl_login_callback_handler_class": f"{_SECURITY}.{_TOKEN_HANDLER}",
                "sasl_oauthbearer_token_endpoint_url": self._token.as_uri(),
            }
        elif way.mechanism:
            module = f"{_SECURITY}.{_LOGIN_MODULES[way.mechanism]}"
            settings |= {
                "sasl_mechanism": way.mechanism,
                "sasl_jaas_config": f'{module} required username="{way.user}" '
                f'password="{way.password}";',
            }
        if way.keys:
            settings |= {
                "ssl_keystore_type": "PEM",
                "ssl_keystore_location": str(self._keystore(Path(way.keys))),
            }
        return settings

    def _keystore(self, keys: Path) -> Path:
        """The same with its key in PKCS#8, which is all that Java reads."""
        content = keys.read_bytes()
        key = load_pem_private_key(content, None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        made = self._directory / keys.name
        made.write_bytes(key + content[content.index(b"-----BEGIN CERT") :])
        return made

    def through(self, way: Way, topic: str, values: Sequence[bytes]) -> list[bytes | str]:
        settings = self._settings(way)
        lines = [
            json.dumps({"key": None, "value": _base64(value), "headers": [], "timestamp": 1})
            for value in values
        ]
        sent = "\n".join(lines).encode()
        scenario(self._tools, "produce", way.bootstrap, topic, "0", stdin=sent, **settings)
        place = (topic, "0", "0", str(len(values)))
        read = scenario(self._tools, "read", way.bootstrap, *place, **settings)
        return [base64.b64decode(record["value"]) for record in read]

    def refusal(self, way: Way) -> str:
        settings = [
            f"{key.replace('_', '.')}={value}" for key, value in self._settings(way).items()
        ]
        finished = self._tools.run("SecurityScenarios", "refusal", way.bootstrap, *settings)
        assert finished.status == 0, finished.stderr
        return str(json.loads(finished.lines[-1]))

    @contextmanager
    def running(self, way: Way, topic: str) -> Iterator["_RunningJava"]:
        settings = [
            f"{key.replace('_', '.')}={value}" for key, value in self._settings(way).items()
        ]
        start = ("SecurityScenarios", "running", way.bootstrap, topic, *settings)
        with self._tools.start(*start) as process:
            yield _RunningJava(process)


class _RunningJava(Running):
    def __init__(self, process: JavaProcess) -> None:
        self._process = process

    def _answer(self, command: str) -> str | None:
        self._process.write(f"{command}\n")
        line = self._process.wait_for(lambda line: line.startswith("> "), TIMEOUT_S)
        answer: str | None = json.loads(line[2:])
        return answer

    def write(self, value: bytes) -> str | None:
        return self._answer(f"write {_base64(value)}")

    def read(self) -> bytes | str:
        answer = self._answer("read")
        assert answer is not None
        kind, _, content = answer.partition(" ")
        return base64.b64decode(content) if kind == "value" else content


def _pairs(settings: Mapping[str, str]) -> list[str]:
    return [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
