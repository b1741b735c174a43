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
    duckdb_credentials: str
    """The statement after which DuckDB reads there; empty where it needs none."""
    list_objects: Callable[[str], Mapping[str, int]]
    """Length by key of the objects whose key starts like that."""


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
        duckdb_credentials="",
        list_objects=list_objects,
    )


@contextmanager
def minio_store(directory: Path) -> Iterator[Store]:
    """A new bucket of a MinIO that runs meanwhile; its files stay below.

    Its credentials are in the environment meanwhile. Raises: LocalServerError.
    """
    directory.mkdir()
    server = local_server.start(MINIO, directory, 0, MINIO_START_TIMEOUT_S)
    os.environ.update(MINIO.credentials)
    try:
        with closing(boto3.client("s3", endpoint_url=server.endpoint)) as s3:
            s3.create_bucket(Bucket=BUCKET)
            yield Store(
                place=f"bucket {BUCKET} of MinIO at {server.endpoint}",
                url=f"s3://{BUCKET}/{PREFIX}?endpoint_url={server.endpoint}",
                node_ids=[1, 2],
                settings={"diskless.metadata.log": "object"},
                duckdb_credentials=_secret(server.endpoint, MINIO.credentials),
                list_objects=lambda prefix: _listed(s3, prefix),
            )
    finally:
        local_server.stop(MINIO, directory)


def _secret(endpoint: str, credentials: Mapping[str, str]) -> str:
    return (
        "CREATE SECRET (TYPE s3, URL_STYLE 'path', USE_SSL false, REGION 'us-east-1', "
        f"ENDPOINT '{endpoint.removeprefix('http://')}', "
        f"KEY_ID '{credentials['AWS_ACCESS_KEY_ID']}', "
        f"SECRET '{credentials['AWS_SECRET_ACCESS_KEY']}')"
    )


def _listed(s3: Any, prefix: str) -> Mapping[str, int]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{PREFIX}/{prefix}")
    return {
        entry["Key"].removeprefix(f"{PREFIX}/"): entry["Size"]
        for page in pages
        for entry in page.get("Contents", [])
    }
