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

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from tiering.source.data_source import DisklessDataSource
from tiering.spark_python import choose_python, is_local, package_zip


def register(spark: SparkSession) -> None:
    """Register the format; again in the same session changes nothing."""
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        # A Connect session has none. The server keeps what it is sent for this session.
        spark.addArtifacts(str(package_zip(_directory())), pyfile=True)
    else:
        choose_python(context)
        if not is_local(context.master):
            # Executors fetch it from here whenever one starts.
            context.addPyFile(str(package_zip(_directory())))
    spark.dataSource.register(DisklessDataSource)


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="diskless-source-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
