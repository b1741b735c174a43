"""A clock by which things are deleted never runs ahead of what has really passed."""

from hypothesis import given
from hypothesis import strategies as st

from wal.clock import ManualClock
from wal.steady_clock import SteadyClock

DAY_S = 86_400.0


def test_it_follows_a_wall_clock_that_runs_as_it_should() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    for seconds in (0.0, 0.0004, 0.001, 7.3, DAY_S):
        clock.advance(seconds)
        assert steady.now_ms() == clock.now_ms()


def test_a_day_that_did_not_pass_is_not_counted() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    before_ms = steady.now_ms()
    clock.step_wall(DAY_S)
    assert steady.now_ms() - before_ms <= 1
    clock.advance(10)
    assert steady.now_ms() - before_ms <= 10_001
    clock.step_wall(-DAY_S)
    clock.advance(10)
    assert steady.now_ms() == clock.now_ms()


def test_a_clock_that_is_set_back_is_followed_from_there_and_time_stands_still_meanwhile() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    began_ms = steady.now_ms()
    clock.step_wall(-60)
    assert steady.now_ms() == began_ms
    clock.advance(30)
    assert steady.now_ms() == began_ms
    clock.advance(40)
    assert steady.now_ms() == clock.now_ms() == began_ms + 10_000
    # What it was set back by counts as not passed, if it jumps ahead again.
    clock.step_wall(60)
    assert steady.now_ms() <= began_ms + 10_001


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.floats(-10 * DAY_S, 10 * DAY_S, allow_nan=False)), max_size=20
    )
)
def test_it_is_never_ahead_of_what_passed_and_never_goes_back(
    steps: list[tuple[bool, float]],
) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    began_ms = last_ms = steady.now_ms()
    passed_s = 0.0
    for is_step, seconds in steps:
        if is_step:
            clock.step_wall(seconds)
        else:
            clock.advance(abs(seconds))
            passed_s += abs(seconds)
        now_ms = steady.now_ms()
        assert last_ms <= now_ms <= began_ms + passed_s * 1000 + 1
        last_ms = now_ms
