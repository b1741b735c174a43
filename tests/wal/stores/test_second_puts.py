"""Second puts: which puts get one, what comes of both, and that nothing is left behind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreUnavailable, UploadOutcomeUnknown
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectBody
from wal.stores.second_puts import SEEN_MIN, SecondPuts

KEY = ObjectKey("wal/00/a")
BODY = BytesBody(b"x" * 1000)


class Store(MemoryStore):
    """Calls `on_put` with the number of the attempt on its key before it stores."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(clock=self.clock)
        self.attempts: dict[ObjectKey, int] = {}
        self.running = 0
        self.on_put: Callable[[int], Awaitable[None]] | None = None

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        attempt = self.attempts[key] = self.attempts.get(key, 0) + 1
        self.running += 1
        try:
            if self.on_put is None:
                self.clock.advance(0.001)
            else:
                await self.on_put(attempt)
            await super().put(key, body)
        finally:
            self.running -= 1


async def experienced(share: float = 0.02, puts: int = SEEN_MIN) -> tuple[Store, SecondPuts]:
    """Puts of a millisecond each were seen: two milliseconds are slow."""
    store = Store()
    second = SecondPuts(store, clock=store.clock, share=share)
    for number in range(puts):
        await second.put(ObjectKey(f"wal/01/{number}"), BODY)
    assert set(store.attempts.values()) == {1}
    return store, second


def hangs(*attempts: int) -> Callable[[int], Awaitable[None]]:
    async def on_put(attempt: int) -> None:
        if attempt in attempts:
            await asyncio.Event().wait()

    return on_put


async def test_an_outlier_is_put_again_and_the_first_attempt_is_aborted() -> None:
    store, second = await experienced()
    store.on_put = hangs(1)
    await second.put(KEY, BODY)
    assert await store.get(KEY) == b"x" * 1000
    assert store.attempts[KEY] == 2
    assert store.running == 0
    assert (second.second_puts, second.second_puts_first) == (1, 1)


async def test_the_first_attempt_may_still_be_stored_before_the_second() -> None:
    store, second = await experienced()
    second_began = asyncio.Event()

    async def on_put(attempt: int) -> None:
        if attempt == 2:
            second_began.set()
            await asyncio.Event().wait()
        await second_began.wait()

    store.on_put = on_put
    await second.put(KEY, BODY)
    assert store.running == 0
    assert (second.second_puts, second.second_puts_first) == (1, 0)


async def test_only_a_share_of_all_puts_is_made_twice_however_slow_the_store_becomes() -> None:
    store, second = await experienced(share=0.02, puts=100)

    async def slow(attempt: int) -> None:
        store.clock.advance(5)
        await asyncio.sleep(0.005)

    store.on_put = slow
    for number in range(100):
        await second.put(ObjectKey(f"wal/02/{number}"), BODY)
    assert 1 <= second.second_puts <= 4  # 2 % of 200 puts


async def test_nobody_who_has_seen_few_puts_of_a_size_calls_one_slow() -> None:
    store, second = await experienced(share=0.5)
    store.on_put = hangs(1)
    other_size = BytesBody(bytes(1 << 20))
    putting = asyncio.create_task(second.put(KEY, other_size))
    await asyncio.sleep(0.02)
    assert store.attempts[KEY] == 1
    putting.cancel()
    await asyncio.wait([putting])


@pytest.mark.parametrize("failing", [1, 2])
async def test_one_attempt_that_fails_is_made_up_for_by_the_other(failing: int) -> None:
    store, second = await experienced()
    both = asyncio.Barrier(2)
    failed = asyncio.Event()

    async def on_put(attempt: int) -> None:
        await both.wait()
        if attempt == failing:
            failed.set()
            raise ObjectStoreUnavailable("gone")
        await failed.wait()
        await asyncio.sleep(0)

    store.on_put = on_put
    await second.put(KEY, BODY)
    assert await store.get(KEY) == b"x" * 1000


@pytest.mark.parametrize("unknown", [1, 2])
async def test_where_both_fail_the_unknown_outcome_is_what_counts(unknown: int) -> None:
    store, second = await experienced()
    both = asyncio.Barrier(2)

    async def on_put(attempt: int) -> None:
        await both.wait()
        raise UploadOutcomeUnknown("?") if attempt == unknown else ObjectStoreUnavailable("gone")

    store.on_put = on_put
    with pytest.raises(UploadOutcomeUnknown):
        await second.put(KEY, BODY)


async def test_a_put_that_fails_soon_has_no_second_one() -> None:
    store, second = await experienced()

    async def fail(attempt: int) -> None:
        raise ObjectStoreUnavailable("gone")

    store.on_put = fail
    with pytest.raises(ObjectStoreUnavailable):
        await second.put(KEY, BODY)
    assert store.attempts[KEY] == 1


async def test_a_cancelled_put_ends_both_attempts_before_it_ends() -> None:
    store, second = await experienced()
    both = asyncio.Barrier(3)

    async def on_put(attempt: int) -> None:
        await both.wait()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.005)  # an attempt whose thread still reads the body

    store.on_put = on_put
    putting = asyncio.create_task(second.put(KEY, BODY))
    await both.wait()
    putting.cancel()
    await asyncio.wait([putting])
    assert putting.cancelled()
    assert store.running == 0


async def test_a_cancellation_that_comes_while_the_other_attempt_ends_is_not_lost() -> None:
    store, second = await experienced()
    ending = asyncio.Event()

    async def on_put(attempt: int) -> None:
        if attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await asyncio.sleep(0.005)

    store.on_put = on_put
    putting = asyncio.create_task(second.put(KEY, BODY))
    await ending.wait()
    putting.cancel()
    await asyncio.wait([putting])
    assert putting.cancelled()
    assert store.running == 0


async def test_none_is_made_where_they_are_switched_off() -> None:
    store, second = await experienced(share=0)
    store.on_put = hangs(1)
    putting = asyncio.create_task(second.put(KEY, BODY))
    await asyncio.sleep(0.02)
    assert store.attempts[KEY] == 1
    putting.cancel()
    await asyncio.wait([putting])
