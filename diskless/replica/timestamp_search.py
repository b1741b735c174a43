"""Answers ListOffsets by time, exact to the record.

The coordinator knows the greatest timestamp of every extent, so it answers with the one extent in
which the record must be. This opens that extent: headers first, then the records of the single
batch that can hold it. Special timestamps (earliest, latest, ...) never come this far.

A record below the log start offset is deleted even where its batch is still stored, so an answer is
never below it.

What a look-up costs is paid once. Of each extent that was looked into a `TimeIndex` is kept: the
headers' timestamps, and of each batch that was opened the records at which its largest timestamp
rises, which answer for every time that anybody may ask for. Kept are `KNOWN_BYTES_MAX` of that, the
least recently used go first. Look-ups of one extent at one time share the work: the first one does
it, the others look at what it found.

Looking goes on in a few jobs at a time (`FairWorkers`: connections take turns), in threads of its
own, so that consumers at the tail do not wait for it. Each job holds one extent as it is stored;
what its batch inflates to is reserved from the `InflationBudget`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from diskless.loop.fair_workers import FairWorkers
from diskless.ports import ListOffsetsResult
from diskless.replica.batch_reader import BatchReader
from metadata.operations import MAX_TIMESTAMP, ListedOffset, SegmentExtent, WalExtent
from wal.columns import Int64s
from wal.coordinates import LOG_APPEND_TIME, ByteOffset, ObjectKey
from wal.errors import CorruptBatch, CorruptObject, DisklessError, StorageFailed, outcome_of
from wal.inflation_budget import InflationBudget
from wal.records.compression import inflated_bound
from wal.records.record_batch import HEADER_BYTES, parse_header
from wal.records.time_index import BatchPlace, FoundRecord, TimeIndex
from wal.worker_threads import WorkerThreads

_Result = TypeVar("_Result")

SEARCHES_MAX: Final = 2
"""Extents that are looked into at a time."""
KNOWN_BYTES_MAX: Final = 32 << 20
"""Time indexes that are kept."""
_INDEX_OVERHEAD_BYTES: Final = 1_000
BETWEEN_BROKERS: Final = -1
"""The client of look-ups that other brokers ask for."""


class SegmentTimestamps(Protocol):
    """What the search asks a segment reader."""

    async def find_timestamp(
        self, extent: SegmentExtent, timestamp_ms: int
    ) -> tuple[int, int] | None: ...

    async def max_timestamp(self, extent: SegmentExtent) -> tuple[int, int] | None: ...


class _Place(NamedTuple):
    """Which bytes an extent is; they never change."""

    object_key: ObjectKey
    byte_offset: ByteOffset
    length_bytes: int


class _Known(NamedTuple):
    times: TimeIndex
    weight_bytes: int


class TimestampSearch:
    """Turns the coordinator's answer into the client's; an async context manager."""

    def __init__(
        self, *, reader: BatchReader, segments: SegmentTimestamps, budget: InflationBudget
    ) -> None:
        self._reader = reader
        self._segments = segments
        self._budget = budget
        self._workers = FairWorkers("search", SEARCHES_MAX)
        self._threads = WorkerThreads("search", SEARCHES_MAX)
        self._known: OrderedDict[_Place, _Known] = OrderedDict()
        self._known_bytes = 0
        self._looking: dict[_Place, asyncio.Future[TimeIndex]] = {}
        self.batches_opened = 0

    async def __aenter__(self) -> Self:
        await self._workers.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.__aexit__()
        await self._threads.close()

    async def exact(
        self, timestamp: int, listed: ListedOffset, *, client: int = BETWEEN_BROKERS
    ) -> ListOffsetsResult:
        """The first record at or after `timestamp`, or the one MAX_TIMESTAMP asks for.

        `client` is the connection that asks.
        """
        if listed.error is not None or listed.extent is None:
            return ListOffsetsResult(listed.error, listed.offset, listed.timestamp_ms)
        try:
            found = await self._search(timestamp, listed.extent, client)
        except DisklessError as error:
            return ListOffsetsResult(error=error)
        if found is None:
            return ListOffsetsResult()
        offset, timestamp_ms = found
        return ListOffsetsResult(None, max(offset, listed.log_start_offset), timestamp_ms)

    async def _search(
        self, timestamp: int, extent: WalExtent | SegmentExtent, client: int
    ) -> tuple[int, int] | None:
        if isinstance(extent, SegmentExtent):
            if timestamp == MAX_TIMESTAMP:
                return await self._segments.max_timestamp(extent)
            return await self._segments.find_timestamp(extent, timestamp)
        if extent.timestamp_type == LOG_APPEND_TIME:
            # Every record of the extent carries the one append time.
            return FoundRecord(extent.base_offset, extent.log_append_time_ms)
        place = _Place(extent.object_key, extent.byte_offset, extent.length_bytes)
        index: TimeIndex | None = None
        if place in self._known:
            self._known.move_to_end(place)
            index = self._known[place].times
        while True:
            if index is not None:
                found = _find(index, extent, timestamp)
                if not isinstance(found, BatchPlace):
                    return found
            looking = self._looking.get(place)
            if looking is None:
                looking = self._workers.submit(
                    client, partial(self._look, place, extent, timestamp, index)
                )
                self._looking[place] = looking
                looking.add_done_callback(partial(self._looked, place))
            # It goes on when the client that asked first is gone: others wait for it, or will.
            await asyncio.wait([looking])
            if looking.cancelled():
                raise StorageFailed("the broker is shutting down")
            index = looking.result()

    def _looked(self, place: _Place, looking: "asyncio.Future[TimeIndex]") -> None:
        del self._looking[place]
        if not looking.cancelled():
            looking.exception()  # retrieved, or asyncio would report it as lost

    async def _look(
        self, place: _Place, extent: WalExtent, timestamp: int, index: TimeIndex | None
    ) -> TimeIndex:
        """The index of an extent, with what it takes to answer for `timestamp`."""
        buffer = await self._reader.read_extent(extent, self._threads)
        if index is None:
            try:
                index = await self._in_thread(
                    partial(
                        TimeIndex.of,
                        buffer,
                        base_offset=int(extent.base_offset),
                        last_offset=int(extent.last_offset),
                    )
                )
            except CorruptBatch as error:
                raise CorruptObject(
                    f"{extent.object_key}, bytes {extent.byte_offset} to "
                    f"{extent.byte_offset + extent.length_bytes}: {error}"
                ) from None
        while isinstance(found := _find(index, extent, timestamp), BatchPlace):
            offsets, timestamps = await self._opened(extent, buffer, found)
            index.learn(found.number, offsets, timestamps)
        self._remember(place, index)
        return index

    async def _opened(
        self, extent: WalExtent, buffer: memoryview, place: BatchPlace
    ) -> tuple[Int64s, Int64s]:
        """The records of one batch whose timestamp is larger than those before them."""
        batch = _BatchInExtent(extent, buffer, place)
        memory_bytes = await self._in_thread(batch.measure)
        async with self._budget.reserve(memory_bytes):
            self.batches_opened += 1
            return await self._in_thread(batch.rising_timestamps)

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        outcome = await self._threads.run_to_end(partial(outcome_of, work))
        if isinstance(outcome, DisklessError):
            raise outcome
        return outcome

    def _remember(self, place: _Place, index: TimeIndex) -> None:
        known = self._known
        if place in known:
            self._known_bytes -= known.pop(place).weight_bytes
        # Weighed anew: an index grows with every batch of its extent that is opened.
        weight_bytes = index.size_bytes + _INDEX_OVERHEAD_BYTES
        known[place] = _Known(index, weight_bytes)
        self._known_bytes += weight_bytes
        while self._known_bytes > KNOWN_BYTES_MAX:
            self._known_bytes -= known.popitem(last=False)[1].weight_bytes


class _BatchInExtent:
    """One batch to be looked into, in a thread: `measure`, then `rising_timestamps`."""

    def __init__(self, extent: WalExtent, buffer: memoryview, place: BatchPlace) -> None:
        self._data = memoryview(buffer)[place.byte_offset : place.byte_offset + place.length_bytes]
        self._place = place
        self._timestamp_type = extent.timestamp_type
        self._bound = 0

    def measure(self) -> int:
        """Bytes of memory that opening takes at most."""
        # Imported here: Arrow takes longer to load than the rest of the broker.
        from wal.records.record_columns import INFLATED_BYTES_MAX
        from wal.records.record_scan import scan_bytes

        header = parse_header(self._data)
        self._bound = inflated_bound(
            header.codec, self._data[HEADER_BYTES:], limit_bytes=INFLATED_BYTES_MAX
        )
        return scan_bytes(self._bound, header.record_count)

    def rising_timestamps(self) -> tuple[Int64s, Int64s]:
        """Raises: CorruptBatch, RecordTooLarge."""
        from wal.records.record_columns import LocatedBatch
        from wal.records.record_scan import open_batch, rising_timestamps

        batch = LocatedBatch(self._data, self._place.base_offset, self._timestamp_type, -1)
        return rising_timestamps(open_batch(batch, inflated_bytes_max=self._bound))


def _find(index: TimeIndex, extent: WalExtent, timestamp: int) -> FoundRecord | BatchPlace | None:
    if timestamp == MAX_TIMESTAMP:
        return index.largest(extent.max_timestamp_ms)
    return index.first_at_or_after(timestamp)
