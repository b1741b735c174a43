"""The group of the slow store measures what it says, on little."""

from pathlib import Path

import pytest

from bench.slow_s3 import CREDENTIALS, delayed, slow_s3
from bench.slow_store import LOGS, measure, raw_put_ms

ROOT = Path(__file__).parents[2]


def test_a_broker_on_a_bucket_with_either_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with slow_s3(1) as endpoint:
        assert raw_put_ms(endpoint, puts=2) > 1
        for log in LOGS:
            figures = measure(endpoint, log.name, log.name, {}, 4 << 20, paced_s=0.3)
            assert min(figures) > 0


def test_only_puts_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bench.slow_s3.time.sleep", slept.append)
    application = delayed(lambda environment, start: [b"answer"], 50)
    for method in ("GET", "PUT", "DELETE"):
        assert application({"REQUEST_METHOD": method}, print) == [b"answer"]
    assert slept == [0.05]
