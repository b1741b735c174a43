"""Settings of property tests that could make one fail because the machine is slow."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.timeless_hypothesis import is_timed


@pytest.mark.parametrize(
    ("own", "timed"),
    [
        (settings(), False),
        (settings(max_examples=3), False),
        (settings(deadline=1_000), True),
        (settings(suppress_health_check=[HealthCheck.function_scoped_fixture]), True),
        (settings(suppress_health_check=list(HealthCheck)), False),
    ],
)
def test_no_limit_of_time_is_let_through(own: settings, timed: bool) -> None:
    assert is_timed(own) is timed


@settings(max_examples=2)
@given(st.integers())
def test_an_example_may_take_longer_than_the_limit_of_hypothesis(number: int) -> None:
    time.sleep(0.3)
    assert isinstance(number, int)
