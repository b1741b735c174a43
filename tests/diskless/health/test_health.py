"""What `/livez` and `/readyz` of a broker say, from its start to its stop."""

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from diskless.broker_http import take_http_address
from diskless.config import load_config
from diskless.health.health import Health, LoopPulse
from diskless.health.health_settings import HealthSettings
from tests.support.brokers.live_broker import DEADLINE_S, ForwardClock, LiveBroker, until
from tests.support.clients.stock_clients import confluent_producer
from tests.support.ports import own_port
from tests.support.stores.faulty_store import StoreFaults
from wal.clock import ManualClock
from wal.errors import InvalidSettings, ObjectStoreUnavailable
from wal.stores.observed_store import StoreReach

UNREACHED_MAX_S = 3_600
"""No slow machine makes a broker complain by itself; a test puts the broker's clock forward."""

SETTINGS = {
    "http.listen": "127.0.0.1:0",
    "object.store.probe.interval.ms": "10",
    "object.store.unreached.max.ms": str(UNREACHED_MAX_S * 1000),
    "wal.commit.interval.ms": "5",
    "wal.retry.backoff.ms": "5",
    "wal.retry.backoff.max.ms": "20",
}


def asked(broker: LiveBroker, path: str) -> tuple[int, str]:
    """(status, body) of a path."""
    http = broker.broker.base.http
    assert http is not None
    return asked_at(http.port, path)


def asked_at(port: int, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def says(broker: LiveBroker, status: int, text: str) -> Callable[[], bool]:
    """Whether `/readyz` says so by now."""

    def is_so() -> bool:
        found, body = asked(broker, "/readyz")
        return found == status and text in body

    return is_so


def let_long_pass(broker: LiveBroker, clock: ForwardClock) -> None:
    """Put its clock forward past the limit, between two turns of its loop."""

    async def advance() -> None:
        clock.advance(UNREACHED_MAX_S + 1)

    broker.run(advance())


def until_it_misses_the_store(broker: LiveBroker, clock: ForwardClock) -> None:
    """Let long times pass until it says so: what was under way may still be answered once."""
    is_missed = says(broker, 503, "was not reached for")

    def is_said() -> bool:
        let_long_pass(broker, clock)
        return is_missed()

    until(is_said, "a broker that says so")


@pytest.fixture
def faults() -> StoreFaults:
    return StoreFaults()


@pytest.fixture
def clock() -> ForwardClock:
    return ForwardClock()


@pytest.fixture
def broker(tmp_path: Path, faults: StoreFaults, clock: ForwardClock) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener, clock=clock) as broker:
        yield broker
        faults.heal()


def test_a_broker_that_serves_is_live_and_ready(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", {"http.listen": "127.0.0.1:0"}) as broker:
        assert asked(broker, "/livez") == (200, "live\n")
        assert asked(broker, "/readyz") == (200, "ready\n")
        assert asked(broker, "/readyz?verbose=1") == (200, "ready\n")
        assert "diskless_ready 1.0" in asked(broker, "/metrics")[1]
        paths = "/livez\n/readyz\n/metrics\n/v1/\n"
        assert asked(broker, "/") == (404, f"not found; there are\n{paths}")


def test_an_idle_broker_whose_store_is_away_says_so_until_it_is_back(
    broker: LiveBroker, faults: StoreFaults, clock: ForwardClock
) -> None:
    with capture_logs() as logs:
        faults.outage()
        until_it_misses_the_store(broker, clock)
        until(says(broker, 503, "the store is away"), "a broker that knows why")
        _, body = asked(broker, "/readyz")
        assert body.splitlines() == [body.strip()]
        assert f"file://{broker.broker.base.data.objects}" in body
        assert "was not reached for" in body
        assert asked(broker, "/livez") == (200, "live\n")
        page = asked(broker, "/metrics")[1]
        assert "diskless_ready 0.0" in page
        (line,) = (
            row for row in page.splitlines() if row.startswith("diskless_object_store_unreached")
        )
        assert float(line.split()[1]) > UNREACHED_MAX_S
        until(lambda: any(row["log_level"] == "error" for row in logs), "a line in the log")
        faults.heal()
        until(says(broker, 200, "ready"), "a broker that is ready again")
        until(lambda: any("again" in row["event"] for row in logs), "another line in the log")
    told = [row["event"] for row in logs if "the object store is" in row["event"]]
    assert told == ["the object store is not reached", "the object store is reached again"]


def test_every_broker_of_a_cluster_says_that_it_does_not_reach_the_store(tmp_path: Path) -> None:
    shared = {
        **SETTINGS,
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path}/bucket",
        "diskless.metadata.follow.interval.ms": "10",
    }
    cut_off, sound = StoreFaults(), StoreFaults()
    first, second = ForwardClock(), ForwardClock()
    with (
        LiveBroker(
            tmp_path / "a", {**shared, "node.id": "1"}, opener=sound.opener, clock=first
        ) as leader,
        LiveBroker(
            tmp_path / "b", {**shared, "node.id": "2"}, opener=cut_off.opener, clock=second
        ) as follower,
    ):
        cut_off.outage()
        until_it_misses_the_store(follower, second)
        until(says(leader, 200, "ready\n"), "a leader that reaches it")
        sound.outage()
        until_it_misses_the_store(leader, first)
        for faults in (cut_off, sound):
            faults.heal()


def test_a_store_that_can_be_read_and_not_written_is_not_enough(
    broker: LiveBroker, faults: StoreFaults, clock: ForwardClock
) -> None:
    faults.put_error = ObjectStoreUnavailable("read-only")
    producer = confluent_producer(broker.bootstrap)
    producer.produce("t", b"waits")
    producer.poll(0)
    until(lambda: broker.broker.storage.reach.writes_failing_s() > 0, "a put that fails")
    let_long_pass(broker, clock)
    until(says(broker, 503, "has taken nothing for"), "a broker that is not ready")
    assert "read-only" in asked(broker, "/readyz")[1]
    faults.heal()
    assert producer.flush(DEADLINE_S) == 0
    until(says(broker, 200, "ready"), "a broker that is ready again")


def test_failed_puts_that_nobody_repeats_are_forgotten_when_a_probe_succeeds(
    broker: LiveBroker,
) -> None:
    broker.broker.storage.reach.failed(ObjectStoreUnavailable("once"), wrote=True)
    assert broker.broker.storage.reach.writes_failing_s() > 0
    until(lambda: not broker.broker.storage.reach.writes_failing_s(), "a probe that puts")


def test_a_store_that_hangs_holds_up_no_answer(tmp_path: Path) -> None:
    class Hanging(StoreFaults):
        is_hanging = False

        def opener(self, *arguments: Any, **options: Any) -> Any:
            store = super().opener(*arguments, **options)
            get = store.get

            async def hang(key: Any) -> bytes:
                if self.is_hanging:
                    await asyncio.Event().wait()
                return await get(key)

            store.get = hang  # type: ignore[method-assign]
            return store

    faults = Hanging()
    clock = ForwardClock()
    with LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener, clock=clock) as broker:
        faults.is_hanging = True
        until_it_misses_the_store(broker, clock)
        assert asked(broker, "/livez")[0] == 200


def test_a_stop_is_seen_before_anything_is_closed(tmp_path: Path, faults: StoreFaults) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS, opener=faults.opener) as broker:
        faults.put_error = ObjectStoreUnavailable("away")
        producer = confluent_producer(broker.bootstrap)
        producer.produce("t", b"waits")
        until(
            lambda: bool(producer.poll(0.001)) or faults.puts_tried > 3, "an upload that is tried"
        )
        with ThreadPoolExecutor(1) as stopping:
            stopped = stopping.submit(broker.stop)
            until(says(broker, 503, "stopping\n"), "a broker that is stopping")
            assert asked(broker, "/livez") == (200, "live\n")
            assert not stopped.done()
            faults.heal()
            stopped.result(DEADLINE_S)


def test_a_start_is_live_and_not_ready(tmp_path: Path) -> None:
    opening, let_go = threading.Event(), threading.Event()

    class Slow(StoreFaults):
        def opener(self, *arguments: Any, **options: Any) -> Any:
            opening.set()
            store = super().opener(*arguments, **options)
            put = store.put

            async def slow(key: Any, body: Any) -> None:
                await asyncio.to_thread(let_go.wait)
                await put(key, body)

            store.put = slow  # type: ignore[method-assign]
            return store

    port = own_port()
    settings = {**SETTINGS, "http.listen": f"127.0.0.1:{port}"}
    broker = LiveBroker(tmp_path / "data", settings, opener=Slow().opener)
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(broker.__enter__)
        try:
            assert opening.wait(DEADLINE_S)
            status, body = asked_at(port, "/readyz")
            assert (status, "starting: " in body) == (503, True)
            assert asked_at(port, "/livez") == (200, "live\n")
        finally:
            let_go.set()
            started.result(DEADLINE_S)
    until(says(broker, 200, "ready\n"), "a broker that is ready")
    broker.stop()


def test_each_condition_that_fails_is_a_line() -> None:
    clock = ManualClock()
    health = Health(HealthSettings())
    reach = StoreReach("s3://b", clock=clock)
    health.watch_store(reach)
    assert health.problems() == ["starting: what an earlier run left is being recovered"]
    health.started(lambda: [0, 3])
    clock.advance(31)
    health.stopping()
    assert health.problems() == [
        "stopping",
        "object store s3://b was not reached for 31 s",
        "no leader is known for metadata partition 0",
        "no leader is known for metadata partition 3",
    ]


async def test_a_loop_that_does_not_turn_is_not_live_and_one_that_turns_again_is() -> None:
    let_go = threading.Event()
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    pulse = LoopPulse(other)
    try:
        assert await pulse.beats(DEADLINE_S)
        other.call_soon_threadsafe(let_go.wait)
        asking = [asyncio.create_task(pulse.beats(0.01)) for _ in range(5)]
        assert not any([await one for one in asking])
        let_go.set()
        assert await pulse.beats(DEADLINE_S)
    finally:
        let_go.set()
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def address(settings: Mapping[str, str]) -> tuple[str, int] | None:
    bound = take_http_address(load_config(overrides=settings))
    if bound is None:
        return None
    with bound:
        host, port = bound.getsockname()
        return host, port


def test_an_address_that_was_asked_for_is_had_or_is_an_error(taken: int) -> None:
    with pytest.raises(InvalidSettings, match=rf"http\.listen: .*127\.0\.0\.1:{taken}"):
        address({"http.listen": f"127.0.0.1:{taken}"})
    assert address({"http.listen": ""}) is None
    with pytest.raises(InvalidSettings, match=r"http\.listen"):
        address({"http.listen": "9644"})


def test_when_only_the_default_is_taken_a_free_port_is_used_and_said() -> None:
    default = load_config().broker.http_listen
    host, _, port = default.partition(":")
    with capture_logs() as logs, ExitStack() as stack:
        # Somebody else may hold the default, and let it go between two of these.
        bound = [take_http_address(load_config()) for _ in range(3)]
        names = [stack.enter_context(one).getsockname() for one in bound if one is not None]
    assert len(names) == 3
    elsewhere = [f"{found[0]}:{found[1]}" for found in names if found[1] != int(port)]
    assert len(elsewhere) >= 2
    assert {found[0] for found in names} == {host}
    assert [(line["log_level"], line["used"]) for line in logs] == [
        ("warning", used) for used in elsewhere
    ]
    # Asked for by name it is an address like any other.
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((host, int(port)))
            holder.listen()
        except OSError:
            pass  # somebody else holds it, which is just as well
        with pytest.raises(InvalidSettings):
            address({"http.listen": default})
