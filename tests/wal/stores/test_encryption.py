"""Each PUT asks the store to encrypt, as the settings or the URL say."""

import asyncio
import random
from typing import Any

import pytest
from botocore.client import BaseClient

from localstack.minio import KMS_KEY_NAME
from tests.support.s3_servers import s3_client
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.errors import InvalidSettings, ObjectStoreRefused
from wal.stores.blocking_store import open_blocking_store
from wal.stores.object_store import BytesBody
from wal.stores.s3_settings import S3Settings
from wal.stores.store_url import open_store

BROKER = ObjectKey("wal/of-a-broker")
JOB = ObjectKey("segments/of-a-job")
KMS = S3Settings(encryption="aws:kms", kms_key_id=KMS_KEY_NAME)


async def stored_by_both(
    s3: BaseClient, endpoint: str, bucket: str, settings: S3Settings
) -> list[dict[str, Any]]:
    """What the store says of an object of a broker, and of one of a job that has its URL only."""
    store = open_store(
        f"s3://{bucket}/p?endpoint_url={endpoint}",
        clock=SystemClock(),
        rng=random.Random(),
        s3_settings=settings,
    )
    async with store:
        await store.put(BROKER, BytesBody(b"records"))
        # Its own put, repeated: what is compared is what was meant, not what is encrypted.
        await store.put(BROKER, BytesBody(b"records"))
        assert await store.get(BROKER) == b"records"
        with open_blocking_store(store.url) as job:
            await asyncio.to_thread(job.put, JOB, BytesBody(b"columns"))
            assert await asyncio.to_thread(job.get, JOB) == b"columns"
    return [s3.head_object(Bucket=bucket, Key=f"p/{key}") for key in (BROKER, JOB)]


@pytest.mark.parametrize("algorithm", ["AES256", "aws:kms", "aws:kms:dsse"])
async def test_brokers_and_jobs_ask_for_encryption(
    moto_endpoint: str, moto_bucket: str, algorithm: str
) -> None:
    moto_s3 = s3_client(moto_endpoint)
    settings = S3Settings(encryption=algorithm)
    for said in await stored_by_both(moto_s3, moto_endpoint, moto_bucket, settings):
        assert said["ServerSideEncryption"] == algorithm
        # Keys of the bucket spare requests to the key service; the double one takes none.
        assert said.get("BucketKeyEnabled", False) is (algorithm == "aws:kms")


async def test_nothing_is_asked_for_unless_it_is_set(moto_endpoint: str, moto_bucket: str) -> None:
    moto_s3 = s3_client(moto_endpoint)
    for said in await stored_by_both(moto_s3, moto_endpoint, moto_bucket, S3Settings()):
        assert said.get("ServerSideEncryption") in (None, "AES256")
        assert "SSEKMSKeyId" not in said


@pytest.mark.minio
async def test_a_key_of_the_key_service_encrypts(
    minio_s3: BaseClient, minio_endpoint: str, minio_bucket: str
) -> None:
    for said in await stored_by_both(minio_s3, minio_endpoint, minio_bucket, KMS):
        assert said["ServerSideEncryption"] == "aws:kms"
        assert said["SSEKMSKeyId"].endswith(KMS_KEY_NAME)


@pytest.mark.minio
async def test_the_store_s_own_keys_encrypt(
    minio_s3: BaseClient, minio_endpoint: str, minio_bucket: str
) -> None:
    settings = S3Settings(encryption="AES256")
    for said in await stored_by_both(minio_s3, minio_endpoint, minio_bucket, settings):
        assert said["ServerSideEncryption"] == "AES256"


@pytest.mark.minio
async def test_a_key_that_is_not_there_is_refused_by_name(
    minio_s3: BaseClient, minio_endpoint: str, minio_bucket: str
) -> None:
    settings = S3Settings(encryption="aws:kms", kms_key_id="no-such-key", attempts_max=1)
    with pytest.raises(ObjectStoreRefused, match=r"s3\.sse\.kms\.key\.id"):
        await stored_by_both(minio_s3, minio_endpoint, minio_bucket, settings)


def test_a_key_without_its_algorithm_is_refused() -> None:
    for said in ("", "AES256"):
        with pytest.raises(InvalidSettings, match=r"s3\.server\.side\.encryption=aws:kms"):
            open_blocking_store("s3://b/p", s3_settings=S3Settings(encryption=said, kms_key_id="k"))


def test_a_url_says_it_for_who_has_no_settings() -> None:
    url = "s3://b/p?encryption=aws%3Akms&kms_key_id=arn%3Aaws%3Akms%3A%3A1%3Akey%2Fk"
    assert open_blocking_store(url).url == url
    with pytest.raises(InvalidSettings, match="unknown encryption 'rot13'"):
        open_blocking_store("s3://b/p?encryption=rot13")
