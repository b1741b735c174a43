"""Memory to read into: used again when nobody can see it any more, and never before."""

import random
from concurrent.futures import ThreadPoolExecutor

from diskless.fetch.read_memory import KEPT_FROM_BYTES, REGIONS_MAX, ReadMemory

MUCH = 16 << 20


def address_of(view: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    memory = ReadMemory(MUCH)
    first = memory.lend(100_000)
    where = address_of(first)
    part = first[5:9][1:3]
    del first
    other = memory.lend(100_000)
    assert address_of(other) != where, "a slice of a slice still shows it"
    part.release()
    assert memory.idle_bytes == 128 << 10
    assert address_of(memory.lend(90_000)) == where


def test_the_latest_that_is_not_far_too_large_is_lent() -> None:
    memory = ReadMemory(MUCH)
    small, large, latest = memory.lend(100_000), memory.lend(4 << 20), memory.lend(120_000)
    wheres = [address_of(view) for view in (small, large, latest)]
    del small
    del latest
    del large
    again = [memory.lend(length) for length in (110_000, 110_000, 4 << 20)]
    assert [address_of(view) for view in again] == [wheres[2], wheres[0], wheres[1]]
    assert memory.idle_bytes == 0


def test_what_is_kept_has_a_limit_and_the_oldest_goes_first() -> None:
    memory = ReadMemory(4 << 20)
    views = [memory.lend(1 << 20) for _ in range(6)]
    latest = address_of(views[-1])
    while views:
        del views[0]
        assert memory.idle_bytes <= 4 << 20
    assert memory.idle_bytes == 4 << 20
    assert address_of(memory.lend(1 << 20)) == latest
    many = [memory.lend(KEPT_FROM_BYTES) for _ in range(REGIONS_MAX + 5)]
    del many
    assert memory.idle_bytes <= REGIONS_MAX * KEPT_FROM_BYTES + (4 << 20)


def test_little_memory_and_too_much_are_not_kept() -> None:
    memory = ReadMemory(1 << 20)
    for length in (0, 1, KEPT_FROM_BYTES // 2, (1 << 20) + 1, 50 << 20):
        assert len(memory.lend(length)) == length
        assert memory.idle_bytes == 0
    assert len(ReadMemory(0).lend(1 << 20)) == 1 << 20


def test_threads_never_see_each_others_bytes() -> None:
    memory = ReadMemory(2 << 20)

    def read(seed: int) -> bool:
        rng = random.Random(seed)
        for _ in range(200):
            views = [memory.lend(rng.randrange(KEPT_FROM_BYTES, 300_000)) for _ in range(3)]
            for view in views:
                view[:64] = bytes([seed]) * 64
            if any(view[:64] != bytes([seed]) * 64 for view in views):
                return False
        return True

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(read, range(8)))
