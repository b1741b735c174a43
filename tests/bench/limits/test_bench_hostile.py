"""The group of hostile clients measures what it says, on little."""

from pathlib import Path

import pytest

from bench.limits.deaf_clients import SLOW_READERS
from bench.limits.hostile import measure_hostile


@pytest.mark.parametrize("kind", ["mixed", SLOW_READERS])
def test_clients_beside_those_that_do_not_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)
    figures = measure_hostile(kind, count=2, seconds=0.3)
    for measured in (figures.idle_ms, figures.beside_ms):
        assert set(measured) == {"metadata", "produce", "fetch"}
        assert min(measured.values()) > 0
