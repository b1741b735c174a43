"""Spark's Kafka source and sink, driven by tests: the side of the tests.

The connector has to fit the installed Spark. A release of Spark may be installable a while before
all jars of its connector can be had, so known pairs of older ones that run on it are tried next.
"""

import importlib.metadata
import json
import queue
import subprocess
import sys
import tempfile
import threading
from typing import Any, Final, Self

from tests.support.clients.jvm import (
    KAFKA_VERSIONS,
    REPOSITORY,
    SCALA_VERSION,
    Jars,
    java_command,
    resolve,
)

DEADLINE_S: Final = 300.0
"""How long one job may take, the first of them with the start of Spark."""

_OLDER: Final = (("4.2.0", "4.0.0"),)
"""(connector, token provider): the latter is not used without security, but has to be there."""


def spark_version() -> str:
    return importlib.metadata.version("pyspark")


def connector_jars() -> Jars:
    """Raises JvmUnavailable when something is missing."""
    java_command()
    installed = spark_version()
    pairs = [(installed, installed), *_OLDER]
    fixed = {"scala.version": SCALA_VERSION, "kafka.version": KAFKA_VERSIONS[0]}
    candidates = [
        {**fixed, "connector.version": connector, "token.version": token}
        for connector, token in pairs
    ]
    return resolve("spark-pom.xml", candidates)


class SparkKafka:
    """A child process with a session; its methods are those of `spark_kafka_session.Jobs`."""

    def __init__(self, jars: Jars) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.tiers.spark_kafka_session", str(jars.directory)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="spark-answers")
        self._reader.start()

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Run a job; what it gives. Fails when it fails."""
        assert self._process.stdin is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        try:
            answer = self._answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"{name} does not end: {self.stderr[-4000:]}") from None
        assert answer is not None, self.stderr[-8000:]
        return json.loads(answer)

    @property
    def stderr(self) -> str:
        """What Spark wrote so far."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()
            self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)
