"""A broker's parts know each other, and have their settings: what no other test would miss.

Each of these arguments has a default, so that a broker without it starts, answers, and is slower or
less limited than it was told to be.
"""

import asyncio
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from diskless.topics.noted_facts import NotedFacts
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.loops.until import until as until_on_loop
from tests.support.questions.kafka_raw_client import RawClient, a_batch, frame, produce_frame
from tests.support.security.certificates import Certificates
from wal.chunks.uploader import Uploader

FIRST, FEW, ASKING = range(3)
"""The listeners."""
NOT_COORDINATOR = 16


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
    assert loop._put_at_once == uploader.put_at_once
    assert uploader._on_progress == loop.look_again
    monkeypatch.setattr(Uploader, "under_way", 7)
    assert loop._under_way() == 7
    assert uploader._thread_puts is broker.broker.storage.store.thread_puts is not None


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
    assert getattr(directory._floors, "__func__", None) is NotedFacts.floor


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
