"""kafkajs in a Node process that tests drive: a stock client, a member of groups, an administrator.

The packages are installed once per lock file, into build/kafkajs. Where Node or npm is missing, or
the packages cannot be had, `node_process` skips the test and says which.
"""

import base64
import hashlib
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.clients import stock_clients as clients
from tests.support.groups.group_members import Member

__all__ = ["KafkaJs", "KafkaJsError", "KafkaJsMember", "NodeProcess", "node_process"]

REPOSITORY: Final = Path(__file__).resolve().parents[3]
DRIVER: Final = REPOSITORY / "tests" / "kafkajs"
INSTALLED: Final = REPOSITORY / "build" / "kafkajs"
INSTALL_TIMEOUT_S: Final = 300

_names = itertools.count()


class KafkaJsError(Exception):
    """What kafkajs threw."""

    def __init__(self, thrown: Mapping[str, Any]) -> None:
        super().__init__(f"{thrown['name']}: {thrown['message']}")
        self.type: str | None = thrown.get("type")
        """Kafka's name of the error, where the broker answered one."""
        self.errors = [KafkaJsError(one) for one in thrown["errors"]]


class NodeProcess:
    """One driver. Calls may come from any thread."""

    def __init__(self, node: str, directory: Path) -> None:
        self._process = subprocess.Popen(
            [node, str(DRIVER / "driver.js")],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, name="kafkajs")
        self._reader.start()

    def call(self, command: str, *, timeout_s: float = clients.TIMEOUT_S, **arguments: Any) -> Any:
        """The result of one command. Raises KafkaJsError."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
            assert self._process.stdin is not None
            line = json.dumps({"id": number, "do": command, **arguments})
            self._process.stdin.write(line + "\n")
        return answer.result(timeout_s)

    def stop(self) -> None:
        """Everything is disconnected, if that can be done; then it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(clients.TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                waiting = self._waiting.pop(answer["id"])
                if "error" in answer:
                    waiting.set_exception(KafkaJsError(answer["error"]))
                else:
                    waiting.set_result(answer["result"])
        for waiting in list(self._waiting.values()):
            waiting.set_exception(RuntimeError("the Node process has ended"))


@contextmanager
def node_process() -> Iterator[NodeProcess]:
    """A driver for as long as it is needed. Skips the test where there can be none."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("kafkajs needs node and npm, which are not installed")
    process = NodeProcess(node, _installed())
    try:
        yield process
    finally:
        process.stop()


def _installed() -> Path:
    """The directory that holds node_modules; filled if it is not there. Skips when that fails."""
    lock = (DRIVER / "package-lock.json").read_bytes()
    directory = INSTALLED / hashlib.sha256(lock).hexdigest()[:16]
    if directory.is_dir():
        return directory
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=INSTALLED, prefix="new-") as made:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(DRIVER / name, made)
        try:
            subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
                cwd=made,
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"kafkajs was not installed within {INSTALL_TIMEOUT_S} s")
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or ["npm said nothing"]
            pytest.skip(f"kafkajs cannot be installed: {lines[0]}")
        try:
            Path(made).rename(directory)
        except OSError:
            # Another run was faster; what it put there is the same.
            assert directory.is_dir()
        Path(made).mkdir(exist_ok=True)  # for the context's end
    return directory


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def grouped(headers: clients.Headers) -> clients.Headers:
    """Headers as kafkajs has them: by name, in the order in which each name comes first."""
    names = dict.fromkeys(name for name, _ in headers)
    return tuple((name, value) for wanted in names for name, value in headers if name == wanted)


class KafkaJs(clients.StockClient):
    """kafkajs as a stock client. It reads as a member of a group; there is no other way."""

    name = "kafkajs"

    def __init__(self, node: NodeProcess) -> None:
        self.node = node

    def can_send(self, record: clients.Record) -> bool:
        return grouped(record.headers) == record.headers and all(
            value is not None for _, value in record.headers
        )

    def send(
        self, bootstrap: str, topic: str, records: Sequence[clients.Record], how: clients.Sending
    ) -> list[int]:
        sent = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [(name, _text(value)) for name, value in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        offsets: list[int] = self.node.call(
            "produce",
            bootstrap=bootstrap,
            topic=topic,
            partition=how.partition,
            records=sent,
            codec=how.codec,
            acks=how.acks,
            idempotent=how.idempotent,
        )
        return offsets

    def read(
        self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0
    ) -> list[clients.StoredRecord]:
        counts = {topic: count}
        return self.read_all(bootstrap, counts, partition=partition, offset=offset)[topic]

    def read_all(
        self, bootstrap: str, counts: Mapping[str, int], *, partition: int = 0, offset: int = 0
    ) -> dict[str, list[clients.StoredRecord]]:
        """As many records of each topic, through one consumer."""
        found = self.node.call(
            "read",
            bootstrap=bootstrap,
            group=f"kafkajs-{next(_names)}",
            counts=counts,
            partition=partition,
            offset=offset,
        )
        return {
            topic: [
                clients.StoredRecord(
                    one["offset"],
                    clients.Record(
                        _bytes(one["key"]),
                        _bytes(one["value"]),
                        tuple((name, _bytes(value)) for name, value in one["headers"]),
                        one["timestamp"],
                    ),
                )
                for one in records
            ]
            for topic, records in found.items()
        }

    def admin(self, bootstrap: str, method: str, *arguments: Any) -> Any:
        """Any method of its administrator, with the arguments it takes. Raises KafkaJsError."""
        return self.node.call("admin", bootstrap=bootstrap, method=method, arguments=arguments)

    def forget(self, bootstrap: str) -> None:
        """Disconnect before the broker stops."""
        self.node.call("forget", bootstrap=bootstrap)


class KafkaJsMember(Member):
    """kafkajs in a group."""

    def __init__(
        self,
        node: NodeProcess,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        auto_commit_ms: int | None = None,
        **settings: Any,
    ) -> None:
        """`settings` as kafkajs spells them."""
        self._node = node
        self._name = f"member-{next(_names)}"
        self._auto_commit_ms = auto_commit_ms
        super().__init__(bootstrap, group, topic, **settings)

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        self._node.call(
            "join",
            bootstrap=bootstrap,
            name=self._name,
            group=group,
            topic=topic,
            autoCommitMs=self._auto_commit_ms,
            settings={"sessionTimeout": 3_000, "heartbeatInterval": 200, **self._settings},
        )
        try:
            while not self._leaving.wait(0.05):
                state = self._node.call("state", name=self._name)
                assert state["failure"] is None, state["failure"]
                self.read += [base64.b64decode(value) for value in state["read"]]
                self.rebalances = state["joins"]
                self._assigned = set(state["assigned"])
                if self._must_commit.is_set():
                    self._node.call("commit", name=self._name)
                    self._must_commit.clear()
        finally:
            self._node.call("leave", name=self._name)
