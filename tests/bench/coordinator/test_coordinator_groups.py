"""The parts of the coordinator's group measure what they say, on little."""

from pathlib import Path

import pytest

from bench.__main__ import APART, GROUPS, TOGETHER
from bench.coordinator import commits, retention
from bench.coordinator.files import Producers
from bench.coordinator.starts import measure_state


def test_groups_with_a_name_together_exist() -> None:
    groups = {**GROUPS, **APART}
    for names in TOGETHER.values():
        assert set(names) <= groups.keys()
    assert not set(TOGETHER) & groups.keys()


async def test_commits(tmp_path: Path) -> None:
    figures = await commits.measure_commits(tmp_path, batches=25, partitions=10, commits=5)
    assert {who: len(waits) for who, waits in figures.waits_ms.items()} == dict.fromkeys(
        Producers, 5
    )
    assert all(0 < size < 200 for size in figures.log_bytes_per_batch.values())


async def test_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMMITS_PER_SMALL_STATE", 2)
    monkeypatch.setattr(commits, "FLATNESS_COMMITS", 2)
    monkeypatch.setattr(commits, "FLATNESS_FINDS", 5)
    heard = []
    figures = await commits.measure_backlog(
        tmp_path, many=60_000, on_progress=lambda *progress: heard.append(progress)
    )
    assert figures.fetches > 10
    done, total = heard[-1]
    assert done >= total == 60_000


async def test_pipelined(tmp_path: Path) -> None:
    figures = await commits.measure_pipelined(
        tmp_path, batches=4, partitions=2, commits=3, rounds=1
    )
    assert figures.together_per_s > 0
    assert figures.alone_per_s > 0


async def test_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ALONE_S", 0.1)
    figures = await retention.measure_retention(tmp_path, rows=3_000, partitions=10)
    assert figures.during_pass.commits > 0
    assert figures.during_delete.longest_ms >= figures.during_delete.median_ms


async def test_what_a_state_weighs(tmp_path: Path) -> None:
    figures = await measure_state(tmp_path / "metadata", tmp_path, rows=2_000)
    assert figures.rows == 4 * 632
    assert figures.records == 4
    assert 0 < figures.snapshot_bytes < figures.state_bytes
