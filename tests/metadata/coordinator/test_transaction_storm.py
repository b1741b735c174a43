"""Whatever producers, coordinators and time do to transactions, their logs say one thing."""

import random
from pathlib import Path

import pytest

from metadata.rules.transactions import ending, producers
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.file_cluster import DeletingStore, running_cluster
from tests.support.profiles import SEEDS_MIN
from tests.support.transaction_storm import TransactionStorm

STEPS = 100
SEEDS = max(200 if IS_EXHAUSTIVE else 2, SEEDS_MIN)


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
        async with running_cluster(tmp_path / str(seed), logs, DeletingStore()) as cluster:
            storm = TransactionStorm(cluster, rng, epoch_max=epoch_max)
            await storm.begin()
            for _ in range(STEPS):
                await storm.step()
            await storm.settle()
        for outcome, count in storm.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    assert {"init: NoneType", "write: NoneType", "offsets", "end: NoneType"} <= outcomes.keys()
