"""What happens to buckets in real life: keys end, buckets are deleted, stores are slow.

On MinIO, which checks keys.
"""

from pathlib import Path
from typing import Final

import pytest
from botocore.client import BaseClient

from bench.tools.slow_s3 import Delays, SlowS3
from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import until
from tests.support.clients.numbered_records import PARTITIONS, NumberedProducer, assert_each_once
from tests.support.s3_servers import new_bucket
from tests.support.stores.minio_keys import KeyEndpoint, revoke, temporary_keys

pytestmark = [pytest.mark.minio, pytest.mark.clients]

SETTINGS: Final = {"num.partitions": str(PARTITIONS), "wal.commit.interval.ms": "20"}
SOON_S: Final = 60
"""When keys expire so soon, botocore asks for others before every request."""


def broker_on(endpoint: str, bucket: str, directory: Path) -> BrokerProcess:
    url = f"s3://{bucket}/cluster?endpoint_url={endpoint}"
    return BrokerProcess(directory / "data", directory, SETTINGS, object_store=url)


def tells(directory: Path, bucket: str, reason: str) -> bool:
    """Whether the broker has written what is refused, where, and why."""
    log = (directory / "broker.log").read_text()
    return any(
        "PutObject of wal/" in line and f"s3://{bucket}/cluster?" in line and reason in line
        for line in log.splitlines()
    )


def polled(producer: NumberedProducer) -> int:
    producer.poll()
    return len(producer.acknowledged)


def test_a_broker_whose_keys_are_revoked_goes_on_with_the_next_ones(
    minio_endpoint: str, minio_bucket: str, tmp_path: Path
) -> None:
    with KeyEndpoint() as keys, broker_on(minio_endpoint, minio_bucket, tmp_path) as broker:
        keys.keys = temporary_keys(minio_endpoint, "first", expires_in_s=SOON_S)
        broker.start(keys.environment)
        producer = NumberedProducer(broker.bootstrap)
        producer.send(60)
        producer.flush()
        revoke(minio_endpoint, "first")
        producer.send(60)
        until(lambda: tells(tmp_path, minio_bucket, "InvalidAccessKeyId"), "a line about the keys")
        assert polled(producer) == 60
        keys.keys = temporary_keys(minio_endpoint, "second", expires_in_s=SOON_S)
        producer.flush()
        assert_each_once(broker.bootstrap, producer)


def test_nothing_is_acknowledged_while_the_bucket_is_gone(
    minio_endpoint: str, minio_s3: BaseClient, tmp_path: Path
) -> None:
    bucket = new_bucket(minio_s3)
    with broker_on(minio_endpoint, bucket, tmp_path) as broker:
        broker.start()
        producer = NumberedProducer(broker.bootstrap)
        producer.send(60)
        producer.flush()
        for entry in minio_s3.list_objects_v2(Bucket=bucket)["Contents"]:
            minio_s3.delete_object(Bucket=bucket, Key=entry["Key"])
        minio_s3.delete_bucket(Bucket=bucket)
        producer.send(60)

        until(lambda: tells(tmp_path, bucket, "NoSuchBucket"), "a line about the bucket")
        assert polled(producer) == 60
        minio_s3.create_bucket(Bucket=bucket)
        producer.flush()
        assert minio_s3.list_objects_v2(Bucket=bucket)["KeyCount"] > 0


def test_requests_that_time_out_on_a_slow_store_store_nothing_twice(
    minio_endpoint: str, minio_bucket: str, tmp_path: Path
) -> None:
    delays = Delays(put_ms=100, outlier_share=0.3, outlier_ms=1_500)
    with (
        SlowS3(minio_endpoint, delays) as slow,
        broker_on(slow.endpoint, minio_bucket, tmp_path) as broker,
    ):
        broker.start()
        producer = NumberedProducer(broker.bootstrap, request_timeout_ms=1_000)
        for _ in range(3):
            producer.send(60)
            producer.flush()
        assert_each_once(broker.bootstrap, producer)
