"""Quotas and limits of clients that reach a broker through several processes."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from diskless.listeners.connection_limits import ConnectionLimits
from diskless.ports import ClientInfo
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.quotas import QuotaEnforcer
from diskless.shared.shared_counts import SharedCounts, make_counts
from diskless.shared.shared_rates import WINDOWS_MAX, SharedRates, make_rates
from metadata.operations import QuotaEntity
from wal.clock import ManualClock

SETTINGS = QuotaSettings()
LIMIT = 1_000.0
QUOTAS: dict[QuotaEntity, dict[str, float]] = {
    (("user", "alice"),): {"producer_byte_rate": LIMIT, "consumer_byte_rate": LIMIT}
}
ALICE = ClientInfo(1, "app", "10.0.0.1", user="alice")
BURST = int(LIMIT * SETTINGS.burst_s)


@pytest.fixture
def fd() -> Iterator[int]:
    made = make_rates(3, SETTINGS.window_count)
    yield made
    os.close(made)


def rates_of(fd: int, lane: int, clock: ManualClock, windows: int = 11) -> SharedRates:
    return SharedRates(fd, lane, window_s=1, window_count=windows, now=clock.monotonic)


def worker(fd: int, lane: int, clock: ManualClock) -> QuotaEnforcer:
    others = rates_of(fd, lane, clock).of
    return QuotaEnforcer(lambda: QUOTAS, settings=SETTINGS, clock=clock, others=others)


def test_a_quota_holds_over_all_processes(fd: int) -> None:
    clock = ManualClock()
    first, second = worker(fd, 1, clock), worker(fd, 2, clock)
    assert first.produced(ALICE, BURST // 2) == 0.0
    assert second.produced(ALICE, BURST // 2) == 0.0
    # Five seconds' worth more than it may have at once.
    until = second.produced(ALICE, 5 * int(LIMIT))
    assert until == pytest.approx(clock.monotonic() + 5)
    assert first.produced(ALICE, 0) == pytest.approx(until)
    assert first.fetched(ALICE, BURST) == 0.0, "another quota"


def test_who_changes_the_process_is_measured_as_if_it_had_stayed(fd: int) -> None:
    clock = ManualClock()
    first, second = worker(fd, 1, clock), worker(fd, 2, clock)
    assert first.produced(ALICE, BURST) == 0.0
    _, allowed = second.may_fetch(ALICE, 1 << 20)
    assert allowed == BURST
    assert first.fetched(ALICE, BURST) == 0.0
    assert second.may_fetch(ALICE, 1 << 20) == (0.0, 1_000)
    # What was done long ago counts no longer, whenever somebody looks.
    clock.advance(60)
    assert second.produced(ALICE, BURST) == 0.0
    assert second.may_fetch(ALICE, 1 << 20) == (0.0, BURST)


def test_windows_end_in_every_process_at_once(fd: int) -> None:
    clock = ManualClock()
    first, second = rates_of(fd, 0, clock).of("a"), rates_of(fd, 1, clock).of("a")
    for _ in range(40):
        first.add(1)
        clock.advance(1)
        second.add(100)
    # Each counts the present window and the ten before it; the last of `first` began a second ago.
    assert (first.elsewhere(), second.elsewhere()) == (1_100, 10)
    clock.advance(5)
    assert (first.elsewhere(), second.elsewhere()) == (600, 5)
    clock.advance(6)
    assert (first.elsewhere(), second.elsewhere()) == (0, 0)


def test_very_many_windows_take_no_more_memory() -> None:
    clock = ManualClock()
    fd = make_rates(2, 1_000)
    fewer = make_rates(2, WINDOWS_MAX)
    assert os.fstat(fd).st_size == os.fstat(fewer).st_size
    os.close(fewer)
    first, second = (rates_of(fd, lane, clock, 1_000).of("a") for lane in (0, 1))
    os.close(fd)
    first.add(5)
    clock.advance(950)
    assert second.elsewhere() == 5
    clock.advance(100)
    assert second.elsewhere() == 0


def test_names_are_told_apart(fd: int) -> None:
    clock = ManualClock()
    first, second = rates_of(fd, 0, clock), rates_of(fd, 1, clock)
    for number in range(500):
        first.of(f"client {number}").add(number)
    wrong = [n for n in range(500) if second.of(f"client {n}").elsewhere() != n]
    assert not wrong


def test_another_process_sees_it(fd: int) -> None:
    script = (
        "import sys\n"
        "from diskless.shared.shared_rates import SharedRates\n"
        "rates = SharedRates(int(sys.argv[1]), 2, window_s=1, window_count=11, now=lambda: 7.0)\n"
        "rates.of('a').add(41)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(fd)], pass_fds=[fd], check=True)
    here = SharedRates(fd, 1, window_s=1, window_count=11, now=lambda: 9.5)
    assert here.of("a").elsewhere() == 41


# Connections


def limits(counts: SharedCounts) -> ConnectionLimits:
    return ConnectionLimits(
        connections_max=100,
        per_ip_max=3,
        per_ip_overrides={"10.0.0.9": 1},
        creations_per_s=1_000,
        now=0.0,
        per_user_max=2,
        others=counts,
    )


def test_limits_on_connections_hold_over_all_processes() -> None:
    fd = make_counts(3)
    first, second = limits(SharedCounts(fd, 1)), limits(SharedCounts(fd, 2))
    for one in (first, second, second):
        assert one.refusal("10.0.0.1") is None
        one.opened("10.0.0.1", 0.0)
    assert first.refusal("10.0.0.1") == second.refusal("10.0.0.1") == "max.connections.per.ip"
    first.opened("10.0.0.9", 0.0)
    assert second.refusal("10.0.0.9") == "max.connections.per.ip"
    assert first.known("alice")
    assert second.known("alice")
    assert not first.known("alice")
    second.closed("10.0.0.1", user="alice")
    assert first.refusal("10.0.0.1") is None
    assert first.known("alice")
    first.opened("10.0.0.1", 0.0)
    assert second.refusal("10.0.0.1") == "max.connections.per.ip"
    # The first process dies, and another one takes its lane.
    SharedCounts(fd, 1)
    assert second.refusal("10.0.0.1") is None
    os.close(fd)
