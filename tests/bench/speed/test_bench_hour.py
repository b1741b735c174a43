"""The group of the compressed hour measures what it says, on little."""

from pathlib import Path

import pytest

from bench.speed import hour
from bench.speed.hour import measure_hour

ROOT = Path(__file__).parents[3]


def test_what_little_leaves_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    rolled: list[str] = []
    monkeypatch.setattr(hour, "tier", rolled.append)
    figures = measure_hour(total_bytes=4 << 20)
    assert min(figures) > 0
    assert figures.objects >= 4
    assert figures.rows > figures.objects
    assert len(rolled) == 1
