"""What the tests of coordinators share: one that runs, on a log in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)


@pytest.fixture
def log() -> MemoryMetadataLog:
    return MemoryMetadataLog()


@pytest.fixture
async def bench(tmp_path: Path, log: MemoryMetadataLog) -> AsyncIterator[CoordinatorBench]:
    async with running_coordinator(tmp_path, log) as running:
        yield running
