"""Makes `format("diskless")` known to a Spark session, a Spark Connect one too.

Executors on other machines need this project's packages, as a tiering job's do, and so does a
Connect server, which plans reads as well. They are sent along as a zip file, unless the session
runs on this machine alone. PyArrow and the project's other dependencies must be installed where
that is. Over Connect nobody but the server chooses its Python: PYSPARK_PYTHON where it is started.
"""

import atexit
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tiering.source.data_source import DisklessDataSource
from tiering.spark.task_python import prepare_tasks


def register(spark: SparkSession) -> None:
    """Register the format; again in the same session changes nothing."""
    prepare_tasks(spark, _directory)
    spark.dataSource.register(DisklessDataSource)


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="diskless-source-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
