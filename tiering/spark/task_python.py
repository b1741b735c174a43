"""Which Python the tasks of a Spark session run in, and the packages that they are sent.

The tiering jobs and `tiering.source` both ask for it, for sessions of Spark in this process and of
Spark Connect. Over Connect nobody but the server chooses its Python: PYSPARK_PYTHON where it is
started. Imports little, since every Python worker that reads for a query imports this too.
"""

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

_SHIPPED_PACKAGES: Final = ("wal", "metadata", "tiering")


def prepare_tasks(session: SparkSession, directory: Callable[[], Path]) -> None:
    """Have tasks find our Python on this machine, and this project's packages on others.

    What is sent is put into `directory` before, and has to stay there as long as the session.
    Doing it again changes nothing.
    """
    try:
        context = session.sparkContext
    except PySparkAttributeError:
        # A Connect session has none. The server keeps what it is sent for this session.
        session.addArtifacts(str(package_zip(directory())), pyfile=True)
        return
    _choose_python(context)
    if not is_local(context.master):
        # Executors fetch it from here whenever one starts. `addArtifacts` would send it for this
        # session alone, which a stream of another one, on the same Spark, does not see.
        context.addPyFile(str(package_zip(directory())))


def _choose_python(context: SparkContext) -> None:
    """Have tasks run in the Python that was asked for, or on one machine in this one.

    By default they run whatever `python3` is on the PATH, without our dependencies.
    """
    configured = context.getConf().get("spark.pyspark.python")
    python = configured or os.environ.get("PYSPARK_PYTHON")
    if python:
        context.pythonExec = python
    elif is_local(context.master):
        context.pythonExec = sys.executable


def is_local(master: str | None) -> bool:
    """Whether tasks run in the processes of this machine's driver."""
    return master is not None and (master == "local" or master.startswith("local["))


def package_zip(directory: Path) -> Path:
    """A zip file in `directory` with the packages that a task imports."""
    target = directory / "diskless-tiering.zip"
    root = Path(__file__).resolve().parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _SHIPPED_PACKAGES:
            for source in sorted((root / package).rglob("*.py")):
                archive.write(source, source.relative_to(root))
    return target
