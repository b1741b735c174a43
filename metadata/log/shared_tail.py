"""How objects of a metadata log get from its leader to a follower without the store.

The leader gives what it has in memory (`after`): only objects that the store has, since nothing
else enters its index. The follower takes an object (`take`) only where the chain of put-ids links:
it begins where the follower's index ends, and it was appended to the very object that is the last
there. Whatever else it is given it leaves alone, and reads the store.

The store stays the judge: `judge` looks whether the last object is there under the put-id that it
was fed with. Together with the chain that holds for all before it.

Failure cases: objects that are damaged, or do not link, are refused and change nothing; a store
that has something else than was fed is CorruptLog, after which a start reads the store alone.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from metadata.feed_operations import FED_BYTES_MAX, FED_OBJECTS_MAX
from metadata.log.log_object import decode_object
from metadata.log.object_log_reader import ObjectLogReader
from wal.clock import Clock
from wal.errors import CorruptLog, NotCoordinator, ObjectNotFound

_Result = TypeVar("_Result")


class Run(Protocol):
    """Runs a job to its end, with the end of the index to itself. Raises NotCoordinator, closed."""

    async def __call__(self, job: Callable[[], Awaitable[_Result]]) -> _Result: ...


class SharedTail:
    """The end of one metadata log, as it is given to others and taken from them."""

    def __init__(
        self, reader: ObjectLogReader, partition: int, *, run: Run, clock: Clock, lease_ms: int
    ) -> None:
        self._reader = reader
        self._partition = partition
        self._run = run
        self._clock = clock
        self._lease_s = lease_ms / 1000
        self._trying_since: float | None = None
        """When the first attempt to append began that none has succeeded after."""
        self.is_judged = True
        """Whether the store was seen to have what was taken last."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def end_offset(self) -> int:
        return self._reader.end_offset

    @property
    def last_put_id(self) -> bytes:
        """Of the object that ends at `end_offset`."""
        return self._reader.last_put_id

    # -- at the leader --------------------------------------------------------------------------

    @property
    def is_stalled(self) -> bool:
        """Whether nothing that was to be appended for longer than a lease has been."""
        since = self._trying_since
        return since is not None and self._clock.monotonic() - since > self._lease_s

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when an append of this process has become part of the log."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def trying(self) -> None:
        """An append begins."""
        if self._trying_since is None:
            self._trying_since = self._clock.monotonic()

    def appended(self) -> None:
        """It has become part of the log."""
        self._trying_since = None
        for listener in tuple(self._listeners):
            listener()

    def after(self, offset: int, put_id: bytes) -> Sequence[bytes]:
        """Stored objects from `offset` on, as far as they are in memory and fit into one answer.

        `put_id` is that of the object before. Empty when the next one is not in memory, or too
        large. Raises: NotCoordinator when whoever asks has read what this log has not.
        """
        reader = self._reader
        if offset > reader.end_offset or (
            offset == reader.end_offset and put_id != reader.last_put_id
        ):
            raise NotCoordinator(
                f"{reader.prefix} ends at {reader.end_offset} here, not as told at {offset}"
            )
        found: list[bytes] = []
        size = 0
        while offset < reader.end_offset and len(found) < FED_OBJECTS_MAX:
            item = reader.recent.get(offset)
            if item is None:
                break
            if item.header.previous_put_id != put_id:
                raise NotCoordinator(f"{reader.key(offset)} does not follow what was told")
            size += len(item.data)
            if size > FED_BYTES_MAX:
                break
            found.append(item.data)
            offset, put_id = item.header.next_offset, item.header.put_id
        return found

    # -- at a follower --------------------------------------------------------------------------

    async def take(self, offset: int, objects: Sequence[bytes]) -> bool:
        """Take in `objects`, which were asked for from `offset` on; False if one does not link.

        Takes nothing when the end has moved meanwhile. Raises: NotCoordinator (closed).
        """

        async def take() -> bool:
            if offset != self._reader.end_offset:
                return True
            return all(map(self._take, objects))

        return await self._run(take)

    def _take(self, data: bytes) -> bool:
        reader = self._reader
        try:
            found = decode_object(self._partition, reader.key(reader.end_offset), data)
        except CorruptLog:
            return False
        if found.header.previous_put_id != reader.last_put_id:
            return False
        reader.take(found)
        self.is_judged = False
        return True

    async def judge(self) -> bool:
        """Compare with the store; whether it has more. One GET, and one more after being fed.

        Raises: NotCoordinator (closed), CorruptLog (the store has something else), StorageFailed.
        """

        async def judge() -> bool:
            if not self.is_judged:
                await self._refuse_what_is_not_stored()
                self.is_judged = True
            return await self._reader.has_next()

        return await self._run(judge)

    async def _refuse_what_is_not_stored(self) -> None:
        reader = self._reader
        base_offset = reader.base_offset_around(reader.end_offset)
        try:
            header = await reader.stored_header(base_offset)
        except ObjectNotFound:
            # Pruned, and then something lies behind it; or never there.
            await reader.reload()
        else:
            if header.put_id != reader.last_put_id:
                raise CorruptLog(f"{reader.key(base_offset)} is another object than was fed")
