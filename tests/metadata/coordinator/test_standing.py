"""When a process may stand, by who led last, who it is, and since when it has heard nothing."""

import math
import random
from dataclasses import replace
from uuid import UUID

import pytest

from metadata.coordinator.standing import STRANGER_LEASES, SUCCESSOR_COMES_S, Standing
from metadata.leadership.candidate import Candidate
from metadata.operations import Leader
from metadata.records.control import NO_BROKER

LEASE_S = 2.0
PAST = UUID(int=22)
CANDIDATE = Candidate(
    broker_id=2, host="b2", port=9092, incarnation=UUID(int=2), past_incarnations=(PAST,)
)
LEADER = Leader(broker_id=1, host="b1", port=9092, incarnation=UUID(int=1), leader_epoch=3)
RESIGNED = LEADER._replace(broker_id=NO_BROKER)


def wait_s(
    silent_s: float,
    *,
    candidate: Candidate = CANDIDATE,
    last: Leader | None = LEADER,
    rank: int = 0,
    is_registered: bool = True,
) -> float:
    standing = Standing(rng=random.Random(1), lease_ms=round(LEASE_S * 1000))
    standing.begin(50.0)
    standing.heard(100.0)
    return standing.wait_s(
        100.0 + silent_s, candidate=candidate, last=last, rank=rank, is_registered=is_registered
    )


@pytest.mark.parametrize(
    "last",
    [
        None,
        RESIGNED._replace(successor_id=NO_BROKER),
        RESIGNED._replace(successor_id=2),
        LEADER._replace(broker_id=2, incarnation=PAST),
        LEADER._replace(broker_id=2, incarnation=UUID(int=2)),
    ],
    ids=["no leader", "resigned", "resigned to it", "its earlier life", "itself"],
)
def test_nobody_is_waited_for_who_leads_no_more(last: Leader | None) -> None:
    assert wait_s(0.0, last=last, is_registered=False) == 0.0
    assert wait_s(0.0, last=last, candidate=replace(CANDIDATE, may_lead=False)) == math.inf


def test_a_silent_leader_is_waited_for_by_rank() -> None:
    assert wait_s(1.1 * LEASE_S) > 0
    assert wait_s(1.2 * LEASE_S) == 0
    assert wait_s(1.3 * LEASE_S, rank=3) > 0
    assert wait_s(1.5 * LEASE_S, rank=3) == 0
    assert wait_s(0.5) == pytest.approx(wait_s(0.0) - 0.5)


def test_another_one_than_the_named_successor_gives_it_time() -> None:
    named = RESIGNED._replace(successor_id=3)
    assert wait_s(SUCCESSOR_COMES_S - 0.1, last=named) == pytest.approx(0.1)
    assert wait_s(SUCCESSOR_COMES_S, last=named) == 0


@pytest.mark.parametrize(
    ("last", "is_due"),
    [
        (None, False),
        (LEADER, False),
        (RESIGNED._replace(successor_id=NO_BROKER), False),
        (RESIGNED._replace(successor_id=3), True),
    ],
    ids=["no leader", "a leader", "resigned to nobody", "resigned to another"],
)
def test_a_named_successor_is_due_for_as_long_as_it_is_waited_for(
    last: Leader | None, is_due: bool
) -> None:
    standing = Standing(rng=random.Random(1), lease_ms=1000)
    standing.heard(100.0)
    assert standing.is_successor_due(100.0 + SUCCESSOR_COMES_S - 0.1, last) == is_due
    assert not standing.is_successor_due(100.0 + SUCCESSOR_COMES_S, last)


@pytest.mark.parametrize("is_registered", [True, False])
def test_who_is_not_known_yet_waits_until_the_leader_can_know_it(is_registered: bool) -> None:
    last = LEADER._replace(broker_id=2) if is_registered else LEADER
    waits_s = STRANGER_LEASES * LEASE_S
    assert wait_s(waits_s - 0.1, last=last, is_registered=is_registered) > 0
    assert wait_s(waits_s + 0.2, last=last, is_registered=is_registered) == 0
