"""The S3 stores of a broker and of a task, with limits that tests can wait for."""

import random

from tests.support.stores.blocking_in_threads import BlockingInThreads
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.stores.blocking_s3_store import BlockingS3Store
from wal.stores.s3_settings import S3Settings
from wal.stores.s3_store import S3Store

KEY = ObjectKey("wal/3f/01HZZZZZZZZZZZZZZZZZZZZZZZ")
CONTENT = bytes(range(256)) * 4000  # four pieces

LOADED_S = 60
"""What a loaded machine may add to a deadline. Without one, these calls would never return."""

FAST = S3Settings(
    connect_timeout_ms=500,
    read_timeout_ms=300,
    attempt_timeout_ms=500,
    deadline_ms=3000,
    attempts_max=4,
    retry_first_delay_ms=1,
    retry_delay_max_ms=5,
    list_page=3,
)


def s3_store(bucket: str, endpoint: str, settings: S3Settings = FAST) -> S3Store:
    return S3Store(
        bucket,
        "prefix",
        endpoint_url=endpoint,
        clock=SystemClock(),
        rng=random.Random(),
        settings=settings,
    )


def task_s3_store(bucket: str, endpoint: str, settings: S3Settings = FAST) -> BlockingInThreads:
    blocking = BlockingS3Store(
        bucket,
        "prefix",
        endpoint_url=endpoint,
        clock=SystemClock(),
        rng=random.Random(),
        settings=settings,
    )
    return BlockingInThreads(s3_store(bucket, endpoint, settings), blocking)
