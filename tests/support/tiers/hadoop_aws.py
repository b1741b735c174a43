"""Spark settings with which stock Spark reads `s3a://`, for tests: jars and server.

Settings go to a Spark as files do in an installation: `spark_conf_dir` writes a
spark-defaults.conf, and SPARK_CONF_DIR in the environment of the process names its directory.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.clients.jvm import Jars, JvmUnavailable, java_command, resolve

SDK_OF_HADOOP: Final = {"3.5.0": "2.35.4", "3.4.2": "2.29.52", "3.4.1": "2.24.6"}
"""Which release of Amazon's clients a release of hadoop-aws is made for, by its own pom."""


def hadoop_version() -> str:
    """Returns the release of Hadoop in the installed Spark; hadoop-aws has to be of the same."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = Path(spec.origin).parent.glob("jars/hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def hadoop_aws_jars() -> Jars:
    """Raises JvmUnavailable when something is missing."""
    java_command()
    version = hadoop_version()
    if version not in SDK_OF_HADOOP:
        raise JvmUnavailable(f"it is not known which AWS SDK goes with Hadoop {version}")
    wanted = {"hadoop.version": version, "sdk.version": SDK_OF_HADOOP[version]}
    return resolve("hadoop-aws-pom.xml", [wanted])


def s3a_settings(jars: Jars, endpoint: str) -> dict[str, str]:
    """For the server at `endpoint`; credentials come from the environment."""
    return {
        # Behind Spark's own, as --packages puts them: some are of other releases.
        "spark.jars": ",".join(map(str, jars.paths)),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def spark_conf_dir(directory: Path, settings: Mapping[str, str]) -> Path:
    """A new directory with a spark-defaults.conf."""
    directory.mkdir()
    lines = "".join(f"{key} {value}\n" for key, value in settings.items())
    (directory / "spark-defaults.conf").write_text(lines)
    return directory
