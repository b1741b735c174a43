import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptObject, InvalidSettings, ObjectExists, ObjectNotFound
from wal.stores.blocking_store import BlockingStore, open_blocking_store
from wal.stores.memory_store import forget_bucket
from wal.stores.object_store import BytesBody, ObjectStore
from wal.stores.store_url import StoreLocation, open_store, parse_store_url

KEY = ObjectKey("wal/00/key")


def open_url(url: str) -> ObjectStore:
    return open_store(url, clock=SystemClock(), rng=random.Random(), sync=False)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("file:///var/lib/diskless", StoreLocation(scheme="file", place="/var/lib/diskless")),
        ("file:///with%20blank/ä", StoreLocation(scheme="file", place="/with blank/ä")),
        ("memory://test", StoreLocation(scheme="memory", place="test")),
        ("memory://", StoreLocation(scheme="memory", place="")),
        ("s3://bucket", StoreLocation(scheme="s3", place="bucket")),
        ("s3://bucket/a/b/", StoreLocation(scheme="s3", place="bucket", prefix="a/b")),
        (
            "s3://bucket/p?endpoint_url=http://127.0.0.1:9000&region=eu-north-1",
            StoreLocation(
                scheme="s3",
                place="bucket",
                prefix="p",
                endpoint_url="http://127.0.0.1:9000",
                region="eu-north-1",
            ),
        ),
    ],
)
def test_a_store_url_is_understood(url: str, location: StoreLocation) -> None:
    assert parse_store_url(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/lib",
        "file://relative/dir",
        "file:relative",
        "file:///dir?region=x",
        "file:///dir#part",
        "s3://",
        "s3:///key",
        "s3://bucket?region",
        "s3://bucket?colour=red",
        "memory://a/b",
        "gs://bucket",
        "http://[::1",
    ],
)
def test_any_other_url_is_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(InvalidSettings, match="allowed are file:///dir, s3://bucket/prefix"):
        open_url(url)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSettings) as caught:
        open_url("s3://AKIAEXAMPLE:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["file", "memory", pytest.param("s3", marks=pytest.mark.moto)])
async def test_the_url_of_a_store_opens_the_same_store(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if scheme == "s3":
        endpoint = request.getfixturevalue("moto_endpoint")
        bucket = request.getfixturevalue("moto_bucket")
        url = f"s3://{bucket}/a%20prefix%3F?endpoint_url={endpoint}&region=us-east-1"
    else:
        url = f"file://{tmp_path}/with%20blank%3F%25" if scheme == "file" else "memory://url"
    async with open_url(url) as one:
        await one.put(KEY, BytesBody(b"content"))
        async with open_url(one.url) as two:
            assert two.url == one.url
            assert await two.get(KEY) == b"content"
    forget_bucket("url")


async def test_a_nameless_memory_store_is_nobody_elses() -> None:
    async with open_url("memory://") as one, open_url("memory://") as two:
        await one.put(KEY, BytesBody(b"mine"))
        with pytest.raises(ObjectNotFound):
            await two.get(KEY)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.moto)])
def blocking(request: pytest.FixtureRequest) -> Iterator[BlockingStore]:
    if request.param == "file":
        url = f"file://{request.getfixturevalue('tmp_path')}/store"
    else:
        endpoint = request.getfixturevalue("moto_endpoint")
        url = f"s3://{request.getfixturevalue('moto_bucket')}/p?endpoint_url={endpoint}"
    with open_blocking_store(url) as store:
        yield store


async def test_a_task_reads_what_the_broker_wrote_and_the_other_way_round(
    blocking: BlockingStore,
) -> None:
    async with open_url(blocking.url) as broker:
        await broker.put(KEY, BytesBody(b"from the broker"))
        assert blocking.get(KEY) == b"from the broker"
        assert blocking.get_range(KEY, 5, 3) == b"the"
        assert blocking.head(KEY).length_bytes == 15
        blocking.put(ObjectKey("segments/x"), BytesBody(b"from ", b"a task"))
        assert await broker.get(ObjectKey("segments/x")) == b"from a task"


def test_a_task_meets_the_same_errors(blocking: BlockingStore) -> None:
    blocking.put(KEY, BytesBody(b"first"))
    blocking.put(KEY, BytesBody(b"first"))
    with pytest.raises(ObjectExists):
        blocking.put(KEY, BytesBody(b"other"))
    with pytest.raises(CorruptObject):
        blocking.get_range(KEY, 3, 5)
    with pytest.raises(ObjectNotFound):
        blocking.get(ObjectKey("missing"))


def test_a_task_cannot_open_the_brokers_memory() -> None:
    with pytest.raises(InvalidSettings, match="memory"):
        open_blocking_store("memory://test")


@pytest.mark.parametrize(
    ("url", "loaded"), [("file:///nowhere", []), ("s3://bucket/prefix", ["boto3", "botocore"])]
)
def test_a_task_loads_the_client_it_needs_and_not_the_brokers(url: str, loaded: list[str]) -> None:
    clients = {"aioboto3", "aiobotocore", "aiohttp", "boto3", "botocore"}
    code = (
        "import sys; from wal.stores.blocking_store import open_blocking_store;"
        f"open_blocking_store({url!r}); print(sorted({clients!r} & sys.modules.keys()))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (child.stdout, child.stderr) == (f"{loaded!r}\n", "")
