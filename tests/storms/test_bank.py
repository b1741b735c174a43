"""A bank: money moves by transactions while brokers and clients are killed and paused.

`make test` runs a small one for a few seconds, `make test-all` one of ten minutes over three
brokers that share three metadata partitions; BANK_SECONDS says how long, if not that.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from demo.broker_process import BrokerProcess
from tests.support.bank.bank import Bank, Sizes
from tests.support.broker_cluster import Cluster

pytestmark = pytest.mark.clients

SECONDS: Final = float(os.environ.get("BANK_SECONDS", "600"))
CALM_EVERY_S: Final = 60.0
BETWEEN_TROUBLES_S: Final = 3.0
"""On average."""
SETTINGS: Final[Mapping[str, str]] = {
    "diskless.metadata.topic.num.partitions": "2",
    "wal.commit.interval.ms": "10",
    "group.initial.rebalance.delay.ms": "0",
}
CLUSTER_SETTINGS: Final[Mapping[str, str]] = {
    "diskless.metadata.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
}
BROKERS: Final = (1, 2, 3)
LARGE: Final = Sizes(tellers=8, clerks=2, accounts=50, partitions=12)


def test_a_bank_loses_no_money(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker,
        Bank(start(broker), Sizes(), tmp_path) as bank,
    ):
        bank.open()
        bank.work(1.0)
        bank.kill_a_teller()
        bank.replace_a_teller()
        broker.kill()
        broker.start()
        bank.work(1.0)
        bank.calm()
        bank.kill_a_clerk()
        bank.close()
        assert bank.faults() == []
        assert_money_moved(bank)


@pytest.mark.exhaustive
def test_a_bank_of_three_brokers_loses_no_money(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("BANK_SEED", "7"))
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, f"file://{tmp_path}/bucket", stack)
        for node_id in BROKERS:
            cluster.start(node_id, CLUSTER_SETTINGS)
        bank = stack.enter_context(Bank(cluster.bootstrap, LARGE, tmp_path))
        bank.open()
        troubles = troubles_of(bank, cluster, rng)
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            calm_at = time.monotonic() + CALM_EVERY_S
            while time.monotonic() < min(calm_at, ends_at):
                bank.work(rng.expovariate(1 / BETWEEN_TROUBLES_S))
                rng.choice(troubles)()
            bank.calm()
        bank.close()
        print(f"\n{SECONDS:.0f} s: {bank.told()}")
        assert bank.faults() == []
        assert_money_moved(bank)


def start(broker: BrokerProcess) -> str:
    broker.start()
    return broker.bootstrap


def troubles_of(bank: Bank, cluster: Cluster, rng: random.Random) -> list[Callable[[], None]]:
    """Each ends with everybody alive and awake, if not at work."""

    def kill_a_broker() -> None:
        bank.troubles["killed broker"] += 1
        broker = cluster.brokers[rng.choice(BROKERS)]
        broker.kill()
        bank.work(rng.uniform(0.0, 3.0))
        broker.start()

    def pause_a_broker() -> None:
        """For longer than its lease lasts, or not."""
        bank.troubles["paused broker"] += 1
        broker = cluster.brokers[rng.choice(BROKERS)]
        os.kill(broker.pid, signal.SIGSTOP)
        bank.work(rng.choice((1.0, 8.0)))
        os.kill(broker.pid, signal.SIGCONT)

    return [
        kill_a_broker,
        pause_a_broker,
        bank.kill_a_teller,
        bank.replace_a_teller,
        bank.kill_a_clerk,
        lambda: bank.pause_a_teller(rng.choice((1.0, LARGE.timeout_ms / 1_000 + 5.0))),
        lambda: bank.pause_a_clerk(rng.choice((1.0, LARGE.session_ms / 1_000 + 3.0))),
    ]


def assert_money_moved(bank: Bank) -> None:
    """The bank was at work: what is never done has no faults."""
    assert sum(transfer.committed_s is not None for transfer in bank.transfers()) >= 10
