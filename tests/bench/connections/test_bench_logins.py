"""The group of log-ins measures what it says, on little."""

from pathlib import Path

import pytest

from bench.connections.logins import login_bed, measure_beside, measure_logins
from bench.connections.tls import tls_bed


def test_log_ins_and_clients_beside_half_done_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)
    with login_bed() as (broker, port):
        assert measure_logins(broker, port, logins=20) > 0
    with tls_bed() as bed:
        (ratio,) = measure_beside(bed, rounds=1, asked=50, half_done=20)
        assert ratio > 0
