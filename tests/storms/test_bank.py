"""A bank: money moves by transactions while brokers and clients are killed, paused and cut off.

`make test` runs a small one for a few seconds, `make test-all` one of ten minutes over three
brokers that share three metadata partitions, and a shorter one whose brokers lose their way to the
store as well; BANK_SECONDS says how long the first one is, if not that, and BANK_SEED what happens.
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
from tests.support.gate import Gate
from tests.support.ports import own_port

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
LARGE: Final = Sizes(tellers=8, clerks=2, accounts=50, partitions=12, has_tables=True)


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
    with ExitStack() as stack:
        network = Network(tmp_path, f"file://{tmp_path}/bucket", stack)
        a_storm(network, tmp_path, stack, SECONDS)


@pytest.mark.exhaustive
def test_a_bank_whose_brokers_lose_their_store_loses_no_money(
    tmp_path: Path, minio_bucket: str, minio_endpoint: str
) -> None:
    """Each broker has its own way to the store."""
    with ExitStack() as stack:
        host, _, port = minio_endpoint.removeprefix("http://").partition(":")
        network = Network(tmp_path, f"s3://{minio_bucket}/bank", stack, store=(host, int(port)))
        a_storm(network, tmp_path, stack, SECONDS / 4)


def a_storm(network: "Network", work: Path, stack: ExitStack, seconds: float) -> None:
    rng = random.Random(os.environ.get("BANK_SEED", "7"))
    bank = stack.enter_context(Bank(network.bootstrap, LARGE, work))
    bank.open()
    troubles = troubles_of(bank, network, rng)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        calm_at = time.monotonic() + CALM_EVERY_S
        while time.monotonic() < min(calm_at, ends_at):
            bank.work(rng.expovariate(1 / BETWEEN_TROUBLES_S))
            rng.choice(troubles)()
        bank.calm()
    bank.close()
    print(f"\n{seconds:.0f} s: {bank.told()}")
    assert bank.faults() == []
    assert_money_moved(bank)


class Network:
    """A cluster whose brokers are reached, by clients and by each other, through gates of a test's.

    `store` is where an S3 server listens; then each broker reaches it through a gate, too.
    """

    def __init__(
        self,
        work: Path,
        store_url: str,
        stack: ExitStack,
        *,
        store: tuple[str, int] | None = None,
    ) -> None:
        self.gates: Final[dict[int, Gate]] = {}
        self.ways_to_the_store: Final[dict[int, Gate]] = {}
        self.brokers: Final[dict[int, BrokerProcess]] = {}
        for node_id in BROKERS:
            port, url = own_port(), store_url
            self.gates[node_id] = gate = stack.enter_context(Gate(("127.0.0.1", port)))
            if store is not None:
                way = self.ways_to_the_store[node_id] = stack.enter_context(Gate(store))
                url = f"{store_url}?endpoint_url=http://{way.address}"
            settings = {
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://{gate.address}",
            }
            cluster = Cluster(work, url, stack)
            self.brokers[node_id] = cluster.start(node_id, {**CLUSTER_SETTINGS, **settings})

    @property
    def bootstrap(self) -> str:
        return ",".join(gate.address for gate in self.gates.values())


def start(broker: BrokerProcess) -> str:
    broker.start()
    return broker.bootstrap


def troubles_of(bank: Bank, network: Network, rng: random.Random) -> list[Callable[[], None]]:
    """Each ends with everybody alive, awake and connected, if not at work."""

    def half() -> bool:
        return rng.random() < 0.5

    def kill_a_broker() -> None:
        bank.troubles["killed broker"] += 1
        broker = network.brokers[rng.choice(BROKERS)]
        broker.kill()
        bank.work(rng.uniform(0.0, 3.0))
        broker.start()

    def pause_a_broker() -> None:
        """For longer than its lease lasts, or not."""
        bank.troubles["paused broker"] += 1
        broker = network.brokers[rng.choice(BROKERS)]
        os.kill(broker.pid, signal.SIGSTOP)
        bank.work(rng.choice((1.0, 8.0)))
        os.kill(broker.pid, signal.SIGCONT)

    def cut_off_a_broker() -> None:
        """Nobody reaches it, and it leads on; what was sent to it comes when that is over."""
        bank.troubles["cut off broker"] += 1
        gate = network.gates[rng.choice(BROKERS)]
        gate.hold()
        bank.work(rng.choice((1.0, 8.0, LARGE.timeout_ms / 1_000 + 5.0)))
        gate.let_go()

    def cut_off_clients() -> None:
        """Some connections to all brokers; whoever has them does not hear, or hears late."""
        bank.troubles["cut off clients"] += 1
        for gate in network.gates.values():
            gate.hold(half)
        bank.work(rng.choice((1.0, 8.0)))
        for gate in network.gates.values():
            gate.let_go()

    def reset_connections() -> None:
        bank.troubles["reset connections"] += 1
        for gate in network.gates.values():
            gate.reset(half)

    def cut_off_from_the_store() -> None:
        """One broker; it loses what it leads, and takes nothing."""
        bank.troubles["cut off from the store"] += 1
        way = network.ways_to_the_store[rng.choice(BROKERS)]
        rng.choice((way.hold, way.cut))()
        bank.work(rng.choice((1.0, 8.0)))
        way.let_go()
        if not way.is_open:
            way.open()

    def reset_ways_to_the_store() -> None:
        bank.troubles["reset ways to the store"] += 1
        for way in network.ways_to_the_store.values():
            way.reset(half)

    of_the_store = [cut_off_from_the_store] * 3 + [reset_ways_to_the_store]
    return [
        kill_a_broker,
        pause_a_broker,
        cut_off_a_broker,
        cut_off_clients,
        reset_connections,
        bank.kill_a_teller,
        bank.replace_a_teller,
        bank.kill_a_clerk,
        lambda: bank.pause_a_teller(rng.choice((1.0, LARGE.timeout_ms / 1_000 + 5.0))),
        lambda: bank.pause_a_clerk(rng.choice((1.0, LARGE.session_ms / 1_000 + 3.0))),
        *(of_the_store if network.ways_to_the_store else ()),
    ]


def assert_money_moved(bank: Bank) -> None:
    """The bank was at work: what is never done has no faults."""
    assert sum(transfer.committed_s is not None for transfer in bank.transfers()) >= 10
