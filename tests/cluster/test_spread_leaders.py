"""Four brokers and four metadata partitions, as processes with the default keys: each leads one.

So it is within two minutes of any restart, whether the broker was stopped or killed.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.brokers.broker_racks import Racks
from tests.support.brokers.live_broker import until

BROKERS = {1, 2, 3, 4}
WITHIN_S = 120.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.exhaustive
def test_each_broker_leads_one_within_two_minutes_of_any_restart(
    tmp_path: Path, stack: ExitStack
) -> None:
    racks = Racks(tmp_path, stack, dict.fromkeys(BROKERS, ""), interval_ms=None)
    cluster = racks.cluster

    def until_spread(why: str) -> None:
        until(lambda: racks.leaders(BROKERS) == BROKERS, why, deadline_s=WITHIN_S)

    until_spread("each broker leads, after a start")
    for node_id in sorted(BROKERS):
        if node_id % 2:
            cluster.brokers[node_id].stop()
        else:
            cluster.brokers[node_id].kill()
        others = BROKERS - {node_id}
        until(
            lambda others=others: (
                racks.leaders(others) == others
                and all(any(cluster.leads(one, at) for one in others) for at in racks.partitions)
            ),
            f"the others lead everything without broker {node_id}",
        )
        racks.start(node_id)
        until_spread(f"each broker leads, after broker {node_id} is back")
