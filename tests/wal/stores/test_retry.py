import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.clock import ManualClock
from wal.stores.retry import Retries, RetryLimits


def limits(attempts: int = 5, deadline_ms: int = 60_000) -> RetryLimits:
    return RetryLimits(
        attempts_max=attempts, first_delay_ms=100, delay_max_ms=1000, deadline_ms=deadline_ms
    )


def test_delays_double_up_to_the_largest_and_are_jittered_by_half() -> None:
    retries = Retries(limits(attempts=8), clock=ManualClock(), rng=random.Random(1))
    for full_ms in (100, 200, 400, 800, 1000, 1000, 1000):
        delay_s = retries.next_delay_s()
        assert delay_s is not None
        assert full_ms / 2000 <= delay_s <= full_ms / 1000
    assert retries.next_delay_s() is None
    assert retries.attempts == 8


def test_no_attempt_starts_after_the_deadline() -> None:
    clock = ManualClock()
    retries = Retries(limits(deadline_ms=1000), clock=clock, rng=random.Random(1))
    assert retries.remaining_s() == pytest.approx(1.0)
    clock.advance(0.96)
    assert retries.next_delay_s() is None
    clock.advance(5)
    assert retries.remaining_s() == 0


@given(seed=st.integers(), attempts=st.integers(1, 200), deadline_ms=st.integers(1, 10**6))
def test_an_operation_ends_within_its_attempts_and_its_deadline(
    seed: int, attempts: int, deadline_ms: int
) -> None:
    clock = ManualClock()
    retries = Retries(limits(attempts, deadline_ms), clock=clock, rng=random.Random(seed))
    while (delay_s := retries.next_delay_s()) is not None:
        clock.advance(delay_s)
    assert retries.attempts <= attempts
    assert clock.monotonic() < deadline_ms / 1000


def test_retries_with_the_same_seed_wait_the_same() -> None:
    def delays(seed: int) -> list[float | None]:
        retries = Retries(limits(), clock=ManualClock(), rng=random.Random(seed))
        return [retries.next_delay_s() for _ in range(5)]

    assert delays(7) == delays(7)
    assert delays(7) != delays(8)
