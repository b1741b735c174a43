"""Long work on the event loop: a slice of it, then everybody else, then the next slice.

A request may have a hundred thousand rows, and a small request may have a large answer. Work that
grows with such numbers is written as *steps*: a generator that yields wherever it may be
interrupted, and returns its result. `LongWork` runs it. Work that is done within its first slice
never leaves the loop's callback, so a small request costs nothing more for it. The rest waits in
one queue for the whole broker, and one slice of one piece of work runs in each turn of the loop:
sockets are served in between, however many large requests there are.

Why not a thread: the work is Python, which holds the interpreter's lock. uvloop takes that lock
anew for every callback, and a thread that computes lets go of it only after
`sys.getswitchinterval()`, so each callback of the loop would wait 5 ms.

Rules for steps. The state of the broker may change where they yield, so a change of state is
finished before the next yield, as with `await`. What is walked is a copy, or never changes.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from diskless.loop.long_rows import as_list

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

Steps = Generator[Any, None, _Result]
"""Work that may be interrupted where it yields; gives its result when it returns."""

TURN: Final = True
"""What steps yield when they must not go on before the loop has had a turn."""

PORTION_ROWS: Final = 500
"""With how many rows something is called that walks them at once, for a few microseconds each."""

PORTION_TOPICS: Final = 100
"""As PORTION_ROWS, where each row makes or changes a topic."""

SLICE_S: Final = 0.002
"""How long a piece of work goes on in its turn. Nothing that it does between two yields should take
longer than that again, so that the loop is back within 5 ms."""


_GATHERED_AT_ONCE: Final = 32

_SORTED_AT_ONCE: Final = 2_000
"""Names; a millisecond."""


class Unfinished(Generic[_Result]):
    """Steps that took longer than their first slice: to be handed to `LongWork.finish`."""

    __slots__ = ("steps",)

    def __init__(self, steps: "Steps[_Result]") -> None:
        self.steps = steps


class SliceMeter(Protocol):
    """Is told when each slice of some work begins and ends."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class LongWork:
    """Runs steps in slices, one slice in each turn of its event loop."""

    def __init__(self, seconds: Callable[[], float], *, slice_s: float = SLICE_S) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._slice_s = slice_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_granting = False

    def begin(self, steps: "Steps[_Result]") -> "_Result | Unfinished[_Result]":
        """Run one slice now; the result if that is enough. Raises what the work raises."""
        ends_at = self._seconds() + self._slice_s
        try:
            while True:
                if next(steps) or self._seconds() >= ends_at:
                    return Unfinished(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result

    async def finish(
        self, unfinished: "Unfinished[_Result]", meter: "SliceMeter | None" = None
    ) -> _Result:
        """The result, after as many slices as it takes. Raises what the work raises.

        A caller that is cancelled meanwhile closes the work, so that it ends where it yielded.
        """
        try:
            while True:
                await self.next()
                if meter is not None:
                    meter.begin()
                result = self.begin(unfinished.steps)
                if meter is not None:
                    meter.end()
                if not isinstance(result, Unfinished):
                    return result
        finally:
            unfinished.steps.close()

    async def run(self, steps: "Steps[_Result]", meter: "SliceMeter | None" = None) -> _Result:
        """The result of `steps`, whose first slice is run at once."""
        result = self.begin(steps)
        return await self.finish(result, meter) if isinstance(result, Unfinished) else result

    async def next(self) -> None:
        """Wait until it is our turn: all others who wait now come first, one in each turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._is_granting:
            self._is_granting = True
            loop.call_soon(self._grant, loop)
        await turn

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._is_granting = bool(self._waiting)
        if self._is_granting:
            loop.call_soon(self._grant, loop)


def done_at_once(steps: "Steps[_Result]") -> _Result:
    """The result of steps that are known to be short, or of a test's."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: _Result = end.value
        return result


def collected(items: Iterable[_Item]) -> Steps[list[_Item]]:
    """`list(items)` in steps, of items that are made on the way."""
    found = []
    for item in items:
        found.append(item)
        yield
    return as_list(found)


def mapped(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Steps[list[_Result]]:
    """`[function(item) for item in items]`, in steps."""
    return collected(map(function, items))


def in_order(
    items: Iterable[_Item], key: Callable[[_Item], Any] | None = None
) -> Steps[list[_Item]]:
    """`sorted(items, key=key)` in steps: portions are sorted, then merged."""
    unsorted = [*items]
    if len(unsorted) <= _SORTED_AT_ONCE:
        return sorted(unsorted, key=key)  # type: ignore[type-var, arg-type]
    portions = []
    for portion in batched(unsorted, _SORTED_AT_ONCE):
        portions.append(sorted(portion, key=key))  # type: ignore[type-var, arg-type]
        yield
    return (yield from collected(heapq.merge(*portions, key=key)))  # type: ignore[arg-type]


async def in_portions(
    function: Callable[[Sequence[_Item]], Awaitable[Sequence[_Result]]],
    rows: Sequence[_Item],
    size: int = PORTION_ROWS,
) -> Sequence[_Result]:
    """`await function(rows)`, called with `size` rows at a time, for what has a result a row."""
    if len(rows) <= size:
        return await function(rows)
    results: list[_Result] = []
    for portion in batched(rows, size):
        results += await function(portion)
        # It may not have waited for anything.
        await asyncio.sleep(0)
    return as_list(results)


async def each(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """`[function(item) for item in items]`, PORTION_ROWS of them in each turn of the loop."""
    results: list[_Result] = []
    for portion in batched(items, PORTION_ROWS):
        if results:
            await asyncio.sleep(0)
        results += map(function, portion)
    return as_list(results)


def started_in_portions(
    function: Callable[[Sequence[_Item]], Coroutine[Any, Any, Sequence[_Result]]],
    rows: Sequence[_Item],
) -> Steps[Coroutine[Any, Any, Sequence[_Result]]]:
    """As `in_portions`, but all calls are begun, in order, when these steps are done.

    For writes: what begins after these steps comes after all of them, as after one call, and they
    wait for the disk or the store together.
    """
    if len(rows) <= PORTION_ROWS:
        return function(rows)
    calls = []
    for portion in batched(rows, PORTION_ROWS):
        calls.append(asyncio.ensure_future(function(portion)))
        yield TURN
    return _joined(calls)


async def _joined(calls: "Sequence[asyncio.Future[Sequence[_Result]]]") -> Sequence[_Result]:
    return as_list([result for results in await asyncio.gather(*calls) for result in results])


async def gathered(
    function: Callable[[_Item], Coroutine[Any, Any, _Result]], items: Sequence[_Item]
) -> list[_Result]:
    """`asyncio.gather` of `function` of each of `items`, but only some of them at a time."""
    results: list[_Result] = []
    for some in batched(items, _GATHERED_AT_ONCE):
        results += await asyncio.gather(*map(function, some))
    return as_list(results)


def batched(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """`items` in pieces of `size`, of which the last one may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))
