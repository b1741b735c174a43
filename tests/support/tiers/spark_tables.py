"""Spark with Iceberg's runtime, run by tests as a reader of the broker's catalogue.

The newest Spark for which Iceberg has a runtime is older than the PySpark that is installed, and
they cannot share a process. A JVM alone is enough: Maven resolves that Spark as it does Kafka's
clients (tests/support/clients/jvm.py), and tests/jvm/spark/SqlLines.java answers SQL over lines.

    with spark_tables("http://127.0.0.1:9644") as spark:
        (row,) = spark.sql("select count(*) as n from lake.topics.flights")

Maven lists releases before their jars can be had everywhere, so those before it are tried next.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.support.clients.jvm import (
    SCALA_VERSION,
    SHORT_RUN,
    SOURCES,
    JavaProcess,
    java_command,
    resolve,
)

SPARK_LINE: Final = "4.1"
SPARK_VERSIONS: Final = ("4.1.4", "4.1.3")
ICEBERG_VERSION: Final = "1.12.0"

# What Spark's own scripts open to it in Java 17, as far as queries need it.
_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)


class CommandLine(NamedTuple):
    """The line with `spark-sql` in docs/tables.md."""

    package: str
    given: Mapping[str, str]
    """Settings."""
    query: str

    @classmethod
    def of_the_page(cls) -> Self:
        block = cls.text()
        line = argparse.ArgumentParser()
        line.add_argument("--packages")
        line.add_argument("--conf", action="append")
        line.add_argument("-e", dest="query")
        options = line.parse_args(shlex.split(block.replace("\\\n", " "), comments=True)[1:])
        given = dict(conf.split("=", 1) for conf in options.conf)
        return cls(options.packages, given, options.query)

    @staticmethod
    def text() -> str:
        """As it stands there, with the comment above it."""
        page = (Path(__file__).parents[3] / "docs" / "tables.md").read_text("utf-8")
        (block,) = re.findall(r"```sh\n([^`]*?\nspark-sql [^`]*)```", page)
        return str(block)

    def settings(self, catalogue_url: str) -> Mapping[str, str]:
        """As the page has them, with the address of a broker."""
        uri = "spark.sql.catalog.lake.uri"
        assert self.given[uri] == "http://localhost:9644"
        return {**self.given, uri: catalogue_url}


class SparkTables:
    """Answers SQL; `lake` is the catalogue."""

    def __init__(self, process: JavaProcess, version: str) -> None:
        self._process = process
        self.version = version

    def sql(self, statement: str) -> Sequence[Mapping[str, Any]]:
        """The rows, by column; a column that is null is missing. Fails with what Spark says."""
        self._process.write(" ".join(statement.split()) + "\n")
        kind, _, told = self._answer().partition(" ")
        assert kind == "rows", told
        rows: Sequence[Mapping[str, Any]] = json.loads(told)
        return rows

    def _answer(self) -> str:
        return self._process.wait_for(lambda line: line.startswith(("rows ", "error ")))


@contextmanager
def spark_tables(catalogue_url: str) -> Iterator[SparkTables]:
    """A process of its own. Raises JvmUnavailable when something is missing."""
    java = java_command()
    page = CommandLine.of_the_page()
    assert page.package == (
        f"org.apache.iceberg:iceberg-spark-runtime-{SPARK_LINE}_{SCALA_VERSION}:{ICEBERG_VERSION}"
    )
    jars = resolve(
        "iceberg-pom.xml",
        [
            {
                "scala.version": SCALA_VERSION,
                "spark.line": SPARK_LINE,
                "spark.version": version,
                "iceberg.version": ICEBERG_VERSION,
            }
            for version in SPARK_VERSIONS
        ],
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        **page.settings(catalogue_url),
        # Each query sees the newest snapshot.
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    command = [
        *(java, *SHORT_RUN, "-Xmx512m", "-Duser.timezone=UTC"),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *("-cp", f"{jars.directory}/*", str(SOURCES / "spark" / "SqlLines.java")),
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    with JavaProcess(command) as process:
        told = process.wait_for(lambda line: line.startswith("ready "))
        yield SparkTables(process, told.removeprefix("ready "))
