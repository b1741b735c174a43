"""deploy/iam: each policy allows what its role does, and nothing that it does not do."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import boto3
import pyarrow as pa
import pytest
from aiobotocore.client import AioBaseClient
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset, fs
from pyspark.sql.types import StructType

from localstack.minio import KMS_KEY_NAME
from metadata.table_operations import TABLES_PREFIX, ListTables
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import ConfluentKafka, Record
from tests.support.s3_servers import new_bucket, s3_client
from tests.support.tiers.rolled import roll_everything
from tiering.coordinator_client import CoordinatorClient
from tiering.source.options import parse_sink_options
from tiering.source.writing.exactly_once import ExactlyOnceSink, StagedMessage
from tiering.tables.passes import TablePasses
from wal.clock import SystemClock
from wal.errors import ObjectExists
from wal.stores.blocking_store import open_blocking_store
from wal.stores.object_store import BytesBody

POLICIES: Final = Path(__file__).resolve().parent.parent.parent / "deploy" / "iam"
PREFIX: Final = "cluster-1"
SINK: Final = "nightly"
ACTIONS: Final = {
    "PutObject": {"s3:PutObject"},
    "GetObject": {"s3:GetObject"},
    # What is missing is 404 for who may list, and 403 for anybody else.
    "HeadObject": {"s3:GetObject", "s3:ListBucket"},
    "ListObjectsV2": {"s3:ListBucket"},
    "DeleteObjects": {"s3:DeleteObject"},
}

AsRole = Callable[[str], AbstractContextManager[None]]


def policy(role: str, bucket: str, topic_id: str = "") -> dict[str, Any]:
    text = (POLICIES / f"{role}.json").read_text()
    names = {"BUCKET": bucket, "PREFIX": PREFIX, "TOPIC": "flights", "UUID": topic_id, "SINK": SINK}
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    told: dict[str, Any] = json.loads(text)
    return told


def actions_of(role: str) -> set[str]:
    statements = policy(role, "b")["Statement"]
    allowed = [one["Action"] for one in statements if one["Effect"] == "Allow"]
    return {action for one in allowed for action in ([one] if isinstance(one, str) else one)}


def live_through(url: str, directory: Path, as_role: AsRole) -> None:
    """A start on an empty prefix, produce, roll, a table, a sink, consume, and a look at it all."""
    settings = {"object.store.url": url, "diskless.metadata.log": "object"}
    with as_role("broker"), LiveBroker(directory / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        flights = NewTopic("flights", 1, config={"table.enabled": "true"})
        admin.create_topics([flights])["flights"].result()
        for topic in ("flights", "weather"):
            ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 10)
        with as_role("tiering"):
            assert len(roll_everything(broker)) == 2
            ConfluentKafka().produce(broker.bootstrap, "flights", [Record()] * 10)
            assert len(roll_everything(broker)) == 1
            write_table(broker, url)
        with as_role("sink"):
            write_as_sink(broker, url)
        assert len(ConfluentKafka().read(broker.bootstrap, "flights", 25)) == 25
    with as_role("console"), open_blocking_store(url) as store:
        for prefix in ("wal/", "segments/", TABLES_PREFIX):
            assert list(store.list(prefix)), prefix
        segment = next(iter(store.list("segments/")))
        assert len(store.get_range(segment.key, 0, 4)) == 4


def write_table(broker: LiveBroker, url: str) -> None:
    """The table of a topic, and the end of a metadata file that nothing names."""
    passes = TablePasses(
        CoordinatorClient(broker.bootstrap),
        ListTables(),
        object_store_url=None,
        clock=SystemClock(),
        rng=random.Random(1),
    )
    with passes, open_blocking_store(url) as store:
        (written,) = passes.run_pass().tables
        assert written.file_count == 2
        files = [stat.key for stat in store.list(TABLES_PREFIX)]
        assert len(files) == 3
        assert store.delete(files[:1]) == tuple(files[:1])


def write_as_sink(broker: LiveBroker, url: str) -> None:
    """What a task of a Spark sink does, and its driver. A put that comes again finds the first."""
    given = {"topic": "flights", "sink.id": SINK, "sink.batch.id": "0", "objectStore": url}
    options = parse_sink_options({"bootstrap": broker.bootstrap, **given})
    sink = ExactlyOnceSink(options, StructType().add("value", "binary"))
    staged = sink.write(iter([pa.record_batch({"value": pa.array([b"v"] * 5, pa.binary())})]))
    assert isinstance(staged, StagedMessage)
    with open_blocking_store(url) as store, pytest.raises(ObjectExists):
        store.put(staged.staged.files[0].object_key, BytesBody(b"again"))
    sink.commit([staged])


def test_policies_allow_nothing_that_is_not_used(
    moto_endpoint: str, moto_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[str]] = {}
    roles = ["broker"]

    def in_tasks(role: str) -> bool:
        return role in ("tiering", "sink")

    def recorded(kind: type[BaseClient]) -> Callable[..., Any]:
        call = kind._make_api_call

        def record(client: BaseClient, operation: str, *arguments: Any) -> Any:
            # The broker goes on in its thread whoever acts; tasks have clients that block.
            role = "broker" if in_tasks(roles[-1]) and kind is AioBaseClient else roles[-1]
            used.setdefault(role, set()).update(ACTIONS[operation])
            return call(client, operation, *arguments)

        return record

    @contextmanager
    def as_role(role: str) -> Iterator[None]:
        roles.append(role)
        yield
        roles.pop()

    for kind in (AioBaseClient, BaseClient):
        monkeypatch.setattr(kind, "_make_api_call", recorded(kind))
    live_through(f"s3://{moto_bucket}/{PREFIX}?endpoint_url={moto_endpoint}", tmp_path, as_role)
    # It looks at what it has just put, so it never has to tell what is missing.
    used["sink"].remove("s3:ListBucket")
    assert used == {role: actions_of(role) for role in ("broker", "tiering", "sink", "console")}


@pytest.mark.minio
def test_policies_allow_all_that_is_needed(
    minio_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = s3_client(minio_endpoint)
    bucket = new_bucket(s3)
    sts = boto3.client("sts", endpoint_url=minio_endpoint)

    def credentials(role: str, topic_id: str = "") -> Mapping[str, str]:
        """What MinIO gives to a session that this policy limits."""
        given = sts.assume_role(
            RoleArn="arn:aws:iam::123456789012:role/any",
            RoleSessionName="test",
            Policy=json.dumps(policy(role, bucket, topic_id)),
        )["Credentials"]
        return {
            "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
            "AWS_SESSION_TOKEN": given["SessionToken"],
        }

    @contextmanager
    def as_role(role: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in credentials(role).items():
                environment.setenv(name, value)
            yield

    encryption = {"encryption": "aws:kms", "kms_key_id": KMS_KEY_NAME}
    query = urlencode({"endpoint_url": minio_endpoint, **encryption})
    live_through(f"s3://{bucket}/{PREFIX}?{query}", tmp_path, as_role)
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    folders = {"meta", "notes", "wal", "segments", "staged", "tables"}
    assert {key.split("/")[1] for key in keys} == folders
    for key in keys:
        stored = s3.head_object(Bucket=bucket, Key=key)
        assert stored["ServerSideEncryption"] == "aws:kms", f"{key} was put unencrypted"
    topic_ids = {
        found["topic"]: found["id"]
        for found in map(re.compile(r".*/topic=(?P<topic>.*)/id=(?P<id>[^/]*)/").match, keys)
        if found is not None
    }
    reader = credentials("reader", topic_ids["flights"])
    for role in ("console", "tiering", "reader", "sink"):
        given = reader if role == "reader" else credentials(role)
        sees_wal = role == "console"
        client = s3_client_of(minio_endpoint, given)
        assert_kept_from_metadata(client, bucket, keys, sees_wal)
        if role != "tiering":
            # The newest records of every topic.
            assert_kept_from(client, bucket, keys, "wal")
        client.close()
    segments = fs.S3FileSystem(
        access_key=reader["AWS_ACCESS_KEY_ID"],
        secret_key=reader["AWS_SECRET_ACCESS_KEY"],
        session_token=reader["AWS_SESSION_TOKEN"],
        endpoint_override=minio_endpoint,
    )

    def rows(topic: str) -> int:
        place = f"{bucket}/{PREFIX}/segments/topic={topic}/id={topic_ids[topic]}"
        found: int = dataset.dataset(place, filesystem=segments, partitioning="hive").count_rows()
        return found

    assert rows("flights") == 20
    with pytest.raises(OSError, match=r"ACCESS_DENIED|Access Denied|AccessDenied"):
        rows("weather")
    s3.close()
    sts.close()


def s3_client_of(endpoint: str, given: Mapping[str, str]) -> BaseClient:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=given["AWS_SESSION_TOKEN"],
    )


def assert_kept_from(s3: BaseClient, bucket: str, keys: Sequence[str], folder: str) -> None:
    """What is in a folder is not read."""
    below = [key for key in keys if key.startswith(f"{PREFIX}/{folder}/")]
    assert below
    for key in below:
        with pytest.raises(ClientError, match=r"Access ?Denied"):
            s3.get_object(Bucket=bucket, Key=key)


def assert_kept_from_metadata(
    s3: BaseClient, bucket: str, keys: Sequence[str], sees_wal: bool
) -> None:
    """Neither the cluster's secret nor users, nor their names, nor what else is in the bucket."""
    assert any(key.startswith(f"{PREFIX}/meta/") and "/log/" in key for key in keys)
    assert_kept_from(s3, bucket, keys, "meta")
    with pytest.raises(ClientError, match=r"Access ?Denied"):
        s3.put_object(Bucket=bucket, Key=f"{PREFIX}/meta/secret/2", Body=b"1 00\n")
    hidden = [
        "",
        PREFIX,
        f"{PREFIX}/",
        f"{PREFIX}/meta/",
        f"{PREFIX}/notes/",
        f"{PREFIX}/staged/",
        *([] if sees_wal else [f"{PREFIX}/wal/"]),
    ]
    for prefix in hidden:
        with pytest.raises(ClientError, match=r"Access ?Denied"):
            s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
