"""The number of coordinators is written down although the log fails at first."""

from typing import Any

from metadata.coordinator.placement import PlacementFixing
from wal.errors import CommitFailed


class FailingPipeline:
    """Refuses so many times what it is to perform."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.performed = 0

    async def perform(self, decide: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise CommitFailed("the disk is full")
        self.performed += 1


async def test_a_log_that_fails_ends_no_leader() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    pipeline: Any = FailingPipeline(2)
    await PlacementFixing(pipeline, 3, sleep=sleep).run()
    assert (pipeline.performed, len(slept)) == (1, 2)
