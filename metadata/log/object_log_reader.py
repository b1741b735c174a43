"""Reads one metadata partition's log in an object store: which objects it has, and what they hold.

This is the half of the object log (metadata/log/object_log.py, which tells how it all works) that
only reads. It knows nothing of leaders: it keeps an index of the objects, looks for new ones, and
reads them, believing an object only when its successor names its put-id or when it is the last.

In memory are some 150 bytes for each object and a small cache of recent ones. The contents of the
objects between the two ends are looked at when they are read, not before.

Two things can surprise it, and both end in listing again: an object of the index is gone (it was
pruned by the leader), or does not fit its neighbour.

A listing is no snapshot (`ObjectStore.list`): of objects that come and go while it is made it may
show a later one without an earlier one. So what it lacks proves nothing. A hole, an object that
names its successor and a listing that goes on behind that, is believed when the store was asked for
the missing object by name and has it not, and a listing begun after that lacks it still. Only then
the log begins above it. The end of the log is asked for by name likewise before it counts as lost,
and that nothing lies below the lowest object is looked up in a listing that begins after the one
that showed it. What such questions find is taken over all at once, or not at all: a look that fails
half-way leaves the index as it was.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from metadata.log.log_object import (
    HEADER_BYTES,
    NO_PUT_ID,
    BatchPlace,
    LogObject,
    LogObjectHeader,
    base_offset_of,
    decode_header,
    decode_object,
    log_key,
    log_prefix,
)
from metadata.log.recent_objects import RecentObjects
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptLog,
    CorruptObject,
    ObjectNotFound,
    ObjectStoreUnavailable,
    OutOfBounds,
    StorageFailed,
)
from wal.stores.object_store import ObjectStore

READ_OBJECTS_MAX: Final = 48
"""Objects that one read fetches, all at the same time: a replay waits once for all of them. Fewer
than the store has connections: others use it, too."""
ROUNDS_MAX: Final = 8
"""How often a read or a listing begins again because the log was pruned under its hands."""

_base_offset = attrgetter("base_offset")


class ListedObject(NamedTuple):
    """An object of the log, as a listing tells it."""

    base_offset: int
    size_bytes: int


@dataclass(slots=True, eq=False)
class _Entry:
    """What the index knows of one object."""

    base_offset: int
    size_bytes: int
    put_id: bytes | None = None
    """What the object must say it is: what its successor names, or what was read of the last one.
    None until its successor has been looked at."""


class _Break(NamedTuple):
    """Where two neighbours of the index do not follow each other."""

    base_offset: int
    """Of the lower one."""
    next_offset: int
    """Where the lower one ends."""
    follower_offset: int
    """Where the upper one begins."""

    @property
    def is_hole(self) -> bool:
        """Whether there may be an object between them that a listing missed."""
        return self.next_offset < self.follower_offset


class ObjectLogReader:
    """The objects of one metadata partition's log, as far as they were looked at."""

    def __init__(self, store: ObjectStore, partition: int, *, cache_bytes: int) -> None:
        self._store = store
        self._partition = partition
        self.order = asyncio.Lock()
        """Held while the end of the index moves: by an append, a refresh, a reload."""
        self._entries: list[_Entry] = []
        self._end_offset = 0
        self.recent: Final = RecentObjects(cache_bytes)

    # -- what is known --------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return log_prefix(self._partition)

    def key(self, base_offset: int) -> ObjectKey:
        return log_key(self._partition, base_offset)

    @property
    def start_offset(self) -> int:
        """The lowest offset that may be readable; reading finds out."""
        return self._entries[0].base_offset if self._entries else self._end_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def last_put_id(self) -> bytes:
        """The put-id of the last object, to which the next one is appended."""
        if not self._entries:
            return NO_PUT_ID
        put_id = self._entries[-1].put_id
        assert put_id is not None, "the last object is read when it is found"
        return put_id

    def base_offset_around(self, offset: int) -> int:
        """Base offset of the object that holds `offset`, of the last one for the end."""
        return self._entries[bisect_right(self._entries, offset, key=_base_offset) - 1].base_offset

    def out_of_bounds(self, offset: int) -> OutOfBounds:
        return OutOfBounds(
            f"offset {offset}: the metadata log holds {self.start_offset} .. {self._end_offset}"
        )

    def take(self, made: LogObject) -> None:
        """An object that this process has put, or was fed, is now the last one. Needs `order`."""
        header = made.header
        self._entries.append(_Entry(header.base_offset, len(made.data), header.put_id))
        self._end_offset = header.next_offset
        self.recent.remember(made)

    def drop_through(self, base_offset: int) -> None:
        """Forget the object at `base_offset` and all before it, but never the last."""
        count = bisect_right(self._entries, base_offset, key=_base_offset)
        del self._entries[: min(count, len(self._entries) - 1)]
        self.recent.forget_below(self.start_offset)

    # -- looking for what is there --------------------------------------------------------------

    async def refresh(self) -> None:
        """Take in what lies behind the index. Needs `order`. Raises: CorruptLog, StorageFailed."""
        if not self._entries:
            return await self.reload()
        for _ in range(ROUNDS_MAX):
            if await self._extend():
                return None
        raise self._unsettled()

    async def has_next(self) -> bool:
        """Whether an object begins where the last known one ends. Raises: StorageFailed."""
        return await self._exists(self._end_offset)

    async def reload(self) -> None:
        """Build the index anew. Needs `order`. Raises: CorruptLog, StorageFailed."""
        for _ in range(ROUNDS_MAX):
            if await self._load():
                return
        raise self._unsettled()

    def _unsettled(self) -> StorageFailed:
        return StorageFailed(f"{self.prefix}: {ROUNDS_MAX} listings contradict each other")

    async def _extend(self) -> bool:
        """Take in what lies behind the index. False: it changed meanwhile, look again."""
        last = self._entries[-1]
        listed = await self.list(after=last.base_offset)
        if not listed:
            return True
        first = listed[0]
        try:
            if first.base_offset > self._end_offset:
                if not await self._is_gone(self._end_offset):
                    return False
                # What followed our last object is pruned, so everything we know is.
                return await self._load()
            header = (
                await self.header(first.base_offset)
                if len(listed) > 1
                else (await self._fetch(first.base_offset)).header
            )
            if (first.base_offset, header.previous_put_id) != (self._end_offset, last.put_id):
                raise CorruptLog(
                    f"{self.key(first.base_offset)} does not follow"
                    f" {self.key(last.base_offset)}, which ends at {self._end_offset}"
                )
            entries, end_offset = await self._indexed(self._entries, listed)
        except ObjectNotFound:
            return False
        self._entries, self._end_offset = entries, end_offset
        return True

    async def _load(self) -> bool:
        """Build the index anew. False: the log changed meanwhile, look again."""
        listed = await self.list()
        if not listed:
            await self._refuse_lost_end()
            return not self._end_offset
        try:
            entries, end_offset = await self._indexed([], listed)
            if end_offset < self._end_offset:
                await self._refuse_lost_end()
                return False
            believed = await self._without_strays(entries)
        except ObjectNotFound:
            return False
        if not believed or not await self._begins_with(believed[0].base_offset, listed):
            return False
        self._entries, self._end_offset = believed, end_offset
        self.recent.forget_below(self.start_offset)
        return True

    async def _indexed(
        self, known: list[_Entry], listed: Sequence[ListedObject]
    ) -> tuple[list[_Entry], int]:
        """An index of `known` entries and `listed` objects behind them, and where the log ends.

        Reads the last object. Raises: ObjectNotFound (it is not the last any more), CorruptLog,
        StorageFailed.
        """
        last = (await self._fetch(listed[-1].base_offset)).header
        entries = known + [_Entry(*item) for item in listed]
        entries[-1].put_id = last.put_id
        if len(entries) > 1:
            entries[-2].put_id = last.previous_put_id
        return entries, last.next_offset

    async def _refuse_lost_end(self) -> None:
        """Raise CorruptLog if the end of the log that we know of is gone; a listing lacks it.

        Raises: CorruptLog, StorageFailed.
        """
        if not self._entries:
            return
        base_offset = self._entries[-1].base_offset
        if await self._exists(base_offset) or await self._listed_from(base_offset):
            return
        raise CorruptLog(
            f"{self.prefix}: nothing is left from {base_offset} on, and the log ended at"
            f" {self._end_offset} before"
        )

    async def _without_strays(self, entries: list[_Entry]) -> list[_Entry]:
        """`entries` without those at the lower end that are not followed by the next one.

        Whether the ones above hang together is found out when they are read. Empty: there may be an
        object between two listed ones, look again.
        """
        for position in range(len(entries) - 1):
            first, second = entries[position : position + 2]
            try:
                header, successor = await self._headers(first.base_offset, second.base_offset)
                if header.next_offset == second.base_offset:
                    if successor.previous_put_id == header.put_id:
                        first.put_id = header.put_id
                        return entries[position:]
                elif header.next_offset < second.base_offset and not await self._is_gone(
                    header.next_offset
                ):
                    return []
            except ObjectNotFound:
                pass  # pruned meanwhile
        return entries[-1:]

    async def _begins_with(self, base_offset: int, listed: Sequence[ListedObject]) -> bool:
        """Whether a listing begun now shows nothing below `base_offset` that `listed` did not.

        What is below the first object of a log was put before it: this listing shows it.
        """
        if base_offset == 0:
            return True
        return set(await self.list(before=base_offset)) <= set(listed)

    async def _is_gone(self, base_offset: int) -> bool:
        """Whether nothing lies at `base_offset`, which another object of the log names or implies.

        Asked by name, and then by a listing that begins after that. Raises: CorruptLog,
        StorageFailed.
        """
        if await self._exists(base_offset):
            return False
        listed = await self._listed_from(base_offset)
        return not listed or listed[0].base_offset != base_offset

    async def _listed_from(self, base_offset: int) -> Sequence[ListedObject]:
        """The first object at `base_offset` or above that a listing shows, if any."""
        return await self.list(after=base_offset - 1 if base_offset else None, limit=1)

    # -- reading --------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int) -> Sequence[tuple[LogObject, BatchPlace]]:
        """The batches from the one that holds `offset` on: at most `max_bytes`, at least one.

        Empty at the end. Raises: OutOfBounds, CorruptLog, StorageFailed.
        """
        disowned: int | None = None
        for _ in range(ROUNDS_MAX):
            if not self.start_offset <= offset <= self._end_offset:
                raise self.out_of_bounds(offset)
            if offset == self._end_offset:
                return []
            entries = self._entries_from(offset, max_bytes)
            try:
                objects, broken = await self._fetch_linked(entries)
            except ObjectNotFound:
                disowned = None
            else:
                if broken is None:
                    return _select(objects, offset, max_bytes)
                if broken.is_hole:
                    is_believed = await self._is_gone(broken.next_offset)
                else:
                    # Both were read. The index may be old, but not when it has just been made.
                    is_believed = disowned == broken.base_offset
                    disowned = broken.base_offset
                if is_believed:
                    self.drop_through(broken.base_offset)
                    continue
            async with self.order:
                await self.reload()
        raise StorageFailed(f"{self.prefix}: pruned faster than it can be read")

    def _entries_from(self, offset: int, max_bytes: int) -> Sequence[_Entry]:
        """The entry that holds `offset`, and those behind it as far as they are wanted."""
        first = bisect_right(self._entries, offset, key=_base_offset) - 1
        count = 1
        size = self._entries[first].size_bytes
        for entry in self._entries[first + 1 : first + READ_OBJECTS_MAX]:
            size += entry.size_bytes
            if size > max_bytes:
                break
            count += 1
        return self._entries[first : first + count]

    async def _fetch_linked(
        self, entries: Sequence[_Entry]
    ) -> tuple[Sequence[LogObject], _Break | None]:
        """The objects of neighbouring entries, and the last of them that its successor disowns.

        Raises: ObjectNotFound, CorruptLog, StorageFailed.
        """
        after = bisect_right(self._entries, entries[-1].base_offset, key=_base_offset)
        is_last = after == len(self._entries)
        ends = [entry.base_offset for entry in entries[1:]]
        ends.append(self._end_offset if is_last else self._entries[after].base_offset)
        last_put_id = entries[-1].put_id
        assert last_put_id is not None or not is_last, "the last object is read when it is found"
        try:
            async with asyncio.TaskGroup() as tasks:
                fetches = [tasks.create_task(self._fetch(entry.base_offset)) for entry in entries]
                if last_put_id is None:
                    last_put_id = (await self.header(ends[-1])).previous_put_id
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        objects = [fetch.result() for fetch in fetches]
        named = [*(item.header.previous_put_id for item in objects[1:]), last_put_id]
        broken = None
        for entry, item, end, put_id in zip(entries, objects, ends, named, strict=True):
            if (item.header.next_offset, item.header.put_id) == (end, put_id):
                entry.put_id = put_id
            else:
                self.recent.forget(entry.base_offset)
                broken = _Break(entry.base_offset, item.header.next_offset, end)
        return objects, broken

    # -- objects --------------------------------------------------------------------------------

    async def list(
        self, *, after: int | None = None, before: int | None = None, limit: int | None = None
    ) -> list[ListedObject]:
        """Objects with base offsets above `after` and below `before`, in order, at most `limit`.

        Raises: StorageFailed.
        """
        listed: list[ListedObject] = []
        listing = self._store.list(self.prefix, "" if after is None else self.key(after))
        try:
            async for stat in listing:
                base_offset = base_offset_of(self._partition, stat.key)
                if base_offset is None:
                    continue  # not a name that this log gives
                if before is not None and base_offset >= before:
                    break
                listed.append(ListedObject(base_offset, stat.length_bytes))
                if len(listed) == limit:
                    break
        except ObjectStoreUnavailable as error:
            raise StorageFailed(f"{self.prefix}: {error}") from error
        finally:
            if isinstance(listing, AsyncGenerator):
                await listing.aclose()
        return listed

    async def header(self, base_offset: int) -> LogObjectHeader:
        """Raises: ObjectNotFound, CorruptLog, StorageFailed."""
        recent = self.recent.get(base_offset)
        if recent is not None:
            return recent.header
        return await self.stored_header(base_offset)

    async def stored_header(self, base_offset: int) -> LogObjectHeader:
        """Of what the store has there now, whatever is remembered of it. Raises as `header`."""
        key = self.key(base_offset)
        data = await _get(key, lambda: self._store.get_range(key, 0, HEADER_BYTES))
        return decode_header(self._partition, key, data)

    async def _headers(
        self, base_offset: int, other_offset: int
    ) -> tuple[LogObjectHeader, LogObjectHeader]:
        """Two headers, asked for at the same time. Raises: as `header`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                one = tasks.create_task(self.header(base_offset))
                other = tasks.create_task(self.header(other_offset))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return one.result(), other.result()

    async def _exists(self, base_offset: int) -> bool:
        """Whether the store has an object there, whatever is remembered of it."""
        try:
            await self.stored_header(base_offset)
        except ObjectNotFound:
            return False
        return True

    async def _fetch(self, base_offset: int) -> LogObject:
        """Raises: ObjectNotFound, CorruptLog, StorageFailed."""
        recent = self.recent.used(base_offset)
        if recent is not None:
            return recent
        key = self.key(base_offset)
        found = decode_object(self._partition, key, await _get(key, lambda: self._store.get(key)))
        self.recent.remember(found)
        return found


async def _get(key: ObjectKey, read: Callable[[], Awaitable[bytes]]) -> bytes:
    try:
        return await read()
    except ObjectStoreUnavailable as error:
        raise StorageFailed(f"{key}: {error}") from error
    except CorruptObject as error:
        raise CorruptLog(f"{key}: {error}") from error


def _select(
    objects: Sequence[LogObject], offset: int, max_bytes: int
) -> Sequence[tuple[LogObject, BatchPlace]]:
    """The batches from the one that holds `offset` on that fit into `max_bytes`, at least one."""
    selected: list[tuple[LogObject, BatchPlace]] = []
    size = 0
    for found in objects:
        for place in found.batches:
            if place.next_offset <= offset:
                continue
            size += place.end - place.start
            if selected and size > max_bytes:
                return selected
            selected.append((found, place))
    return selected
