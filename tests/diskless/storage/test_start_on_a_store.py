"""A start on an object store that refuses the broker, or that nobody reaches: what it says."""

import asyncio
import contextlib
import subprocess
from pathlib import Path

import boto3
import pytest

from demo.broker_process import DISKLESS, BrokerProcess
from diskless.storage.store_rights import DELETE_PROBE
from tests.support.brokers.live_broker import LiveBroker
from tests.support.stores.faulty_s3 import Fault, FaultyS3
from wal.errors import InvalidSettings, ObjectStoreRefused, ObjectStoreUnavailable

TIMEOUT_S = 120


def start(data: Path, url: str, log: str = "local") -> None:
    """A start that is expected to fail, and a stop if it does not."""
    settings = {"object.store.url": url, "diskless.metadata.log": log}
    with LiveBroker(data, settings):
        pass


def serve(data: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The installed command, to its end."""
    return subprocess.run(
        [DISKLESS, "serve", "--data", data, "--listen", "127.0.0.1:0", "--object-store", url]
        + [word for option in ("http.listen=", *options) for word in ("--set", option)],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_a_missing_bucket_ends_the_command_with_one_line(
    tmp_path: Path, moto_endpoint: str
) -> None:
    url = f"s3://no-such-bucket/p?endpoint_url={moto_endpoint}"
    finished = serve(tmp_path / "data", url)
    assert finished.returncode == 1
    assert "ready" not in finished.stdout
    *_, line = finished.stderr.splitlines()
    assert line.startswith("diskless: ObjectStoreRefused: ")
    port = moto_endpoint.rpartition(":")[2]
    for part in ("s3://no-such-bucket/p", port, "NoSuchBucket", "create the bucket"):
        assert part in line
    assert "Traceback" not in finished.stderr


def test_no_credentials_at_all_end_the_start_with_what_to_set(
    tmp_path: Path, moto_endpoint: str, moto_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(ObjectStoreRefused, match="AWS_ACCESS_KEY_ID"):
        start(tmp_path / "data", f"s3://{moto_bucket}?endpoint_url={moto_endpoint}")


@pytest.mark.parametrize(
    ("log", "status", "code"),
    [
        ("local", 403, "AccessDenied"),
        ("object", 403, "AccessDenied"),
        ("object", 404, "NoSuchBucket"),
        ("local", 403, "SignatureDoesNotMatch"),
        ("object", 403, "SignatureDoesNotMatch"),
        ("local", 403, "InvalidAccessKeyId"),
        ("local", 400, "ExpiredToken"),
        ("local", 301, "PermanentRedirect"),
        ("local", 501, "NotImplemented"),
    ],
)
async def test_a_store_that_refuses_everything_ends_the_start(
    tmp_path: Path, moto_bucket: str, faulty_s3: FaultyS3, status: int, code: str, log: str
) -> None:
    faulty_s3.add(Fault("status", status=status, code=code, count=None))
    url = f"s3://{moto_bucket}/p?endpoint_url={faulty_s3.url}"
    with pytest.raises(ObjectStoreRefused, match=code) as refused:
        await asyncio.to_thread(start, tmp_path / "data", url, log)
    assert moto_bucket in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "right"),
    [("PUT", "PutObject"), ("GET", "GetObject"), ("POST", "DeleteObjects")],
)
async def test_a_start_exercises_every_right_that_a_broker_needs(
    tmp_path: Path, moto_bucket: str, faulty_s3: FaultyS3, method: str, right: str
) -> None:
    url = f"s3://{moto_bucket}/p?endpoint_url={faulty_s3.url}"
    await asyncio.to_thread(start, tmp_path / "data", url)
    faulty_s3.add(Fault("status", method=method, status=403, code="AccessDenied", count=None))
    with pytest.raises(ObjectStoreRefused, match=right):
        await asyncio.to_thread(start, tmp_path / "data", url)


async def test_a_start_that_may_read_and_write_but_not_list_is_refused(
    tmp_path: Path, moto_bucket: str, faulty_s3: FaultyS3
) -> None:
    url = f"s3://{moto_bucket}/p?endpoint_url={faulty_s3.url}"
    await asyncio.to_thread(start, tmp_path / "data", url)
    faulty_s3.requests.clear()
    await asyncio.to_thread(start, tmp_path / "data", url)
    # A LIST is a GET of the bucket itself.
    read = [key for method, key in faulty_s3.requests if method == "GET"]
    denied = {"method": "GET", "status": 403, "code": "AccessDenied", "count": None}
    faulty_s3.add(Fault("status", nth=read.index("") + 1, **denied))
    with pytest.raises(ObjectStoreRefused, match="ListObjectsV2"):
        await asyncio.to_thread(start, tmp_path / "data", url)


def test_a_start_leaves_one_object_and_no_probe_behind(
    tmp_path: Path, moto_bucket: str, moto_endpoint: str
) -> None:
    url = f"s3://{moto_bucket}/p?endpoint_url={moto_endpoint}"
    for _ in range(2):
        start(tmp_path / "data", url)
    with contextlib.closing(boto3.client("s3", endpoint_url=moto_endpoint)) as client:
        listed = client.list_objects_v2(Bucket=moto_bucket)["Contents"]
    names = [entry["Key"] for entry in listed]
    assert "p/meta/cluster" in names
    assert f"p/{DELETE_PROBE}" not in names
    assert all(name == "p/meta/cluster" or "/snapshots/" in name for name in names)


@pytest.mark.parametrize("url", ["s3://Not!a!Name", "s3://bucket?endpoint_url=nowhere"])
def test_a_url_that_no_s3_can_have_is_a_bad_setting(
    tmp_path: Path, url: str, moto_endpoint: str
) -> None:
    with pytest.raises(InvalidSettings, match="object store"):
        start(tmp_path / "data", url)


def test_a_directory_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ObjectStoreRefused, match=str(tmp_path / "file")):
        start(tmp_path / "data", f"file://{tmp_path}/file/store")


def test_a_store_that_nobody_reaches_is_said_beside_ready(
    tmp_path: Path, unused_tcp_port: int, moto_endpoint: str
) -> None:
    url = f"s3://bucket/p?endpoint_url=http://127.0.0.1:{unused_tcp_port}"
    settings = {"s3.attempts.max": "1"}
    with BrokerProcess(tmp_path / "data", tmp_path, settings, object_store=url) as broker:
        broker.start()
        lines = (tmp_path / "broker.log").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("ready"))
        assert line.startswith(f"ready on {broker.bootstrap}, ")
        assert ", but the object store cannot be reached" in line


def test_a_store_that_nobody_reaches_ends_the_start_where_the_metadata_is_in_it(
    tmp_path: Path, unused_tcp_port: int, moto_endpoint: str
) -> None:
    url = f"s3://bucket/p?endpoint_url=http://127.0.0.1:{unused_tcp_port}"
    settings = {
        "object.store.url": url,
        "diskless.metadata.log": "object",
        "s3.attempts.max": "1",
    }
    with pytest.raises(ObjectStoreUnavailable), LiveBroker(tmp_path / "data", settings):
        pass
