"""A Spark cluster of processes, for tests: a master, a worker, and a Python without this project.

    with spark_cluster(tmp_path) as cluster:
        ... cluster.master, cluster.python ...

`local_cluster` is the one that Spark itself has for tests.

The Python of the executors has all packages that are installed here but those that are installed
in place, as this project is; the worker inherits no PYTHONPATH either.
"""

import importlib.util
import os
import site
import subprocess
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.brokers.live_broker import until
from tests.support.clients.jvm import SHORT_RUN
from tests.support.ports import own_port


class SparkCluster(NamedTuple):
    master: str
    python: Path
    """For `spark.pyspark.python`."""
    work: Path
    """Where workers keep a directory per application, with what its executors print."""
    home: Path
    """For SPARK_HOME, where the driver is started."""


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Starts both in `directory`, waits until the worker is registered, and ends them."""
    master = f"spark://127.0.0.1:{(port := own_port())}"
    work = directory / "work"
    commands = {
        "master.Master": ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        "worker.Worker": (
            *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "1g"),
            *("--work-dir", str(work), master),
        ),
    }
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_RUN)}
    with ExitStack() as cleanup:
        logs = []
        for name, arguments in commands.items():
            logs.append(directory / f"{name}.log")
            with logs[-1].open("w") as log:
                process = subprocess.Popen(
                    [
                        *(spark_home() / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"),
                        *arguments,
                    ],
                    cwd=directory,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            cleanup.callback(process.wait)
            cleanup.callback(process.terminate)
        python = python_without_us(directory / "python")
        until(
            lambda: "Successfully registered with master" in logs[1].read_text(),
            "the worker is registered",
        )
        yield SparkCluster(master, python, work, spark_home())


@contextmanager
def local_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Two workers that a driver starts in its own process, with executors in processes of theirs.

    Spark keeps their work below its home, so that is a directory of links here.
    """
    home = directory / "home"
    home.mkdir()
    for part in spark_home().iterdir():
        (home / part.name).symlink_to(part)
    python = python_without_us(directory / "python")
    yield SparkCluster("local-cluster[2,1,1024]", python, home / "work", home)


def python_without_us(directory: Path) -> Path:
    venv.create(directory, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    # Only .pth files of a site directory itself count; what they name is a plain directory.
    (packages / "installed.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    python = directory / "bin" / "python"
    found = subprocess.run([python, "-P", "-c", "import pyarrow, tiering"], cwd=directory, env={})
    assert found.returncode != 0, "this project can be imported"
    assert subprocess.run([python, "-P", "-c", "import pyarrow"], env={}).returncode == 0
    return python
