"""A Spark Connect server in a process of its own, for tests: tasks have nothing of this project.

with spark_connect_server(tmp_path) as server:
    ... server.remote ...
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.brokers.live_broker import until
from tests.support.ports import own_port
from tests.support.tiers.spark_cluster import python_without_us, spark_home

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkConnectServer(NamedTuple):
    remote: str
    """sc://host:port."""
    process: subprocess.Popen[bytes]


@contextmanager
def spark_connect_server(
    directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[SparkConnectServer]:
    """Starts it in `directory`, waits until it listens, and ends it.

    A task has two attempts. `environment` is for the server and its tasks.
    """
    port = own_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    command = [spark_home() / "bin" / "spark-submit", "--class", CLASS, "--master", "local[2,2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    python = str(python_without_us(directory / "python"))
    own = {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = directory / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=directory,
            env=inherited | own | (environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            return "Spark Connect server started at" in log.read_text()

        until(listens, "the Spark Connect server listens")
        yield SparkConnectServer(f"sc://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait()
