"""The group of idle consumers measures what it says, on little."""

from pathlib import Path

from bench.requests.fetch import MANY, SETTINGS, create_topics, measure_idle, measure_wakes
from bench.tools.broker import BenchBroker


def test_idle_polls_and_wake_ups(tmp_path: Path) -> None:
    with BenchBroker(tmp_path / "broker", SETTINGS) as broker:
        ids = create_topics(broker.bootstrap, {"one": 1, "many": MANY})
        for session in (False, True):
            idle = measure_idle(broker, ids, session=session, polls=5, rounds=1)
            assert (len(idle.one), len(idle.many)) == (1, 1)
        woken = measure_wakes(broker, ids, wakes=3, rounds=2)
        assert len(woken.one) == len(woken.many) == 2
