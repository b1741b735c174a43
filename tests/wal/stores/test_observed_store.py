"""What the outcomes of operations tell of a store; its contract is checked with the others."""

import asyncio

import pytest

from tests.support.stores.faulty_store import FaultyStore, StoreFaults
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody
from wal.stores.observed_store import ObservedStore, StoreReach

KEY = ObjectKey("wal/3f/01HZZZZZZZZZZZZZZZZZZZZZZZ")
AWAY = ObjectStoreUnavailable("away")


class Observed:
    """A store in memory behind faults and behind notes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.faults = StoreFaults()
        self.reach = StoreReach("memory://", clock=self.clock)
        store = FaultyStore(MemoryStore(clock=self.clock), self.faults)
        self.store = ObservedStore(store, self.reach)


@pytest.fixture
def observed() -> Observed:
    return Observed()


async def test_an_answer_is_an_answer_whatever_it_says(observed: Observed) -> None:
    store, clock, reach = observed.store, observed.clock, observed.reach
    clock.advance(7)
    assert reach.unreached_s() == 7
    await store.put(KEY, BytesBody(b"here"))
    assert reach.unreached_s() == 0
    clock.advance(7)
    with pytest.raises(ObjectNotFound):
        await store.get(ObjectKey("other"))
    assert reach.unreached_s() == 0
    clock.advance(7)
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(b"else"))
    assert (reach.unreached_s(), reach.writes_failing_s()) == (0, 0)
    clock.advance(7)
    assert [stat async for stat in store.list("none")] == []
    assert reach.unreached_s() == 0
    clock.advance(7)
    assert list(await store.delete([KEY])) == [KEY]
    assert reach.unreached_s() == 0


@pytest.mark.parametrize("error", [AWAY, UploadOutcomeUnknown("who knows")])
async def test_puts_that_fail_in_a_row_are_counted_from_the_first_of_them(
    observed: Observed, error: Exception
) -> None:
    store, clock, reach, faults = observed.store, observed.clock, observed.reach, observed.faults
    faults.put_error = error
    for _ in range(3):
        with pytest.raises(type(error)):
            await store.put(KEY, BytesBody(b"x"))
        clock.advance(5)
    assert reach.writes_failing_s() == 15
    assert reach.last_error == str(error)
    # Reading goes on, and does not make it better.
    with pytest.raises(ObjectNotFound):
        await store.get(KEY)
    assert (reach.unreached_s(), reach.writes_failing_s()) == (0, 15)
    faults.heal()
    await store.put(KEY, BytesBody(b"x"))
    assert reach.writes_failing_s() == 0


async def test_a_cancellation_and_the_callers_own_error_tell_nothing(observed: Observed) -> None:
    store, clock, reach, faults = observed.store, observed.clock, observed.reach, observed.faults
    clock.advance(7)
    faults.put_delay_s = 60
    putting = asyncio.create_task(store.put(KEY, BytesBody(b"x")))
    await asyncio.sleep(0)
    putting.cancel()
    await asyncio.wait([putting])
    faults.heal()
    faults.put_error = CorruptObject("a body that is shorter than it says")
    with pytest.raises(CorruptObject):
        await store.put(KEY, BytesBody(b"x"))
    assert (reach.unreached_s(), reach.writes_failing_s(), reach.last_error) == (7, 0, "")
