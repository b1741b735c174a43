"""Serves consumers from segments: row groups back into RecordBatches, only those that are needed.

The replica manager calls it with the extents that the coordinator found. One reader per broker; it
is an async context manager and owns the loads it starts.

    read(extent, offset) -> footer (one tail read, cached) -> row group with the offset
        -> one ranged read of exactly its bytes -> CRC32C, Parquet, RecordBatches in a worker thread
        -> cached encoded, because a consumer comes back to the same row group several times

What is cached is what is costly to make: the encoded batches of a row group, by bytes. A consumer
takes several fetches to get through one, and a client goes through many partitions in turn, which
a plain LRU answers by throwing out each row group just before it is asked for again. So a row group
whose last batch was served goes first, then the least recently used. Equal loads at the same time
are one load, and it goes on when the fetch that asked for it is cancelled, for the client will ask
again. `ahead` has the next row groups loaded for a reader that goes on, as long as that throws out
nothing that is still wanted.

Served batches equal the originals in offsets, producer fields, timestamps, keys, values and headers
(invariant R1). They are not compressed, and carry the leader epoch of this broker. Batches that
could not be decoded are served with the bytes that their producer sent (tiering/raw_batches.py).
Where the last batches of a segment are gone, a batch without records leads to the segment's end
(wal/records/hole_batches.py).

PyArrow is imported when the first segment is read; a broker that meets none never pays for it.

Failure cases: CorruptSegment naming the key for anything that does not check; what the range reader
raises passes through. Nothing that failed is cached.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from metadata.operations import SegmentExtent
from tiering.segment_format import SegmentFooter, footer_length, parse_footer
from wal.coordinates import ObjectKey
from wal.crc import Buffer
from wal.errors import CorruptBatch, CorruptObject, CorruptSegment
from wal.records.hole_batches import hole_batches
from wal.records.record_batch import EncodedBatch
from wal.settings import setting

_TAIL_GUESS_BYTES: Final = 64 << 10
"""Holds the footer of a segment of 128 MiB and its page index's end; a longer one costs a read."""

_LOADS_PER_DECODER: Final = 4
"""Row groups being read or waiting for a decoder: hides the store's latency, bounds memory."""

_AHEAD_MAX: Final = 4
"""Row groups that are loaded ahead of a reader: what the decoders take in while it is sent one."""

_ROW_GROUP_BYTES: Final = 4 << 20
"""What a row group usually is as batches, until one was decoded."""

_BATCH_OVERHEAD_BYTES: Final = 160
"""What a cached batch weighs besides its bytes."""


class RangeReader(Protocol):
    """Bytes [start, start + length) of an object, of which the whole length is known."""

    def __call__(
        self, key: ObjectKey, start: int, length: int, object_length: int, /
    ) -> Awaitable[Buffer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReaderSettings:
    """Section of the broker's configuration."""

    cache_bytes: int = setting(
        "segment.cache.max.bytes",
        128 << 20,
        minimum=0,
        maximum=1 << 40,
        why="smaller: consumers decode a row group (4 MiB) several times; each partition that is "
        "read at the same time wants two; larger: memory",
    )
    footer_entries: int = setting(
        "segment.footer.cache.capacity",
        1024,
        minimum=1,
        maximum=1 << 20,
        why="smaller: more tail reads of segments; larger: about 30 KiB of memory each",
    )
    decode_concurrency: int = setting(
        "segment.decode.concurrency",
        2,
        minimum=1,
        maximum=64,
        why="smaller: old data is served slower; larger: it takes cores and memory from the tail",
    )


class TimestampPosition(NamedTuple):
    """A record and its timestamp."""

    offset: int
    timestamp_ms: int


class SegmentReaderStatistics(NamedTuple):
    """Counters since the reader was made."""

    row_groups_decoded: int = 0
    row_group_hits: int = 0
    prefetches: int = 0


@dataclass(frozen=True, slots=True)
class _EncodedRowGroup:
    batches: Sequence[EncodedBatch]
    last_offsets: Sequence[int]
    weight_bytes: int


class SegmentReader:
    """Reads segments through `read_range`; enter it with `async with`."""

    def __init__(
        self,
        read_range: RangeReader,
        *,
        settings: SegmentReaderSettings | None = None,
        leader_epoch: int = 0,
    ) -> None:
        settings = settings or SegmentReaderSettings()
        self._read_range = read_range
        self._leader_epoch = leader_epoch
        self._decoders = asyncio.Semaphore(settings.decode_concurrency)
        self._loads = asyncio.Semaphore(settings.decode_concurrency * _LOADS_PER_DECODER)
        self._footers: _LoadingCache[ObjectKey, SegmentFooter] = _LoadingCache(
            settings.footer_entries, weigh=lambda _: 1
        )
        self._row_groups: _LoadingCache[tuple[ObjectKey, int], _EncodedRowGroup] = _LoadingCache(
            settings.cache_bytes, weigh=lambda group: group.weight_bytes
        )
        self._prefetches = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._row_groups.close()
        await self._footers.close()

    def statistics(self) -> SegmentReaderStatistics:
        return SegmentReaderStatistics(
            row_groups_decoded=self._row_groups.loads,
            row_group_hits=self._row_groups.hits,
            prefetches=self._prefetches,
        )

    async def read(self, extent: SegmentExtent, offset: int, max_bytes: int) -> list[EncodedBatch]:
        """Batches from the one that contains `offset` on, in order, from this segment alone.

        At least one, however large; then as many as stay within `max_bytes` together. The first may
        begin behind `offset`, where records are gone. Where no batch is left up to the end of the
        extent, one without records leads there. `offset` lies in the extent.
        Raises: CorruptSegment and what the range reader raises.
        """
        footer = await self._footer(extent)
        taken: list[EncodedBatch] = []
        left_bytes = max_bytes
        for index in range(_row_group_of(footer, offset), len(footer.row_groups)):
            group = await self._row_group(extent, footer, index)
            for batch in group.batches[bisect_left(group.last_offsets, offset) :]:
                if taken and len(batch.data) > left_bytes:
                    return taken
                taken.append(batch)
                left_bytes -= len(batch.data)
            if taken and taken[-1].last_offset >= footer.row_groups[index].last_offset:
                self._row_groups.finish((extent.object_key, index))
            if left_bytes <= 0 and taken:
                return taken
        gone_from = taken[-1].last_offset + 1 if taken else offset
        return taken + hole_batches(gone_from, extent.last_offset, leader_epoch=self._leader_epoch)

    def ahead(self, extent: SegmentExtent, offset: int, max_bytes: int) -> int | None:
        """Have about `max_bytes` of batches made before anybody asks for them, from `offset` on.

        Returns how many of these bytes the segment has, or None when some could not begin.
        """
        key = extent.object_key
        footer = self._footers.known(key)
        if footer is None:
            self._footers.prefetch(key, lambda: self._load_footer(extent))
            return None
        if max(offset, extent.base_offset) > footer.identity.last_offset:
            return None  # the footer is not this extent's: an error to who reads it
        group_bytes = self._row_groups.last_weight or _ROW_GROUP_BYTES
        first = _row_group_of(footer, max(offset, extent.base_offset))
        wanted = min(_AHEAD_MAX, max(1, max_bytes // group_bytes))
        for index in range(first, min(first + wanted, len(footer.row_groups))):
            if not self._load_ahead(extent, footer, index):
                return None
        left = max(len(footer.row_groups) - first, 0)
        return max_bytes if left > wanted else left * group_bytes

    def _load_ahead(self, extent: SegmentExtent, footer: SegmentFooter, index: int) -> bool:
        """Whether the row group is there or on its way."""
        key = (extent.object_key, index)
        if self._row_groups.has(key):
            return True
        # Loading ahead must not delay those who need data now.
        if self._loads.locked():
            return False
        is_begun = self._row_groups.prefetch(key, lambda: self._load(extent, footer, index))
        self._prefetches += is_begun
        return is_begun

    async def find_timestamp(
        self, extent: SegmentExtent, timestamp_ms: int
    ) -> TimestampPosition | None:
        """The first record, by offset, whose timestamp is not smaller; None if there is none.

        Raises: CorruptSegment and what the range reader raises.
        """
        footer = await self._footer(extent)
        for index, group in enumerate(footer.row_groups):
            if group.max_timestamp_ms >= timestamp_ms:
                return await self._search(extent, footer, index, timestamp_ms)
        return None

    async def max_timestamp(self, extent: SegmentExtent) -> TimestampPosition | None:
        """The first record, by offset, that carries the segment's largest timestamp.

        None when the segment has no record any more.
        Raises: CorruptSegment and what the range reader raises.
        """
        footer = await self._footer(extent)
        return await self.find_timestamp(extent, footer.max_timestamp_ms)

    async def _search(
        self, extent: SegmentExtent, footer: SegmentFooter, index: int, timestamp_ms: int
    ) -> TimestampPosition:
        group = footer.row_groups[index]
        async with self._loads:
            data = await self._read_exactly(extent, group.byte_offset, group.length_bytes)
            async with self._decoders:
                return await asyncio.to_thread(
                    _first_at_or_after, extent.object_key, footer, index, data, timestamp_ms
                )

    async def _footer(self, extent: SegmentExtent) -> SegmentFooter:
        footer = await self._footers.get(extent.object_key, lambda: self._load_footer(extent))
        identity = footer.identity
        if extent.base_offset < identity.base_offset or extent.last_offset > identity.last_offset:
            raise CorruptSegment(
                f"{extent.object_key}: holds offsets {identity.base_offset} .."
                f" {identity.last_offset}, not {extent.base_offset} .. {extent.last_offset}"
            )
        return footer

    async def _load_footer(self, extent: SegmentExtent) -> SegmentFooter:
        size = extent.object_bytes
        guess = min(_TAIL_GUESS_BYTES, size)
        tail = await self._read_exactly(extent, size - guess, guess)
        length = footer_length(extent.object_key, tail, size)
        if length > guess:
            tail = await self._read_exactly(extent, size - length, length)
        footer = bytes(tail[len(tail) - length :])
        # In a thread because the first one imports PyArrow, which takes half a second.
        return await asyncio.to_thread(parse_footer, extent.object_key, footer, size)

    async def _row_group(
        self, extent: SegmentExtent, footer: SegmentFooter, index: int
    ) -> _EncodedRowGroup:
        key = (extent.object_key, index)
        return await self._row_groups.get(key, lambda: self._load(extent, footer, index))

    async def _load(
        self, extent: SegmentExtent, footer: SegmentFooter, index: int
    ) -> _EncodedRowGroup:
        group = footer.row_groups[index]
        async with self._loads:
            data = await self._read_exactly(extent, group.byte_offset, group.length_bytes)
            async with self._decoders:
                return await asyncio.to_thread(
                    _encoded, extent.object_key, footer, index, data, self._leader_epoch
                )

    async def _read_exactly(self, extent: SegmentExtent, start: int, length: int) -> Buffer:
        try:
            data = await self._read_range(extent.object_key, start, length, extent.object_bytes)
        except CorruptObject as error:
            raise CorruptSegment(f"{extent.object_key}: {error}") from error
        if len(data) != length:
            raise CorruptSegment(
                f"{extent.object_key}: {len(data)} of {length} bytes at byte {start}"
            )
        return data


def _row_group_of(footer: SegmentFooter, offset: int) -> int:
    """The first row group with an offset of `offset` or more; their number if none has."""
    return bisect_left(footer.row_groups, offset, key=lambda group: group.last_offset)


# --- in a worker thread --------------------------------------------------------------------------


def _encoded(
    key: str,
    footer: SegmentFooter,
    index: int,
    data: Buffer,
    leader_epoch: int,
) -> _EncodedRowGroup:
    from tiering.raw_batches import served_batches
    from tiering.segment_columns import read_row_group

    rows = read_row_group(key, footer, index, data)
    try:
        batches = served_batches(key, rows, leader_epoch=leader_epoch)
    except CorruptBatch as error:
        raise CorruptSegment(f"{key}: row group {index}: {error}") from error
    return _EncodedRowGroup(
        batches=batches,
        last_offsets=[batch.last_offset for batch in batches],
        weight_bytes=sum(len(batch.data) + _BATCH_OVERHEAD_BYTES for batch in batches),
    )


def _first_at_or_after(
    key: str,
    footer: SegmentFooter,
    index: int,
    data: Buffer,
    timestamp_ms: int,
) -> TimestampPosition:
    import pyarrow.compute as pc

    from tiering.segment_columns import read_timestamps

    offsets, timestamps = read_timestamps(key, footer, index, data)
    row = pc.index(pc.greater_equal(timestamps, timestamp_ms), True).as_py()
    if row < 0:
        raise CorruptSegment(f"{key}: row group {index} has no timestamp from {timestamp_ms} on")
    return TimestampPosition(offsets[row].as_py(), timestamps[row].as_py())


# --- cache ---------------------------------------------------------------------------------------

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _LoadingCache(Generic[_Key, _Value]):
    """Values by key up to a capacity; equal loads at one time are one load.

    What is finished goes first, then the least recently used. A load is a task of this cache: it
    outlives a cancelled caller and ends at `close`.
    """

    def __init__(self, capacity: int, weigh: Callable[[_Value], int]) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._wanted: OrderedDict[_Key, _Value] = OrderedDict()
        self._finished: OrderedDict[_Key, _Value] = OrderedDict()
        self._wanted_weight = 0
        self._finished_weight = 0
        self.last_weight = 0
        self._loading: dict[_Key, asyncio.Task[_Value]] = {}
        self.loads = 0
        self.hits = 0

    async def get(self, key: _Key, load: Callable[[], Coroutine[None, None, _Value]]) -> _Value:
        if key in self._finished:
            # Somebody else comes the same way, a little later.
            value = self._finished.pop(key)
            self._finished_weight -= self._weigh(value)
            self._want(key, value)
        if key in self._wanted:
            self.hits += 1
            self._wanted.move_to_end(key)
            return self._wanted[key]
        return await asyncio.shield(self._load(key, load))

    def known(self, key: _Key) -> _Value | None:
        """What is there, without making it look recently used."""
        value = self._wanted.get(key)
        return self._finished.get(key) if value is None else value

    def has(self, key: _Key) -> bool:
        """Whether it is there or on its way."""
        return key in self._wanted or key in self._finished or key in self._loading

    def finish(self, key: _Key) -> None:
        """Nobody is known to want this value any more; it stays while there is room."""
        value = self._wanted.pop(key, None)
        if value is None:
            return
        weight = self._weigh(value)
        self._wanted_weight -= weight
        self._finished[key] = value
        self._finished_weight += weight

    def prefetch(self, key: _Key, load: Callable[[], Coroutine[None, None, _Value]]) -> bool:
        """Start loading if it is neither there nor on its way, and throws out nothing wanted.

        Says whether it did. Takes what is being loaded to be as large as what was loaded last.
        """
        if self.has(key):
            return False
        coming = (len(self._loading) + 1) * self.last_weight
        if self._wanted_weight + coming > self._capacity:
            return False
        self._load(key, load)
        return True

    async def close(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _load(
        self, key: _Key, load: Callable[[], Coroutine[None, None, _Value]]
    ) -> asyncio.Task[_Value]:
        task = self._loading.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, load), name=f"segment-load {key}")
            # Nobody may be waiting any more when it fails; one that waits gets the error himself.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._loading[key] = task
        return task

    async def _run(self, key: _Key, load: Callable[[], Coroutine[None, None, _Value]]) -> _Value:
        try:
            value = await load()
        finally:
            del self._loading[key]
        self.loads += 1
        self.last_weight = self._weigh(value)
        if self.last_weight <= self._capacity:
            self._want(key, value)
        return value

    def _want(self, key: _Key, value: _Value) -> None:
        self._wanted[key] = value
        self._wanted_weight += self._weigh(value)
        while self._wanted_weight + self._finished_weight > self._capacity:
            if self._finished:
                _, oldest = self._finished.popitem(last=False)
                self._finished_weight -= self._weigh(oldest)
            else:
                _, oldest = self._wanted.popitem(last=False)
                self._wanted_weight -= self._weigh(oldest)
