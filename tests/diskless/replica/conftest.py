"""The fixture of those who test a replica manager."""

from collections.abc import AsyncIterator

import pytest

from tests.support.brokers.replica_setting import Setting


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting()
    async with setting.lanes:
        yield setting
    # Whatever the test did, nothing may be left behind.
    assert setting.parked == 0
    assert setting.pool.statistics().in_use_bytes == 0
