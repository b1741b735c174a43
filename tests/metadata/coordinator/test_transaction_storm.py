"""Whatever producers, coordinators and time do to transactions, their logs say one thing."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.rules.transactions import ending, producers
from metadata.state.state import STATE_FILE
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog
from tests.support.coordinators.file_cluster import DeletingStore, running_cluster
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.profiles import SEEDS_MIN
from tests.support.transactions.transaction_storm import TransactionStorm
from wal.clock import ManualClock
from wal.failpoint import arm

STEPS = 100 if IS_EXHAUSTIVE else 60
LIVES = 2
SEEDS = max(200 if IS_EXHAUSTIVE else 2, SEEDS_MIN)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


@pytest.mark.parametrize("logs", [1, 2, 3])
async def test_a_storm_of_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: int
) -> None:
    outcomes: dict[str, int] = {}
    for seed in range(SEEDS):
        rng = random.Random(10 * seed + logs)
        epoch_max = rng.choice((3, 32_766))
        for module in (ending, producers):
            monkeypatch.setattr(module, "EPOCH_MAX", epoch_max)
        storm = TransactionStorm(rng, epoch_max=epoch_max)
        directory, clock = tmp_path / str(seed), ManualClock()
        kept = {index: MemoryMetadataLog() for index in range(logs)}
        for life in range(LIVES):
            async with running_cluster(
                directory, logs, DeletingStore(), logs=kept, clock=clock
            ) as cluster:
                storm.cluster = cluster
                if life == 0:
                    await storm.begin()
                for _ in range(STEPS // LIVES):
                    await storm.step()
                if life < LIVES - 1:
                    dying = storm.die()
                    # As far as it comes.
                    for _ in range(rng.randrange(30)):
                        await asyncio.sleep(0)
                else:
                    await storm.settle()
            await dying
            clock.advance(1)
            if rng.random() < 0.5:
                (directory / str(rng.randrange(logs)) / STATE_FILE).unlink()
        for outcome, count in storm.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    if IS_EXHAUSTIVE:
        # What comes of a few steps depends on how threads take turns.
        assert {"init: NoneType", "write: NoneType", "offsets", "end: NoneType"} <= outcomes.keys()
