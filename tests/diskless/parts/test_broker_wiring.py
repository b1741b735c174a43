"""A broker's parts know each other, and have their settings: what no other test would miss.

Each of these arguments has a default, so that a broker without it starts, answers, and is slower or
less limited than it was told to be.
"""

import asyncio
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from diskless.authorization import BROKER_USER
from diskless.groups.offsets import TopicsWith
from diskless.topics.noted_facts import NotedFacts
from metadata.operations import CATALOGUE
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.loops.until import until as until_on_loop
from tests.support.questions.kafka_raw_client import RawClient, a_batch, frame, produce_frame
from tests.support.security.certificates import Certificates
from wal.chunks.wal_settings import for_directory
from wal.write_path.uploader import Uploader

FIRST, FEW, ASKING = range(3)
"""The listeners."""
NOT_COORDINATOR = 16
RUNNING = {
    **dict.fromkeys(("DirectoryWatch", "LoopWatch", "Membership", "StoreWatch", "WriteLoop"), 1),
    # Beside each of the two leaders.
    **dict.fromkeys(("EndNotes", "FileWorkers", "LeaderMoves", "ProducerExpiry", "TierLag"), 2),
    **dict.fromkeys(("RetentionWorker", "RowSweeper", "ShareTeller", "SnapshotKeeper"), 2),
    **dict.fromkeys(("PartitionGroups", "PartitionTransactions"), 2),
    # Beside the catalogue's, and beside the other.
    **dict.fromkeys(("BrokerSessions", "EndedBrokers", "OrphanScan"), 1),
    "BucketSweep": 3,
    "CatalogueSweep": 1,
}
"""How many of each run in a broker that leads two metadata partitions."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    directory = tmp_path_factory.mktemp("wiring")
    settings = {
        "listeners": "FIRST://127.0.0.1:0,FEW://127.0.0.1:0,ASKING://127.0.0.1:0",
        "listener.security.protocol.map": "FIRST:PLAINTEXT,FEW:PLAINTEXT,ASKING:SASL_PLAINTEXT",
        "inter.broker.listener.name": "FIRST",
        "listener.name.few.max.connections": "1",
        "max.connections.unauthenticated.per.ip": "2",
        "authorizer": "none",
        "http.listen": "127.0.0.1:0",
        "http.security.protocol": "SSL",
        "ssl.handshakes.per.second.max": "12345",
        **Certificates(directory / "keys").listener(),
    }
    with LiveBroker(directory / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One of a cluster, of which there are no others."""
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "diskless.metadata.log": "object",
        "diskless.metadata.topic.num.partitions": "2",
        "connections.max.reauth.ms": "1234",
        "sasl.server.max.receive.size": "4321",
        "authorizer": "none",
    }
    with LiveBroker(tmp_path_factory.mktemp("shared") / "data", settings) as running:
        yield running


def connected(broker: LiveBroker, listener: int) -> socket.socket:
    return socket.create_connection(broker.broker.base.listeners[listener].address, 60)


def is_served(client: socket.socket) -> bool:
    try:
        client.sendall(frame(18, 0, 1, b""))
        return bool(client.recv(1))
    except ConnectionError:
        return False


def test_a_produce_request_that_arrives_is_waited_for_by_chunks(broker: LiveBroker) -> None:
    writes = broker.broker.writes
    assert broker.broker.server._shared.arrivals is writes.arrivals
    assert writes.write_loop._policy._arrivals is writes.arrivals
    with connected(broker, FIRST) as client:
        client.sendall(produce_frame(1, [a_batch()])[:-1])
        until(lambda: writes.arrivals.unfinished == 1, "the beginning of a request")
    until(lambda: writes.arrivals.unfinished == 0, "its end")


def test_the_write_loop_goes_by_what_the_uploader_does(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, uploader = broker.broker.writes.write_loop, broker.broker.writes.uploader
    assert loop._is_behind == uploader.is_behind
    assert loop._puts is uploader.early
    assert uploader._on_progress == loop.look_again
    monkeypatch.setattr(Uploader, "under_way", 7)
    assert loop._under_way() == 7
    assert uploader.early._puts is broker.broker.storage.store.thread_puts is not None


def test_a_listener_has_limits_of_its_own(broker: LiveBroker) -> None:
    with connected(broker, FEW) as first, connected(broker, FEW) as second:
        assert is_served(first)
        assert not is_served(second)


def test_an_address_has_as_many_log_ins_as_it_may(broker: LiveBroker) -> None:
    with (
        connected(broker, ASKING) as first,
        connected(broker, ASKING) as second,
        connected(broker, ASKING) as third,
    ):
        assert is_served(first)
        assert is_served(second)
        assert not is_served(third)


def test_the_http_port_has_the_rate_of_handshakes_that_listeners_have(broker: LiveBroker) -> None:
    http = broker.broker.base.http
    assert http is not None
    assert http._handshake_interval_s == 1 / 12_345


def test_objects_note_how_far_logs_reach(broker: LiveBroker) -> None:
    """Else a rebuild from objects alone could give an offset to two records."""
    directory = broker.broker.writes.directory
    assert getattr(directory.objects._floors, "__func__", None) is NotedFacts.floors


async def test_members_that_wait_are_answered_before_a_stop_waits_for_them(tmp_path: Path) -> None:
    settings = {"group.initial.rebalance.delay.ms": "600000", "server.stop.timeout.ms": "5000"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        member = await RawClient.connect(("127.0.0.1", broker.port))
        joining = asyncio.create_task(
            member.ask(
                *(11, 3),
                group_id="g",
                session_timeout=timedelta(minutes=1),
                rebalance_timeout=timedelta(minutes=1),
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
        )
        server = broker.broker.server
        await until_on_loop(lambda: [len(one._queue) for one in server.connections] == [1])
        await asyncio.to_thread(broker.stop)
        assert (await joining).error_code == NOT_COORDINATOR
        await member.close()


def test_a_store_without_requests_that_cost_has_chunks_sealed_for_it(broker: LiveBroker) -> None:
    config = broker.broker.base.config
    settings = broker.broker.storage.wal_settings
    assert settings == for_directory(config.wal, config.explicit) != config.wal


def test_snapshots_are_taken_by_who_leads_as_the_state_grows(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = broker.broker.coordination
    keeper, (partition,) = coordination.workers_at_work[0].snapshots, coordination.partitions
    assert keeper._applied_bytes() == partition.replica.applied_bytes > 0

    async def is_leading_without_coordinator() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(partition, "coordinator", None)
            return keeper._is_leading()

    assert keeper._is_leading()
    assert not broker.run(is_leading_without_coordinator())


def test_brokers_need_not_log_in_again_where_clients_must(shared: LiveBroker) -> None:
    rules = shared.broker.server._shared.logins
    lasting = {name: one.lasting for name, one in rules.items()}
    assert lasting == {"CLIENTS": (), "BROKERS": (BROKER_USER,)}
    for one in rules.values():
        assert (one.max_reauth_ms, one.receive_max_bytes) == (1_234, 4_321)


def test_partitions_know_who_should_lead_them_and_when_to_let_go(shared: LiveBroker) -> None:
    partitions = shared.broker.coordination.partitions
    for partition in partitions:
        assert partition._ranks is partitions[0]._ranks is not None
        assert partition._pace is partitions[0]._pace is not None


def test_coordinators_reach_each_other_and_groups_hear_what_they_decide(shared: LiveBroker) -> None:
    coordination = shared.broker.coordination
    for partition in coordination.partitions:
        heard = [(one.func, one.args) for one in partition.replica._offset_listeners]  # type: ignore[attr-defined]
        assert (coordination.groups.offsets_ended, (partition.index,)) in heard
        assert partition._note_place is not None, "what sinks commit is noted"
    listeners = coordination.partitions[CATALOGUE].replica._topic_listeners
    assert TopicsWith.changed in [getattr(one, "__func__", None) for one in listeners]
    assert coordination.local.topics.peers is coordination.client


def test_every_worker_runs(shared: LiveBroker) -> None:
    async def running() -> Mapping[str, int]:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return {name: names.count(f"{name}.run") for name in RUNNING}

    until(lambda: shared.run(running()) == RUNNING, "all of them", deadline_s=20)
