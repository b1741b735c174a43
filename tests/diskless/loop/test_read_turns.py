"""Turns for reading: few of those with a backlog at a time, everybody else at once."""

import asyncio

from diskless.loop.read_turns import READS_MAX, REST_MAX_S, ReadTurn, ReadTurns
from wal.clock import ManualClock


def turns_alone() -> ReadTurns:
    """Nobody but those who read is served."""
    return ReadTurns(ManualClock(), lambda: False)


class Reads:
    """Reads that go on until they are told to end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

    async def read(self, name: str, turn: ReadTurn) -> None:
        async with turn:
            self.begun.append(name)
            await self.may_end.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_few_with_a_backlog_read_at_a_time_and_all_others_at_once() -> None:
    turns, reads = turns_alone(), Reads()
    async with asyncio.TaskGroup() as tasks:
        for number in range(READS_MAX + 3):
            tasks.create_task(reads.read(f"backlog {number}", turns.of(lambda: True)))
        await settle()
        assert reads.begun == [f"backlog {number}" for number in range(READS_MAX)]
        tasks.create_task(reads.read("fresh", turns.of(lambda: False)))
        await settle()
        assert reads.begun[-1] == "fresh"
        reads.may_end.set()
    assert reads.begun[-3:] == [f"backlog {READS_MAX + number}" for number in range(3)]


async def test_a_reader_that_gives_up_leaves_no_turn_taken() -> None:
    turns, reads = turns_alone(), Reads()
    readers = [
        asyncio.create_task(reads.read(str(number), turns.of(lambda: True)))
        for number in range(2 * READS_MAX)
    ]
    await settle()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    reads.may_end.set()
    async with asyncio.timeout(120):
        await asyncio.gather(
            *(reads.read("next", turns.of(lambda: True)) for _ in range(READS_MAX))
        )
    assert reads.begun[READS_MAX:] == ["next"] * READS_MAX


async def test_who_is_asked_again_takes_a_turn_only_while_it_has_a_backlog() -> None:
    turns = turns_alone()
    has_backlog = [True, False, True]
    turn = turns.of(lambda: has_backlog.pop())
    for _ in range(3):
        async with turn:
            pass
    assert has_backlog == []
    async with asyncio.timeout(120):
        for _ in range(READS_MAX):
            await turns.of(lambda: True).__aenter__()


async def test_while_others_are_served_a_turn_is_followed_by_a_rest() -> None:
    clock, others = ManualClock(), [True]
    turns, reads = ReadTurns(clock, lambda: others[0]), Reads()
    async with asyncio.TaskGroup() as tasks:
        for number in range(2 * READS_MAX):
            tasks.create_task(reads.read(str(number), turns.of(lambda: True)))
        await settle()
        clock.advance(REST_MAX_S * 1_000)
        reads.may_end.set()
        await settle()
        assert len(reads.begun) == READS_MAX
        tasks.create_task(reads.read("fresh", turns.of(lambda: False)))
        await settle()
        assert reads.begun[-1] == "fresh"
    assert len(reads.begun) == 2 * READS_MAX + 1
    others[0] = False
    async with asyncio.timeout(10):
        for _ in range(3):
            async with turns.of(lambda: True):
                clock.advance(REST_MAX_S)
