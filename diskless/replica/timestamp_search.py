"""ListOffsets by time, exact to the record.

The coordinator knows the greatest timestamp of every extent, so it answers with the one extent in
which the record must be. This opens that extent: headers first, then the records of the single
batch that can hold it. Special timestamps (earliest, latest, ...) never come this far.

A record below the log start offset is deleted even where its batch is still stored, so an answer is
never below it.
"""

import asyncio
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from diskless.ports import ListOffsetsResult
from diskless.replica.batch_reader import BatchReader
from metadata.operations import MAX_TIMESTAMP, ListedOffset, SegmentExtent, WalExtent
from wal.coordinates import LOG_APPEND_TIME
from wal.errors import CorruptObject, DisklessError
from wal.records.record_batch import iterate_headers


class FoundRecord(NamedTuple):
    """A record's offset and timestamp."""

    offset: int
    timestamp_ms: int


class SegmentTimestamps(Protocol):
    """What is asked of the segment reader."""

    async def find_timestamp(
        self, extent: SegmentExtent, timestamp_ms: int
    ) -> tuple[int, int] | None: ...

    async def max_timestamp(self, extent: SegmentExtent) -> tuple[int, int] | None: ...


class TimestampSearch:
    """Turns the coordinator's answer into the client's."""

    def __init__(
        self, *, reader: BatchReader, segments: SegmentTimestamps, executor: Executor
    ) -> None:
        self._reader = reader
        self._segments = segments
        self._executor = executor

    async def exact(self, timestamp: int, listed: ListedOffset) -> ListOffsetsResult:
        """The first record at or after `timestamp`, or the one MAX_TIMESTAMP asks for."""
        if listed.error is not None or listed.extent is None:
            return ListOffsetsResult(listed.error, listed.offset, listed.timestamp_ms)
        try:
            found = await self._search(timestamp, listed.extent)
        except DisklessError as error:
            return ListOffsetsResult(error=error)
        if found is None:
            return ListOffsetsResult()
        offset, timestamp_ms = found
        return ListOffsetsResult(None, max(offset, listed.log_start_offset), timestamp_ms)

    async def _search(
        self, timestamp: int, extent: WalExtent | SegmentExtent
    ) -> tuple[int, int] | None:
        if isinstance(extent, SegmentExtent):
            if timestamp == MAX_TIMESTAMP:
                return await self._segments.max_timestamp(extent)
            return await self._segments.find_timestamp(extent, timestamp)
        if extent.timestamp_type == LOG_APPEND_TIME:
            # Every record of the extent carries the one append time.
            return FoundRecord(extent.base_offset, extent.log_append_time_ms)
        buffer = await self._reader.read_extent(extent)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, _search_batches, extent, buffer, timestamp
        )


def _search_batches(extent: WalExtent, buffer: bytearray, timestamp: int) -> FoundRecord | None:
    """Runs in a thread: NumPy is imported by the first look-up, not by the broker's start."""
    from wal.records.record_columns import (
        LocatedBatch,
        first_record_at_or_after,
        max_timestamp_record,
    )

    base_offset = int(extent.base_offset)
    for position, header in iterate_headers(buffer):
        wanted = extent.max_timestamp_ms if timestamp == MAX_TIMESTAMP else timestamp
        if header.max_timestamp_ms >= wanted:
            data = memoryview(buffer)[position : position + header.length_bytes]
            batch = LocatedBatch(data, base_offset, extent.timestamp_type, -1)
            if timestamp == MAX_TIMESTAMP:
                found = max_timestamp_record(batch)
            else:
                found = first_record_at_or_after(batch, timestamp)
            if found is not None:
                return FoundRecord(found.offset, found.timestamp_ms)
            # The header's maximum is the producer's word; a later batch may hold the record.
        base_offset += header.last_offset_delta + 1
    if base_offset != extent.last_offset + 1:
        raise CorruptObject(
            f"{extent.object_key}, bytes {extent.byte_offset} to "
            f"{extent.byte_offset + extent.length_bytes}: the batches end at {base_offset - 1}, "
            f"not at {extent.last_offset}"
        )
    return None
