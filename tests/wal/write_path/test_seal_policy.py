"""When a chunk is sealed: at once, in a pause, at the end of the interval, within the budget."""

import math
import random
from dataclasses import replace

import pytest

from tests.support.chunks.write_path import SETTINGS
from wal.chunks.wal_settings import WalSettings, for_directory
from wal.clock import ManualClock
from wal.write_path.seal_policy import (
    ANSWERED_S,
    ANSWERED_S_MAX,
    QUIET_S,
    Arrivals,
    OpenChunk,
    PutBudget,
    SealPolicy,
    awaited_s,
)

INTERVAL_S = 0.25
EARLY = WalSettings(commit_early_bytes=1000, commit_early_chunks=2, puts_per_second_max=100_000)


class Bed:
    """A policy and a chunk that was opened now, with its only batch."""

    def __init__(self, settings: WalSettings = EARLY) -> None:
        self.arrivals = Arrivals()
        self.policy = SealPolicy(settings, self.arrivals)

    def wait_s(
        self,
        data_bytes: int = 1,
        *,
        under_way: int = 0,
        is_behind: bool = False,
        is_full: bool = False,
        opened_at: float = 10.0,
    ) -> float:
        """How long a chunk waits that was appended to at 10 s."""
        chunk = OpenChunk(opened_at, 10.0, data_bytes, is_full)
        at = self.policy.seal_at(chunk, under_way=under_way, is_behind=is_behind)
        return max(at - 10.0, 0.0)


def test_a_chunk_is_sealed_at_once_when_none_is_under_way() -> None:
    assert Bed().wait_s() == 0


def test_a_chunk_behind_others_is_sealed_in_a_pause_when_it_is_large_enough() -> None:
    assert Bed().wait_s(1000, under_way=1) == pytest.approx(QUIET_S)
    assert Bed().wait_s(1000, under_way=2) == pytest.approx(INTERVAL_S)
    assert Bed().wait_s(999, under_way=1) == pytest.approx(INTERVAL_S)


@pytest.mark.parametrize("under_way", [0, 1])
def test_a_request_that_is_half_received_is_waited_for_a_moment(under_way: int) -> None:
    bed = Bed()
    bed.arrivals.unfinished, bed.arrivals.last_at = 1, 10.001
    assert bed.wait_s(1000, under_way=under_way) == pytest.approx(0.001 + QUIET_S)
    # Its sender has stopped: it does not count any more.
    bed.arrivals.last_at = 10.0 - QUIET_S
    assert bed.wait_s(1000, under_way=under_way) == pytest.approx(QUIET_S if under_way else 0)


def test_a_request_that_is_whole_is_not_waited_for_any_more() -> None:
    bed = Bed()
    bed.arrivals.unfinished, bed.arrivals.last_at = 0, 10.001
    assert bed.wait_s() == 0


def test_producers_who_were_answered_have_a_moment_to_send_again() -> None:
    bed = Bed()
    bed.policy.answered(3, 10.0)
    bed.policy.arrived(2)
    assert bed.wait_s() == pytest.approx(ANSWERED_S)
    assert bed.wait_s(1 << 20) == pytest.approx(QUIET_S)
    bed.policy.arrived(1)
    assert bed.wait_s(1 << 20) == 0
    assert bed.wait_s() == 0
    # What came before an answer does not count for it.
    bed.policy.answered(1, 10.0)
    assert bed.wait_s() == pytest.approx(ANSWERED_S)


@pytest.mark.parametrize(
    ("answered_s_ago", "opened_s_ago", "wait_s"),
    [
        (0.9 * ANSWERED_S, 0.0, ANSWERED_S),
        # However many come: not for longer than QUIET_S after the answer, or the first of them.
        (0.7 * QUIET_S, 0.1, 0.3 * QUIET_S),
        (1.0, 0.7 * QUIET_S, 0.3 * QUIET_S),
        (1.0, QUIET_S, 0.0),
    ],
)
def test_the_rest_of_a_round_is_awaited_for_a_moment_after_each_that_came(
    answered_s_ago: float, opened_s_ago: float, wait_s: float
) -> None:
    bed = Bed()
    bed.policy.answered(4, 10.0 - answered_s_ago)
    bed.policy.arrived(3)
    assert bed.wait_s(opened_at=10.0 - opened_s_ago) == pytest.approx(wait_s)


def answered_in_two_parts() -> Bed:
    """Four requests that were sent at once; the answer to one came before that to the others."""
    bed = Bed()
    bed.policy.arrived(1)
    bed.policy.sealed(9.0, 1)
    bed.policy.arrived(3)
    bed.policy.answered(1, 9.1, 1)
    bed.policy.sealed(9.2, 1)
    bed.policy.answered(3, 10.0, 1)
    return bed


def test_a_round_that_was_answered_in_two_parts_is_awaited_as_one() -> None:
    bed = answered_in_two_parts()
    bed.policy.arrived(3)
    assert bed.wait_s() == pytest.approx(ANSWERED_S_MAX)
    bed.policy.arrived(1)
    assert bed.wait_s() == 0


@pytest.mark.parametrize(
    ("answer_s", "wait_s"),
    [(0.005, ANSWERED_S), (0.06, 0.006), (0.5, ANSWERED_S_MAX), (math.inf, ANSWERED_S)],
)
def test_who_waits_long_for_an_answer_is_awaited_longer(answer_s: float, wait_s: float) -> None:
    assert awaited_s(answer_s) == pytest.approx(wait_s)


@pytest.mark.parametrize("under_way", [0, 1])
def test_who_was_answered_is_awaited_beside_another_chunk_too(under_way: int) -> None:
    bed = Bed()
    bed.policy.sealed(9.94, 1)
    bed.policy.sealed(9.99, 1)
    bed.policy.answered(3, 10.0, 1)
    bed.policy.arrived(2)
    assert bed.wait_s(1000, under_way=under_way) == pytest.approx(0.006)
    assert bed.wait_s(1 << 20, under_way=under_way) == pytest.approx(QUIET_S)
    bed.policy.arrived(1)
    assert bed.wait_s(1000, under_way=under_way) == pytest.approx(QUIET_S if under_way else 0)


def test_who_did_not_send_after_two_answers_is_not_awaited_after_a_third() -> None:
    bed = answered_in_two_parts()
    bed.policy.arrived(3)
    bed.policy.sealed(10.0, 1)
    bed.policy.arrived(1)
    bed.policy.answered(3, 10.0, 1)
    bed.policy.arrived(3)
    assert bed.wait_s() == 0


def test_who_was_answered_when_nothing_else_waited_is_awaited_once() -> None:
    bed = Bed()
    bed.policy.arrived(4)
    bed.policy.sealed(9.0, 1)
    bed.policy.answered(4, 9.1, 1)
    bed.policy.arrived(3)
    bed.policy.sealed(9.2, 1)
    bed.policy.answered(3, 10.0, 1)
    bed.policy.arrived(3)
    assert bed.wait_s() == 0


def test_batches_that_never_cease_are_sealed_at_the_end_of_the_interval() -> None:
    bed = Bed()
    bed.arrivals.unfinished, bed.arrivals.last_at = 1, 10.0 + INTERVAL_S
    assert bed.wait_s() == pytest.approx(INTERVAL_S)


@pytest.mark.parametrize("under_way", [0, 1, 9])
def test_without_early_seals_the_interval_alone_counts(under_way: int) -> None:
    bed = Bed(replace(EARLY, commit_early=False))
    assert bed.wait_s(5000, under_way=under_way) == pytest.approx(INTERVAL_S)


def test_while_the_uploader_is_behind_only_a_full_chunk_is_sealed() -> None:
    assert Bed().wait_s(under_way=0, is_behind=True) == math.inf
    assert Bed().wait_s(under_way=9, is_behind=True, is_full=True) == 0


@pytest.mark.parametrize("puts_per_s", [1, 2, 3, 7, 20, 250])
def test_never_more_puts_in_a_second_than_the_budget_has(puts_per_s: int) -> None:
    rng = random.Random(puts_per_s)
    clock, budget = ManualClock(), PutBudget(puts_per_s)
    taken: list[float] = []
    while clock.monotonic() < 20:
        # Idle times let the budget recover, bursts use it up.
        clock.advance(rng.choice((0.0, 0.0, 0.001, 0.01, 0.3, 2.0)))
        for _ in range(rng.randrange(2 * puts_per_s)):
            wait_s = budget.available_at() - clock.monotonic()
            if wait_s > 0:
                if rng.random() < 0.3:
                    break
                clock.advance(wait_s + 1e-9)
            budget.take(clock.monotonic())
            taken.append(clock.monotonic())
    assert len(taken) > puts_per_s
    for first, last in zip(taken, taken[puts_per_s:], strict=False):
        assert last - first >= 1 - 1e-6


def test_a_broker_that_rested_may_put_a_few_at_once() -> None:
    budget = PutBudget(20)
    for _ in range(4):
        assert budget.available_at() <= 7.0
        budget.take(7.0)
    assert budget.available_at() > 7.0


@pytest.mark.parametrize("puts_per_s", [1, 2, 20, 250])
def test_who_takes_steadily_has_the_whole_budget(puts_per_s: int) -> None:
    clock, budget = ManualClock(), PutBudget(puts_per_s)
    for _ in range(5 * puts_per_s):
        clock.advance(max(budget.available_at() - clock.monotonic(), 0.0))
        budget.take(clock.monotonic())
    assert clock.monotonic() <= 5


def test_what_was_taken_at_once_is_missing_in_its_second_and_evenly() -> None:
    budget = PutBudget(20)
    for _ in range(4):
        budget.take(7.0)
    for number in range(1, 17):
        assert budget.available_at() == pytest.approx(7 + number / 17)
        budget.take(7 + number / 17)
    assert budget.available_at() == pytest.approx(8.0)


def test_the_budget_holds_whatever_the_reason_of_a_seal() -> None:
    bed = Bed(replace(EARLY, puts_per_second_max=1))
    bed.policy.sealed(10.0, 1)
    for is_full in (False, True):
        assert bed.wait_s(is_full=is_full) == pytest.approx(1.0)


def test_a_chunk_that_waits_for_the_budget_grows_within_bounds() -> None:
    bed = Bed(
        replace(EARLY, puts_per_second_max=1, chunk_max_bytes=1000, chunk_overflow_bytes=9999)
    )
    assert bed.policy.bytes_max(10.0) == 1000
    bed.policy.sealed(10.0, 1)
    assert bed.policy.bytes_max(10.5) == 4000
    assert bed.policy.bytes_max(11.0) == 1000
    bed = Bed(replace(EARLY, puts_per_second_max=1, chunk_max_bytes=1000, chunk_overflow_bytes=500))
    bed.policy.sealed(10.0, 1)
    assert bed.policy.bytes_max(10.5) == 1500


def test_small_chunks_follow_each_other_in_a_pause_while_the_budget_lasts() -> None:
    settings = replace(EARLY, puts_per_second_max=20, commit_early_bytes=0, commit_early_chunks=9)

    def bed(answer_s: float) -> Bed:
        bed = Bed(settings)
        bed.policy.sealed(10.0 - 2 - answer_s, 1)
        bed.policy.answered(1, 10.0 - 2, 1)
        bed.policy.arrived(1)
        for _ in range(2):
            bed.policy.sealed(10.0 - 1, 1)
        return bed

    # 20 a second are two in 0.1 s, and three in 0.15.
    assert bed(0.11).wait_s(under_way=1) == pytest.approx(QUIET_S)
    assert bed(0.16).wait_s(under_way=2) == pytest.approx(QUIET_S)
    assert bed(0.1).wait_s(1 << 20, under_way=2) == pytest.approx(QUIET_S)
    assert bed(0.14).wait_s(under_way=2) == pytest.approx(INTERVAL_S)


def test_a_chunk_that_was_lost_is_no_answer_that_takes_long() -> None:
    bed = Bed(replace(EARLY, puts_per_second_max=20, commit_early_bytes=0, commit_early_chunks=9))
    bed.policy.sealed(1.0, 1)
    bed.policy.sealed(9.9, 1)
    bed.wait_s(under_way=1)
    bed.policy.answered(1, 9.96, 1)
    bed.policy.sealed(9.97, 1)
    assert bed.wait_s(under_way=1) == pytest.approx(INTERVAL_S)


LARGE = replace(EARLY, puts_per_second_max=1, puts_large_bytes=500, upload_concurrency=3)


def test_a_large_chunk_is_sealed_while_uploads_are_free() -> None:
    bed = Bed(LARGE)
    bed.policy.sealed(10.0, 499)
    # Whatever is half received, and whatever the budget says.
    bed.arrivals.unfinished, bed.arrivals.last_at = 1, 10.0
    assert bed.wait_s(500, under_way=2) == 0
    assert bed.wait_s(499, under_way=2) == pytest.approx(1.0)
    assert bed.wait_s(500, under_way=3) == pytest.approx(INTERVAL_S)
    assert bed.wait_s(500, under_way=2, is_behind=True) == math.inf
    assert bed.wait_s(500, under_way=9, is_behind=True, is_full=True) == 0


def test_a_large_chunk_takes_nothing_from_the_budget() -> None:
    bed = Bed(LARGE)
    bed.policy.sealed(10.0, 500)
    assert bed.wait_s() == 0
    assert bed.policy.bytes_max(10.0) == LARGE.chunk_max_bytes


def test_a_large_chunk_waits_for_the_interval_without_early_seals() -> None:
    bed = Bed(replace(LARGE, commit_early=False))
    assert bed.wait_s(500) == pytest.approx(INTERVAL_S)


def test_a_directory_has_other_defaults_and_keeps_what_was_set() -> None:
    settings = for_directory(replace(SETTINGS, commit_interval_ms=99), {"wal.commit.interval.ms"})
    assert settings.commit_interval_ms == 99
    assert settings.puts_per_second_max == 250
    assert settings.puts_large_bytes == 0
    assert settings.commit_early_bytes == 1 << 20
