"""SIGKILL before and after whatever a transaction over two coordinators writes down.

A transaction is begun, written, told offsets, decided, ended at each coordinator and completed;
one is committed, the next one aborted. Wherever a broker dies on the way, the next life goes on,
and in the end all is as if nobody had died (tests/crash/compared_lives.py
compares). `make test` dies behind each record of an end on the local log, `make test-all` at every
point of all steps on both logs.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.broker_life import LOG_KINDS
from tests.crash.compared_lives import check, in_chains
from tests.crash.killed_lives import Lives
from tests.crash.life_script import transactions
from tests.support.exhaustive import IS_EXHAUSTIVE

pytestmark = pytest.mark.crash

DURABLE = "commit.after_log"
"""What dies there leaves behind what it would leave anywhere before the next record is written."""
POINTS = {DURABLE, "commit.before_log", "txn.after_decision", "txn.after_end", "txn.after_offsets"}

STEPS = [step.name for step in transactions()]
ENDS = {place for place, name in enumerate(STEPS) if name == "end the transaction"}


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    opened = Lives("transactions")
    yield opened
    assert opened.close() == ""


@pytest.mark.parametrize("kind", LOG_KINDS if IS_EXHAUSTIVE else LOG_KINDS[:1])
def test_wherever_a_broker_is_killed_the_transaction_ends_as_it_was_decided(
    kind: str, lives: Lives, tmp_path: Path
) -> None:
    expected = tmp_path / "expected"
    recorded = lives.recorded(expected, kind)
    points = [point for point in recorded if 0 < point.step < len(STEPS)]
    assert {point.name for point in points} >= POINTS
    if not IS_EXHAUSTIVE:
        points = [point for point in points if point.name == DURABLE and point.step in ENDS]
    for number, chain in enumerate(in_chains(points)):
        directory = tmp_path / f"chain-{number}"
        for point in chain:
            assert not lives.live(directory, kind, point), f"{point} was not reached"
        assert lives.live(directory, kind)
        check(directory, expected, chain)
