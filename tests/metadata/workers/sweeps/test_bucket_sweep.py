"""A sweep of the bucket runs once in each interval of the orphan scan, outages or not."""

import asyncio
import logging
import random

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.sweeps.bucket_sweep import BACKOFF_MAX_S, BucketSweep
from wal.errors import ObjectStoreUnavailable

SETTINGS = CoordinatorSettings(orphan_scan_interval_ms=60_000)


async def test_an_outage_is_logged_and_the_next_pass_comes_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    passes = 0

    async def sleep(delay: float) -> None:
        if len(pauses) == 3:
            raise asyncio.CancelledError
        pauses.append(delay)

    async def sweep_once() -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise ObjectStoreUnavailable("away")

    sweep = BucketSweep("things/", sweep_once, settings=SETTINGS, rng=random.Random(1), sleep=sleep)
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await sweep.run()
    assert passes == 3
    assert all(0 < pause <= BACKOFF_MAX_S for pause in pauses)
    assert [record.getMessage() for record in caplog.records] == ["sweeping things/: away"]
