"""Reads a metadata log ahead of its applier, so that the store and SQLite work side by side.

    async with aclosing(read_ahead(log, offset, REPLAY_BYTES)) as replayed:
        async for batches in replayed:
            ...                                # meanwhile what follows is being read

One read is under way while the last one is applied, so what is in memory is bounded by two of them.
A replay of a log in a slow store would otherwise wait for the store, then for SQLite, in turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from metadata.log.log import MetadataLog, MetadataRecordBatch


async def read_ahead(
    log: MetadataLog, offset: int, max_bytes: int
) -> AsyncGenerator[Sequence[MetadataRecordBatch], None]:
    """Yields what `log` has from `offset` on, about `max_bytes` at a time, up to its known end.

    Close the generator: it has a task. Raises: as `MetadataLog.read`.
    """
    reading: asyncio.Task[Sequence[MetadataRecordBatch]] | None = None

    def read_from(start: int) -> asyncio.Task[Sequence[MetadataRecordBatch]]:
        return asyncio.create_task(_read(log, start, max_bytes), name="metadata-read-ahead")

    try:
        while offset < log.end_offset:
            if reading is None:
                reading = read_from(offset)
            batches = await reading
            offset = batches[-1].next_offset
            reading = read_from(offset) if offset < log.end_offset else None
            yield batches
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # the reader that stopped here does not care


async def _read(log: MetadataLog, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
    return await log.read(offset, max_bytes)
