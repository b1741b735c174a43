"""The TCP server with real sockets: order, limits, bad clients, stopping; on both event loops."""

import asyncio
import struct
import time
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from diskless.loop.long_work import Steps
from diskless.loop.read_turns import READS_MAX
from diskless.server.registry import Api, ApiRegistry, Deferred, MustClose, Outcome, Reply, Request
from tests.support.brokers.kafka_fakes import connected, running_broker
from tests.support.brokers.server_tests import call_private, on_both_loops, private_api
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import (
    RawClient,
    a_batch,
    fetch_frame,
    frame,
    produce_frame,
)
from wal.clock import ManualClock
from wal.errors import InvalidRecord, ObjectStoreUnavailable

API_VERSIONS_0 = frame(18, 0, 1, b"")

UNSERVED_KEY, OTHER_UNSERVED_KEY = 53, 54
"""Begin- and EndQuorumEpoch: API keys that no part of the broker takes."""


# --- order


@on_both_loops
async def test_answers_leave_in_request_order_whichever_is_ready_first():
    async with connected(partitions=1) as (broker, client):
        broker.manager.hold = True
        await client.send(*(produce_frame(i, [a_batch(fill=i)]) for i in range(1, 6)))
        await until(lambda: len(broker.manager.held) == 5)
        await client.send(frame(18, 0, 6, b""))
        await until(lambda: broker.metrics.received["ApiVersions"] == 1)
        for _ in range(5):
            broker.manager.release_held(-1)
        assert [(await client.receive())[0] for _ in range(6)] == [1, 2, 3, 4, 5, 6]


@on_both_loops
async def test_batches_of_a_connection_are_handed_on_in_order_without_waiting():
    async with connected(partitions=1) as (broker, client):
        broker.manager.hold = True
        batches = [a_batch(1_000 + 137 * i, fill=i) for i in range(200)]
        await client.send(*(produce_frame(i, [batch]) for i, batch in enumerate(batches)))
        await until(lambda: len(broker.manager.appended) == 200)
        assert broker.manager.appended == batches
        while broker.manager.held:
            broker.manager.release_held()
        assert [(await client.receive())[0] for _ in range(200)] == list(range(200))
        assert broker.server.statistics().request_bytes_held == 0
        assert broker.pool.statistics().in_use_bytes == 0


@on_both_loops
async def test_a_parked_fetch_ends_early_when_a_later_answer_is_ready():
    async with connected(partitions=1) as (broker, client):
        await client.send(fetch_frame(1, max_wait_ms=3_600_000))
        await until(lambda: broker.manager.fetches_running == 1)
        await client.send(frame(18, 0, 2, b""))
        assert (await client.receive())[0] == 1
        assert (await client.receive())[0] == 2


@on_both_loops
async def test_a_fetch_that_comes_to_its_turn_before_a_ready_answer_does_not_park():
    async with connected(partitions=1) as (broker, client):
        broker.manager.hold = True
        # min_bytes that are never there: only the early end lets it go.
        await client.send(
            produce_frame(1, [a_batch()]),
            fetch_frame(2, max_wait_ms=3_600_000, min_bytes=1 << 19),
            frame(18, 0, 3, b""),
        )
        await until(lambda: broker.metrics.received["ApiVersions"] == 1)
        assert broker.manager.fetches_running == 0
        broker.manager.release_held()
        assert [(await client.receive())[0] for _ in range(3)] == [1, 2, 3]


@on_both_loops
async def test_a_produce_that_is_half_received_is_known_until_it_is_whole_or_will_never_be():
    async with running_broker() as broker:
        broker.topics.add("t")
        arrivals = broker.server._shared.arrivals
        first, second = await broker.connect(), await broker.connect()
        whole = produce_frame(1, [a_batch()])
        await first.send(whole[:-1])
        await second.send(whole[: len(whole) // 2])
        await until(lambda: arrivals.unfinished == 2)
        await first.send(whole[-1:])
        assert (await first.receive())[0] == 1
        assert arrivals.unfinished == 1
        await second.close()
        await until(lambda: arrivals.unfinished == 0)
        await first.send(frame(18, 0, 2, b"")[:-1])
        await until(lambda: broker.open_connections == 1)
        assert arrivals.unfinished == 0


@on_both_loops
async def test_acks_0_is_not_answered_and_the_next_answer_follows():
    async with connected(partitions=1) as (broker, client):
        await client.send(produce_frame(1, [a_batch()], acks=0), frame(18, 0, 2, b""))
        assert (await client.receive())[0] == 2
        assert len(broker.manager.appended) == 1


@on_both_loops
async def test_a_refused_batch_under_acks_0_closes_the_connection():
    async with running_broker() as broker:
        broker.manager.append_error = InvalidRecord("no")
        client = await broker.connect()
        await client.send(produce_frame(1, [a_batch()], acks=0))
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"no answer possible": 1}


@on_both_loops
async def test_who_sends_many_requests_before_it_is_answered_has_a_backlog_and_others_have_none():
    async with running_broker(clock=ManualClock()) as broker:
        turns = broker.server._shared.turns
        many = await broker.connect()
        await many.send(*(frame(18, 0, number, b"") for number in range(200)))
        assert [(await many.receive())[0] for _ in range(200)] == list(range(200))
        assert not turns.are_others_served
        few = await broker.connect()
        await few.send(*(frame(18, 0, number, b"") for number in range(5)))
        assert [(await few.receive())[0] for _ in range(5)] == list(range(5))
        assert turns.are_others_served
        await few.close()
        await until(lambda: broker.open_connections == 1)
        assert not turns.are_others_served


@on_both_loops
async def test_what_is_sent_in_one_go_is_a_backlog_before_the_first_of_it_begins():
    reading: list[int] = []
    may_end = asyncio.Event()

    async def read(request: Request) -> Reply:
        async with request.read_turn:
            reading.append(request.client.connection_id)
            await may_end.wait()
        return [b"done"]

    async with running_broker(apis=_with(read)) as broker:
        many, one = await broker.connect(), await broker.connect()
        await many.send(*(frame(UNSERVED_KEY, 0, number, b"") for number in range(20)))
        await until(lambda: broker.metrics.received["Broken"] == 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(reading) == READS_MAX
        await one.send(frame(UNSERVED_KEY, 0, 0, b""))
        await until(lambda: len(reading) > READS_MAX)
        assert reading[-1] != reading[0]
        may_end.set()
        assert await one.receive() == (0, b"done")
        assert [await many.receive() for _ in range(20)] == [(at, b"done") for at in range(20)]


# --- bad bytes


def _announcing(length: int, key: int = 0, version: int = 9) -> bytes:
    return struct.pack(">ihh", length, key, version)


BAD_STARTS = {
    "negative length": _announcing(-1),
    "length zero": _announcing(0),
    "shorter than a header": _announcing(9),
    "just over the limit": _announcing((100 << 20) + 1),
    "two gibibytes": _announcing(2**31 - 1),
    "TLS client hello": bytes.fromhex("16030100c8010000c403031f"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown key": _announcing(100, key=9_999),
    "negative key": _announcing(100, key=-1),
    "version too old": _announcing(100, key=0, version=2),
    "version too new": _announcing(100, key=0, version=999),
    "negative version": _announcing(100, key=18, version=-1),
    "control request of 50 MiB": _announcing(50 << 20, key=3, version=9),
    "body of garbage": frame(3, 9, 1, b"\xff" * 40),
    "array bomb": frame(3, 9, 1, b"\xff\xff\xff\xff\x0f"),
    "varint of 35 bits": frame(3, 9, 1, b"\x9b\xdf\xe7\xb8\x60" + b"x" * 40),
    "header only": frame(3, 9, 1, b""),
    "produce with a lying length": frame(
        0, 9, 1, b"\x00\xff\xff\0\0\0\1\2\2t\2\0\0\0\0\xff\xff\x7f"
    ),
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
    "tags beyond the frame": struct.pack(">ihhih", 15, 3, 9, 1, -1) + b"\xff\xff\xff\xff\x0f",
}


@pytest.mark.parametrize("name", list(BAD_STARTS))
@on_both_loops
async def test_bad_bytes_close_their_connection_and_no_other(name):
    async with running_broker() as broker:
        good = await broker.connect()
        bad = await broker.connect()
        await until(lambda: broker.open_connections == 2)
        await bad.send(BAD_STARTS[name])
        assert await bad.is_closed_by_server()
        await until(lambda: broker.open_connections == 1)
        assert broker.metrics.cut == {"bad request": 1}
        assert broker.server.statistics().request_bytes_held == 0
        assert broker.pool.statistics().in_use_bytes == 0
        await good.call(18, 0)


@on_both_loops
async def test_a_large_announcement_allocates_nothing():
    async with connected() as (broker, client):
        await client.send(_announcing(100 << 20, key=0, version=9))
        await until(lambda: broker.server.statistics().request_bytes_held > 0)
        assert broker.pool.statistics().in_use_bytes <= 128 << 10


@on_both_loops
async def test_apiversions_above_ours_is_answered_in_version_0_with_our_range():
    async with connected() as (_, client):
        header = struct.pack(">hhi", 18, 99, 5) + b"whatever a later version puts here"
        await client.send(struct.pack(">i", len(header)) + header)
        correlation_id, rest = await client.receive()
        assert correlation_id == 5
        assert rest == struct.pack(">hihhh", 35, 1, 18, 0, 4)
        software = {"client_software_name": "raw", "client_software_version": "1.0"}
        assert len((await client.call(18, 4, 6, **software)).api_keys) >= 11


# --- handlers that work in slices


def _counting_down(effects: list[int]) -> Any:
    """As many steps as the request says, an effect, and as many again for the answer."""

    def handle(request: Request) -> Steps[Outcome]:
        before, after = struct.unpack(">ii", request.body)
        yield from _counted(before)
        effects.append(before)

        def encode(_: None) -> Steps[Reply]:
            yield from _counted(after)
            return [request.body]

        async def nothing() -> None:
            pass

        return Deferred(nothing(), encode, None)

    return handle


def _counted(count: int) -> Steps[None]:
    for _ in range(count):
        time.sleep(0.0001)
        yield


@on_both_loops
async def test_requests_of_a_connection_take_effect_in_order_whatever_their_size():
    effects: list[int] = []
    async with running_broker(apis=_with(_counting_down(effects))) as broker:
        client, other = await broker.connect(), await broker.connect()
        sizes = [300, 0, 100, 0]
        bodies = [
            frame(UNSERVED_KEY, 0, at, struct.pack(">ii", n, n)) for at, n in enumerate(sizes)
        ]
        await client.send(*bodies)
        # Somebody else is served meanwhile.
        await other.call(18, 0)
        assert 300 not in effects
        assert [await client.receive() for _ in sizes] == [
            (at, struct.pack(">ii", size, size)) for at, size in enumerate(sizes)
        ]
        assert effects == sizes
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


@on_both_loops
async def test_an_answer_in_slices_is_given_up_when_its_client_goes():
    effects: list[int] = []
    async with connected(apis=_with(_counting_down(effects))) as (broker, client):
        await client.send(frame(UNSERVED_KEY, 0, 1, struct.pack(">ii", 0, 1 << 30)))
        await until(lambda: effects == [0])
        await client.close()
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


@on_both_loops
async def test_a_handler_in_slices_ends_with_the_server():
    effects: list[int] = []
    async with running_broker(apis=_with(_counting_down(effects)), stop_timeout_ms=0) as broker:
        client = await RawClient.connect(broker.server.address)
        await client.send(frame(UNSERVED_KEY, 0, 1, struct.pack(">ii", 1 << 30, 0)))
        await until(lambda: broker.metrics.received["Broken"] == 1)
    assert effects == []
    assert await client.is_closed_by_server()
    await client.close()


# --- handlers that fail


def _with(handler: Any) -> ApiRegistry:
    return ApiRegistry(
        [
            Api(
                key=UNSERVED_KEY,
                name="Broken",
                versions=range(1),
                flexible_from=None,
                handler=handler,
            )
        ]
    )


def _breaks_at_once(request: Request) -> Any:
    raise RuntimeError("a bug")


async def _breaks_later(request: Request) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


@pytest.mark.parametrize("handler", [_breaks_at_once, _breaks_later])
@on_both_loops
async def test_a_bug_in_a_handler_closes_its_connection_only(handler):
    async with running_broker(apis=_with(handler)) as broker:
        good = await broker.connect()
        client = await broker.connect()
        await client.send(frame(UNSERVED_KEY, 0, 1, b""))
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"handler failed": 1}
        await good.call(18, 0)
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


async def test_failing_handlers_write_one_line_a_second_for_each_api():
    clock = ManualClock()
    apis = _with(_breaks_at_once)
    apis.add(replace(apis.find(UNSERVED_KEY), key=OTHER_UNSERVED_KEY, name="BrokenToo"))

    async def break_it(key: int) -> None:
        client = await broker.connect()
        await client.send(frame(key, 0, 1, b""))
        assert await client.is_closed_by_server()

    async with running_broker(apis=apis, clock=clock) as broker:
        with capture_logs() as lines:
            for key in (UNSERVED_KEY, UNSERVED_KEY, OTHER_UNSERVED_KEY, UNSERVED_KEY):
                await break_it(key)
            clock.advance(1.0)
            await break_it(UNSERVED_KEY)
    found = [line for line in lines if line["event"] == "handler failed"]
    assert [(line["api"], line["suppressed"]) for line in found] == [
        ("Broken", 0),
        ("BrokenToo", 0),
        ("Broken", 2),
    ]
    assert all(isinstance(line["exc_info"], RuntimeError) for line in found)


@on_both_loops
async def test_an_error_of_the_whole_call_is_told_for_every_partition():
    async with running_broker() as broker:
        broker.topics.add("t")
        broker.manager.raises = ObjectStoreUnavailable("out")
        client = await broker.connect()
        await client.send(produce_frame(1, [a_batch()], version=3), fetch_frame(2, version=4))
        _, produced = await client.receive()
        assert produced == struct.pack(">ih1siihqqi", 1, 1, b"t", 1, 0, 56, -1, -1, 0)
        _, fetched = await client.receive()
        assert fetched == struct.pack(">iih1siihqqii", 0, 1, 1, b"t", 1, 0, 56, -1, -1, -1, 0)


@on_both_loops
async def test_a_private_api_is_served_and_not_advertised():
    async def reverse(request: Request) -> Reply:
        return [request.body[::-1]]

    async with connected(apis=ApiRegistry([private_api(reverse)])) as (_, client):
        await call_private(client, b"stressed")
        assert await client.receive() == (9, b"desserts")
        keys = {item.api_key for item in (await client.call(18, 2)).api_keys}
        assert 10_000 not in keys


@on_both_loops
async def test_an_api_can_refuse_by_closing():
    async def refuse(request: Request) -> Reply:
        raise MustClose("these bytes say nothing")

    async with connected(apis=ApiRegistry([private_api(refuse)])) as (broker, client):
        await call_private(client)
        assert await client.is_closed_by_server()
        assert broker.metrics.cut == {"no answer possible": 1}


def test_two_apis_may_not_share_a_key():
    async def answer(request: Request) -> Reply:
        return [request.body]

    with pytest.raises(ValueError, match="Private"):
        ApiRegistry([private_api(answer), private_api(answer)])


# --- clients that go away


@on_both_loops
async def test_a_client_that_goes_cancels_a_fetch_that_waits_for_a_future():
    asked: list[asyncio.Future[Any]] = []

    def fetch(requests: Any, **_: Any) -> asyncio.Future[Any]:
        asked.append(asyncio.get_running_loop().create_future())
        return asked[0]

    async with running_broker() as broker:
        broker.manager.fetch = fetch  # type: ignore[method-assign,assignment]
        client = await broker.connect()
        await client.send(fetch_frame(1, max_wait_ms=3_600_000))
        await until(lambda: bool(asked))
        await client.close()
        await until(lambda: broker.open_connections == 0)
        assert asked[0].cancelled()
        await until(lambda: broker.server.statistics().request_bytes_held == 0)


@on_both_loops
async def test_a_client_that_goes_cancels_its_fetch_but_not_its_append():
    async with connected(partitions=1) as (broker, client):
        broker.manager.hold = True
        await client.send(fetch_frame(1, max_wait_ms=3_600_000, min_bytes=1 << 19))
        await until(lambda: broker.manager.fetches_running == 1)
        await client.send(produce_frame(2, [a_batch()]))
        await until(lambda: len(broker.manager.held) == 1)
        await client.close()
        await until(lambda: broker.manager.fetches_running == 0)
        assert broker.manager.fetches_cancelled == 1
        await until(lambda: broker.open_connections == 0)
        assert not broker.manager.held[0].done()
        assert broker.server.statistics().request_bytes_held > 0
        broker.manager.release_held()
        await until(lambda: broker.server.statistics().request_bytes_held == 0)
        assert broker.pool.statistics().in_use_bytes == 0


@on_both_loops
async def test_a_client_that_goes_right_after_asking_leaves_nothing_behind():
    async with running_broker() as broker:
        broker.topics.add("t")
        for number in range(20):
            client = await broker.connect()
            await client.send(fetch_frame(number, max_wait_ms=3_600_000), b"\0\0\1")
            client.writer.transport.abort()
        await until(lambda: broker.open_connections == 0 and broker.manager.fetches_running == 0)
        await until(lambda: broker.server.statistics().request_bytes_held == 0)
        assert broker.pool.statistics().in_use_bytes == 0
