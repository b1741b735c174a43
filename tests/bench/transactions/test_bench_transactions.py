"""The group of transactions measures what it says, on little."""

from pathlib import Path

import pytest

from bench.tools import load
from bench.transactions.transactions import (
    TOPIC,
    measure_alone,
    measure_commits,
    measure_throughput,
)
from tests.support.brokers.live_broker import LiveBroker


@pytest.mark.clients
async def test_commits(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        load.create_topic(broker.bootstrap, TOPIC, 4)
        figures = await measure_commits(broker.bootstrap, producers=3, commits=4)
        assert len(figures.waits_ms) == 12
        assert figures.per_s > 0
        alone = await measure_alone(broker.bootstrap, partitions=4, rounds=3)
        assert min(alone) > 0


@pytest.mark.exhaustive
def test_throughput(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written, read = measure_throughput(rounds=2, total_bytes=4 << 20)
    assert len(written) == len(read) == 2
    assert min(*written, *read) > 0
