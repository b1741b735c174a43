"""Pauses, failures and the end of what is repeated."""

import random

import pytest

from metadata.workers.periodic import repeat
from wal.errors import CommitFailed, CommitOutcomeUnknown, CorruptState, DisklessError


class Repeated:
    """Fails as `outcomes` say; the last of them ends it."""

    def __init__(self, *outcomes: DisklessError | None) -> None:
        self._outcomes = [*outcomes, CorruptState("the end")]
        self.pauses: list[float] = []
        self.reported: list[DisklessError] = []

    async def once(self) -> None:
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome

    async def sleep(self, delay: float, /) -> None:
        self.pauses.append(delay)

    async def run(self, *, backoff_max_s: float, rng: random.Random | None = None) -> None:
        with pytest.raises(CorruptState, match="the end"):
            await repeat(
                self.once,
                interval_s=10,
                backoff_max_s=backoff_max_s,
                sleep=self.sleep,
                failed=self.reported.append,
                rng=rng,
            )


async def test_pauses_double_with_each_failure_in_a_row_up_to_the_limit() -> None:
    failures = [CommitFailed("1"), CommitOutcomeUnknown("2"), CommitFailed("3")]
    repeated = Repeated(None, *failures, None)
    await repeated.run(backoff_max_s=30)
    assert repeated.pauses == [10, 10, 20, 30, 30, 10]
    assert repeated.reported == failures


async def test_without_a_longer_limit_pauses_stay_as_they_are() -> None:
    repeated = Repeated(CommitFailed("1"), CommitFailed("2"))
    await repeated.run(backoff_max_s=0)
    assert repeated.pauses == [10, 10, 10]


async def test_jittered_pauses_lie_between_half_and_all() -> None:
    repeated = Repeated(*[CommitFailed(str(number)) for number in range(50)])
    await repeated.run(backoff_max_s=40, rng=random.Random(1))
    first, second, *others = repeated.pauses
    assert 5 <= first <= 10 <= second <= 20
    assert all(20 <= pause <= 40 for pause in others)
    assert len(set(others)) == len(others)
