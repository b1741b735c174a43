"""The group of consumer groups measures what it says, on little."""

from pathlib import Path

import pytest

from bench.groups.consumer_rebalance import measure_consumer_rebalance
from bench.groups.groups import measure_offset_commits
from bench.groups.rebalance import measure_rebalance


async def test_offset_commits(tmp_path: Path) -> None:
    figures = await measure_offset_commits(tmp_path, groups=3, commits=4, rounds=2)
    assert len(figures.commits_per_s) == 2
    assert len(figures.waits_ms) == 24
    assert 1 <= figures.partitions_per_commit <= 10


def test_rebalances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    figures = measure_rebalance(members=5, partitions=12, delay_ms=100)
    assert figures.from_nothing_s >= 0.1
    assert figures.one_left_s > 0
    assert figures.broker_cpu_s >= 0


def test_rebalances_of_the_new_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    figures = measure_consumer_rebalance(members=5, partitions=12, heartbeat_ms=100)
    assert figures.from_nothing_s > 0
    assert figures.one_left_s > 0
