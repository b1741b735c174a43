"""The rate of one client: Kafka's numbers, and a bound that no pattern of sending gets past."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.throttled_rate import ThrottledRate

SETTINGS = QuotaSettings()
LIMIT = 100.0


@pytest.fixture
def rate() -> ThrottledRate:
    return ThrottledRate(LIMIT, SETTINGS)


def test_who_was_idle_may_send_ten_seconds_worth_at_once(rate: ThrottledRate) -> None:
    assert rate.allowance(5.0) == 1_000
    assert rate.record(1_000, 5.0) == 0.0
    assert rate.allowance(5.0) == 0.0


def test_the_wait_is_what_the_excess_takes_at_the_quotas_rate(rate: ThrottledRate) -> None:
    # 1,300 in 10 s are 130 a second: (130 - 100) / 100 of these ten seconds.
    assert rate.record(1_300, 0.0) == pytest.approx(3.0)


def test_as_with_kafka_the_measured_time_begins_with_ten_windows_and_what_runs_of_one(
    rate: ThrottledRate,
) -> None:
    rate.record(1_300, 0.0)
    assert rate.wait_s(0.5) == pytest.approx(2.5)
    assert rate.wait_s(1.0) == pytest.approx(3.0)
    assert rate.wait_s(9.5) == pytest.approx(2.5)
    assert rate.wait_s(10.5) == pytest.approx(2.5)
    assert rate.wait_s(11.0) == 0.0


def test_as_with_kafka_the_rate_is_over_the_time_since_the_oldest_window_began(
    rate: ThrottledRate,
) -> None:
    rate.record(600, 0.0)
    rate.record(600, 5.0)
    # Ten windows have gone by, and half of the one that runs.
    assert rate.record(300, 10.5) == pytest.approx(1_500 / LIMIT - 10.5)
    # The first window is forgotten, the rate is over what is left.
    assert rate.record(200, 11.0) == pytest.approx(1_100 / LIMIT - 10.0)


def test_a_window_begins_with_its_first_amount(rate: ThrottledRate) -> None:
    for at in (0.0, 0.5, 0.999, 1.0, 1.5):
        rate.record(100, at)
    # The first three go at 11, the others at 12.
    assert rate.allowance(10.999) == pytest.approx(599.9)
    assert rate.allowance(11.0) == pytest.approx(800)
    assert rate.allowance(11.5) == pytest.approx(850)
    assert rate.allowance(12.0) == 1_000


def test_what_was_over_the_quota_is_not_forgotten_with_its_window(rate: ThrottledRate) -> None:
    assert rate.record(2_000, 0.0) == pytest.approx(10.0)
    # Windows alone would allow the same again: there is none left.
    assert rate.record(2_000, 11.0) == pytest.approx(19.0)
    assert not rate.is_idle(30.0)
    assert rate.is_idle(40.0)


def test_a_rate_is_idle_when_a_new_one_would_be_the_same(rate: ThrottledRate) -> None:
    rate.record(1, 0.0)
    assert not rate.is_idle(10.9)
    assert rate.is_idle(11.0)
    assert rate.allowance(11.0) == 1_000


def test_another_quota_counts_against_what_was_sent_already(rate: ThrottledRate) -> None:
    rate.record(1_000, 0.0)
    rate.limit_to(50.0, 1.0)
    assert rate.wait_s(1.0) == pytest.approx(10.0)
    rate.limit_to(1_000.0, 1.0)
    assert rate.wait_s(1.0) == 0.0
    assert rate.allowance(1.0) == pytest.approx(9_000)


def test_the_windows_are_as_they_are_configured() -> None:
    rate = ThrottledRate(LIMIT, QuotaSettings(window_count=3, window_s=4))
    assert rate.allowance(0.0) == 800
    assert rate.record(800, 0.0) == 0.0
    assert rate.record(400, 0.0) == pytest.approx(4.0)


sendings = st.lists(
    st.tuples(st.floats(0.0, 3_000.0), st.floats(0.0, 30.0) | st.sampled_from([0.0, 1.0, 11.0])),
    min_size=1,
    max_size=60,
)
settings_of_windows = st.builds(
    QuotaSettings, window_count=st.integers(2, 12), window_s=st.integers(1, 3)
)


@given(sendings, settings_of_windows)
def test_who_waits_as_told_never_exceeds_the_quota_by_more_than_the_burst(
    steps: Sequence[tuple[float, float]], windows: QuotaSettings
) -> None:
    """Whatever is sent, and however long a client idles beside what it is told to wait."""
    rate = ThrottledRate(LIMIT, windows)
    now = 1_000.0
    sent = 0.0
    for amount, idle_s in steps:
        within = LIMIT * (now - 1_000.0 + windows.burst_s)
        assert sent <= within + 1e-6 * max(sent, 1.0)
        sent += amount
        now += rate.record(amount, now) + idle_s


@given(st.lists(st.lists(st.tuples(st.floats(0.0, 10.99), st.floats(0.0, 1.0)), max_size=8)))
def test_who_sends_no_more_than_the_burst_in_all_windows_never_waits(
    epochs: Sequence[Sequence[tuple[float, float]]],
) -> None:
    """Half of it in every eleven seconds, so that it is no more in any eleven."""
    rate = ThrottledRate(LIMIT, SETTINGS)
    for number, epoch in enumerate(epochs):
        for at, share in sorted(epoch):
            waits = rate.record(500 * share / len(epoch), number * 11.0 + at)
            assert waits == pytest.approx(0.0, abs=1e-6)


@given(st.integers(1, 300), st.floats(0.0, 0.3))
def test_memory_is_bounded_by_the_number_of_windows(count: int, gap_s: float) -> None:
    rate = ThrottledRate(LIMIT, SETTINGS)
    for number in range(count):
        rate.record(1.0, number * gap_s)
    assert len(rate._windows) <= SETTINGS.window_count
