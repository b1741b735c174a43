"""A bank: money moves by transactions while brokers and clients are killed, paused and cut off.

It is on three brokers that share three metadata partitions. `make test` runs a minute of it, whose
staff thinks more than it works, so that it costs little; `make test-all` ten minutes, and a shorter
one whose brokers lose their way to the store as well. BANK_SECONDS says how long the one of ten
minutes is instead, BANK_SEED what happens.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import pytest

from demo.broker_process import BrokerProcess
from tests.support.bank.bank import Bank, Sizes
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.gate import Gate
from tests.support.brokers.killed_workers import workers_of
from tests.support.brokers.live_broker import until
from tests.support.ports import own_port

pytestmark = pytest.mark.clients

SECONDS: Final = float(os.environ.get("BANK_SECONDS", "600"))
CLUSTER_SETTINGS: Final[Mapping[str, str]] = {
    "diskless.metadata.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
}
SEVERAL_PROCESSES: Final[Mapping[str, str]] = {
    "broker.workers": "2",
    "broker.workers.active.min": "2",
}
BROKERS: Final = (1, 2, 3)

Trouble = Callable[[], None]


class Storm(NamedTuple):
    """How long, and how rough."""

    seconds: float
    """It is longer only where not each trouble has come by then."""
    sizes: Sizes = Sizes()
    calm_every_s: float = 60.0
    between_troubles_s: float = 3.0
    """On average."""


MINUTE: Final = Storm(
    60.0,
    Sizes(pause_s=7.0, gather_s=1.0, tables_every_s=8.0, session_ms=6_000),
    calm_every_s=30.0,
    between_troubles_s=0.5,
)


def test_a_minute_of_a_bank_loses_no_money(tmp_path: Path) -> None:
    with ExitStack() as stack:
        network = Network(tmp_path, f"file://{tmp_path}/bucket", stack)
        a_storm(network, tmp_path, stack, MINUTE)


@pytest.mark.exhaustive
def test_a_bank_loses_no_money(tmp_path: Path) -> None:
    with ExitStack() as stack:
        network = Network(tmp_path, f"file://{tmp_path}/bucket", stack)
        a_storm(network, tmp_path, stack, Storm(SECONDS))


@pytest.mark.exhaustive
def test_a_bank_whose_brokers_are_several_processes_loses_no_money(tmp_path: Path) -> None:
    """Heads are killed and paused like brokers, and workers are killed besides."""
    with ExitStack() as stack:
        url = f"file://{tmp_path}/bucket"
        network = Network(tmp_path, url, stack, settings=SEVERAL_PROCESSES)
        a_storm(network, tmp_path, stack, Storm(SECONDS))
        for broker in network.brokers.values():
            until(lambda broker=broker: len(workers_of(broker)) == 2, "all workers to be back")


@pytest.mark.exhaustive
def test_a_bank_whose_brokers_lose_their_store_loses_no_money(
    tmp_path: Path, minio_bucket: str, minio_endpoint: str
) -> None:
    """Each broker has its own way to the store."""
    with ExitStack() as stack:
        host, _, port = minio_endpoint.removeprefix("http://").partition(":")
        network = Network(tmp_path, f"s3://{minio_bucket}/bank", stack, store=(host, int(port)))
        a_storm(network, tmp_path, stack, Storm(SECONDS / 4))


def a_storm(network: "Network", work: Path, stack: ExitStack, storm: Storm) -> None:
    """Each trouble comes before one comes again."""
    rng = random.Random(os.environ.get("BANK_SEED", "7"))
    bank = stack.enter_context(Bank(network.bootstrap, storm.sizes, work))
    bank.open()
    troubles = troubles_of(bank, network, storm.sizes, rng)
    began_at = time.monotonic()
    ends_at, calm_at = began_at + storm.seconds, began_at + storm.calm_every_s
    for dealt, trouble in enumerate(shuffled_anew(troubles, rng), 1):
        bank.work(rng.expovariate(1 / storm.between_troubles_s))
        trouble()
        is_over = time.monotonic() >= ends_at and dealt >= len(troubles)
        if is_over or time.monotonic() >= calm_at:
            bank.calm()
            calm_at = time.monotonic() + storm.calm_every_s
        if is_over:
            break
    bank.close()
    print(f"\n{time.monotonic() - began_at:.0f} s: {bank.told()}")
    assert bank.faults() == []
    assert_money_moved(bank)


def shuffled_anew(troubles: Sequence[Trouble], rng: random.Random) -> Iterator[Trouble]:
    """Yields all of them again and again, in another order each time."""
    while True:
        yield from rng.sample(troubles, len(troubles))


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
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.has_workers: Final = "broker.workers" in settings
        self.gates: Final[dict[int, Gate]] = {}
        self.ways_to_the_store: Final[dict[int, Gate]] = {}
        self.brokers: Final[dict[int, BrokerProcess]] = {}
        for node_id in BROKERS:
            port, url = own_port(), store_url
            self.gates[node_id] = gate = stack.enter_context(Gate(("127.0.0.1", port)))
            if store is not None:
                way = self.ways_to_the_store[node_id] = stack.enter_context(Gate(store))
                url = f"{store_url}?endpoint_url=http://{way.address}"
            addresses = {
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://{gate.address}",
            }
            cluster = Cluster(work, url, stack)
            self.brokers[node_id] = cluster.start(
                node_id, {**CLUSTER_SETTINGS, **settings, **addresses}
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(gate.address for gate in self.gates.values())


def troubles_of(
    bank: Bank, network: Network, sizes: Sizes, rng: random.Random
) -> Sequence[Trouble]:
    """Each ends with everybody alive, awake and connected, if not at work."""

    def half() -> bool:
        return rng.random() < 0.5

    def kill_a_broker() -> None:
        bank.troubles["killed broker"] += 1
        broker = network.brokers[rng.choice(BROKERS)]
        broker.kill()
        bank.work(rng.uniform(0.0, 3.0))
        broker.start()

    def kill_a_worker() -> None:
        """Its head starts another one, later the oftener they die; there may be none just now."""
        bank.troubles["killed worker"] += 1
        workers = workers_of(network.brokers[rng.choice(BROKERS)])
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)

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
        bank.work(rng.choice((1.0, 8.0, sizes.timeout_ms / 1_000 + 5.0)))
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
        lambda: bank.pause_a_teller(rng.choice((1.0, sizes.timeout_ms / 1_000 + 5.0))),
        lambda: bank.pause_a_clerk(rng.choice((1.0, sizes.session_ms / 1_000 + 3.0))),
        *(of_the_store if network.ways_to_the_store else ()),
        *([kill_a_worker] * 2 if network.has_workers else ()),
    ]


def assert_money_moved(bank: Bank) -> None:
    """The bank was at work: what is never done has no faults."""
    assert sum(transfer.committed_s is not None for transfer in bank.transfers()) >= 10
