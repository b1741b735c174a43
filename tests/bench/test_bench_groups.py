"""The group of consumer groups measures what it says, on little."""

from pathlib import Path

from bench.groups import measure_offset_commits


async def test_offset_commits(tmp_path: Path) -> None:
    figures = await measure_offset_commits(tmp_path, groups=3, commits=4, rounds=2)
    assert len(figures.commits_per_s) == 2
    assert len(figures.waits_ms) == 24
    assert 1 <= figures.partitions_per_commit <= 10
