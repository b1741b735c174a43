"""Muting without a socket."""

from diskless.server.throttle import Throttle
from tests.support.loops.until import until
from wal.clock import ManualClock


async def test_the_latest_time_counts_and_the_end_is_told_once():
    clock, ended = ManualClock(), list[float]()
    throttle = Throttle(clock, ended.append)
    assert throttle.mute(0.01)
    assert throttle.mute(0.03)
    assert not throttle.mute(0.02), "shorter than it was"
    assert throttle.is_muted
    clock.advance(0.02)
    first = throttle._timer
    await until(lambda: throttle._timer is not first)
    assert throttle.is_muted
    clock.advance(0.01)
    await until(lambda: not throttle.is_muted)
    assert ended == [0.03]
    assert throttle.mute(0.04), "from the beginning again"
    throttle.cancel()
    assert not throttle.is_muted


async def test_who_is_delayed_at_first_is_not_known_to_exceed_a_quota():
    throttle = Throttle(ManualClock(), lambda _: None)
    throttle.delay(60)
    assert throttle.is_muted
    assert not throttle.was_over_quota
    throttle.mute(61)
    assert throttle.was_over_quota
    throttle.cancel()
