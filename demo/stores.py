"""Where the demo's objects are: in a directory, or in a bucket of a MinIO that it starts itself.

A `Store` says how many brokers tell the story on it, and lets the demo look past them at what they
wrote. In a directory it is one broker that dies and comes back. On a bucket there are two: one dies
for good, and the other goes on with what is in the bucket.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3

from localstack import local_server
from localstack.minio import MINIO
from tests.support.hadoop_aws import hadoop_aws_jars, s3a_settings, spark_conf_dir

BUCKET: Final = "demo"
PREFIX: Final = "cluster"
MINIO_START_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """What the story needs to know of its store."""

    place: str
    """For people."""
    url: str | None
    """The value of `--object-store`; None where the one broker keeps objects in its directory."""
    node_ids: Sequence[int]
    """Of the brokers."""
    settings: Mapping[str, str]
    """What the brokers are configured with."""
    root: str
    """What stock Spark is told before the key of an object."""
    spark_environment: Mapping[str, str]
    """What it needs in its environment to read there."""
    list_objects: Callable[[str], Mapping[str, int]]
    """Length by key of the objects whose key starts like that."""

    def segments_of(self, topic: str) -> Sequence[str]:
        """The directories of this topic's segments, for Spark; there should be one."""
        keys = self.list_objects(f"segments/topic={topic}/")
        return sorted({"/".join([self.root, *key.split("/")[:3]]) for key in keys})


def directory_store(objects: Path) -> Store:
    """The one in the data directory of the only broker."""

    def list_objects(prefix: str) -> Mapping[str, int]:
        return {
            str(path.relative_to(objects)): path.stat().st_size
            for path in (objects / prefix).rglob("*")
            if path.is_file()
        }

    return Store(
        place=f"the directory {objects}",
        url=None,
        node_ids=[1],
        settings={},
        root=str(objects),
        spark_environment={},
        list_objects=list_objects,
    )


@contextmanager
def minio_store(directory: Path) -> Iterator[Store]:
    """A new bucket of a MinIO that runs meanwhile; its files, and Spark's settings, stay below.

    Its credentials are in the environment meanwhile. Raises: LocalServerError, JvmUnavailable.
    """
    jars = hadoop_aws_jars()
    directory.mkdir()
    server = local_server.start(MINIO, directory, 0, MINIO_START_TIMEOUT_S)
    os.environ.update(MINIO.credentials)
    try:
        with closing(boto3.client("s3", endpoint_url=server.endpoint)) as s3:
            s3.create_bucket(Bucket=BUCKET)
            conf = spark_conf_dir(directory / "spark", s3a_settings(jars, server.endpoint))
            yield Store(
                place=f"bucket {BUCKET} of MinIO at {server.endpoint}",
                url=f"s3://{BUCKET}/{PREFIX}?endpoint_url={server.endpoint}",
                node_ids=[1, 2],
                settings={"diskless.metadata.log": "object"},
                root=f"s3a://{BUCKET}/{PREFIX}",
                spark_environment={"SPARK_CONF_DIR": str(conf)},
                list_objects=lambda prefix: _listed(s3, prefix),
            )
    finally:
        local_server.stop(MINIO, directory)


def _listed(s3: Any, prefix: str) -> Mapping[str, int]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{PREFIX}/{prefix}")
    return {
        entry["Key"].removeprefix(f"{PREFIX}/"): entry["Size"]
        for page in pages
        for entry in page.get("Contents", [])
    }
