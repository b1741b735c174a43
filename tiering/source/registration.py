"""Makes `format("diskless")` known to a Spark session.

Executors on other machines need this project's packages, as a tiering job's do. They are sent along
as a zip file, unless the session runs on this machine alone. PyArrow and the project's other
dependencies must be installed where executors run.
"""

import atexit
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from tiering.source.data_source import DisklessDataSource
from tiering.spark_roller import choose_python, is_local, package_zip


def register(spark: SparkSession) -> None:
    """Register the format; again in the same session changes nothing."""
    context = spark.sparkContext
    choose_python(context)
    if not is_local(context.master):
        # Executors fetch it from here whenever one starts.
        directory = Path(tempfile.mkdtemp(prefix="diskless-source-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        context.addPyFile(str(package_zip(directory)))
    spark.dataSource.register(DisklessDataSource)
