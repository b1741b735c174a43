"""A worker tells its load, and gives up the connection that makes it even with another."""

import asyncio

import pytest

from diskless.workers.connections.balance import Load
from diskless.workers.connections.heavy_connections import HeavyConnections, heaviest_to_go
from tests.support.brokers.kafka_fakes import connected
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import a_batch, frame, produce_frame
from wal.clock import ManualClock


@pytest.mark.parametrize(
    ("moved", "difference", "chosen"),
    [
        # Half of the difference, or what is nearest to it.
        ({"a": 50, "b": 30, "c": 20}, 0.6, "b"),
        ({"a": 50, "b": 30, "c": 20}, 1.0, "a"),
        ({"a": 50, "b": 30, "c": 20}, 0.3, "c"),
        # It would carry the whole difference to the other side.
        ({"a": 100, "b": 0}, 1.0, None),
        ({"a": 99, "b": 1}, 1.0, None),
        ({"a": 0, "b": 0}, 1.0, None),
        ({}, 1.0, None),
    ],
)
def test_which_connection_makes_two_workers_even(
    moved: dict[str, int], difference: float, chosen: str | None
) -> None:
    assert heaviest_to_go(moved, cores=1.0, difference_cores=difference) == chosen


async def test_a_load_is_what_the_processor_took_in_the_time_that_passed() -> None:
    clock, told = ManualClock(), list[Load]()
    taken = iter((5.0, 5.5, 7.5))

    async def sleep(delay: float) -> None:
        if len(told) == 2:
            await asyncio.Event().wait()
        clock.advance(2 * delay)

    async with connected() as (broker, _):
        heavy = HeavyConnections(
            broker.server, told.append, clock=clock, sleep=sleep, processor_time=taken.__next__
        )
        task = asyncio.ensure_future(heavy.tell_loads())
        await until(lambda: len(told) == 2)
        task.cancel()
    assert told == [Load(0.25, False), Load(1.0, False)]


async def test_the_connection_that_goes_is_answered_first_and_the_others_stay() -> None:
    async with connected(partitions=1) as (broker, busy):
        quiet = await broker.connect()
        clock, processor = ManualClock(), iter((0.0, 1.0))

        async def sleep(delay: float) -> None:
            """What goes on while a worker watches, between two looks at its load."""
            clock.advance(delay)
            if is_watching:
                for client, size_bytes in ((busy, 600_000), (quiet, 300_000)):
                    await client.send(produce_frame(1, [a_batch(size_bytes)]))
                    assert (await client.receive())[0] == 1
                broker.manager.hold = True
                await busy.send(produce_frame(2, [a_batch()]))
                await until(lambda: len(broker.manager.held) == 1)

        told, is_watching = list[Load](), False
        heavy = HeavyConnections(
            broker.server,
            told.append,
            clock=clock,
            sleep=sleep,
            processor_time=processor.__next__,
        )
        with pytest.raises(RuntimeError):
            await heavy.tell_loads()
        assert told == [Load(1.0, False)]
        wanted: asyncio.Queue[float] = asyncio.Queue()
        giving = asyncio.ensure_future(heavy.give_up_when_asked(wanted))
        wanted.put_nowait(1.2)
        is_watching = True
        await until(lambda: heavy.given_up == 1)
        await busy.send(frame(18, 0, 3, b""))
        broker.manager.release_held()
        assert (await busy.receive())[0] == 2
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await busy.receive()
        await quiet.send(frame(18, 0, 4, b""))
        assert (await quiet.receive())[0] == 4
        giving.cancel()
