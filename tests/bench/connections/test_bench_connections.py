"""The group of connections measures what it says, on little."""

from pathlib import Path

import pytest

from bench.connections.connections import measure_idle, measure_inflight, measure_storm


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups put their data below the working directory, and run modules of it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)


def test_idle_connections() -> None:
    figures = measure_idle(300, settle_s=0.1)
    assert figures.connections == 300
    assert figures.before_kib > 0
    assert figures.kib_each < 100


def test_a_storm_of_connections_beside_a_producer() -> None:
    figures = measure_storm(rate=50, seconds=0.5, rounds=1)
    assert figures.answered >= 50
    assert len(figures.quiet_ms) == len(figures.storm_ms) == 1
    assert figures.p99_ratio > 0


def test_requests_in_flight() -> None:
    figures = measure_inflight(seconds=0.6, rounds=1, commit_interval_ms=100)
    assert 0 < figures.one_per_s[0] < 10
    assert figures.ratio > 1
