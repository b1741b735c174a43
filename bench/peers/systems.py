"""The systems of group `peers`: how each is installed, started on loopback, asked and stopped.

Kafka's jars come from Maven Central, as for the tests that run its tools; klite is a Go module that
the Go command installs by its name, or a binary that the environment variable KLITE names. What
cannot be had raises `NotThere`, which says why. Each runs with its defaults, except where a setting
says below what it is for.
"""

import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import psutil

from bench.tools.broker import BenchBroker
from bench.tools.raw_client import API_VERSIONS
from demo.broker_process import free_port
from tests.support.clients.jvm import JvmUnavailable, java_command, resolve

KAFKA_VERSION: Final = "4.3.0"
KAFKA_HEAP: Final = "1g"
"""What Kafka's own start script gives it."""
_JAVA_OPTIONS: Final = (
    "-server",
    f"-Xms{KAFKA_HEAP}",
    f"-Xmx{KAFKA_HEAP}",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_KAFKA_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"

KLITE_MODULE: Final = "github.com/klaudworks/klite/cmd/klite@latest"
KLITE_VARIABLE: Final = "KLITE"
KLITE_WAL_BYTES: Final = 64 << 30
"""More than is written: it has no bucket here, and would forget what is beyond."""
_INSTALLED: Final = Path("build/peers/bin")
_INSTALL_S: Final = 300.0
_READY_S: Final = 120.0
_STOP_S: Final = 60.0
_POLL_S: Final = 0.01


class NotThere(Exception):
    """A system cannot be had on this machine; the message says what is missing."""


class System(ABC):
    """One broker with one data directory. `start` and `stop` may alternate; it ends with `with`."""

    name: str
    ack: str
    """What its acknowledgement promises."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"

    @staticmethod
    @abstractmethod
    def install() -> None:
        """Bring what it takes, unless it is there. Raises NotThere."""

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def start(self) -> None:
        """It answers clients when this returns."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """End it, if it runs."""

    def drop_caches(self) -> None:
        """Forget, while it is stopped, everything that a read could be answered from but the store
        itself: its own copies, and the page cache."""
        os.sync()
        for path in self.data.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def cpu_s(self) -> float:
        """Processor time that it has used since its start."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def disk_bytes(self) -> int:
        """What its data directory takes on the disk."""
        return sum(path.lstat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Diskless(System):
    name = "diskless"
    ack = "an fsynced object, an fsynced commit"

    @staticmethod
    def install() -> None:
        """It is there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._broker = BenchBroker(self.data, {})

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    @property
    def pid(self) -> int:
        return self._broker.pid

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.end()

    def drop_caches(self) -> None:
        for name in ("wal", "cache"):
            shutil.rmtree(self.data / name, ignore_errors=True)
        super().drop_caches()


class _Process(System):
    """A program that is started with one command."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._log = directory / f"{self.name}.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        ends_at = time.monotonic() + _READY_S
        while not _answers(self._port):
            if self._process.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError(f"{self.name} was not ready: {_tail(self._log)}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_STOP_S)
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Kafka(_Process):
    """One node that is broker and controller, as Kafka's quick start has it."""

    name = "kafka"
    ack = "the page cache"
    _settings = ""

    @staticmethod
    def install() -> None:
        kafka_java()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._java = kafka_java()
        controller = free_port()
        self._properties = directory / "server.properties"
        self._properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\nlog.dirs={self.data}\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self._port}\n"
            "controller.listener.names=CONTROLLER\n"
            "offsets.topic.replication.factor=1\n" + self._settings
        )
        format_ = ["kafka.tools.StorageTool", "format", "-t", _KAFKA_CLUSTER_ID]
        subprocess.run(
            [*self._java, *format_, "-c", str(self._properties)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def command(self) -> Sequence[str]:
        return [*self._java, "kafka.Kafka", str(self._properties)]


class KafkaSynced(Kafka):
    name = "kafka_synced"
    ack = "an fsync per append"
    _settings = "log.flush.interval.messages=1\n"


class Klite(_Process):
    name = "klite"
    ack = "its local log, fsynced every 2 ms; a bucket later"

    @staticmethod
    def install() -> None:
        _klite()

    def command(self) -> Sequence[str]:
        return [
            _klite(),
            *("--listen", self.bootstrap),
            *("--data-dir", str(self.data)),
            *("--wal-max-disk-size", str(KLITE_WAL_BYTES)),
            *("--log-level", "warn"),
        ]


SYSTEMS: Final[Sequence[type[System]]] = (Diskless, Kafka, KafkaSynced, Klite)


def kafka_java() -> Sequence[str]:
    """The command that runs a class of Kafka's, which is to follow. Raises: NotThere."""
    try:
        java = java_command()
        jars = resolve("kafka-pom.xml", [{"kafka.version": KAFKA_VERSION}]).directory
        return [java, *_JAVA_OPTIONS, "-cp", f"{jars}/*"]
    except JvmUnavailable as missing:
        raise NotThere(str(missing)) from missing


def _klite() -> str:
    given = os.environ.get(KLITE_VARIABLE)
    installed = Path(given) if given else _INSTALLED.resolve() / "klite"
    if installed.is_file():
        return str(installed)
    if given:
        raise NotThere(f"{KLITE_VARIABLE}={given} is no file")
    go = shutil.which("go")
    if go is None:
        raise NotThere(f"Go is needed to install it, or {KLITE_VARIABLE}=/path/of/its/binary")
    try:
        finished = subprocess.run(
            [go, "install", KLITE_MODULE],
            check=False,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            env={**os.environ, "GOBIN": str(installed.parent)},
        )
    except subprocess.TimeoutExpired:
        raise NotThere(f"go install {KLITE_MODULE}: not within {_INSTALL_S:.0f} s") from None
    if finished.returncode:
        reason = " ".join(finished.stderr.split())[-200:]
        raise NotThere(f"go install {KLITE_MODULE}: {reason}; {KLITE_VARIABLE} may name a binary")
    return str(installed)


def _answers(port: int) -> bool:
    """Whether a Kafka broker answers ApiVersions there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as client:
            client.sendall(API_VERSIONS)
            return bool(client.recv(1))
    except OSError:
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
