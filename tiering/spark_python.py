"""Which Python the tasks of a Spark session run in, and the packages that they are sent.

Apart from `spark_roller`, since every Python worker that reads for a query imports this one too.
"""

import os
import sys
import zipfile
from pathlib import Path
from typing import Final

from pyspark import SparkContext

_SHIPPED_PACKAGES: Final = ("wal", "metadata", "tiering")


def choose_python(context: SparkContext) -> None:
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
    root = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _SHIPPED_PACKAGES:
            for source in sorted((root / package).rglob("*.py")):
                archive.write(source, source.relative_to(root))
    return target
