"""The wire client: time that is up, limits, leaving, log-ins that become stale."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metadata import operations as ops
from metadata.clients import wire_client
from tests.support.wire.wire_calls import (
    FILE,
    PARTITION,
    READ,
    SOON_MS,
    a_door,
    at_once,
    client_of,
    connected,
    nothing,
    offset_of,
)
from tests.support.wire.wire_server import Received, WireServer
from wal.clock import ManualClock
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    Overloaded,
)

# --- time -----------------------------------------------------------------------------------------


async def test_a_change_that_is_not_answered_in_time_may_have_happened() -> None:
    async with connected(nothing) as (client, _):
        with pytest.raises(CommitOutcomeUnknown, match="within 50 ms"):
            await client.commit_file(FILE, timeout_ms=SOON_MS)
        with pytest.raises(CommitFailed, match="within 50 ms"):
            await client.list_offsets(READ, timeout_ms=SOON_MS)


def holding_the_first() -> Callable[[Received], Awaitable[None]]:
    """Answers nothing until a second request has come."""
    held: list[Received] = []

    async def answer(received: Received) -> None:
        held.append(received)
        if len(held) > 1:
            for one in held:
                await at_once(one)

    return answer


async def test_a_late_answer_goes_to_nobody_else() -> None:
    async with connected(holding_the_first()) as (client, server):
        with pytest.raises(CommitFailed):
            await offset_of(client, 1, timeout_ms=SOON_MS)
        assert await offset_of(client, 2) == 2
        assert server.connections == 1


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async with connected(holding_the_first()) as (client, server):
        given_up = asyncio.create_task(offset_of(client, 1))
        await server.until_received(1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await offset_of(client, 2) == 2


async def test_a_peer_that_answers_nothing_any_more_is_given_up() -> None:
    is_dead = True

    async def dead_at_first(received: Received) -> None:
        if not is_dead:
            await at_once(received)

    clock = ManualClock()
    async with connected(dead_at_first, clock) as (client, server):
        waiting = asyncio.create_task(client.commit_file(FILE))
        await asyncio.sleep(0)
        with pytest.raises(CommitFailed, match="within"):
            await client.list_offsets(READ, timeout_ms=SOON_MS)
        # Not yet: the peer may be busy with the commit.
        clock.advance(60.0)
        with pytest.raises(CommitFailed, match="within"):
            await client.list_offsets(READ, timeout_ms=SOON_MS)
        assert not waiting.done()
        clock.advance(wire_client.OVERDUE_S + 0.1)
        with pytest.raises(CommitFailed, match="next attempt"):
            await client.list_offsets(READ)
        with pytest.raises(CommitOutcomeUnknown, match="does not answer any more"):
            await waiting
        is_dead = False
        clock.advance(wire_client.RETRY_MAX_S)
        assert await offset_of(client) == 7
        assert server.connections == 2


# --- limits, the end ------------------------------------------------------------------------------


async def test_what_is_under_way_is_bounded() -> None:
    async with connected(nothing, in_flight_max=3) as (client, server):
        waiting = [asyncio.create_task(client.commit_file(FILE)) for _ in range(3)]
        await server.until_received(3)
        with pytest.raises(Overloaded):
            await client.commit_file(FILE)
        # Giving up does not make room: the peer still owes the answers.
        waiting[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await client.commit_file(FILE)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_peer_that_does_not_read_holds_a_bounded_amount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_client, "UNSENT_BYTES_MAX", 1 << 20)
    reading = asyncio.Event()

    async def stuck(received: Received) -> None:
        await reading.wait()

    many = [ops.DeleteRecords(PARTITION, 5)] * 20_000
    async with connected(stuck) as (client, _):
        waiting = []
        overloaded = 0
        for _ in range(100):
            waiting.append(asyncio.create_task(client.delete_records(many)))
            await asyncio.sleep(0)
            if client._connection is not None:
                assert client._connection.unsent_bytes <= 1 << 20
        for task in waiting:
            if task.done() and isinstance(task.exception(), Overloaded):
                overloaded += 1
            task.cancel()
        assert overloaded > 0
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_leaving_fails_what_waits_and_everything_after() -> None:
    async with WireServer(nothing) as server:
        async with client_of(server) as client:
            waiting = asyncio.create_task(client.commit_file(FILE))
            await server.until_received(1)
        with pytest.raises(CommitOutcomeUnknown, match="closed"):
            await waiting
        with pytest.raises(CommitFailed, match="closed"):
            await client.commit_file(FILE)
        assert server.connections == 1


async def test_leaving_while_connecting_opens_nothing() -> None:
    connecting, slowly = a_door()
    async with WireServer(at_once) as server:
        async with client_of(server, connect=slowly) as client:
            waiting = asyncio.create_task(client.commit_file(FILE))
            await asyncio.sleep(0)
        connecting.set()
        with pytest.raises(CommitFailed, match="closed"):
            await waiting
        assert server.received == []


# --- log-ins that become stale --------------------------------------------------------------------


async def test_a_stale_log_in_is_replaced_when_all_that_was_sent_is_answered() -> None:
    stale: list[bool] = []
    held: list[Received] = []

    async def log_in(address: str, ask: Any, rng: random.Random) -> Callable[[], bool]:
        number = len(stale)
        stale.append(False)
        return lambda: stale[number]

    async def hold(received: Received) -> None:
        held.append(received)

    async with connected(hold, log_in=log_in) as (client, server):
        first = asyncio.create_task(offset_of(client, 1))
        await server.until_received(1)
        stale[0] = True
        others = [asyncio.create_task(offset_of(client, number)) for number in (2, 3)]
        await asyncio.sleep(0)
        assert len(stale) == 1
        await at_once(held.pop())
        assert await first == 1
        await server.until_received(3)
        assert server.connections == len(stale) == 2
        for received in held:
            await at_once(received)
        assert await asyncio.gather(*others) == [2, 3]


async def test_a_stale_log_in_without_use_is_no_fault_of_the_peer() -> None:
    stale: list[bool] = []

    async def log_in(address: str, ask: Any, rng: random.Random) -> Callable[[], bool]:
        is_stale = not stale
        stale.append(is_stale)
        return lambda: is_stale

    async with connected(at_once, log_in=log_in) as (client, server):
        await client.connect()
        assert await offset_of(client) == 7
        assert server.connections == 2
